# SPDX-License-Identifier: Apache-2.0
"""How an overlay gets into an engine's process: its package and nothing else, and one sentence where it cannot."""

from __future__ import annotations

import importlib
import sys

import pytest

from harness.plugin import overlay
from harness.plugin.overlay import OverlayImportError


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """An installed package ``host.v1`` that has a connector of its own, and a maker of overlays for it."""

    def write(root, text, runtime="NAME = 1\n"):
        folder = root / "host" / "v1" / "umbp"
        (folder / "runtime").mkdir(parents=True)
        (folder / "__init__.py").write_text(text)
        (folder / "runtime" / "__init__.py").write_text(runtime)
        return root

    site = write(tmp_path / "site", "FROM = 'installed'\n")
    (site / "host" / "__init__.py").touch()
    (site / "host" / "v1" / "__init__.py").touch()
    (site / "host" / "v1" / "base.py").write_text("FROM = 'installed'\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(overlay, "PACKAGE", "host.v1.umbp")
    monkeypatch.setattr(overlay, "_serve", lambda folder, runtime: f"served {runtime.NAME}")
    monkeypatch.setenv(overlay.RUNTIME_VARIABLE, "")
    yield lambda name, *texts: write(tmp_path / name, *texts)
    for name in [name for name in sys.modules if name == "host" or name.startswith("host.")]:
        del sys.modules[name]


def test_the_overlay_wins_and_everything_else_stays_installed(tree):
    root = tree("overlay", "FROM = 'overlay'\nfrom host.v1 import base\n")
    (root / "host" / "v1" / "base.py").write_text("FROM = 'overlay'\n")
    overlay.install(str(root))
    overlay.install(str(root))
    package = importlib.import_module("host.v1.umbp")
    assert (package.FROM, package.base.FROM) == ("overlay", "installed")
    assert overlay.os.environ[overlay.RUNTIME_VARIABLE] == "served 1"


def test_without_an_overlay_the_installed_connector_is_served(tree):
    overlay.install(overlay.INSTALLED)
    assert importlib.import_module("host.v1.umbp").FROM == "installed"


@pytest.mark.parametrize(("text", "words"), [
    ("import nowhere_at_all\n", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
    ("def broken(:\n", "SyntaxError: "),
    ("raise SystemError('no')\n", "SystemError: no"),
])
def test_an_overlay_that_does_not_import_is_one_sentence(tree, text, words):
    root = tree("overlay", text)
    with pytest.raises(OverlayImportError) as caught:
        overlay.install(str(root))
    assert str(caught.value).startswith(f"the UMBP connector of {root} does not import into this vLLM: {words}")


def test_a_connector_that_was_imported_before_is_not_passed_off_as_the_overlay(tree):
    importlib.import_module("host.v1.umbp")
    with pytest.raises(OverlayImportError, match="was imported from .*site.* before the overlay .*overlay"):
        overlay.install(str(tree("overlay", "")))
