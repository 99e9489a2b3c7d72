"""The whole agent on the shipped game, with parts of it killed, stopped, starved or interrupted: the run goes on or ends
with one sentence, a resumed one makes up for what was lost, every batch is accounted for, and no process is left.

Run as a program it is the entry point, with a stand-in for vLLM, for the tests in which that process itself is killed.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from lzero_async.errors import WorkerDied
from lzero_async.runs import checkpoint
from lzero_async.runs.folder_lock import FolderLock, holder
from lzero_async.runs.run_dir import LAST_CHECKPOINT, free_folder
from lzero_async.workers.template import close_idle
from tests.workers.ray_nodes import RayNodes
from tests.zoo.priorzero.test_engine import write_model
from tests.zoo.priorzero.test_run import SMALL
from zoo.jericho.priorzero.games.files import SHIPPED_GAME, find_game
from zoo.jericho.priorzero.learn.saving import CHECKPOINT
from zoo.jericho.priorzero.options import build_options
from zoo.jericho.priorzero.priorzero_entry import CACHE_FILE, main
from zoo.jericho.priorzero.roles import factories as roles
from zoo.jericho.priorzero.trainer import PriorZero

pytestmark = pytest.mark.chaos
DEGREE, EPISODES, UPDATES = 2, 2, 3
ASYNC = (
    *SMALL, f"policy_config.off_policy_degree={DEGREE}", "policy_config.enable_async_eval=True",
    "policy_config.num_collectors=2", "policy_config.restart_backoff=0.01", "run_config.eval_every=0",
    "run_config.checkpoint_every=2", "run_config.final_eval_modes=[]",
)  # fmt: skip
SOON = 15.0  # seconds in which the end of something shows, on a machine that others use as well
CONTEXT_LENGTH = 512
FOREVER = 120.0  # seconds; only a broken run waits that long
MARK, ENGINES, PLAN = "LZERO_CHAOS_MARK", "LZERO_CHAOS_ENGINES", "LZERO_CHAOS_PLAN"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("llm"))


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("LZERO_ASYNC_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(MARK, uuid.uuid4().hex)
    close_idle()  # what is forked from another one does not show this mark
    before = descendants(os.getpid())
    yield
    close_idle()
    assert vanish(marked())
    assert descendants(os.getpid()) <= before
    assert not [name for name in os.listdir("/dev/shm") if "lzero" in name]


# -- processes ---------------------------------------------------------------------------------------------------------


def children() -> dict[int, list[int]]:
    """The children of every process, dead ones that were not reaped included."""
    found: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.setdefault(parent, []).append(int(path.parent.name))
    return found


def descendants(pid: int) -> set[int]:
    """The children of a process, and theirs."""
    tree, found, front = children(), set(), [pid]
    while front:
        front = [child for parent in front for child in tree.get(parent, [])]
        found |= set(front)
    return found


def marked() -> set[int]:
    """Every process that was started by this test, whoever its parent is by now."""
    mark, found = f"{MARK}={os.environ[MARK]}".encode(), set()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
        except (OSError, ValueError):
            continue
    return found


def vanish(pids: set[int], seconds: float = SOON) -> bool:
    """Whether these processes all end within that time."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return False
        finally:
            os.close(handle)
    return True


def until(condition: Callable[[], Any], seconds: float = FOREVER) -> None:
    """Look again and again until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


# -- agents ------------------------------------------------------------------------------------------------------------


class Watched(PriorZero):
    """An agent whose roles' events come to the test as well, with the name of the role."""

    def __init__(self, folder: Path, llm: str, *settings: str) -> None:
        self.heard: Callable[[str, str], None] = lambda role, kind: None
        self.struck: list[str] = []
        folder.mkdir(exist_ok=True)
        options = build_options(assignments=[*ASYNC, f"llm_config.llm={llm}", *settings])
        super().__init__(options, find_game(SHIPPED_GAME), folder)

    def _start_roles(self) -> None:
        start = self.backend.start

        def listening(name: str, factory: Any, *, on_event: Any, **options: Any) -> Any:
            def told(event: Any) -> None:
                on_event(event)
                self.heard(name, event[0])

            return start(name, factory, on_event=told, **options)

        self.backend.start = listening  # type: ignore[method-assign]
        super()._start_roles()

    def strike(self, what: str, pid: int, sign: int = signal.SIGKILL) -> None:
        """Send the signal, the first time that this is struck."""
        if what not in self.struck:
            self.struck.append(what)
            os.kill(pid, sign)

    def go_on(self) -> None:
        """Resume from the last checkpoint of its folder."""
        self.resume(self.last_checkpoint, checkpoint.load(self.last_checkpoint, CHECKPOINT, arrays=False))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def gate_of(folder: Path) -> dict[str, Any]:
    return checkpoint.load(folder / "ckpt" / "last.safetensors", CHECKPOINT, arrays=False)["coordinator"]["gate"]


def audit(folder: Path, trains: int, left_out: int = 0) -> None:
    """Whatever happened: the last checkpoint is that of a run in which every batch is accounted for, trained once and in
    time, and every episode stored once, but those that could not be played."""
    state = checkpoint.load(folder / "ckpt" / "last.safetensors", CHECKPOINT)
    gate, sums = state["coordinator"]["gate"], state["coordinator"]["statistics"]["sums"]
    ended = gate["trained"] + gate["failed"] + gate["dropped"] + gate["abandoned"]
    assert gate["admitted"] == ended + len(gate["waiting"]) + len(gate["tickets"])
    assert gate["trained"] == gate["version"] == trains
    assert gate["dropped"] == 0
    assert len(state["waiting"]) == len(gate["waiting"])
    assert sums["staleness_max"] <= DEGREE
    assert sums["lag_max"] <= DEGREE
    assert len(state["buffer"]["versions"]) == EPISODES * trains - left_out
    rows = rows_of(folder)
    assert [row["train"] for row in rows] == list(range(1, trains + 1))
    batches = [row["batch/id"] for row in rows]
    assert len(set(batches)) == trains
    assert not set(batches) & {ticket[0] for ticket in gate["waiting"]}
    assert all(row["learner/staleness"] <= DEGREE for row in rows)
    assert rows[-1]["collector/env_steps"] == state["env_steps"]
    assert rows[-1]["learner/updates"] == state["learner"]["updates"] == UPDATES * trains


def finish(agent: Watched, trains: int, left_out: int = 0) -> dict[str, Any]:
    """The end of a run that went on: its accounts, live and as saved; its statistics."""
    assert agent.coordinator.violations() == []
    assert agent.coordinator.get_statistics()["open_collects"] == 0
    agent.save()
    audit(agent.folder, trains, left_out)
    return agent.coordinator.get_statistics()


def arguments(llm: str, folder: Path, *more: str) -> list[str]:
    settings = [word for setting in ASYNC for word in ("--set", setting)]
    return ["--llm", llm, "--exp_name", str(folder), *settings, *more]


# -- a stand-in for vLLM -----------------------------------------------------------------------------------------------


def collector_with_stand_in(*words: Any) -> Any:
    _use_stand_in()
    return COLLECTOR(*words)


def evaluator_with_stand_in(*words: Any) -> Any:
    _use_stand_in()
    return EVALUATOR(*words)


COLLECTOR, EVALUATOR = roles.collector, roles.evaluator


def _use_stand_in() -> None:
    """In a role's process: what is started as vLLM is the stand-in, each of whose lives leaves its process id in a file."""
    from tests.zoo.priorzero import fake_vllm
    from zoo.jericho.priorzero.llm.vllm import engine as vllm_engine
    from zoo.jericho.priorzero.llm.vllm import server as vllm_server
    from zoo.jericho.priorzero.llm.vllm import vllm_worker

    class StandIn(vllm_server.ProcessTransport):
        def __init__(self, python: str, model: str, arguments: dict[str, Any], **options: Any) -> None:
            folder = Path(os.environ[ENGINES]) / str(os.getpid())
            folder.mkdir(parents=True)
            plan = {"id": model, "root": model, **json.loads(os.environ[PLAN])}
            arguments = {"plan": plan, "folder": str(folder), "engines": str(Path(vllm_worker.__file__).parent)}
            super().__init__(sys.executable, model, arguments, worker=fake_vllm.__file__, **options)

        def restart(self) -> None:
            super().restart()
            self.context_length = CONTEXT_LENGTH  # what the tiny model reads, more than the stand-in says of itself

    vllm_engine.ProcessTransport = StandIn  # type: ignore[misc]
    vllm_engine._find_python = lambda given: sys.executable


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Agents that are told to use vLLM use the stand-in; in this folder the lives of each role's, by that role's process."""
    monkeypatch.setattr(roles, "collector", collector_with_stand_in)
    monkeypatch.setattr(roles, "evaluator", evaluator_with_stand_in)
    monkeypatch.setenv(ENGINES, str(tmp_path / "engines"))
    monkeypatch.setenv(PLAN, "{}")
    return tmp_path / "engines"


# -- collectors and their games ----------------------------------------------------------------------------------------


def test_a_collector_that_is_killed_while_it_plays_or_waits_is_replaced(llm: str, tmp_path: Path) -> None:
    class Struck(Watched):
        def collect(self, context: Any) -> Any:
            batch = super().collect(context)
            if context.worker == 1:  # it waits at the gate now, its batch handed over
                self.strike("waiting", self.collectors[1].pid)
            return batch

    agent = Struck(tmp_path / "run", llm, "run_config.max_iter=6")
    try:
        first = {worker.pid for worker in agent.collectors}
        agent.heard = lambda role, kind: role == "collector 0" and agent.strike("playing", agent.collectors[0].pid)
        assert agent.run().reason == "max_train"
        assert sorted(agent.struck) == ["playing", "waiting"]
        statistics = finish(agent, 6)
        assert statistics["restarts"] == statistics["failed"] == 2
        assert statistics["retired"] == 0
        sources = {int(row["batch/source"].split()[1]) for row in rows_of(agent.folder)}
        assert sources - first  # what a new one played was trained on
    finally:
        agent.close()


@pytest.mark.parametrize("cores", [4, 1])  # of each machine: there is room for the collector at the other one, or not
def test_a_machine_that_is_lost_while_its_collector_plays_costs_that_collect(
    cores: int, llm: str, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    nodes, lost = RayNodes(2, cores=cores), []
    try:
        agent = Watched(tmp_path / "run", llm, "policy_config.backend=ray", "run_config.max_iter=8")
        try:

            def heard(role: str, kind: str) -> None:
                if role == "collector 0" and not lost:
                    lost.append(agent.collectors[0].node)
                    nodes.remove(lost[0])

            agent.heard = heard
            assert agent.run().reason == "max_train"
            statistics = finish(agent, 8)
            assert lost and lost[0] not in {worker.node for worker in agent.collectors}
            assert 1 <= statistics["restarts"] == statistics["failed"]
            assert cores > 1 or agent.collectors[0].node == ""
            assert statistics["retired"] == 0
        finally:
            agent.close()
    finally:
        nodes.close()


def test_a_game_that_is_killed_costs_an_episode_and_no_restart(llm: str, tmp_path: Path) -> None:
    agent = Watched(tmp_path / "run", llm, "run_config.max_iter=4")

    def heard(role: str, kind: str) -> None:
        if role == "collector 0":
            agent.strike("game", children()[agent.collectors[0].pid][0])

    agent.heard = heard
    try:
        assert agent.run().reason == "max_train"
        assert agent.struck == ["game"]
        statistics = finish(agent, 4)
        assert statistics["restarts"] == statistics["failed"] == 0
        assert agent.reuse.totals()["game_abnormal_ends"] == 1
        assert agent.reuse.totals()["game_isolated"] == 0
    finally:
        agent.close()


def test_an_environment_that_always_crashes_is_left_out_and_reported(
    llm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Watched(tmp_path / "run", llm, "run_config.max_iter=4", "policy_config.num_collectors=1")
    begun, over = threading.Event(), threading.Event()
    killed: list[int] = []

    def poison() -> None:
        begun.wait()
        collector = agent.collectors[0].pid
        healthy = children()[collector][0]
        while not over.wait(0.01):
            for pid in children().get(collector, []):
                if pid not in (healthy, *killed):
                    killed.append(pid)
                    os.kill(pid, signal.SIGKILL)

    agent.heard = lambda role, kind: begun.set()
    poisoner = threading.Thread(target=poison)
    poisoner.start()
    try:
        assert agent.run().reason == "max_train"
        assert len(killed) == 3  # it was given up then
        statistics = finish(agent, 4, left_out=1)  # with the second try; after the third the other environment plays
        assert statistics["restarts"] == statistics["failed"] == 0
        assert agent.reuse.totals()["game_isolated"] == 1
        assert "is not used any more" in caplog.text
    finally:
        begun.set()
        over.set()
        poisoner.join()
        agent.close()


def test_a_collector_that_is_stopped_is_found_and_replaced(llm: str, tmp_path: Path) -> None:
    agent = Watched(tmp_path / "run", llm, "run_config.max_iter=6", "policy_config.hang_timeout=4")
    stopped = agent.collectors[0].pid

    def heard(role: str, kind: str) -> None:
        if role == "collector 0":
            agent.strike("stopped", agent.collectors[0].pid, signal.SIGSTOP)

    agent.heard = heard
    try:
        assert agent.run().reason == "max_train"
        assert agent.struck == ["stopped"]
        assert vanish({stopped})
        statistics = finish(agent, 6)
        assert statistics["restarts"] == statistics["failed"] == 1
        assert statistics["retired"] == 0
    finally:
        agent.close()


# -- the evaluator -----------------------------------------------------------------------------------------------------


def test_an_evaluator_that_is_killed_is_replaced_and_asked_again(llm: str, tmp_path: Path) -> None:
    """Between two evaluations, in the middle of one, and in one that is due at the run's own end."""
    arrived = threading.Event()

    class Struck(Watched):
        def train(self, batch: Any) -> Any:
            if self.coordinator.train_count == 0:
                self.strike("between", self.evaluator.pid)
            if self.coordinator.train_count == 4:
                assert arrived.wait(FOREVER)
            return super().train(batch)

        def _keep_evaluation(self, row: dict[str, Any]) -> None:
            super()._keep_evaluation(row)
            arrived.set()

    agent = Struck(tmp_path / "run", llm, "run_config.max_iter=6", "run_config.eval_every=3")

    def heard(role: str, kind: str) -> None:
        if kind == "evaluation steps":
            agent.strike("at the end" if agent.history else "in the middle", agent.evaluator.pid)

    agent.heard = heard
    try:
        result = agent.run()
        assert result.reason == "max_train"
        assert agent.struck == ["between", "in the middle", "at the end"]
        assert [row["version"] for row in agent.history] == [3, 6]
        assert result.last_eval is not None and result.last_eval.version == 6
        statistics = finish(agent, 6)
        assert (statistics["restarts"], statistics["failed"], statistics["eval_count"]) == (3, 0, 2)
    finally:
        agent.close()


def test_ctrl_c_is_no_failure_while_the_evaluator_is_dead(llm: str, tmp_path: Path) -> None:
    settings = ("run_config.eval_every=1", "policy_config.backend=thread", "policy_config.num_collectors=1")
    agent = Watched(tmp_path / "run", llm, *settings, "run_config.max_iter=50", "policy_config.restart_backoff=60")

    def die(*words: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise WorkerDied("evaluator was ended by SIGKILL.")

    agent.evaluator.call = die  # type: ignore[method-assign]
    try:
        assert agent.run().reason == "SIGINT"
        assert agent.history == []
        finish(agent, agent.coordinator.train_count)
    finally:
        agent.close()


# -- the learner -------------------------------------------------------------------------------------------------------


def test_the_death_of_the_learner_ends_the_run_and_a_resumed_one_repeats_what_was_lost(
    llm: str, tmp_path: Path
) -> None:
    """Killed in the middle of a train, then while it waits for a batch."""
    times: list[float] = []

    class Struck(Watched):
        def strike(self, what: str, pid: int, sign: int = signal.SIGKILL) -> None:
            times.append(time.monotonic())
            super().strike(what, pid, sign)

        def _trained(self) -> None:
            super()._trained()
            if whens == ["waiting"] and self.coordinator.train_count == 5:
                self.strike("waiting", self.learner.pid)

    def heard(role: str, kind: str) -> None:
        if whens == ["training"] and kind == "updates" and agent.coordinator.train_count >= 2:
            agent.strike("training", agent.learner.pid)

    folder = tmp_path / "run"
    for whens in (["training"], ["waiting"], []):
        agent = Struck(folder, llm, "run_config.max_iter=7")
        try:
            if agent.last_checkpoint.is_file():
                agent.go_on()
            agent.heard = heard
            if not whens:
                assert agent.run().reason == "max_train"
                assert finish(agent, 7)["restarts"] == 0
                continue
            with pytest.raises(WorkerDied, match="learner was ended by SIGKILL"):
                agent.run()
            assert time.monotonic() - times[-1] < SOON
            assert agent.struck == whens
            made, saved = agent.coordinator.train_count, gate_of(folder)["trained"]
            assert agent.coordinator.violations() == []
            assert saved == made - made % 2 >= 2  # of the last train before it that was to be saved
            assert [row["train"] for row in rows_of(folder)] == list(range(1, made + 1))
        finally:
            agent.close()


def test_a_train_that_raises_is_owed_in_the_checkpoint_and_stored_once(
    llm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lzero.policy.unizero import UniZeroPolicy

    updates: list[int] = []
    learn = UniZeroPolicy._forward_learn

    def struck(policy: Any, data: Any) -> Any:
        updates.append(data[-1])
        if len(updates) == 2 * UPDATES + 2:  # the second update of the third train
            raise RuntimeError("struck in the middle of a train")
        return learn(policy, data)

    monkeypatch.setattr(UniZeroPolicy, "_forward_learn", struck)
    settings = ("run_config.max_iter=5", "policy_config.backend=thread", "policy_config.num_collectors=1")
    agent = Watched(tmp_path / "run", llm, *settings)
    try:
        with pytest.raises(RuntimeError, match="struck in the middle of a train"):
            agent.run()
        owed = agent.coordinator.state_dict()["gate"]["waiting"][0][0]
    finally:
        agent.close()
    state = checkpoint.load(agent.last_checkpoint, CHECKPOINT)
    assert state["coordinator"]["gate"]["trained"] == 2
    assert state["coordinator"]["gate"]["waiting"][0][0] == owed
    assert state["learner"]["updates"] == 2 * UPDATES
    agent = Watched(tmp_path / "run", llm, *settings)
    try:
        agent.go_on()
        assert agent.run().reason == "max_train"
        finish(agent, 5)
        assert rows_of(agent.folder)[2]["batch/id"] == owed
    finally:
        agent.close()


def test_a_train_whose_numbers_cannot_be_written_is_not_made_again(
    llm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("run_config.max_iter=3", "policy_config.backend=thread", "policy_config.num_collectors=1")
    agent = Watched(tmp_path / "run", llm, *settings)
    write = agent._records.train

    def full(row: dict[str, Any]) -> None:
        if row["train"] == 2:
            raise OSError(28, "No space left on device", str(tmp_path / "run" / "metrics.jsonl"))
        write(row)

    monkeypatch.setattr(agent._records, "train", full)
    try:
        with pytest.raises(OSError, match="No space left"):
            agent.run()
    finally:
        agent.close()
    state = checkpoint.load(agent.last_checkpoint, CHECKPOINT)
    assert state["coordinator"]["gate"]["trained"] == 2
    assert state["learner"]["updates"] == 2 * UPDATES
    assert len(state["buffer"]["versions"]) == 2 * EPISODES


def test_a_full_disk_ends_the_run_with_a_sentence_and_leaves_the_older_checkpoint(
    llm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, save = tmp_path / "run", PriorZero.save

    def full(agent: PriorZero) -> Path:
        if agent.coordinator.train_count >= 4:
            resource.prlimit(agent.learner.pid, resource.RLIMIT_FSIZE, (1000, 1000))
        return save(agent)

    with monkeypatch.context() as patch:
        patch.setattr(PriorZero, "save", full)
        assert main(arguments(llm, folder, "--max_iter", "6")) == 2
    said = capsys.readouterr().err
    assert f"error: The PriorZero checkpoint {folder / 'ckpt' / 'last.safetensors'} cannot be written" in said
    assert "Traceback" not in said
    assert gate_of(folder)["trained"] == 2
    assert [path.name for path in (folder / "ckpt").iterdir()] == ["last.safetensors"]
    assert main(["--resume", str(folder)]) == 0
    audit(folder, 6)


# -- the language model's engine ---------------------------------------------------------------------------------------


def test_an_engine_that_dies_over_a_question_or_between_two_is_replaced_under_the_run(
    llm: str, tmp_path: Path, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLAN, json.dumps({"lives": {"1": {"exit": 5}}}))  # the first one of each role, over a question

    class Struck(Watched):
        def collect(self, context: Any) -> Any:
            batch = super().collect(context)
            lives = sorted((stand_in / str(self.collectors[0].pid)).iterdir())
            if context.worker == 0 and (second := [path for path in lives if path.name == "life-2"]):
                self.strike("between", int(second[0].read_text()))
            return batch

    settings = ("run_config.max_iter=8", "llm_config.llm_engine=vllm", "llm_config.prior_cache_size=1")
    agent = Struck(tmp_path / "run", llm, *settings)
    try:
        assert agent.run().reason == "max_train"
        assert agent.struck == ["between"]
        statistics = finish(agent, 8)
        assert statistics["restarts"] == statistics["failed"] == 0
        lives = {path.name for path in (stand_in / str(agent.collectors[0].pid)).iterdir()}
        assert {"life-1", "life-2", "life-3"} <= lives
    finally:
        agent.close()


# -- the entry point itself --------------------------------------------------------------------------------------------


def start(llm: str, folder: Path, *more: str) -> subprocess.Popen[str]:
    """This file as a program."""
    command = [sys.executable, str(Path(__file__).resolve()), *arguments(llm, folder, *more)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def read_until(process: subprocess.Popen[str], words: str) -> None:
    """Read what it says until these words come."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if words in line:
            return
    raise AssertionError("".join(said))


def test_the_last_words_of_workers_do_not_take_the_name_of_a_start_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.log").touch()
    (tmp_path / "run" / "learner.out").write_text("the other side has ended")
    with FolderLock() as lock:
        assert free_folder(str(tmp_path / "run"), None, lock, (CACHE_FILE,)) == tmp_path / "run"
    (tmp_path / "run" / "options.json").touch()
    with FolderLock() as lock:
        assert free_folder(str(tmp_path / "run"), None, lock, (CACHE_FILE,)) == tmp_path / "run-2"


def test_nothing_outlives_an_entry_point_that_is_killed_and_a_resumed_run_completes(
    llm: str, tmp_path: Path, stand_in: Path
) -> None:
    """Killed while its processes start, and then in the middle of a run, with batches that wait in the checkpoint."""
    folder = tmp_path / "run"
    words = ("--max_iter", "7", "--llm_engine", "vllm")
    with start(llm, folder, *words) as process:
        read_until(process, "starting learner")
        until(lambda: len(marked()) >= 4)
        family = marked()
        process.kill()
        assert vanish(family | marked())
    with start(llm, folder, *words) as process:
        read_until(process, " trains 3/")
        family = marked()
        assert len(family) >= 1 + 3 + 2 + 4  # roles, engines, games
        process.kill()
        assert vanish(family | marked())
    gate = gate_of(folder)
    assert gate["trained"] == 2
    assert gate["waiting"]
    assert main(["--resume", str(folder)]) == 0
    audit(folder, 7)
    assert {row["batch/id"] for row in rows_of(folder)} > {ticket[0] for ticket in gate["waiting"]}


def test_ctrl_c_saves_what_waits_and_a_resumed_run_completes(llm: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with start(llm, folder, "--max_iter", "6", "--set", "run_config.checkpoint_every=0") as process:
        read_until(process, " trains 2/")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        at = time.monotonic()
        output, errors = process.communicate(timeout=FOREVER)
        assert process.returncode == 130, errors
        assert time.monotonic() - at < SOON
        assert "Traceback" not in errors
        assert "ended by: SIGINT" in output
    assert vanish(marked())
    audit(folder, gate_of(folder)["trained"])
    assert main(["--resume", str(folder)]) == 0
    audit(folder, 6)


@pytest.mark.timeout(3_600)
def test_ten_kills_at_random_moments_lose_nothing(llm: str, tmp_path: Path) -> None:
    """Each at a random line that the program says once there is a checkpoint, each resumed at once."""
    folder, stream, kept = tmp_path / "run", random.Random(4), list[dict[str, Any]]()
    words, trains = ["--max_iter", "1000"], 0
    for _ in range(10):
        with start(llm, folder, *words) as process:
            assert process.stderr is not None
            left = stream.randint(0, 8)
            for _line in process.stderr:
                left -= (folder / LAST_CHECKPOINT).is_file()
                if left < 0:
                    break
            assert process.poll() is None
            assert holder(folder) == f"pid {process.pid}"
            process.kill()
            assert vanish(marked())
        assert holder(folder) is None
        state = checkpoint.load(folder / LAST_CHECKPOINT, CHECKPOINT)  # every checksum is compared
        gate = state["coordinator"]["gate"]
        ended = gate["trained"] + gate["failed"] + gate["dropped"] + gate["abandoned"]
        assert gate["admitted"] == ended + len(gate["waiting"]) + len(gate["tickets"])
        assert len(state["waiting"]) == len(gate["waiting"])
        assert gate["trained"] >= trains
        trains = gate["trained"]
        assert len(state["buffer"]["versions"]) == EPISODES * trains
        rows = rows_of(folder)[:trains] if trains else []
        assert [row["train"] for row in rows] == list(range(1, trains + 1))
        assert rows[: len(kept)] == kept  # what was trained before the last checkpoint stays as it was
        assert len({row["batch/id"] for row in rows} | {ticket[0] for ticket in gate["waiting"]}) == trains + len(
            gate["waiting"]
        )
        kept, words = rows, ["--max_iter", "1000", "--resume"]
    assert main(["--resume", str(folder), "--max_iter", str(trains + 3)]) == 0
    audit(folder, trains + 3)


def program() -> int:
    """The entry point with the stand-in; its second train's checkpoint is made when a batch waits."""
    from tests.zoo.priorzero import test_chaos as this

    save = PriorZero.save

    def save_what_waits(agent: PriorZero) -> Path:
        if agent.coordinator.train_count == 2 and agent.options.run_config.checkpoint_every:  # not at a run's end
            until(lambda: agent.coordinator.collect_train_lag or agent.coordinator.stop_signal.is_set())
        return save(agent)

    PriorZero.save = save_what_waits  # type: ignore[method-assign]
    roles.collector, roles.evaluator = this.collector_with_stand_in, this.evaluator_with_stand_in
    return main()


if __name__ == "__main__":
    sys.exit(program())
