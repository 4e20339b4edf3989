# SPDX-License-Identifier: Apache-2.0
"""Where a model comes from: the order of the sources, what a directory must hold, and a hub that does not answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import models, standin
from harness.errors import UsageError
from tests.model_folders import LLAMA, make_directory

pytestmark = pytest.mark.usefixtures("no_model_of_the_user")


# --- given directories ---------------------------------------------------------------------------------------------


def test_given_wins_over_the_environment(cache, tmp_path, monkeypatch):
    one, two = make_directory(tmp_path / "one"), make_directory(tmp_path / "two")
    monkeypatch.setenv(models.MODEL_VARIABLE, str(two))
    assert models.find_model("qwen3-0.6b", given=str(one), cache=cache).path == str(one)
    found = models.find_model("qwen3-0.6b", cache=cache)
    assert (found.path, found.source, found.alias) == (str(two), "given", "qwen3-0.6b")


def test_tiny_stays_tiny_whatever_is_given(cache, tmp_path):
    given = make_directory(tmp_path / "one")
    assert models.find_model("tiny", given=str(given), cache=cache, build=False).source == "stand-in"


def test_another_architecture_is_read_from_its_config(cache, tmp_path):
    model = models.find_model(str(make_directory(tmp_path / "llama", LLAMA)), cache=cache)
    assert (model.num_layers, model.num_kv_heads, model.head_dim, model.vocab_size) == (30, 3, 64, 49152)
    assert model.source == "given"


def test_sizes_of_a_multimodal_model_lie_in_text_config(cache, tmp_path):
    model = models.find_model(str(make_directory(tmp_path / "m", {"text_config": LLAMA})), cache=cache)
    assert (model.num_layers, model.num_kv_heads) == (30, 3)


def test_a_relative_directory_becomes_absolute(cache, tmp_path, monkeypatch):
    made = make_directory(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    assert models.find_model("./here", cache=cache).path == str(made)
    assert models.find_model("here", cache=cache).path == str(made)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda path: None, "is not there: a model directory holds config.json and"),
        (lambda path: path.write_text("x"), "is not a directory"),
        (lambda path: path.mkdir(), "has no config.json"),
        (lambda path: make_directory(path, weights=()), "has no weights"),
        (lambda path: make_directory(path, "{"), "cannot be read as JSON"),
        (lambda path: make_directory(path, "[]"), "holds list, expected an object"),
        (lambda path: make_directory(path, {**LLAMA, "vocab_size": "many"}), "vocab_size 'many', expected a positive"),
        (lambda path: make_directory(path, {"model_type": "gpt2"}), "num_attention_heads None, expected a positive"),
    ],
)
@pytest.mark.parametrize("how", ["scenario", "given", "environment"])
def test_a_directory_that_is_no_model_is_refused_in_one_sentence(prepare, words, how, cache, tmp_path, monkeypatch):
    path = tmp_path / "model"
    prepare(path)
    if how == "environment":
        monkeypatch.setenv(models.MODEL_VARIABLE, str(path))
    with pytest.raises(UsageError) as caught:
        if how == "scenario":
            models.find_model(str(path), cache=cache)
        else:
            models.find_model("qwen3-0.6b", given=str(path) if how == "given" else None, cache=cache)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_shard_is_named(cache, tmp_path):
    path = make_directory(tmp_path / "m", weights=("model-1.safetensors",))
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(UsageError, match="lacks model-2.safetensors, which its index names"):
        models.find_model(str(path), cache=cache)


def test_an_unknown_alias_names_the_valid_ones(cache):
    with pytest.raises(UsageError) as caught:
        models.find_model("qwen3-0.6", cache=cache)
    assert str(caught.value) == (
        "model 'qwen3-0.6' is neither an alias (qwen3-0.6b, tiny, tiny-other) nor a directory; did you mean "
        "'qwen3-0.6b'?"
    )


# --- digests -------------------------------------------------------------------------------------------------------


def test_the_digest_follows_config_weights_and_names(cache, tmp_path):
    digests = {
        models.digest_of(make_directory(tmp_path / "a"), cache),
        models.digest_of(make_directory(tmp_path / "b", {**LLAMA, "rope_theta": 5}), cache),
        models.digest_of(make_directory(tmp_path / "c", weights=("other.safetensors",)), cache),
    }
    assert len(digests) == 3
    assert models.digest_of(make_directory(tmp_path / "again"), cache) in digests


def test_the_digest_is_remembered_until_a_file_changes(cache, tmp_path, monkeypatch):
    path = make_directory(tmp_path / "a")
    first = models.digest_of(path, cache)
    with monkeypatch.context() as patch:
        patch.setattr(standin, "digest_of", lambda directory: pytest.fail("hashed again"))
        assert models.digest_of(path, cache) == first
    (path / "model.safetensors").write_bytes(b"other bytes")
    assert models.digest_of(path, cache) != first


def test_other_bytes_under_the_old_size_and_time_are_seen(cache, tmp_path):
    path = make_directory(tmp_path / "a")
    first, weights = models.digest_of(path, cache), path / "model.safetensors"
    before = weights.stat()
    while weights.stat().st_ctime_ns == before.st_ctime_ns:  # the kernel's clock goes in ticks of some milliseconds
        weights.write_bytes(b"weightz")
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (weights.stat().st_size, weights.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert models.digest_of(path, cache) == standin.digest_of(path) != first


def test_a_damaged_memory_of_digests_is_ignored(cache, tmp_path):
    path = make_directory(tmp_path / "a")
    first = models.digest_of(path, cache)
    for memory in (cache / "digests").glob("*.json"):
        memory.write_text("{", encoding="utf-8")
    assert models.digest_of(path, cache) == first


# --- cache folder --------------------------------------------------------------------------------------------------


def test_the_cache_folder_follows_its_variables(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models.cache_folder() == tmp_path / ".cache" / "kvparity"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert models.cache_folder() == tmp_path / "xdg" / "kvparity"
    monkeypatch.setenv(models.CACHE_VARIABLE, str(tmp_path / "own"))
    assert models.cache_folder() == tmp_path / "own"


def test_the_module_loads_neither_torch_nor_transformers():
    code = "import sys, harness.models; print(sorted({'torch', 'transformers', 'vllm'} & set(sys.modules)))"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(models.__file__).parents[1], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"
