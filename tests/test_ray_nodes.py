"""A Ray cluster of several nodes on this machine, one of which is taken away while it is busy."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from lzero_async import make_backend
from lzero_async.testing import ScriptedRole
from lzero_async.testing.ray_nodes import RayNodes, lose_a_node

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    nodes = RayNodes(2)
    yield nodes
    nodes.close()


def test_roles_are_spread_over_the_nodes_and_those_that_write_files_stay_here(nodes: RayNodes) -> None:
    backend = make_backend("ray")
    try:
        workers = [backend.start(f"scripted {number}", ScriptedRole) for number in range(4)]
        home = backend.start("learner", ScriptedRole, here=True)
        for worker in (*workers, home):
            worker.call("do", "result = 1")
        assert {worker.node for worker in workers} == set(nodes.nodes)
        assert all(worker.host for worker in workers)
        assert home.node == backend.cluster.node and home.host == ""
    finally:
        backend.close()


def test_a_node_that_is_lost_while_busy_costs_nothing_but_its_collects(nodes: RayNodes) -> None:
    loss = lose_a_node(nodes, batches=90)
    nodes.add()
    assert loss.trained == 90 and loss.twice == 0
    assert loss.staleness <= loss.degree
    assert 1 <= loss.lost <= loss.restarts
    assert loss.seen_seconds < 30 and loss.rate_after > 0
