# SPDX-License-Identifier: Apache-2.0
"""The stand-in for ``mori.cpp``: the calls that UMBP makes, eviction by fill level, and bounds."""

from __future__ import annotations

import sys

import pytest
import torch

from harness.plugin import mori_stand_in
from harness.plugin.mori_stand_in import MemoryLocationType, UMBPClient, UMBPConfig


@pytest.fixture
def memory():
    return torch.arange(200, dtype=torch.uint8)


@pytest.fixture
def client(memory):
    config = UMBPConfig()
    config.dram.capacity_bytes = 100
    config.dram.numa_node = 0  # options that mean nothing here can be set
    made = UMBPClient(config)
    assert made.register_memory(memory.data_ptr(), memory.nbytes, MemoryLocationType.CPU, -1)
    return made


def put(client, memory, key, start, length):
    return client.batch_put_ranges_from_ptr([key], [length], [[memory.data_ptr() + start]], [[length]], [[0]])


def test_ranges_go_into_the_object_and_come_back_elsewhere(client, memory):
    base = memory.data_ptr()
    assert client.batch_put_ranges_from_ptr(["a"], [20], [[base + 50, base]], [[10, 10]], [[0, 10]]) == [True]
    assert client.flush() and client.batch_exists(["a", "b"]) == [True, False]
    assert client.batch_get_ranges_into_ptr(["a", "b"], [[base + 100], [base + 150]], [[12], [9]], [[4], [0]]) == [
        True, False]
    assert memory[100:112].tolist() == [54, 55, 56, 57, 58, 59, 0, 1, 2, 3, 4, 5]
    assert memory[150:159].tolist() == list(range(150, 159)), "an object that is not there leaves memory as it is"
    assert client.clear() and client.batch_exists(["a"]) == [False]


def test_above_the_high_mark_the_least_recently_used_go_until_the_low_mark(client, memory):
    for key in "abc":
        put(client, memory, key, 0, 30)
    client.batch_get_ranges_into_ptr(["a"], [[memory.data_ptr()]], [[30]], [[0]])
    # 90 of 100 bytes are used; with 30 more the pool evicts until at most 90 are used with the new object.
    assert put(client, memory, "d", 0, 30) == [True]
    assert client.batch_exists("abcd") == [True, False, True, True]
    assert put(client, memory, "e", 0, 101) == [False], "an object larger than the pool is refused"
    assert client.batch_exists("acd") == [True, True, True]


def test_an_object_that_is_stored_again_is_replaced(client, memory):
    put(client, memory, "a", 0, 60)
    assert put(client, memory, "a", 60, 60) == [True]
    client.batch_get_ranges_into_ptr(["a"], [[memory.data_ptr()]], [[60]], [[0]])
    assert memory[:60].tolist() == list(range(60, 120))


@pytest.mark.parametrize("start", [-1, 191])
def test_memory_that_was_not_registered_is_refused(client, memory, start):
    with pytest.raises(ValueError, match="not within registered memory"):
        put(client, memory, "a", start, 10)
    put(client, memory, "b", 0, 10)
    with pytest.raises(ValueError, match="not within registered memory"):
        client.batch_get_ranges_into_ptr(["b"], [[memory.data_ptr() + start]], [[10]], [[0]])


def test_registration_can_be_taken_back_and_is_refused_for_an_accelerator(client, memory):
    assert not client.register_memory(memory.data_ptr(), 10, MemoryLocationType.GPU, 0)
    assert client.deregister_memory(memory.data_ptr()) and not client.deregister_memory(memory.data_ptr())
    with pytest.raises(ValueError, match="not within registered memory"):
        put(client, memory, "a", 0, 10)


def test_ranges_outside_the_object_are_refused(client, memory):
    with pytest.raises(ValueError, match="bytes 15 to 25 of object a, which has 20"):
        client.batch_put_ranges_from_ptr(["a"], [20], [[memory.data_ptr()]], [[10]], [[15]])


def test_it_stands_where_umbp_imports_it_from(monkeypatch):
    monkeypatch.delitem(sys.modules, "mori", raising=False)
    monkeypatch.delitem(sys.modules, "mori.cpp", raising=False)
    mori_stand_in.install()
    mori_stand_in.install()
    from mori.cpp import UMBPClient as found

    assert found is UMBPClient
    monkeypatch.delitem(sys.modules, "mori.cpp")
    monkeypatch.delitem(sys.modules, "mori")
