# SPDX-License-Identifier: Apache-2.0
"""Seeded stand-ins: Qwen3 model directories whose every byte follows from a seed.

A stand-in has exactly the shape of the model that it stands in for, tied embeddings included, so block sizes, strides
and transfer sizes are the real ones. Its text means nothing; what matters is that its greedy tokens depend on the KV
cache. A plain random model with tied embeddings repeats one token for ever: the token's own embedding stays in the last
hidden state, and the head scores it against itself. Here the final norm's weights have random signs, as many minus as
plus, so that this score averages out and the head is as good as an untied one. Attention adds more to the residual
stream than the MLP, and ``q_norm`` is large enough for a query to pick some keys instead of averaging all of them.
Embeddings are as large as one layer's input: were they small, the first layers would amplify rounding, and a correct
restore under kernels that are not batch invariant would look like a corrupt one (measured: tests/engine/test_standin).

Weights are made without torch: SHAKE-128 of seed, tensor name and position gives one byte a weight, and a table of 256
equally spaced values turns it into bfloat16. No random generator, vector unit or library version has a say in them, so
``DIGESTS`` can name the digest of each stand-in, and a directory with another digest is built again.

``python -m harness.standin ALIAS DIRECTORY`` builds one by hand.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np

from harness import errors

#: Raised when any weight changes, so that a cache of an older recipe is never taken for a newer one.
RECIPE_VERSION = 2
SEED = 0

#: Stand-in -> its seed, where that is another one: the same architecture with other weights.
SEEDS = {"tiny-other": 1}

#: Weights of one SHAKE-128 call; bounds the memory of a build. A change changes the weights.
_CHUNK = 1 << 20
#: How long one process waits for another one that builds the same stand-in, seconds.
_LOCK_TIMEOUT = 900


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a Qwen3 model, named as in the attention papers; ``config`` maps them to Hugging Face's keys."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_position: int


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Standard deviations that decide what the greedy tokens depend on.

    Attributes:
        embedding: of the entries of the (tied) embedding.
        attention: of what attention in all layers would add to the residual stream if each query picked one key.
        mlp: of what the MLPs of all layers would add if their activation kept the size of its input.
        sharpness: weight of ``q_norm``: the standard deviation of the attention scores before the softmax.
        logits: of the logits, nat.
    """

    embedding: float
    attention: float
    mlp: float
    sharpness: float
    logits: float


SHAPES = {
    "qwen3-0.6b": Shape(
        layers=28, hidden=1024, intermediate=3072, heads=16, kv_heads=8, head_dim=128, vocab=151936, max_position=40960
    ),
    # Four head slots tell all six layouts apart; head_dim 32 is the smallest that vLLM's CPU kernel takes.
    "tiny": Shape(
        layers=4, hidden=128, intermediate=256, heads=8, kv_heads=4, head_dim=32, vocab=1024, max_position=2048
    ),
}

SHAPES["tiny-other"] = SHAPES["tiny"]

RECIPE = Recipe(embedding=1.0, attention=3.2, mlp=1.6, sharpness=1.5, logits=3.0)

#: ``digest_of`` each stand-in, the same on every machine.
DIGESTS = {
    "qwen3-0.6b": "f6a18e4b0a4da1e3fa2876f4cdbfcfad",
    "tiny": "b9c44b50c24bc0e69aa7cec9960d10e3",
    "tiny-other": "8cdcd3d81d2e297275e9c0bb4734625e",
}


class Tensor(NamedTuple):
    """One tensor of the state dict.

    ``fill`` is ``random`` (standard deviation ``scale``), ``constant`` (``scale`` everywhere) or ``signs`` (``scale``
    with as many minus as plus signs, in random order).
    """

    name: str
    shape: tuple[int, ...]
    scale: float
    fill: str = "random"


def config(shape: Shape) -> dict[str, Any]:
    """``config.json`` of a stand-in: Qwen3-0.6B's keys, without token ids that could end a generation early."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.max_position,
        "max_window_layers": shape.layers,
        "model_type": "qwen3",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocab,
    }


def tensors(shape: Shape, recipe: Recipe = RECIPE) -> Iterator[Tensor]:
    """Every tensor of the state dict in file order, named as transformers' and vLLM's Qwen3ForCausalLM name them."""
    hidden, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    keep = 1 / math.sqrt(hidden)  # a projection of this scale keeps the size of its normalised input
    attention, mlp = recipe.attention / math.sqrt(shape.layers), recipe.mlp / math.sqrt(shape.layers)
    yield Tensor("model.embed_tokens.weight", (shape.vocab, hidden), recipe.embedding)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        yield Tensor(prefix + "input_layernorm.weight", (hidden,), 1.0, fill="constant")
        yield Tensor(prefix + "self_attn.q_proj.weight", (queries, hidden), keep)
        yield Tensor(prefix + "self_attn.k_proj.weight", (keys, hidden), keep)
        yield Tensor(prefix + "self_attn.v_proj.weight", (keys, hidden), keep)
        yield Tensor(prefix + "self_attn.q_norm.weight", (shape.head_dim,), recipe.sharpness, fill="constant")
        yield Tensor(prefix + "self_attn.k_norm.weight", (shape.head_dim,), 1.0, fill="constant")
        yield Tensor(prefix + "self_attn.o_proj.weight", (hidden, queries), attention / math.sqrt(queries))
        yield Tensor(prefix + "post_attention_layernorm.weight", (hidden,), 1.0, fill="constant")
        yield Tensor(prefix + "mlp.gate_proj.weight", (shape.intermediate, hidden), 2 * keep)
        yield Tensor(prefix + "mlp.up_proj.weight", (shape.intermediate, hidden), keep)
        yield Tensor(prefix + "mlp.down_proj.weight", (hidden, shape.intermediate), mlp / math.sqrt(shape.intermediate))
    # The head is the embedding: its rows are short, the final norm makes up for it.
    yield Tensor("model.norm.weight", (hidden,), recipe.logits * keep / recipe.embedding, fill="signs")


def digest_of(directory: Path) -> str:
    """Digest of ``config.json`` and of every safetensors file's name and bytes: 32 hex digits.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in (directory / "config.json", *sorted(directory.glob("*.safetensors"))):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while piece := file.read(1 << 22):
                digest.update(piece)
    return digest.hexdigest()


def directory_name(alias: str) -> str:
    """Name of a stand-in's directory in the cache: alias, recipe version and seed."""
    return f"{alias}-standin-r{RECIPE_VERSION}-s{SEEDS.get(alias, SEED)}"


def build(alias: str, directory: Path, accept: Callable[[Path], bool] | None = None) -> Path:
    """Build the stand-in ``alias`` as ``directory`` unless it is there already.

    Two processes at once build it once: the second waits. A build that was killed leaves no directory of that name.
    Takes about 5 s and 0.1 GiB of memory for Qwen3-0.6B's shape (1.2 GB on disk).

    Args:
        accept: says whether an existing directory is whole; by default its digest must be the one in ``DIGESTS``.

    Raises:
        errors.UsageError: unknown alias, a directory that cannot be written, or another build that does not end.
        errors.HarnessError: what was written is not what ``DIGESTS`` names.
    """
    if alias not in SHAPES:
        raise errors.UsageError(f"there is no stand-in {alias!r}; valid are: {', '.join(sorted(SHAPES))}")
    accept = accept or (lambda found: digest_of(found) == DIGESTS[alias])
    staging = directory.with_name(f".building-{directory.name}")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(directory.with_name(f".{directory.name}.lock"), timeout=_LOCK_TIMEOUT):
            if directory.is_dir() and accept(directory):
                return directory
            # Whoever holds the lock is the only builder: what lies here is of a build that was killed.
            for leftover in (staging, directory):
                if leftover.exists():
                    shutil.rmtree(leftover)
            staging.mkdir()
            write(staging, SHAPES[alias], seed=SEEDS.get(alias, SEED))
            os.replace(staging, directory)
            if not accept(directory):
                raise errors.HarnessError(f"the stand-in {alias} in {directory} has other bytes than its recipe gives")
    except filelock.Timeout as error:
        raise errors.UsageError(
            f"another process has been building {directory} for {_LOCK_TIMEOUT} s; end it and try again"
        ) from error
    except OSError as error:
        raise errors.UsageError(
            f"cannot build the stand-in {alias} in {directory}: {error}; "
            "set KVPARITY_CACHE to a directory with room for it, or MODEL= to a model"
        ) from error
    return directory


def write(directory: Path, shape: Shape, recipe: Recipe = RECIPE, seed: int = SEED) -> None:
    """Write ``config.json``, ``model.safetensors`` and ``kvparity.json`` (how it was made) into ``directory``.

    """
    (directory / "config.json").write_text(json.dumps(config(shape), indent=2) + "\n", encoding="utf-8")
    write_safetensors(directory / "model.safetensors", list(tensors(shape, recipe)), seed)
    made = {"recipe_version": RECIPE_VERSION, "seed": seed, "recipe": asdict(recipe), "shape": asdict(shape)}
    (directory / "kvparity.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


def write_safetensors(path: Path, content: Sequence[Tensor], seed: int) -> None:
    """Write the tensors' seeded weights, bfloat16, as one file.

    Format: https://huggingface.co/docs/safetensors (8 bytes of header length, JSON header, tensors back to back).
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in content:
        start, end = end, end + 2 * math.prod(tensor.shape)
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in content:
            for piece in _weights(tensor, seed):
                file.write(piece.tobytes())
        file.flush()
        os.fsync(file.fileno())


def _weights(tensor: Tensor, seed: int) -> Iterator[np.ndarray]:
    """The tensor's bfloat16 bit patterns in row-major order, in pieces."""
    count = math.prod(tensor.shape)
    if tensor.fill != "random":
        values = np.full(count, tensor.scale)
        if tensor.fill == "signs":
            stream = hashlib.shake_128(f"{seed}/{tensor.name}".encode()).digest(4 * count)
            values[np.argsort(np.frombuffer(stream, dtype="<u4"), kind="stable")[: count // 2]] *= -1
        yield _bfloat16(values)
        return
    # 256 values from -1 to 1, none of them zero; a uniform distribution on (-1, 1) has standard deviation 1/sqrt(3).
    table = _bfloat16((2 * np.arange(256) - 255) / 256 * math.sqrt(3) * tensor.scale)
    for start in range(0, count, _CHUNK):
        stream = hashlib.shake_128(f"{seed}/{tensor.name}/{start}".encode())
        yield table[np.frombuffer(stream.digest(min(_CHUNK, count - start)), dtype=np.uint8)]


def _bfloat16(values: np.ndarray) -> np.ndarray:
    """Bit patterns of ``values`` in bfloat16, rounded to nearest even, little-endian."""
    bits = values.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.standin", description="Build a seeded stand-in model")
    parser.add_argument("alias", choices=sorted(SHAPES))
    parser.add_argument("directory", type=Path)
    options = parser.parse_args(arguments)
    directory = build(options.alias, options.directory.absolute())
    print(directory, digest_of(directory))


if __name__ == "__main__":
    main()
