# SPDX-License-Identifier: Apache-2.0
"""Answers about legs: what vLLM would make of each, in one sentence, and what would run instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from harness.capability.questions import Questions, Refused, Unknown
from harness.capability.surroundings import current, environment, shuffled
from harness.capability.target import ASSUMED, platform_of

_INVALID = re.compile(r"^Selected backend .* is not valid for this configuration\. Reason: (\[.*\])$", re.DOTALL)
_SHUFFLE = "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT"


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Predictions for ``question['legs']``, in their order.

    Args:
        question: ``platform`` (the target), ``here`` (this machine's, None where unknown) and ``legs``: mappings with
            ``layout``, ``backend`` (our alias), ``vllm_name``, ``batch_invariant``, ``env``, ``engine``,
            ``kv_transfer_config``, ``num_kv_heads``, ``head_dim`` and, optionally, ``pinned``: False asks what vLLM
            would do if neither backend nor layout were given.

    Returns:
        ``vllm`` (version), ``assumed`` (a sentence, or None where the machine itself was asked) and ``answers``, each
        with ``prediction`` (runs, rejected, becomes or unknown), ``reason``, ``words`` (vLLM's, whole),
        ``would_run``, ``would_run_layout`` and ``covers``.
    """
    target = question["platform"]
    foreign = target != question.get("here")
    platform = platform_of(target, foreign)
    import vllm

    return {
        "vllm": vllm.__version__,
        "assumed": ASSUMED[target] if foreign else None,
        "answers": [_Leg(leg, target, platform, foreign).answer() for leg in question["legs"]],
    }


class _Leg:
    def __init__(self, leg: Mapping[str, Any], target: str, platform: Any, foreign: bool) -> None:
        self.leg, self.target, self.platform, self.foreign = leg, target, platform, foreign

    def answer(self) -> dict[str, Any]:
        with environment(self.leg["env"], self.target):
            self.ask = Questions(self.leg, self.target, self.platform, self.foreign)
            with current(self.ask.config):
                try:
                    return self._answer() if self.leg.get("pinned", True) else self._unpinned()
                except Exception as error:
                    # One class that stumbles over another platform's machine must not silence the others.
                    return self._says("unknown", f"vLLM's classes could not be asked: {type(error).__name__}: {error}",
                                      would_run=None)

    def _answer(self) -> dict[str, Any]:
        try:
            backend = self.ask.backend(self.leg["vllm_name"])
            spec = self.ask.spec(backend)
            layout, layouts = self.ask.layout(backend, self.leg["layout"])
        except Unknown as unknown:
            return self._says("unknown", str(unknown), would_run=None)
        except Refused as refused:
            return self._refused(refused.words)
        covers = self._covers(backend, spec, layout, layouts)
        if self.leg["env"].get(_SHUFFLE) == "1" and not shuffled():
            return self._says(
                "becomes", f"{_SHUFFLE} has no effect here: {self.leg['vllm_name']} on the plain cache would run",
                would_run=self.leg["vllm_name"], layout=layout, covers=covers,
            )
        if layout != self.leg["layout"]:
            return self._says("becomes", f"layout {layout} would run", would_run=self.leg["backend"],
                              layout=layout, covers=covers)
        return self._says("runs", "", would_run=self.leg["backend"], layout=layout, covers=covers)

    # --- answers

    def _says(
        self, prediction: str, reason: str, *, would_run: str | None, layout: str | None = None, words: str = "",
        covers: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        return {"prediction": prediction, "reason": reason, "words": words, "would_run": would_run,
                "would_run_layout": layout, "covers": covers}

    def _refused(self, words: str) -> dict[str, Any]:
        """A refusal, and what would run if the choice that was refused were left to vLLM."""
        reason = _short(words)
        try:
            if "VLLM_KV_CACHE_LAYOUT" in words:
                backend, name = self.ask.backend(self.leg["vllm_name"]), self.leg["backend"]
                layout, _ = self.ask.layout(backend, None)
                hint = f"left unset, {layout} would be used instead"
            else:
                name, backend = self.ask.auto()
                layout = self.ask.layout_or_other(backend)
                hint = f"auto-selection would run {name} instead"
                if self.target == "cpu":
                    hint = f"without the harness's plugin {name} would run, unvalidated"
                if layout != self.leg["layout"]:
                    hint += f", with {layout} if the layout is left unset too"
        except (Refused, Unknown) as error:
            return self._says("rejected", f"{reason}; nothing would run instead ({error})", would_run=None, words=words)
        return self._says("rejected", f"{reason}; {hint}", would_run=name, layout=layout, words=words)

    def _unpinned(self) -> dict[str, Any]:
        """What vLLM would do on its own, against what the leg is named after."""
        try:
            name, backend = self.ask.auto()
            layout, layouts = self.ask.layout(backend, None)
        except (Refused, Unknown) as error:
            return self._says("rejected", _short(str(error)), would_run=None, words=str(error))
        covers = self._covers(backend, self.ask.spec(backend), layout, layouts)
        asked = (self.leg["vllm_name"], self.leg["layout"])
        if (name, layout) == asked:
            return self._says("runs", "", would_run=name, layout=layout, covers=covers)
        try:
            self.ask.backend(self.leg["vllm_name"])
            why = ""
        except (Refused, Unknown) as error:
            why = f"{_short(str(error))}; "
        return self._says("becomes", f"{why}auto-selection would run {name} with layout {layout}", would_run=name,
                          layout=layout, covers=covers)

    def _covers(self, backend: Any, spec: Any, layout: str, layouts: list[str]) -> dict[str, Any]:
        """The code and the page geometry that a run of the leg exercises; sizes in bytes."""
        slots, page = spec.num_heads, spec.page_size_bytes
        # A page is one run unless something comes between its head slots: all blocks (LHBNC) or all layers (BHLNC).
        runs = slots if layout in ("LHBNC", "BHLNC") else 1
        return {"class": f"{backend.__module__}.{backend.__qualname__}", "layouts": layouts, "head_slots": slots,
                "page_bytes": page, "runs_per_page": runs, "run_bytes": page // runs}



def _short(words: str) -> str:
    """vLLM's reasons alone, where the selector lists them; otherwise all of its words."""
    found = _INVALID.match(words)
    if not found:
        return words.rstrip(".")
    try:
        return ", ".join(ast.literal_eval(found[1]))
    except (ValueError, SyntaxError):
        return found[1].strip("[]")
