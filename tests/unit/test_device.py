# SPDX-License-Identifier: Apache-2.0
"""Leases: one leg per GPU at a time, the GPU alone visible to it, and the next leg when one is free again."""

from __future__ import annotations

import threading

import pytest

from harness import device
from harness.device import lease, slots


@pytest.fixture
def two_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr(device, "gpus", lambda: ("HIP_VISIBLE_DEVICES", ["0", "1"]))
    monkeypatch.setattr(device, "LEASES", tmp_path)
    monkeypatch.setattr(device, "RETRY_S", 0.01)


def test_two_legs_have_two_gpus_and_the_third_waits(two_gpus, make_leg):
    leg = make_leg(engine_name="vllm")
    third, got = threading.Event(), []

    def run_third():
        with lease(leg) as held:
            got.append(held)
            third.set()

    with lease(leg) as one:
        with lease(leg) as two:
            assert [one.environment, two.environment] == [{"HIP_VISIBLE_DEVICES": "0"}, {"HIP_VISIBLE_DEVICES": "1"}]
            thread = threading.Thread(target=run_third)
            thread.start()
            assert not third.wait(0.1)
        assert third.wait(30)
        thread.join()
    assert got[0].environment == {"HIP_VISIBLE_DEVICES": "1"}


def test_as_many_legs_side_by_side_as_there_are_gpus(two_gpus):
    assert slots() == 2


@pytest.mark.parametrize("name", ["fake", "unavailable", "unit"])
def test_legs_without_an_engine_of_their_own_take_no_gpu(two_gpus, make_leg, name):
    with lease(make_leg(engine_name=name)) as held:
        assert (held.device, held.environment) == ("cpu", {})


def test_a_visibility_variable_narrows_the_list(monkeypatch):
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2, 5")
    assert device._narrowed("HIP_VISIBLE_DEVICES", 8) == ["2", "5"]
    monkeypatch.delenv("HIP_VISIBLE_DEVICES")
    assert device._narrowed("HIP_VISIBLE_DEVICES", 3) == ["0", "1", "2"]
