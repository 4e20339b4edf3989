# SPDX-License-Identifier: Apache-2.0
"""The KV tensors of a unit leg: placed and allocated by vLLM as for an engine, filled with bytes that tokens decide."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, group_kernel_blocks
from vllm.v1.kv_cache_layout import KVCacheLayout
from vllm.v1.worker.utils import allocate_kv_cache

from harness.kvstore.synthetic import cache_config, group_of
from harness.plugin import kvtensors, selection
from harness.records import Leg, Resolved

#: Blocks of the pool where the leg does not say.
NUM_BLOCKS = 64


class StrayBytes(RuntimeError):
    """A transfer changed bytes that it had no business with."""


class Pages:
    """All layers' pages of one leg's pool.

    Attributes:
        config: vLLM's placement of the layers.
        kv_caches: layer name -> ``[B, H, N, C]`` view.
        num_blocks, block_size: of the pool, in blocks and tokens.
        storage: uint8, 1-D: what all of them view.
        block_bytes: one block's bytes in all layers.
    """

    def __init__(self, leg: Leg) -> None:
        """
        Raises:
            ValueError: the backend does not take the layout.
        """
        self.layout = KVCacheLayout[leg.layout]
        self.backend = _backend(leg, self.layout)
        self.block_size = int(leg.engine["block_size"])
        self.num_blocks = int(leg.engine.get("num_gpu_blocks_override", NUM_BLOCKS))
        dtype = leg.engine.get("dtype", "auto")
        spec = self.backend.customize_spec(FullAttentionSpec(
            block_size=self.block_size, num_kv_heads=leg.model.num_kv_heads, head_size=leg.model.head_dim,
            dtype=torch.bfloat16 if dtype == "auto" else getattr(torch, dtype),
        ))
        self.config: KVCacheConfig = cache_config([group_of([spec] * leg.model.num_layers)], self.layout,
                                                  self.num_blocks)
        self.kv_caches = allocate_kv_cache(self.config, torch.device("cpu"), self.layout)
        self._sets = kvtensors.layer_sets(self.config, self.kv_caches)
        storage = next(iter(self.kv_caches.values())).untyped_storage()
        self.storage = torch.empty(0, dtype=torch.uint8).set_(storage)
        self.block_bytes = sum(page[0].numel() for page in self._pages())

    def resolved(self, connector: str | None, batch_invariant: bool) -> Resolved:
        """What the tensors and the backend's class really are; bytes follow from tokens, so they are invariant."""
        first = self._sets[0]
        tensor = first.tensors[0]
        return Resolved(
            layout=self.layout.name, layout_by_strides=first.layouts(), shape=tuple(tensor.shape),
            strides=first.strides, dtype=str(tensor.dtype).removeprefix("torch."), num_layers=len(first.tensors),
            backend=self.backend.kvparity_alias,
            backend_class=(f"{self.backend.__module__}.{self.backend.__qualname__}",),
            batch_invariant=batch_invariant, block_size=self.block_size,
            kernel_block_size=self.block_size // first.split, num_blocks=first.num_blocks,
            threads=torch.get_num_threads(), connector=connector,
        )

    def compute(self, block: int, tokens: Sequence[int]) -> None:
        """Write the block that ends with ``tokens``: bytes drawn from all tokens up to there, in logical order."""
        seed = hashlib.blake2b(" ".join(map(str, tokens)).encode(), digest_size=8).digest()
        # 63 bits: the generator's seed is signed.
        random = torch.Generator().manual_seed(int.from_bytes(seed, "little") >> 1)
        for page in self._pages():
            page[block] = torch.randint(0, 256, page[block].shape, dtype=torch.uint8, generator=random)

    def digests(self, blocks: Sequence[int]) -> list[str]:
        """As the probe of a real worker takes them."""
        return kvtensors.block_digests(self._sets, blocks)

    def zero(self) -> tuple[int, int]:
        """(bytes zeroed, bytes that are not zero afterwards)."""
        return kvtensors.zero(self._sets)

    @contextmanager
    def only(self, blocks: Iterable[int], what: str) -> Iterator[None]:
        """Hold a transfer to these blocks: every other byte of the storage is a guard.

        Raises:
            StrayBytes: one of the others changed.
        """
        blocks = list(blocks)
        guards = self.storage.clone()
        old = [page[blocks] for page in self._pages()]
        yield
        new = [page[blocks] for page in self._pages()]
        for page, content in zip(self._pages(), old, strict=True):
            page[blocks] = content
        if not torch.equal(self.storage, guards):
            stray = int(torch.count_nonzero(self.storage != guards))
            raise StrayBytes(f"the {what} changed {stray} bytes outside of the blocks that it was given")
        for page, content in zip(self._pages(), new, strict=True):
            page[blocks] = content

    def _pages(self) -> list[torch.Tensor]:
        """Per layer the pages by manager block, as bytes in the tensor's own order."""
        return [group_kernel_blocks(tensor.view(torch.uint8), self.num_blocks) for tensor in self.kv_caches.values()]


def _backend(leg: Leg, layout: KVCacheLayout) -> type:
    """The class that decides how a layer's head slots are published; it must take what is asked of it."""
    backend = resolve_obj_by_qualname(selection.CPU_BACKENDS[leg.backend])
    supported = [one.name for one in backend.supported_kv_cache_layouts()]
    if layout.name not in supported:
        raise ValueError(f"{leg.backend} does not take the layout {layout.name}; valid layouts: {supported}.")
    return backend
