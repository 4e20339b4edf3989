# SPDX-License-Identifier: Apache-2.0
"""Reference attention backends in plain torch, which reach the KV cache only through its strides.

The cache tensor of a layer is the logical view [B, H, N, C] whatever the layout (vllm/v1/kv_cache_interface.py:
create_kv_cache_views), so indexing it gives the same values in all six layouts. The arithmetic is ``rowwise.attend``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.utils.torch_utils import get_dtype_size, is_quantized_kv_cache
from vllm.v1.attention.backend import (
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionMetadata
from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheLayout

from harness.plugin import rowwise


@dataclass(frozen=True)
class RequestRows:
    """One request's part of a step: its rows ``start`` to ``stop`` in the batch, its context, its blocks in order."""

    start: int
    stop: int
    length: int
    blocks: torch.Tensor


@dataclass
class ReferenceMetadata(CPUAttentionMetadata):
    """vLLM's metadata, so that connectors find the fields they know, and the batch cut into requests."""

    requests: tuple[RequestRows, ...] = ()


class ReferenceMetadataBuilder(AttentionMetadataBuilder[ReferenceMetadata]):
    """Cuts a batch into requests once per step, for all layers of the group."""

    def __init__(
        self,
        kv_cache_spec: AttentionSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> ReferenceMetadata:
        common = common_attn_metadata
        if common.causal is not True:
            raise NotImplementedError("The reference attention is causal only; this batch asks for another mask.")
        if common.mm_req_doc_ranges:
            raise NotImplementedError("The reference attention has no bidirectional ranges of multimodal tokens.")
        if common.rswa_prefix_lens is not None:
            raise NotImplementedError("The reference attention has no sliding window behind a visible prefix.")
        block_size = self.kv_cache_spec.block_size
        bounds = common.query_start_loc[: common.num_reqs + 1].tolist()
        lengths = common.seq_lens[: common.num_reqs].tolist()
        requests = tuple(
            RequestRows(start, stop, length, common.block_table_tensor[row, : -(-length // block_size)].long())
            for row, (start, stop, length) in enumerate(zip(bounds[:-1], bounds[1:], lengths, strict=True))
            if stop > start
        )
        return ReferenceMetadata(
            num_actual_tokens=common.num_actual_tokens,
            max_query_len=common.max_query_len,
            query_start_loc=common.query_start_loc,
            max_seq_len=common.max_seq_len,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            scheduler_metadata=None,
            causal=True,
            requests=requests,
        )


class ReferenceImpl(AttentionImpl[ReferenceMetadata]):
    """Decoder attention over a cache whose content is K then V of one token and KV head."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **extra: Any,
    ) -> None:
        refused = {
            "ALiBi slopes": alibi_slopes is not None,
            "a sliding window": sliding_window is not None,
            f"the KV cache dtype {kv_cache_dtype}": is_quantized_kv_cache(kv_cache_dtype),
            "a soft cap on logits": bool(logits_soft_cap),
            f"{attn_type} attention": attn_type != AttentionType.DECODER,
            "a KV cache shared between layers": kv_sharing_target_layer_name is not None,
        } | {name: value is not None and value is not False for name, value in extra.items()}
        if any(refused.values()):
            names = ", ".join(name for name, present in refused.items() if present)
            raise NotImplementedError(f"The reference attention does not support {names}.")
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write the step's keys and values ([tokens, KV heads, D]) to their slots; a negative slot is padding."""
        tokens = slot_mapping.shape[0]
        kept = slot_mapping >= 0
        slots = slot_mapping[kept]
        block_size = kv_cache.shape[2]
        content = self._pack(key[:tokens][kept], value[:tokens][kept])
        kv_cache[slots // block_size, :, slots % block_size] = content.to(kv_cache.dtype)

    def forward(
        self,
        layer: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: ReferenceMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Fill ``output`` ([tokens, heads, D]) with the attention of ``query`` over the cache; returns ``output``."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("The reference attention does not quantise its output.")
        if attn_metadata is None:  # a profiling run has no requests
            return output
        for request in attn_metadata.requests:
            # By block ids in order: a copy a block, where indexing with a tensor looks up every element.
            keys, values = self._gather(kv_cache.index_select(0, request.blocks), request.length)
            rows = query[request.start : request.stop]
            output[request.start : request.stop] = rowwise.attend(rows, keys, values, request.length, self.scale)
        return output

    def _pack(self, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """[tokens, H, C] as the cache stores them."""
        return torch.cat((key, value), dim=-1)

    def _gather(self, pages: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of a context as float32 [KV heads, padded length, D], zero behind ``length``."""
        blocks, states = pages.shape[0], pages.shape[2]
        held, wanted = blocks * states, rowwise.padded(length)
        both = torch.empty(2, self.num_kv_heads, max(held, wanted), self.head_size)
        # One pass over the bytes: ordered and widened in the same copy.
        both[:, :, :held].unflatten(2, (blocks, states)).copy_(self._unpack(pages))
        both[:, :, length:] = 0.0
        return both[0, :, :wanted], both[1, :, :wanted]

    def _unpack(self, pages: torch.Tensor) -> torch.Tensor:
        """Pages [B, H, N, C] as [K and V, KV heads, B, N, D]."""
        return pages.unflatten(-1, (2, self.head_size)).permute(3, 1, 0, 2, 4)


class ShuffleImpl(ReferenceImpl):
    """The same attention over a cache with two head slots: all heads' K, all heads' V."""

    def _pack(self, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return torch.stack((key.flatten(1), value.flatten(1)), dim=1)

    def _unpack(self, pages: torch.Tensor) -> torch.Tensor:
        return pages.unflatten(-1, (self.num_kv_heads, self.head_size)).permute(1, 3, 0, 2, 4)


class ReferenceBackend(CPUAttentionBackend):
    """``REFERENCE``: all six layouts, any block size, batch invariant."""

    kvparity_alias = "REFERENCE"
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        # vLLM looks the name up among its enum's members; ``kvparity_alias`` tells our classes apart.
        return "CUSTOM"

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: AttentionSpec | None = None) -> list[int | MultipleOf]:
        return [MultipleOf(1)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return tuple(KVCacheLayout)

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_non_causal(cls) -> bool:
        return False

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return False

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        if spec.head_size_v != spec.head_size:
            raise NotImplementedError(
                f"The reference attention needs K and V of one head size, got {spec.head_size} and {spec.head_size_v}."
            )
        return spec

    @staticmethod
    def get_impl_cls() -> type[ReferenceImpl]:
        return ReferenceImpl

    @staticmethod
    def get_builder_cls() -> type[ReferenceMetadataBuilder]:
        return ReferenceMetadataBuilder


class ShuffleBackend(ReferenceBackend):
    """``REFERENCE_SHUFFLE``: K and V as two head slots, as AITER's shuffle publishes them.

    The order of layouts is that of vllm/v1/attention/backends/rocm_aiter_fa.py with the shuffle switched on.
    """

    kvparity_alias = "REFERENCE_SHUFFLE"

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LHBNC, KVCacheLayout.LBHNC)

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return False

    @classmethod
    def customize_spec(cls, spec: AttentionSpec) -> AttentionSpec:
        spec = super().customize_spec(spec)
        if spec.state_content_bytes is not None:
            return spec
        content = spec.num_kv_heads * spec.head_size * get_dtype_size(spec.dtype)
        return replace(spec, num_head_slots=2, state_content_bytes=content)

    @staticmethod
    def get_impl_cls() -> type[ShuffleImpl]:
        return ShuffleImpl
