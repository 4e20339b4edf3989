# SPDX-License-Identifier: Apache-2.0
"""Hold the real KV tensors against the plan: shape, strides, place in the storage, size of the storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from harness.kvstore.placement import Placement
from harness.kvstore.runs import BlockPlan, coalesce


def verify(places: Sequence[Placement], plan: BlockPlan, kv_caches: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Check every layer's tensor.

    Args:
        places: where vLLM's configuration puts the layers.
        plan: the byte runs made of them.
        kv_caches: layer name -> ``[B, H, N, C]`` view.

    Returns:
        The storage that all layers share, as a 1-D uint8 tensor.

    Raises:
        ValueError: a layer without tensor, another shape, strides that contradict the layout, another place in the
            storage, several storages, a storage smaller than the plan.
    """
    storage: torch.UntypedStorage | None = None
    device = None
    for place in places:
        for index, layer in enumerate(place.layers):
            if layer not in kv_caches:
                raise ValueError(f"Layer {layer} ({place.layout}) is in the KV cache configuration but has no tensor.")
            tensor = kv_caches[layer]
            if storage is None:
                storage, device = tensor.untyped_storage(), tensor.device
            if tensor.untyped_storage().data_ptr() != storage.data_ptr():
                raise ValueError(
                    f"Layer {layer} ({place.layout}): its tensor lies in another storage than the first layer's."
                )
            _verify_layer(place, index, layer, tensor)
    assert storage is not None
    if storage.nbytes() < plan.span:
        raise ValueError(
            f"Layer {places[-1].layers[-1]} ({plan.layout}): the KV storage holds {storage.nbytes()} bytes, but "
            f"the plan reaches byte {plan.span}."
        )
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage, 0, (storage.nbytes(),))


def _verify_layer(place: Placement, index: int, layer: str, tensor: torch.Tensor) -> None:
    item = tensor.element_size()
    shape = (*tensor.shape[:-1], tensor.shape[-1] * item)
    if tensor.dim() != 4 or shape != place.shape[1:]:
        raise ValueError(
            f"Layer {layer} ({place.layout}): its tensor has [B, H, N, C bytes] = {list(shape)}, the spec says "
            f"{list(place.shape[1:])}."
        )
    strides = tuple(stride * item for stride in tensor.stride()[:3]) + (tensor.stride(3),)
    if place.layout is None:
        # Without a layout the page's inner order is free, but it must be one dense run.
        axes, run = coalesce([*zip(shape[1:3], strides[1:3], strict=True)], shape[3], layer)
        agrees = not axes and run == place.page_bytes // place.split and strides[0] == place.strides[1]
    else:
        # A stride over a single element addresses nothing.
        agrees = all(
            extent == 1 or got == wanted for extent, got, wanted in zip(shape, strides, place.strides[1:], strict=True)
        )
    if not agrees:
        raise ValueError(
            f"Layer {layer}: its tensor's strides {list(strides)} bytes contradict layout {place.layout or 'unset'}, "
            f"which needs {list(place.strides[1:])} for [B, H, N, C]."
        )
    offset = tensor.data_ptr() - tensor.untyped_storage().data_ptr()
    wanted = place.offset + index * place.strides[0]
    if offset != wanted:
        raise ValueError(
            f"Layer {layer} ({place.layout}): its tensor starts at byte {offset} of the storage, not at {wanted}."
        )
