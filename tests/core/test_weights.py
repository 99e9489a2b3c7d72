"""Snapshots of the weights: immutable, versioned, never half an update."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from lzero_async import ConfigError
from lzero_async.core.weights import WeightStore


def test_a_snapshot_does_not_follow_the_learner() -> None:
    store = WeightStore()
    assert store.latest() is None
    weights = {"layer": {"w": np.zeros(3)}, "steps": [1, 2]}
    store.publish(weights, 0)
    weights["layer"]["w"] += 1
    weights["steps"].append(3)
    snapshot = store.latest()
    assert snapshot.version == 0
    assert snapshot.state["layer"]["w"].tolist() == [0, 0, 0]
    assert snapshot.state["steps"] == (1, 2)


def test_objects_in_an_array_do_not_follow_either() -> None:
    weights = np.empty(2, dtype=object)
    weights[:] = [[1], np.zeros(3)]
    state = WeightStore().publish(weights, 0).state
    weights[0].append(2)
    weights[1] += 1
    assert state[0] == [1] and state[1].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="read-only"):
        state[0] = 1


class Layer(NamedTuple):
    """Weights by name."""

    weight: np.ndarray
    bias: np.ndarray


def test_a_namedtuple_of_weights_stays_one() -> None:
    mine = Layer(np.ones(2), np.zeros(2))
    found = WeightStore().publish([mine, (1, 2)], 0).state
    assert isinstance(found, tuple) and isinstance(found[0], Layer) and type(found[1]) is tuple
    mine.weight[:] = 7
    assert found[0].weight.tolist() == [1, 1]


def test_a_snapshot_cannot_be_changed() -> None:
    store = WeightStore()
    state = store.publish({"w": np.zeros(3)}, 0).state
    with pytest.raises(ValueError, match="read-only"):
        state["w"][0] = 1
    with pytest.raises(TypeError):
        state["w"] = 1


def test_versions_only_grow_except_at_a_restart() -> None:
    store = WeightStore()
    store.publish({}, 3)
    for version in (3, 2):
        with pytest.raises(ConfigError, match=f"version is {version}, but version 3 is published"):
            store.publish({}, version)
    with pytest.raises(ConfigError, match="version is -1"):
        store.publish({}, -1)
    store.restart({}, 1)
    assert store.latest().version == 1


def test_torch_tensors_are_detached_copies() -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.zeros(2))
    store = WeightStore()
    store.publish({"p": parameter}, 0)
    with torch.no_grad():
        parameter += 1
    tensor = store.latest().state["p"]
    assert tensor.tolist() == [0, 0]
    assert not tensor.requires_grad


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns a hundred times as often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_readers_never_see_half_an_update() -> None:
    store = WeightStore()
    a, b = np.zeros(1000), np.zeros(1000)
    store.publish({"a": a, "b": b}, 0)
    done = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        last = 0
        while not done.is_set():
            version, state = store.latest()
            values = {state["a"][0], state["a"][-1], state["b"][0], state["b"][-1]}
            if values != {version} or version < last:
                wrong.append(f"{version}: {values}")
            last = version

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for version in range(1, 3000):
        a += 1
        b += 1
        store.publish({"a": a, "b": b}, version)
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong
