"""A Ray cluster of several nodes on this machine, one of which is taken away while it is busy."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from lzero_async import WorkerDied, make_backend
from lzero_async.testing import ScriptedRole
from lzero_async.testing.ray_nodes import RayNodes, lose_a_node

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
ROOT = Path(__file__).resolve().parent.parent


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


JOINS = f"""
    import sys
    sys.path.insert(0, {str(ROOT)!r})
    from lzero_async import make_backend
    from lzero_async.testing import ScriptedRole
    if __name__ == "__main__":
        backend = make_backend("ray", ray_address=sys.argv[1])
        worker = backend.start("learner", ScriptedRole, here=True)
        worker.call("do", "open('written', 'w').close()")
        backend.close()
"""


def test_another_program_joins_by_address_and_writes_where_it_is(nodes: RayNodes, tmp_path: Path) -> None:
    script, folder = tmp_path / "program.py", tmp_path / "elsewhere"
    script.write_text(textwrap.dedent(JOINS))
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, str(script), nodes.address],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (folder / "written").exists()


def test_a_machine_whose_role_died_is_not_avoided(nodes: RayNodes) -> None:
    backend = make_backend("ray")
    try:
        worker = backend.start("scripted", ScriptedRole)
        with pytest.raises(WorkerDied, match="scripted was lost"):
            worker.call("do", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        assert backend.cluster.strategy(here=False) == "SPREAD"
    finally:
        backend.close()


def test_a_machine_that_is_gone_is_avoided_before_ray_knows(nodes: RayNodes) -> None:
    backend = make_backend("ray")
    try:
        worker = backend.start("scripted", ScriptedRole)
        worker.call("do", "result = 1")
        before = worker.node
        nodes.remove(before)
        with pytest.raises(WorkerDied, match="scripted was lost"):
            worker.call("do", "import time; time.sleep(60)")  # its process ends a moment after that of the node
        assert backend.cluster.strategy(here=False).soft[0].operator.values == [before]
        worker.restart()
        assert worker.call("do", "result = 1") == 1
        assert worker.node != before and worker.restarts == 1
    finally:
        backend.close()
        nodes.add()


@pytest.mark.chaos  # it takes as long as Ray takes to notice
def test_roles_that_start_right_after_a_loss_find_a_place(nodes: RayNodes) -> None:
    nodes.remove(nodes.nodes[0])  # Ray does not know yet, and places roles there
    backend = make_backend("ray")
    try:
        workers = [backend.start(f"scripted {number}", ScriptedRole) for number in range(3)]
        assert [worker.call("do", "result = 1") for worker in workers] == [1, 1, 1]
        assert {worker.node for worker in workers} == set(nodes.nodes)
        assert not any(worker.restarts for worker in workers)
    finally:
        backend.close()
        nodes.add()


@pytest.mark.chaos
def test_collectors_that_find_no_place_hold_nobody_up(nodes: RayNodes) -> None:
    loss = lose_a_node(nodes, batches=60, cores=2)  # two nodes of four cores, four collectors: no room for those of one
    nodes.add()
    assert loss.trained == 60 and loss.twice == 0
    assert loss.lost == loss.restarts == 2
    assert loss.staleness <= loss.degree


def test_a_node_that_is_lost_while_busy_costs_nothing_but_its_collects(nodes: RayNodes) -> None:
    loss = lose_a_node(nodes, batches=90)
    nodes.add()
    assert loss.trained == 90 and loss.twice == 0
    assert loss.staleness <= loss.degree
    assert 1 <= loss.lost == loss.restarts  # none was placed on the lost node again, though Ray counts it for a while
    assert loss.seen_seconds < 30 and loss.rate_after > 0
