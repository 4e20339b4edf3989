# SPDX-License-Identifier: Apache-2.0
"""What has to be around a question to vLLM: the leg's environment, a current config, classes that fail to load."""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock


class Settings(types.SimpleNamespace):
    """A part of a VllmConfig in which everything that is not given is not set."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


@contextlib.contextmanager
def environment(env: Mapping[str, str], target: str) -> Iterator[None]:
    """The leg's environment, as vLLM would read it at its start."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "AITER_"))}
    with mock.patch.dict(os.environ, {**kept, **env}, clear=True):
        if target == "rocm":
            from vllm._aiter_ops import rocm_aiter_ops

            rocm_aiter_ops.refresh_env_variables()
        yield


@contextlib.contextmanager
def current(config: Settings) -> Iterator[Settings]:
    """``config`` as vLLM's current one; ROCM_AITER_UNIFIED_ATTN's layouts depend on the connector in it."""
    import vllm.config.vllm

    with mock.patch.object(vllm.config.vllm, "_current_vllm_config", config):
        yield config


@contextlib.contextmanager
def loadable() -> Iterator[None]:
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


def unloadable(member: Any) -> str | None:
    """Why a backend's class cannot be loaded, None when it can."""
    try:
        member.get_class()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def shuffled() -> bool:
    from vllm._aiter_ops import rocm_aiter_ops

    return bool(rocm_aiter_ops.is_shuffle_kv_cache_enabled())
