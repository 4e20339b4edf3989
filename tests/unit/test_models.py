# SPDX-License-Identifier: Apache-2.0
"""Where a model comes from: the order of the sources, what a directory must hold, and a hub that does not answer."""

from __future__ import annotations

import json
import multiprocessing
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness import hub, models, standin
from harness.errors import HarnessError, UsageError

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_size": 576,
    "vocab_size": 49152,
}


@pytest.fixture(autouse=True)
def no_model_of_the_user(monkeypatch, tmp_path):
    """Neither the user's variables nor their Hugging Face cache reach a test, and no test reaches the hub."""
    constants = pytest.importorskip("huggingface_hub.constants")
    for name in (models.MODEL_VARIABLE, models.CACHE_VARIABLE, "XDG_CACHE_HOME", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "huggingface"))


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


def make_directory(path: Path, config: dict | str = LLAMA, weights: tuple[str, ...] = ("model.safetensors",)) -> Path:
    path.mkdir(parents=True)
    text = config if isinstance(config, str) else json.dumps(config)
    (path / "config.json").write_text(text, encoding="utf-8")
    for name in weights:
        (path / name).write_bytes(b"weights of " + name.encode())
    return path


# --- stand-ins -----------------------------------------------------------------------------------------------------


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
    model = models.find_model(str(make_directory(tmp_path / "llama")), cache=cache)
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
        "model 'qwen3-0.6' is neither an alias (qwen3-0.6b, tiny) nor a directory; did you mean 'qwen3-0.6b'?"
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


# --- hub -----------------------------------------------------------------------------------------------------------


def cached_snapshot(tmp_path: Path, weights: tuple[str, ...] = ("model.safetensors",)) -> Path:
    folder = tmp_path / "huggingface" / "models--Qwen--Qwen3-0.6B"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c" * 40, encoding="utf-8")
    return make_directory(folder / "snapshots" / ("c" * 40), weights=weights)


def test_the_hugging_face_cache_comes_before_the_stand_in(cache, tmp_path):
    snapshot = cached_snapshot(tmp_path)
    model = models.find_model("qwen3-0.6b", cache=cache)
    assert (model.source, model.path) == ("hub", str(snapshot))


def test_a_download_that_was_broken_off_is_no_model(cache, tmp_path):
    cached_snapshot(tmp_path, weights=())
    assert models.find_model("qwen3-0.6b", cache=cache, build=False).source == "stand-in"


def test_offline_asks_no_hub(cache, monkeypatch):
    monkeypatch.setattr(hub, "_in_reach", lambda address: pytest.fail("asked"))
    assert hub.find("Qwen/Qwen3-0.6B", cache) is None


@pytest.fixture
def silent_hub(monkeypatch):
    """A hub that takes connections and never answers."""
    from huggingface_hub import constants

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(hub, "REACH_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield


def test_a_silent_hub_is_given_up_and_not_asked_again_that_day(cache, silent_hub, monkeypatch):
    assert hub.find("Qwen/Qwen3-0.6B", cache) is None
    monkeypatch.setattr(hub, "_in_reach", lambda address: pytest.fail("asked again"))
    assert hub.find("Qwen/Qwen3-0.6B", cache) is None


def test_a_failure_of_another_day_is_forgotten(cache, silent_hub, monkeypatch):
    assert hub.find("Qwen/Qwen3-0.6B", cache) is None
    memory = cache / "hub-unreachable.json"
    memory.write_text(json.dumps({**json.loads(memory.read_text()), "day": "2020-01-01"}), encoding="utf-8")
    asked = []
    monkeypatch.setattr(hub, "_in_reach", lambda address: asked.append(address) or False)
    assert hub.find("Qwen/Qwen3-0.6B", cache) is None
    assert [address.rsplit("/", 5)[1:] for address in asked] == [
        ["Qwen", "Qwen3-0.6B", "resolve", "main", "config.json"]
    ]


def test_a_hub_in_reach_is_downloaded_from(cache, tmp_path, silent_hub, monkeypatch):
    monkeypatch.setattr(hub, "_in_reach", lambda address: True)
    monkeypatch.setattr(hub, "_downloaded", lambda repository: bool(cached_snapshot(tmp_path)))
    assert models.find_model("qwen3-0.6b", cache=cache).source == "hub"


def test_the_module_loads_neither_torch_nor_transformers():
    code = "import sys, harness.models; print(sorted({'torch', 'transformers', 'vllm'} & set(sys.modules)))"
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(models.__file__).parents[1], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"
