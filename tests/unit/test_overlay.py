# SPDX-License-Identifier: Apache-2.0
"""Overlays: directories, git references and wheels to one kept copy of the connector's files, or one sentence."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest

from harness import overlay
from harness.overlay import FOLDER, OverlayError, digest_of, find_overlay

FILES = {
    "__init__.py": b"",
    "connector.py": b"class UMBPStoreConnector: ...\n",
    "runtime/__init__.py": b"",
    "runtime/base.py": b"",
    "runtime/factory.py": b"",
}


def write_tree(root, files=FILES):
    for name, content in files.items():
        path = root / FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def repository(tmp_path):
    """Two commits, the second tagged ``v2``; the work tree has a third, uncommitted state."""
    folder = write_tree(tmp_path / "repository")

    def git(*arguments):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(folder), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet", "--initial-branch=main")
    (folder / "vllm" / "big.py").write_text("not needed")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    first = git("rev-parse", "HEAD")
    (folder / FOLDER / "data.py").write_text("x = 2\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "two")
    git("tag", "v2")
    (folder / FOLDER / "data.py").write_text("x = 3\n")
    return folder, first


def test_a_directory_is_copied_under_its_digest_and_nothing_else_of_it(tmp_path, cache):
    tree = write_tree(tmp_path / "tree")
    (tree / "vllm" / "envs.py").write_text("not needed")
    found = find_overlay(str(tree), cache=cache)
    assert (found.origin, found.digest, found.path) == (str(tree), digest_of(FILES), cache / "overlays" / found.digest)
    kept = {str(path.relative_to(found.path)) for path in found.path.rglob("*") if path.is_file()}
    assert kept == {f"{FOLDER}/{name}" for name in FILES}
    assert not found.has_runtime
    # A later change of the tree is another overlay; the first one stays what it was.
    (tree / FOLDER / "connector.py").write_bytes(b"changed\n")
    assert find_overlay(str(tree), cache=cache).digest != found.digest
    assert (found.path / FOLDER / "connector.py").read_bytes() == FILES["connector.py"]


def test_a_tree_with_a_runtime_says_so(tmp_path, cache):
    tree = write_tree(tmp_path, {**FILES, "runtime/embedded.py": b""})
    assert find_overlay(str(tree), cache=cache).has_runtime


def test_git_takes_the_folder_of_a_commit_and_names_it(repository, cache):
    folder, first = repository
    one = find_overlay(f"git:{folder}@{first}", cache=cache)
    two = find_overlay(f"git:{folder}@v2", cache=cache)
    assert one.digest == digest_of(FILES)
    assert two.digest == digest_of({**FILES, "data.py": b"x = 2\n"})
    assert one.origin == f"git:{folder}@{first} ({first[:12]})"
    assert not (two.path / "vllm" / "big.py").exists()
    assert find_overlay(str(folder), cache=cache).digest == digest_of({**FILES, "data.py": b"x = 3\n"})


def test_a_wheel_at_hand(tmp_path, cache):
    path = tmp_path / "vllm-9.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("vllm/_C.abi3.so", b"binary")
        for name, content in FILES.items():
            wheel.writestr(f"{FOLDER}/{name}", content)
    assert find_overlay(f"wheel:{path}", cache=cache).digest == digest_of(FILES)


def test_a_wheel_is_downloaded_once(tmp_path, cache, monkeypatch):
    calls = []

    def download(spec, requirement, folder):
        calls.append(requirement)
        path = folder / "vllm-9.whl"
        with zipfile.ZipFile(path, "w") as wheel:
            for name, content in FILES.items():
                wheel.writestr(f"{FOLDER}/{name}", content)
        return path

    monkeypatch.setattr(overlay, "_download", download)
    one, two = (find_overlay("wheel:vllm==9", cache=cache) for _ in range(2))
    assert one == two and calls == ["vllm==9"]
    # A damaged copy is not believed.
    (one.path / FOLDER / "connector.py").write_text("damaged")
    monkeypatch.setattr(overlay, "_download", lambda *_: pytest.fail("asked again") if len(calls) > 1 else download(*_))
    assert find_overlay("wheel:vllm==9", cache=cache).digest == digest_of(FILES)
    assert calls == ["vllm==9", "vllm==9"]


def test_pip_that_cannot_is_one_sentence(cache, monkeypatch):
    words = "WARNING: x\nERROR: No matching distribution found for vllm==0.0.9\n"
    answer = subprocess.CompletedProcess([], 1, "", words)
    monkeypatch.setattr(overlay.subprocess, "run", lambda *arguments, **options: answer)
    with pytest.raises(OverlayError, match="^overlay wheel:vllm==0.0.9: pip cannot download it .No matching distribut"):
        find_overlay("wheel:vllm==0.0.9", cache=cache)


@pytest.mark.parametrize(("spec", "words"), [
    ("/nowhere/vllm", "no such directory; valid: a directory that mirrors vLLM's tree, git:REPO@REF, wheel"),
    ("{tmp}", "no UMBP connector in it, vllm/distributed/kv_transfer/kv_connector/v1/umbp/__init__.py is missing"),
    ("git:{tmp}", "a git overlay is written git:REPO@REF"),
    ("git:/nowhere@main", "/nowhere is not a directory"),
    ("git:{tmp}@main", "git cannot find it in {tmp}"),
    ("wheel:vllm", "a wheel is written wheel:NAME==VERSION, or wheel:FILE.whl"),
    ("wheel:/nowhere/x.whl", "no such wheel"),
    ("wheel:{tmp}/broken.whl", "broken.whl is no wheel"),
])
def test_what_cannot_be_had_is_one_sentence(tmp_path, cache, spec, words):
    (tmp_path / "broken.whl").write_text("no zip")
    spec = spec.format(tmp=tmp_path)
    with pytest.raises(OverlayError) as caught:
        find_overlay(spec, cache=cache)
    assert str(caught.value).startswith(f"overlay {spec}: {words.format(tmp=tmp_path)}")
    assert "\n" not in str(caught.value)


def test_an_unknown_reference(repository, cache):
    folder, _ = repository
    with pytest.raises(OverlayError, match="no such commit, branch or tag"):
        find_overlay(f"git:{folder}@nowhere", cache=cache)


def test_a_commit_without_the_connector(repository, cache):
    folder, _ = repository
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(folder), "rm", "-rqf",
                    FOLDER], check=True)
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(folder), "commit", "-qm",
                    "gone"], check=True)
    with pytest.raises(OverlayError, match="no UMBP connector in it"):
        find_overlay(f"git:{folder}@main", cache=cache)


def test_without_an_overlay_the_installed_one_or_how_to_get_one(tmp_path, monkeypatch):
    package = tmp_path / "site" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    with pytest.raises(OverlayError, match="^the installed vLLM has no UMBP connector; .*wheel:vllm==0.33.0"):
        find_overlay(None)
    write_tree(tmp_path / "site")
    found = find_overlay("installed")
    assert found == find_overlay(None)
    assert (found.origin, found.path, found.digest) == ("installed vLLM", None, digest_of(FILES))
