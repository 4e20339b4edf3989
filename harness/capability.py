# SPDX-License-Identifier: Apache-2.0
"""What vLLM itself says of a leg's configuration, on any machine that has vLLM's Python files.

``python -m harness.capability`` reads a question as JSON on stdin and writes the answer as JSON; ``harness.coverage``
asks. A process of its own, because importing vLLM settles switches that belong to the legs.

The answers are vLLM's own: the target platform's selector (vllm/platforms/{rocm,cuda}.py: get_attn_backend_cls), the
backend classes' declarations and ``resolve_kv_cache_layout``. Where this machine's platform is another one, that
platform's module is imported beside it, with empty modules where it wants compiled extensions, and the device is
assumed (``ASSUMED``).
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

#: Compiled extensions that vLLM's platform modules import; the CPU wheel's would fail or kill the process.
EXTENSIONS = (
    "vllm._C", "vllm._rocm_C", "vllm._C_stable_libtorch", "vllm._qutlass_C",
    "vllm.vllm_flash_attn._vllm_fa2_C", "vllm.vllm_flash_attn._vllm_fa3_C",
)

#: Platform -> what is taken for granted where the question is asked elsewhere.
ASSUMED = {
    "rocm": "an MI350X (gfx950) with AITER installed",
    "cuda": "a device of compute capability 9.0 with FlashAttention built",
    "cpu": "a CPU",
}

_CAPABILITY = {"rocm": (9, 5), "cuda": (9, 0)}
_INVALID = re.compile(r"^Selected backend .* is not valid for this configuration\. Reason: (\[.*\])$", re.DOTALL)
_SHUFFLE = "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT"


def main() -> int:
    """Answer one question; vLLM's log lines go to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    question = json.load(sys.stdin)
    json.dump(answer(question), out)
    out.close()
    return 0


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
    platform = _platform(target, foreign)
    import vllm

    return {
        "vllm": vllm.__version__,
        "assumed": ASSUMED[target] if foreign else None,
        "answers": [_Leg(leg, target, platform, foreign).answer() for leg in question["legs"]],
    }


# --- the target platform ------------------------------------------------------------------------------------------


def _platform(target: str, foreign: bool) -> Any:
    """The target's platform class, made vLLM's current one where this machine is another."""
    if not foreign:
        from vllm.platforms import current_platform

        return type(current_platform)
    for name in EXTENSIONS:
        sys.modules.setdefault(name, types.ModuleType(name))
    import vllm.platforms

    found = _platform_class(target)
    if target in _CAPABILITY:
        from vllm.platforms.interface import DeviceCapability

        capability = DeviceCapability(*_CAPABILITY[target])
        found.get_device_capability = classmethod(lambda cls, device_id=0: capability)
    # Before any backend module is imported: each binds the current platform by name.
    vllm.platforms._current_platform = found()
    if target == "rocm":
        import vllm._aiter_ops

        vllm._aiter_ops.IS_AITER_FOUND = True
    return found


def _platform_class(target: str) -> Any:
    if target == "rocm":
        import torch

        # Without amdsmi the module asks torch for the architecture as it is imported.
        properties = types.SimpleNamespace(gcnArchName="gfx950")
        with mock.patch.object(torch.cuda, "get_device_properties", lambda *_: properties):
            from vllm.platforms.rocm import RocmPlatform
        return RocmPlatform
    if target == "cuda":
        from vllm.platforms.cuda import NonNvmlCudaPlatform

        return NonNvmlCudaPlatform
    from vllm.platforms.cpu import CpuPlatform

    return CpuPlatform


# --- one leg ------------------------------------------------------------------------------------------------------


class _Refused(Exception):
    """vLLM refuses; ``words`` are its own, whole."""

    def __init__(self, words: str) -> None:
        self.words = words
        super().__init__(words)


class _Unknown(Exception):
    """vLLM's class cannot be asked on this machine."""


class _Settings(types.SimpleNamespace):
    """A part of a VllmConfig in which everything that is not given is not set."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class _Leg:
    def __init__(self, leg: Mapping[str, Any], target: str, platform: Any, foreign: bool) -> None:
        self.leg, self.target, self.platform, self.foreign = leg, target, platform, foreign
        self.block_size = int(leg["engine"].get("block_size", 16))

    def answer(self) -> dict[str, Any]:
        with _environment(self.leg["env"], self.target), _current(self._config()) as self.config:
            try:
                return self._answer() if self.leg.get("pinned", True) else self._unpinned()
            except Exception as error:
                # One class that stumbles over another platform's machine must not silence the others.
                return self._says("unknown", f"vLLM's classes could not be asked: {type(error).__name__}: {error}",
                                  would_run=None)

    def _answer(self) -> dict[str, Any]:
        try:
            backend = self._backend(self.leg["vllm_name"])
            spec = self._spec(backend)
            layout, layouts = self._layout(backend, self.leg["layout"])
        except _Unknown as unknown:
            return self._says("unknown", str(unknown), would_run=None)
        except _Refused as refused:
            return self._refused(refused.words)
        covers = self._covers(backend, spec, layout, layouts)
        if self.leg["env"].get(_SHUFFLE) == "1" and not _shuffled():
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
                backend, name = self._backend(self.leg["vllm_name"]), self.leg["backend"]
                layout, _ = self._layout(backend, None)
                hint = f"left unset, {layout} would be used instead"
            else:
                name, backend = self._auto()
                layout = self._layout_or_other(backend)
                hint = f"auto-selection would run {name} instead"
                if self.target == "cpu":
                    hint = f"without the harness's plugin {name} would run, unvalidated"
                if layout != self.leg["layout"]:
                    hint += f", with {layout} if the layout is left unset too"
        except (_Refused, _Unknown) as error:
            return self._says("rejected", f"{reason}; nothing would run instead ({error})", would_run=None, words=words)
        return self._says("rejected", f"{reason}; {hint}", would_run=name, layout=layout, words=words)

    def _unpinned(self) -> dict[str, Any]:
        """What vLLM would do on its own, against what the leg is named after."""
        try:
            name, backend = self._auto()
            layout, layouts = self._layout(backend, None)
        except (_Refused, _Unknown) as error:
            return self._says("rejected", _short(str(error)), would_run=None, words=str(error))
        covers = self._covers(backend, self._spec(backend), layout, layouts)
        asked = (self.leg["vllm_name"], self.leg["layout"])
        if (name, layout) == asked:
            return self._says("runs", "", would_run=name, layout=layout, covers=covers)
        try:
            self._backend(self.leg["vllm_name"])
            why = ""
        except (_Refused, _Unknown) as error:
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

    # --- questions to vLLM

    def _config(self) -> _Settings:
        """As much of a VllmConfig as the selectors and the backend classes read."""
        engine, connector = self.leg["engine"], self.leg["kv_transfer_config"]
        model = _Settings(
            attn_type="decoder", quantization=engine.get("quantization"), get_num_experts=lambda: 0,
            get_head_size=lambda: self.leg["head_dim"],
        )
        cache = _Settings(cache_dtype=engine.get("kv_cache_dtype", "auto"), block_size=self.block_size)
        config = _Settings(model_config=model, cache_config=cache, attention_config=_Settings(),
                           lora_config=engine.get("enable_lora") or None)
        if connector is not None:
            from vllm.config import KVTransferConfig

            config.kv_transfer_config = KVTransferConfig(**connector)
        return config

    def _backend(self, name: str) -> Any:
        """The class that runs when ``name`` is asked for."""
        if self.target == "cpu":
            return self._select(self.leg["backend"])
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        member = AttentionBackendEnum[name]
        if self.foreign and (problem := _unloadable(member)):
            raise _Unknown(f"vLLM's class of {name} cannot be loaded on this machine ({problem})")
        return self._select(member)

    def _auto(self) -> tuple[str, Any]:
        """Name and class of what runs when nothing is asked for."""
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        backend = self._select(None)
        own = f"{backend.__module__}.{backend.__qualname__}"
        names = [member.name for member in AttentionBackendEnum if member.value == own]
        return (names[0] if names else backend.get_name()), backend

    def _select(self, asked: Any) -> Any:
        import torch
        from vllm import envs
        from vllm.utils.import_utils import resolve_obj_by_qualname
        from vllm.v1.attention.selector import AttentionSelectorConfig

        engine = self.leg["engine"]
        dtype = engine.get("dtype", "bfloat16")
        selector = AttentionSelectorConfig(
            head_size=self.leg["head_dim"], dtype=getattr(torch, "bfloat16" if dtype == "auto" else dtype),
            kv_cache_dtype=engine.get("kv_cache_dtype", "auto"), block_size=self.block_size,
            use_batch_invariant=envs.VLLM_BATCH_INVARIANT,
            use_kv_connector=self.leg["kv_transfer_config"] is not None,
        )
        try:
            with _loadable():
                if self.target == "cpu" and asked is not None:
                    from harness.plugin import selection

                    path = selection.select(asked, selector)
                else:
                    path = self.platform.get_attn_backend_cls(asked, selector)
                return resolve_obj_by_qualname(path)
        except (ValueError, RuntimeError) as error:
            raise _Refused(str(error)) from error

    def _spec(self, backend: Any) -> Any:
        """The KV cache spec of one layer after the backend has adjusted it."""
        import torch
        from vllm.v1.kv_cache_interface import FullAttentionSpec

        spec = FullAttentionSpec(block_size=self.block_size, num_kv_heads=self.leg["num_kv_heads"],
                                 head_size=self.leg["head_dim"], dtype=torch.bfloat16)
        try:
            return backend.customize_spec(spec)
        except ValueError as error:
            raise _Refused(str(error)) from error

    def _layout(self, backend: Any, asked: str | None) -> tuple[str, list[str]]:
        """The layout that is resolved when ``asked`` is pinned (None: nothing), and all that could be."""
        from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout

        names = [layout.name for layout in get_supported_kv_cache_layouts([backend])]
        with mock.patch.dict(os.environ):
            os.environ.pop("VLLM_KV_CACHE_LAYOUT", None)
            if asked is not None:
                os.environ["VLLM_KV_CACHE_LAYOUT"] = asked
            self.config.cache_config.kv_cache_layout = None
            try:
                return resolve_kv_cache_layout(self.config, [names]).name, names
            except ValueError as error:
                raise _Refused(str(error)) from error
            except ImportError:
                # Only where nothing is pinned is the connector's class asked for its preference, and it is not here.
                return names[0], names

    def _layout_or_other(self, backend: Any) -> str:
        try:
            return self._layout(backend, self.leg["layout"])[0]
        except _Refused:
            return self._layout(backend, None)[0]


@contextlib.contextmanager
def _environment(env: Mapping[str, str], target: str) -> Iterator[None]:
    """The leg's environment, as vLLM would read it at its start."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "AITER_"))}
    with mock.patch.dict(os.environ, {**kept, **env}, clear=True):
        if target == "rocm":
            from vllm._aiter_ops import rocm_aiter_ops

            rocm_aiter_ops.refresh_env_variables()
        yield


@contextlib.contextmanager
def _current(config: _Settings) -> Iterator[_Settings]:
    """``config`` as vLLM's current one; ROCM_AITER_UNIFIED_ATTN's layouts depend on the connector in it."""
    import vllm.config.vllm

    with mock.patch.object(vllm.config.vllm, "_current_vllm_config", config):
        yield config


@contextlib.contextmanager
def _loadable() -> Iterator[None]:
    """A backend class that cannot be loaded here counts as not installed, whatever it stumbles over."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    original = AttentionBackendEnum.get_class

    def get_class(member: Any) -> Any:
        try:
            return original(member)
        except (ImportError, ValueError):
            raise
        except Exception as error:
            raise ImportError(f"{type(error).__name__}: {error}") from error

    with mock.patch.object(AttentionBackendEnum, "get_class", get_class):
        yield


def _unloadable(member: Any) -> str | None:
    """Why a backend's class cannot be loaded, None when it can."""
    try:
        member.get_class()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _shuffled() -> bool:
    from vllm._aiter_ops import rocm_aiter_ops

    return bool(rocm_aiter_ops.is_shuffle_kv_cache_enabled())


def _short(words: str) -> str:
    """vLLM's reasons alone, where the selector lists them; otherwise all of its words."""
    found = _INVALID.match(words)
    if not found:
        return words.rstrip(".")
    try:
        return ", ".join(ast.literal_eval(found[1]))
    except (ValueError, SyntaxError):
        return found[1].strip("[]")


if __name__ == "__main__":
    raise SystemExit(main())
