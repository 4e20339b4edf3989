# SPDX-License-Identifier: Apache-2.0
"""A seeded stand-in as a model: built once, checked, and nothing left behind where building fails."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from harness import models, standin
from harness.errors import HarnessError, UsageError

pytestmark = pytest.mark.usefixtures("no_model_of_the_user")


def test_tiny_is_a_stand_in_with_four_head_slots(cache):
    model = models.find_model("tiny", cache=cache)
    assert (model.alias, model.source) == ("tiny", "stand-in")
    assert (model.num_layers, model.num_kv_heads, model.head_dim, model.vocab_size) == (4, 4, 32, 1024)
    assert model.digest == standin.DIGESTS["tiny"] == standin.digest_of(Path(model.path))


def test_the_stand_in_of_qwen_has_its_shape(cache):
    model = models.find_model("qwen3-0.6b", cache=cache, build=False)
    assert (model.source, model.num_layers, model.num_kv_heads) == ("stand-in", 28, 8)
    assert (model.head_dim, model.vocab_size, model.digest) == (128, 151936, standin.DIGESTS["qwen3-0.6b"])


def test_nothing_is_written_when_building_is_off(cache):
    model = models.find_model("tiny", cache=cache, build=False)
    assert not cache.exists()
    assert models.find_model("tiny", cache=cache) == model


def test_a_second_search_does_not_build_again(cache):
    weights = Path(models.find_model("tiny", cache=cache).path) / "model.safetensors"
    before = weights.stat().st_mtime_ns
    models.find_model("tiny", cache=cache)
    assert weights.stat().st_mtime_ns == before


def test_a_damaged_stand_in_is_built_again(cache):
    model = models.find_model("tiny", cache=cache)
    weights = Path(model.path) / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(100_000)
    assert models.find_model("tiny", cache=cache) == model
    assert standin.digest_of(Path(model.path)) == model.digest


def test_what_a_killed_build_left_is_removed(cache):
    leftover = cache / "models" / f".building-{standin.directory_name('tiny')}"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    models.find_model("tiny", cache=cache)
    assert not leftover.exists()


def test_a_build_that_fails_half_way_leaves_no_model(cache, monkeypatch):
    def broken(tensor, seed):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(standin, "_weights", broken)
    with pytest.raises(UsageError, match="No space left on device; set KVPARITY_CACHE"):
        models.find_model("tiny", cache=cache)
    assert not (cache / "models" / standin.directory_name("tiny")).exists()


def test_other_bytes_than_the_recipe_gives_are_refused(cache, monkeypatch):
    monkeypatch.setattr(standin, "SEED", 1)
    monkeypatch.setattr(standin.write, "__defaults__", (standin.RECIPE, 1))
    with pytest.raises(HarnessError, match="has other bytes than its recipe gives"):
        models.find_model("tiny", cache=cache)


def _build_and_count(arguments: tuple[str, str]) -> int:
    directory, counter = map(Path, arguments)
    write = standin.write

    def counted(*positional, **named):
        with counter.open("a", encoding="utf-8") as file:
            file.write("x")
        write(*positional, **named)

    standin.write = counted
    standin.build("tiny", directory)
    return standin.digest_of(directory) == standin.DIGESTS["tiny"]


def test_two_processes_build_once(tmp_path):
    arguments = (str(tmp_path / "models" / "tiny"), str(tmp_path / "count"))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_build_and_count, [arguments] * 2, chunksize=1) == [True, True]
    assert (tmp_path / "count").read_text(encoding="utf-8") == "x"


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UsageError, match="cannot build the stand-in tiny in .*set KVPARITY_CACHE"):
        models.find_model("tiny", cache=tmp_path / "file")
