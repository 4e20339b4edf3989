# SPDX-License-Identifier: Apache-2.0
"""Whether the axis ``differs`` fits the rest of a scenario: a store that outlives its engine, and a control.

As in ``scenario_sense``, what already has the wrong type elsewhere is passed over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from harness.connectors import ADAPTERS
from harness.sharing import CONTROL, DIFFERENCES, OTHER_BACKEND, OTHER_WEIGHTS
from harness.yaml_lines import Document, Path

#: The axis.
PATH: Path = ("axes", "differs")


def check_differs(document: Document, connectors: Collection[str], platforms: Collection[str]) -> None:
    """Report what keeps the axis from saying anything.

    Args:
        document: the scenario, with the axis ``differs``.
        connectors: aliases that a scenario can name here.
        platforms: the scenario's platforms.
    """
    axes: Mapping[str, Any] = document.value["axes"]
    values = [value for value in axes["differs"] if isinstance(value, str)]
    if CONTROL not in values:
        document.complain(PATH, f"needs the value `{CONTROL}`, the control: without its full hit, that a store gives "
                          "nothing elsewhere says nothing.")
    if set(platforms) != {"cpu"}:
        document.complain(PATH, "is made for CPU hosts; give `platforms: [cpu]`.")
    if "restore" in axes:
        document.complain(PATH, "the engine that reads is always a new one, so there must be no axis `restore`.")
    prompts = document.value.get("prompts")
    chosen = axes.get("prompt_set", [prompts.get("set", "partial")] if isinstance(prompts, dict) else ["partial"])
    for name in chosen if isinstance(chosen, list) else []:
        if name != "partial":
            document.complain(PATH, f"prompts of the set `{name}` find each other's blocks, or depend on the block "
                              "size; valid prompt sets: partial.")
    _connectors(document, axes, connectors)
    model = document.value.get("model")
    for index, value in enumerate(axes["differs"]):
        difference = DIFFERENCES.get(value) if isinstance(value, str) else None
        if difference is not None and difference.model and isinstance(model, str) and model not in OTHER_WEIGHTS:
            document.complain((*PATH, index), f"`{value}` needs a model of which there are other weights, got "
                              f"`{model}`; valid models: {', '.join(OTHER_WEIGHTS)}.")
    backends = axes.get("backend")
    for name in backends if "backend" in values and isinstance(backends, list) else []:
        if isinstance(name, str) and name not in OTHER_BACKEND:
            document.complain(PATH, f"`backend` knows no other backend than {name} on a CPU host; valid backends: "
                              f"{', '.join(OTHER_BACKEND)}.")


def _connectors(document: Document, axes: Mapping[str, Any], connectors: Collection[str]) -> None:
    """Every subject must outlive its engine; one given whole is taken at its word."""
    surviving = [alias for alias in connectors if alias in ADAPTERS and ADAPTERS[alias].survives_restart]
    if isinstance(axes.get("connector"), list):
        asked: list[tuple[Path, Any]] = [(("axes", "connector", index), name) for index, name in
                                         enumerate(axes["connector"])]
    else:
        subject = document.value.get("subject")
        named = subject.get("connector") if isinstance(subject, dict) else subject
        asked = [(("subject", "connector") if isinstance(subject, dict) else ("subject",), named)]
    for path, alias in asked:
        if isinstance(alias, str) and alias in ADAPTERS and alias not in surviving:
            document.complain(path, f"the store of `{alias}` ends with its engine, so nothing can be shared; valid "
                              f"with the axis `differs`: {', '.join(surviving)}.")
