"""Whoever opened an array keeps it as it was: every combination of owner, maker and reader of which one at least is an actor."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest

from lzero_async import make_backend
from lzero_async.testing import ScriptedRole
from lzero_async.workers import regions
from tests.workers.parcel_stress import COMBINATIONS, run_owner

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
OWNERS = sorted({owner for owner, *_ in COMBINATIONS})


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of one cluster for all; this program is connected."""
    from lzero_async.workers.ray.cluster import join_cluster

    cluster = join_cluster("", {})
    yield cluster.ray.get_runtime_context().gcs_address
    cluster.leave()


def check_owner(owner: str, address: str, arrays: int, seed: int) -> None:
    """Let every maker and reader of this owner open so many arrays, if one of the three is on Ray."""
    pairs = sorted(
        (maker, reader) for who, maker, reader in COMBINATIONS if who == owner and "ray" in (who, maker, reader)
    )
    report = run_owner(owner, seed, pairs, arrays, 1, 1, address)
    assert sorted(report.opened) == pairs
    assert min(report.opened.values()) >= arrays
    assert report.cut_off.keys() >= {"stop", "kill"}


@pytest.mark.parametrize("owner", OWNERS)
def test_nobody_ever_finds_a_wrong_array(owner: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With memory that is overwritten as soon as it counts as free."""
    monkeypatch.setenv("LZERO_ASYNC_POISON_PARCELS", "1")  # of workers
    monkeypatch.setattr(regions, "POISON", True)
    check_owner(owner, address, 10, seed=3)


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("owner", OWNERS)
def test_nobody_ever_finds_a_wrong_array_in_thousands(owner: str, address: str) -> None:
    check_owner(owner, address, 150, seed=4)


def test_what_was_read_outlives_its_actor_and_the_backend(address: str) -> None:
    """`read` copies nothing out of Ray's store, which must not use that memory for anything else."""
    backend = make_backend("ray", ray_resources={"worker": {"CPU": 0}})
    worker = backend.start("worker", ScriptedRole)
    make = "import numpy as np; result = Parcel(np.full(args[0], args[1]))"
    kept = [worker.call("do", make, 1_000_000, number).read() for number in range(3)]
    worker.kill()
    worker.restart()
    for number in range(3, 40):
        worker.call("do", make, 1_000_000, number)
    backend.close()
    assert [np.unique(array).tolist() for array in kept] == [[0], [1], [2]]
