# SPDX-License-Identifier: Apache-2.0
"""Leases: one leg per GPU at a time, the GPU alone visible to it, and the next leg when one is free again."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from harness import device
from harness.device import lease, slots
from harness.errors import CalledOff


@pytest.fixture
def two_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "gpus", lambda: ("HIP_VISIBLE_DEVICES", ["0", "1"]))
    monkeypatch.setattr(device, "LEASES", tmp_path)
    monkeypatch.setattr(device, "RETRY_S", 0.01)


def both(device: str) -> dict[str, str]:
    """vLLM on ROCm refuses to start where the two differ, and the caller may have exported either."""
    return {"HIP_VISIBLE_DEVICES": device, "CUDA_VISIBLE_DEVICES": device}


def test_two_legs_have_two_gpus_and_the_third_waits(two_gpus, make_leg):
    leg = make_leg(engine_name="vllm")
    third, got = threading.Event(), []

    def run_third():
        with lease(leg) as held:
            got.append(held)
            third.set()

    with lease(leg) as one:
        with lease(leg) as two:
            assert [one.environment, two.environment] == [both("0"), both("1")]
            thread = threading.Thread(target=run_third)
            thread.start()
            assert not third.wait(0.1)
        assert third.wait(30)
        thread.join()
    assert got[0].environment == both("1")


def test_a_leg_that_is_called_off_waits_for_no_gpu(two_gpus, make_leg):
    leg, called_off, ended = make_leg(engine_name="vllm"), threading.Event(), []

    def wait():
        try:
            with lease(leg, called_off):
                ended.append("held")
        except CalledOff:
            ended.append("called off")

    with lease(leg), lease(leg):
        thread = threading.Thread(target=wait)
        thread.start()
        called_off.set()
        thread.join(30)
    assert ended == ["called off"]


def test_as_many_legs_side_by_side_as_there_are_gpus(two_gpus):
    assert slots() == 2


@pytest.mark.parametrize("name", ["fake", "unavailable", "unit"])
def test_legs_without_an_engine_of_their_own_take_no_gpu(two_gpus, make_leg, name):
    with lease(make_leg(engine_name=name)) as held:
        assert (held.device, held.environment) == ("cpu", {})


@pytest.fixture
def amd(monkeypatch, tmp_path):
    """A machine with eight AMD GPUs, and none of the variables."""
    nodes = tmp_path / "nodes"
    for number in range(8):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "properties").write_text("simd_count 1216\n")
    real = Path

    def path(name):
        return real({"/dev/kfd": str(tmp_path), "/sys/class/kfd/kfd/topology/nodes": str(nodes)}.get(name, name))

    monkeypatch.setattr(device, "Path", path)
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("outside", "ids"), [
    ({}, list("01234567")),
    ({"HIP_VISIBLE_DEVICES": "2, 5"}, ["2", "5"]),
    ({"CUDA_VISIBLE_DEVICES": "2, 5"}, ["2", "5"]),
    ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "2,5"}, ["1"]),
    # HIP's ids count what ROCR leaves.
    ({"ROCR_VISIBLE_DEVICES": "2,3"}, ["0", "1"]),
    ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, ["1"]),
])
def test_a_visibility_variable_narrows_the_list(amd, monkeypatch, outside, ids):
    for name, value in outside.items():
        monkeypatch.setenv(name, value)
    assert device.gpus() == ("HIP_VISIBLE_DEVICES", ids)
