# SPDX-License-Identifier: Apache-2.0
"""Where a run's time went: vLLM's import, load and generate, or the harness; read from the observations of its legs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.records import Observation

#: Stages of a leg that are vLLM's own, beside the generation of its phases.
VLLM_STAGES = ("import", "load")

#: How the stages end in which an unrelated prompt is generated (``harness.leg``).
SHIFT = ".shift"


@dataclass(frozen=True, kw_only=True)
class Span:
    """One leg's time, in seconds.

    Attributes:
        end: when its observation was written, on the clock of the run.
        total: its whole duration.
        vllm: import, load and generate within it, the unrelated prompts that shift the free blocks included.
        fillers: generating those alone.
        digests: reading and digesting KV blocks within it.
    """

    end: float
    total: float
    vllm: float
    fillers: float
    digests: float

    @property
    def start(self) -> float:
        return self.end - self.total


def span(observation: Observation, end: float) -> Span:
    """The span of a leg whose observation was written at ``end``."""
    seconds = observation.seconds
    fillers = sum(value for stage, value in seconds.items() if stage.endswith(SHIFT))
    own = sum(seconds.get(stage, 0.0) for stage in VLLM_STAGES)
    return Span(
        end=end,
        total=sum(seconds.values()),
        vllm=own + fillers + sum(one.seconds for one in observation.phases),
        fillers=fillers,
        digests=sum(one.digest_seconds for one in observation.phases),
    )


def lanes(spans: Iterable[Span], workers: int) -> list[list[Span]]:
    """The spans as ``workers`` lanes ran them: each goes to the lane that has been free for longest."""
    done: list[list[Span]] = [[] for _ in range(workers)]
    for one in sorted(spans, key=lambda span: span.start):
        min(done, key=lambda lane: lane[-1].end if lane else float("-inf")).append(one)
    return done


def idle_seconds(spans: Sequence[Span], workers: int) -> float:
    """Seconds in which a lane had nothing left to do while another still ran its last leg."""
    if not spans:
        return 0.0
    last = max(one.end for one in spans)
    first = min(one.start for one in spans)
    return sum(last - (lane[-1].end if lane else first) for lane in lanes(spans, workers))


def harness_share(spans: Sequence[Span], *, wall: float, workers: int) -> float:
    """Share of the busy time of ``workers`` lanes over ``wall`` seconds that was not vLLM's; 0 to 1.

    Everything between the first line of the run and its last counts, start-up, gaps between legs and reports included.
    Only the end, where a lane has no leg left, does not: that is how many cells there are, not what they cost.
    """
    busy = wall * workers - idle_seconds(spans, workers)
    return 1.0 - sum(one.vllm for one in spans) / busy if busy > 0 else 0.0


def digest_share(spans: Sequence[Span]) -> float:
    """Share of the legs' time that reading and digesting KV blocks took; 0 to 1."""
    total = sum(one.total for one in spans)
    return sum(one.digests for one in spans) / total if total > 0 else 0.0


def filler_share(spans: Sequence[Span]) -> float:
    """Share of the legs' time that vLLM spent on unrelated prompts for the harness's sake; 0 to 1."""
    total = sum(one.total for one in spans)
    return sum(one.fillers for one in spans) / total if total > 0 else 0.0
