# SPDX-License-Identifier: Apache-2.0
"""A stored run as frames: ``harness.load_run("results/latest").cells``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from harness.errors import WireError
from harness.frame.cells import to_frame
from harness.frame.files import CELLS
from harness.frame.pivots import pivot
from harness.frame.read import read_frame
from harness.frame.steps import to_steps
from harness.records import Verdict
from harness.stored import StoredRun, read_run


def load_run(path: str | Path = "results/latest") -> LoadedRun:
    """The run in the folder ``path``, whole or not.

    Verdicts are those that the run stored; a cell without one whose legs have ended is judged now.

    Raises:
        UsageError: no such folder, or one that holds no run.
        WireError: the run was written with another schema, or its plan is not whole.
    """
    return LoadedRun(run=read_run(Path(path)))


@dataclass(frozen=True)
class LoadedRun:
    """A stored run. Every column has a nullable type: what nobody knows is missing, never zero.

    Attributes:
        run: records of the run as they lie in its folder (plan, verdicts, observations, ``env.json``).

    Columns of ``cells``, a row per cell (``frame.csv``):
        scenario, cell: names; together unique in a run.
        layout, backend, batch_invariant, block_size: asked for; block size in tokens.
        connector, prompt_set, restore, differs, seed, transfer, load, fault: further axes, missing where the scenario
            does not have them.
        reference: what the restore is to be compared with, ``recompute`` or ``local_hit``.
        held_against: what it was compared with: ``recompute``, too, where another configuration's store gave nothing.
        restores: False where the connector gives nothing back by design.
        level: ``engine``, or ``unit`` for a store's planner and worker without one.
        sharing: of a store that another configuration filled: what it may give, and what it gave.
        outcome, verdict, expected_outcome: what became of the cell; ``expected`` or ``fail`` by the scenario's
            expectation; what the scenario expects.
        findings: kinds in judging order, each once, with ``;`` between them (docs/findings.md).
        message: the first finding's sentence.
        external_tokens, expected_external_tokens: prompt tokens of the restore that came from the store.
        local_tokens: prompt tokens of the restore that the local prefix cache served; 0 where the cell passes.
        prompts_compared, tokens_compared, tokens_equal, logprobs_compared, logprobs_equal: sizes of the comparison.
        max_logprob_difference: nat, over all compared candidates.
        truth_tokens, truth_tokens_equal, truth_near_ties, truth_logprobs, truth_largest, truth_median, truth_limit,
            truth_median_limit: the recompute against the ground truth in float32, nat; missing without one.
        same_dtype_truth_largest, same_dtype_truth_median: against the ground truth in the engine's dtype, nat.
        noise_largest, noise_median: the ground truth in the engine's dtype against that in float32, nat.
        blocks_compared, blocks_equal, expected_blocks: restored KV blocks with a digest on both sides.
        resolved_layout, resolved_backend, resolved_batch_invariant, resolved_dtype, resolved_connector, threads: as
            the subject's worker reports them.
        reset_ok, zeroed_bytes: before the restore.
        loaded_bytes, delivered_tokens, stored_bytes: by the connector's own counters, in restore and in populate.
        model, model_source, model_digest: alias, where it came from, digest of config and weights.
        digests: whether KV digests are taken.
        prompts, decode, store, platform: what two runs must share to be comparable.
        oracle_leg, subject_leg: digests; the legs' files are ``legs/<digest>.json``.
        overlay, overlay_files, store_runtime: source of UMBP's connector and the runtime that served it.
        duration_s, oracle_s, subject_s: seconds of both legs and of each, also where another cell shares them.
        attempts: starts of the leg that needed most of them; more than 1 where its device was busy at first.
        peak_mib: largest resident memory of a leg's process with its children, MiB.
        vllm, torch, transformers: versions as the legs' processes report them.

    Columns of ``steps``, a row per cell, leg, phase, prompt and generated token (``steps.csv``):
        scenario, cell, role, phase: which leg's answer; role is ``oracle`` or ``subject``.
        prompt, step: counted from 0.
        token, logprob: of the selected token; logprob in nat.
        reference: leg and phase that this answer is held against, e.g. ``oracle recompute``; missing for those that
            are held against nothing.
        reference_token, reference_logprob: of the reference at the same step.
        difference: logprob less reference's, nat, where both selected the same token.
        largest_difference: largest absolute difference over the selected token and the candidates of both sides, nat.
        bitwise_equal: the token, its logprob and every candidate are the same bits.
        same_context: False behind the first other token, where nothing is compared.
    """

    run: StoredRun

    @cached_property
    def cells(self) -> pd.DataFrame:
        """A row per cell that has a verdict, in the plan's order."""
        frame = self.run.path / f"{CELLS}.csv"
        if not self.run.plan.cells and frame.exists():
            # An accepted run: its legs were not kept.
            try:
                return read_frame(frame)
            except ValueError as error:
                raise WireError(f"{frame}: not a frame of a run: {error}") from None
        platform = self.run.facts.get("platform")
        return to_frame(self.run.plan, self._verdicts(), self.run.observations, platform=platform)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """A row per generated token of every leg that answered; empty where the legs were not kept."""
        return to_steps(self.run.plan, self.run.observations)

    @property
    def missing(self) -> tuple[str, ...]:
        """Planned cells that have no verdict, as ``scenario::cell``."""
        return tuple(name for name in self.run.unanswered if name not in self.run.verdicts)

    @property
    def gaps(self) -> tuple[str, ...]:
        """One sentence for each thing that a whole run has and this one has not."""
        return self.run.gaps

    def pivot(
        self, index: str | Sequence[str] = "layout", columns: str | Sequence[str] = ("batch_invariant", "backend")
    ) -> pd.DataFrame:
        """Outcome words over columns of ``cells``: ``harness.pivot`` of it."""
        return pivot(self.cells, index=index, columns=columns)

    def _verdicts(self) -> tuple[Verdict, ...]:
        stored = self.run.verdicts
        # Judging takes longer than reading; a run that came to its end has all of its verdicts.
        whole = all(cell.name in stored for cell in self.run.plan.cells)
        now = {} if whole else {one.name: one for one in self.run.judged}
        return tuple({**now, **stored}.values())

    def __repr__(self) -> str:
        not_whole = f", {len(self.missing)} missing" if self.missing else ""
        return f"<run {self.run.path}: {len(self.cells)} cells{not_whole}>"
