"""A Ray cluster of several nodes on this machine, one of which is taken away while it is busy."""

from __future__ import annotations

import contextlib
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
from tests.workers.ray_nodes import RayNodes, lose_a_node

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    nodes = RayNodes(2)
    yield nodes
    nodes.close()


def test_roles_are_spread_over_the_nodes_and_those_that_write_files_stay_here(nodes: RayNodes) -> None:
    backend = make_backend("ray")
    try:
        workers = [backend.start(f"scripted {number}", ScriptedRole) for number in range(4)]
        home = backend.start("learner", ScriptedRole, pin_to_driver=True)
        for worker in (*workers, home):
            worker.call("do", "result = 1")
        assert {worker.node for worker in workers} == set(nodes.nodes)
        assert all(worker.host for worker in workers)
        assert home.node == backend.cluster.node and home.host == ""
    finally:
        backend.close()


HEAD = f"""
    import sys
    sys.path.insert(0, {str(ROOT)!r})
    from tests.workers.ray_nodes import RayNodes
    if __name__ == "__main__":
        nodes = RayNodes(0)
        print(nodes.address, flush=True)
        sys.stdin.read()
        nodes.close()
"""
JOINS = f"""
    import os, sys
    sys.path.insert(0, {str(ROOT)!r})
    from lzero_async import ConfigError, make_backend
    from lzero_async.testing import ScriptedRole
    if __name__ == "__main__":
        try:
            backend = make_backend("ray", ray_address=sys.argv[1])
        except ConfigError as error:
            sys.exit(f"refused: {{error}}")
        worker = backend.start("learner", ScriptedRole, pin_to_driver=True)
        try:
            worker.call("do", "import os; open('written', 'w').write(os.environ.get('LZERO_ASYNC_CACHE', ''))")
        except ConfigError as error:
            sys.exit(f"no place: {{error}}")
        finally:
            backend.close()
"""
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
OTHER = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "fedcba9876543210" * 4}


class Programs:
    """Programs that know nothing of this one's Ray, each in a folder of its own; their home has no token."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._clean |= {"HOME": str(folder), "RAY_NUM_REDIS_GET_RETRIES": "1"}

    @contextlib.contextmanager
    def started(self, name: str, source: str, *words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
        """Run it, in the folder of that name; it ends with the block."""
        folder, script = self.folder / name, self.folder / f"{name}.py"
        folder.mkdir(exist_ok=True)
        script.write_text(textwrap.dedent(source))
        program = subprocess.Popen(
            [sys.executable, str(script), *words], cwd=folder, env={**self._clean, **environment}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            yield program
            program.communicate(timeout=60)
        finally:
            program.kill()
            program.communicate()

    def joined(self, address: str, **environment: str) -> str:
        """What a program that joins says at its end: nothing if it could."""
        with self.started("joins", JOINS, address, **environment) as program:
            told = program.communicate(timeout=60)[1]
        return told if program.returncode else ""


@pytest.fixture
def programs(tmp_path: Path) -> Programs:
    return Programs(tmp_path)


@pytest.fixture
def head(programs: Programs, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a cluster that another program made, in the environment that the test asks for."""
    with programs.started("head", HEAD, **request.param) as program:
        assert program.stdout is not None and program.stderr is not None
        address = program.stdout.readline().strip()
        assert address, program.stderr.read()
        yield address


@pytest.mark.parametrize("head", [TOKEN], indirect=True)
def test_a_program_joins_by_address_with_the_token_and_writes_where_it_is(head: str, programs: Programs) -> None:
    written = programs.folder / "joins" / "written"
    assert "refuses programs without its token; set RAY_AUTH_MODE=token" in programs.joined(head)
    for token in (OTHER, {"RAY_AUTH_MODE": "token"}):
        assert "this program has no token that the Ray cluster there would take" in programs.joined(head, **token)
    assert not written.exists()
    assert programs.joined(head, **TOKEN, LZERO_ASYNC_CACHE="of the program") == ""
    assert written.read_text() == "of the program"


@pytest.mark.parametrize("head", [{}], indirect=True)
def test_a_program_with_a_token_is_told_that_the_cluster_has_none(head: str, programs: Programs) -> None:
    assert programs.joined(head) == ""
    told = programs.joined(head, **TOKEN)
    assert "no place: learner does not begin anywhere in the Ray cluster (" in told
    assert "was it started without a token?" in told


def test_the_token_is_suspected_only_while_no_role_ever_began(nodes: RayNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, lost = make_backend("ray"), RuntimeError("it never ran")
    try:
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        assert backend.cluster.refusal_of_all("scripted", lost) is None
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        assert "scripted does not begin anywhere in the Ray cluster (it never ran)" in str(
            backend.cluster.refusal_of_all("scripted", lost)
        )
        backend.start("scripted", ScriptedRole).call("do", "result = 1")
        assert backend.cluster.refusal_of_all("scripted", lost) is None
    finally:
        backend.close()


def test_a_machine_whose_role_died_is_not_avoided(nodes: RayNodes) -> None:
    backend = make_backend("ray")
    try:
        worker = backend.start("scripted", ScriptedRole)
        with pytest.raises(WorkerDied, match="scripted was lost"):
            worker.call("do", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
        assert backend.cluster.strategy(pin_to_driver=False) == "SPREAD"
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
        assert backend.cluster.strategy(pin_to_driver=False).soft[0].operator.values == [before]
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
