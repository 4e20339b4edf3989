# kvparity: `make matrix` and `make test` do all the set-up themselves; `make help` lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# Python that runs the set-up. Where it has a vllm already, that one is used.
PYTHON ?= python3
# Cells whose name matches this expression (pytest -k), e.g. K='LHBNC and bi1'.
K ?=
# Cells side by side (pytest-xdist workers); empty: as many as cores and memory, or GPUs, allow.
N ?=
# Model directory instead of the scenario's own.
MODEL ?=
# Run folder to resume, or to make under this name.
RUN ?=
# Part of the matrix that this machine runs, e.g. 2/5; no leg runs in two parts.
SHARD ?=
# Scenario files; empty: the platform's matrix.
SCENARIOS ?=
# Further pytest arguments.
ARGS ?=

python = $$($(PYTHON) harness/bootstrap.py)
connector_scenarios = $(wildcard scenarios/connectors*.yaml scenarios/sharing*.yaml) scenarios/found
test_python = $$($(PYTHON) harness/bootstrap.py --tests)

.PHONY: help
help: ## List the targets and variables
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  variables: K='LHBNC and bi1'  N=2  MODEL=dir  RUN=dir  SCENARIOS='scenarios/smoke.yaml'  ARGS='-x'  PYTHON=python3.11"

.PHONY: setup
setup: ## Make the Python environment and print its interpreter
	@$(PYTHON) harness/bootstrap.py

.PHONY: matrix
matrix: ## Run the matrix of this platform on real vLLM engines and report pass/fail per layout-backend pair
	@python="$(python)" && exec "$$python" -m harness matrix $(if $(N),--workers $(N)) $(if $(MODEL),--model '$(MODEL)') \
	  $(if $(RUN),--run '$(RUN)') $(if $(SHARD),--shard $(SHARD)) $(if $(K),-k '$(K)') $(SCENARIOS) $(if $(ARGS),-- $(ARGS))

.PHONY: merge
merge: ## Make one run folder of a matrix's shards: OUT=folder RUNS='folders made with SHARD='
	@if [ -z '$(OUT)' ] || [ -z '$(RUNS)' ]; then \
	  echo "merge: give OUT=, a folder to make, and RUNS=, the run folders made with SHARD=" >&2; exit 4; fi
	@python="$(python)" && exec "$$python" -m harness merge '$(OUT)' $(RUNS)

.PHONY: compare
compare: ## Say what changed from BASE=folder to RUN=folder (default: latest); ARGS='--markdown FILE' or '--json'
	@if [ -z '$(BASE)' ]; then \
	  echo "compare: give BASE=, a run folder or results/reference/PLATFORM, and RUN= (default: results/latest)" >&2; \
	  exit 4; fi
	@python="$(python)" && exec "$$python" -m harness compare '$(BASE)' $(if $(RUN),'$(RUN)') $(ARGS)

.PHONY: history
history: ## Since when each cell ends as it does, over all run folders in DIR (default: results)
	@python="$(python)" && exec "$$python" -m harness history '$(or $(DIR),results)' $(ARGS)

.PHONY: accept
accept: ## Make RUN=folder the run that later ones are compared with; refuses one that is not green and whole
	@if [ -z '$(RUN)' ]; then echo "accept: give RUN=, a run folder; results/latest is the newest" >&2; exit 4; fi
	@python="$(python)" && exec "$$python" -m harness accept '$(RUN)'

.PHONY: nightly
nightly: ## Matrix (K, SCENARIOS), controls (FAULTS) and what changed since the last good run (GOOD); its code: results/nightly/exit
	@rm -f results/nightly/exit; python="$(python)" && exec "$$python" -m harness nightly $(if $(GOOD),--good '$(GOOD)') \
	  $(if $(FAULTS),--faults '$(FAULTS)') $(if $(N),--workers $(N)) $(if $(MODEL),--model '$(MODEL)') $(if $(K),-k '$(K)') \
	  $(SCENARIOS) $(if $(ARGS),-- $(ARGS))

.PHONY: ab
ab: ## The same cells against two versions of UMBP's source: BASE=overlay CAND=overlay
	@if [ -z '$(BASE)' ] || [ -z '$(CAND)' ]; then \
	  echo "ab: give BASE= and CAND=, each a vLLM checkout, git:REPO@REF or wheel:vllm==VERSION" >&2; exit 4; fi
	@python="$(python)" && exec "$$python" -m harness ab '$(BASE)' '$(CAND)' $(SCENARIOS) $(if $(N),--workers $(N)) \
	  $(if $(RUN),--run '$(RUN)') $(if $(K),-k '$(K)') $(if $(ARGS),-- $(ARGS))

.PHONY: smoke
smoke: ## The same way through with the tiny model: 18 cells
	@$(MAKE) --no-print-directory matrix SCENARIOS=scenarios/smoke.yaml

.PHONY: controls
controls: ## Prove the detector: run every planted fault, fail on one that is not caught for the right reason
	@python="$(python)" && "$$python" -m harness controls $(if $(N),--workers $(N)) $(if $(K),-k '$(K)') $(ARGS)

.PHONY: connectors
connectors: ## vLLM's own connectors, with their servers, against real engines: which is right in which layout
	@python="$$($(PYTHON) harness/bootstrap.py --connectors)" && exec "$$python" -m harness matrix $(if $(N),--workers $(N)) \
	  $(if $(RUN),--run '$(RUN)') $(if $(K),-k '$(K)') $(if $(filter command line,$(origin SCENARIOS)),$(SCENARIOS),$(connector_scenarios)) \
	  $(if $(ARGS),-- $(ARGS))

.PHONY: clean-cells
clean-cells: ## False alarms: 112 cells with nothing wrong, every one of which must pass
	@$(MAKE) --no-print-directory matrix SCENARIOS="scenarios/clean.yaml scenarios/clean_backends.yaml"

.PHONY: plan
plan: ## Show what SCENARIOS cover on PLATFORM (rocm, cuda, cpu), as vLLM's own classes say; runs nothing
	@python="$(python)" && exec "$$python" -m harness plan $(if $(PLATFORM),--platform $(PLATFORM)) \
	  $(or $(SCENARIOS),$(if $(filter rocm cuda,$(PLATFORM)),scenarios/$(PLATFORM).yaml,scenarios/matrix.yaml)) $(ARGS)

.PHONY: doctor
doctor: ## Say what this machine can run, and why not the rest
	@python="$(python)" && exec "$$python" -m harness doctor $(ARGS)

.PHONY: test
test: ## Run the tests (real engines with the tiny model included, `slow` ones not)
	@python="$(test_python)" && "$$python" -m pytest tests -m 'not slow' -n $(or $(N),2) --dist worksteal $(if $(K),-k '$(K)') $(ARGS)

.PHONY: test-slow
test-slow: ## Run the tests that need the Qwen3-0.6B shape or minutes
	@python="$(test_python)" && "$$python" -m pytest tests -m slow $(if $(N),-n $(N)) $(if $(K),-k '$(K)') $(ARGS)

.PHONY: bench
bench: ## Measure the embedded store beside memcpy, or with ARGS='--matrix' a whole run; ARGS='--json' too
	@python="$(test_python)" && "$$python" -m harness bench $(ARGS)

.PHONY: lint
lint: ## ruff and import-linter
	@python="$(test_python)" && "$$python" -m ruff check . && "$$(dirname "$$python")/lint-imports"

.PHONY: clean
clean: ## Remove run folders and the virtual environment
	rm -rf .venv results/2* results/latest results/nightly
