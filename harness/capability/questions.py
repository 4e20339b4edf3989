# SPDX-License-Identifier: Apache-2.0
"""One leg's questions to vLLM's own selectors and classes; each answer is theirs, or a refusal in their words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from unittest import mock

from harness.capability.surroundings import Settings, loadable, unloadable


class Refused(Exception):
    """vLLM refuses; ``words`` are its own, whole."""

    def __init__(self, words: str) -> None:
        self.words = words
        super().__init__(words)


class Unknown(Exception):
    """vLLM's class cannot be asked on this machine."""


class Questions:
    """What can be asked about one leg; to be used within the surroundings that ``config`` and the leg's env make.

    Args:
        leg: as ``harness.capability.answers`` describes it.
        target: the platform in question.
        platform: its class (``harness.capability.target``).
        foreign: this machine is of another platform.
    """

    def __init__(self, leg: Mapping[str, Any], target: str, platform: Any, foreign: bool) -> None:
        self.leg, self.target, self.platform, self.foreign = leg, target, platform, foreign
        self.block_size = int(leg["engine"].get("block_size", 16))
        self.config = self._config()

    def _config(self) -> Settings:
        """As much of a VllmConfig as the selectors and the backend classes read."""
        engine, connector = self.leg["engine"], self.leg["kv_transfer_config"]
        model = Settings(
            attn_type="decoder", quantization=engine.get("quantization"), get_num_experts=lambda: 0,
            get_head_size=lambda: self.leg["head_dim"],
        )
        cache = Settings(cache_dtype=engine.get("kv_cache_dtype", "auto"), block_size=self.block_size)
        config = Settings(model_config=model, cache_config=cache, attention_config=Settings(),
                          lora_config=engine.get("enable_lora") or None)
        if connector is not None:
            from vllm.config import KVTransferConfig

            config.kv_transfer_config = KVTransferConfig(**connector)
        return config

    def backend(self, name: str) -> Any:
        """The class that runs when ``name`` is asked for."""
        if self.target == "cpu":
            return self._select(self.leg["backend"])
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        member = AttentionBackendEnum[name]
        if self.foreign and (problem := unloadable(member)):
            raise Unknown(f"vLLM's class of {name} cannot be loaded on this machine ({problem})")
        return self._select(member)

    def auto(self) -> tuple[str, Any]:
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
            with loadable():
                if self.target == "cpu" and asked is not None:
                    from harness.plugin import selection

                    path = selection.select(asked, selector)
                else:
                    path = self.platform.get_attn_backend_cls(asked, selector)
                return resolve_obj_by_qualname(path)
        except (ValueError, RuntimeError) as error:
            raise Refused(str(error)) from error

    def spec(self, backend: Any) -> Any:
        """The KV cache spec of one layer after the backend has adjusted it."""
        import torch
        from vllm.v1.kv_cache_interface import FullAttentionSpec

        spec = FullAttentionSpec(block_size=self.block_size, num_kv_heads=self.leg["num_kv_heads"],
                                 head_size=self.leg["head_dim"], dtype=torch.bfloat16)
        try:
            return backend.customize_spec(spec)
        except ValueError as error:
            raise Refused(str(error)) from error

    def layout(self, backend: Any, asked: str | None) -> tuple[str, list[str]]:
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
                raise Refused(str(error)) from error
            except ImportError:
                # Only where nothing is pinned is the connector's class asked for its preference, and it is not here.
                return names[0], names

    def layout_or_other(self, backend: Any) -> str:
        try:
            return self.layout(backend, self.leg["layout"])[0]
        except Refused:
            return self.layout(backend, None)[0]
