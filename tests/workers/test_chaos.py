"""Workers and whole runs that die or hang at random moments: nothing is lost, counted twice or left behind.

Run as a program it trains in a folder, for the tests in which the parent itself is killed.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lzero_async import (
    AsyncTrainingCoordinator,
    Batch,
    CollectContext,
    EvalContext,
    Recovery,
    RunResult,
    Worker,
    WorkerDied,
)
from lzero_async.testing import Interrupted
from lzero_async.workers.backend import make_backend
from lzero_async.workers.template import close_idle
from tests.process_tools import children, ended
from tests.workers.roles import CollectorRole, EvaluatorRole, LearnerRole

ROOT = Path(__file__).resolve().parents[2]
EVAL_EVERY = 3
SAVE_EVERY = 4
FOREVER = 60.0  # seconds; only a broken run waits that long


class Strike(NamedTuple):
    """At this train count the victim gets this signal: at the beginning of its next call, or right before it."""

    at: int
    victim: str
    busy: bool
    signal: int = signal.SIGKILL


class Training:
    """A run as an application puts it together: roles in processes, parcels between them, checkpoints, restarts."""

    def __init__(
        self,
        folder: Path,
        degree: int,
        collectors: int,
        strikes: list[Strike],
        *,
        backend: str = "process",
        hang_timeout: float = FOREVER,
        train_seconds: float = 0.001,
        collect_seconds: float = 0.001,
        poisoned: tuple[int, ...] = (),
        max_restarts: int = 3,
    ) -> None:
        self.path = str(folder / "checkpoint")
        self.strikes, self.struck = strikes, list[Strike]()
        self.armed: dict[str, list[Strike]] = {}
        self.at_begin: dict[str, Strike] = {}
        # The learner is spawned; the others are forked from a template.
        others = make_backend(backend, hang_timeout=hang_timeout, preload=["lzero_async.testing"])
        self.backends = [make_backend(backend), others]
        self.workers: dict[str, Worker] = {}
        self.coordinator: AsyncTrainingCoordinator | None = None
        try:
            self._start(self.backends[0], "learner", partial(LearnerRole, seconds=train_seconds))
            for index in range(collectors):
                role = partial(
                    CollectorRole, worker=index, seconds=collect_seconds * (1 + index), poisoned=index in poisoned
                )
                self._start(self.backends[1], f"collector {index}", role)
            self._start(self.backends[1], "evaluator", partial(EvaluatorRole, seconds=0.002))
            self.learner = self.workers["learner"]
            saved = self.learner.call("load", self.path) if os.path.exists(self.path) else None
            self.coordinator = AsyncTrainingCoordinator(
                degree,
                enable_async_eval=True,
                num_collectors=collectors,
                recovery=Recovery(on_failure="restart", max_restarts=max_restarts, restart_backoff=0.001),
                get_weights=lambda: self.learner.call("weights"),
            )
            if saved is not None:
                self.coordinator.load_state_dict(saved)
        except BaseException:
            self.close()
            raise

    def _start(self, backend: Any, name: str, factory: Any) -> None:
        self.workers[name] = backend.start(name, factory, on_event=lambda _: self._began(name))

    # -- the three functions of a run ----------------------------------------------------------------------------------

    def collect(self, context: CollectContext) -> Any:
        assert context.snapshot is not None
        return self._call(f"collector {context.worker}", "collect", context.snapshot.state, stop=context.stop)

    def train(self, batch: Batch) -> None:
        assert self.coordinator is not None
        count = self.coordinator.train_count
        for strike in [one for one in self.strikes if one.at == count]:
            self.strikes.remove(strike)
            if strike.victim == "parent":
                self._arm(strike, "learner" if strike.busy else "")
            else:
                self._arm(strike, strike.victim)
        assert self._call("learner", "train", batch.id, batch.data, stop=None) == count + 1

    def evaluate(self, context: EvalContext) -> float:
        assert context.snapshot is not None and self.coordinator is not None
        for _ in range(5):
            try:
                score = self._call("evaluator", "evaluate", context.snapshot.state, stop=context.stop)
                assert score == context.version
                return float(score)
            except WorkerDied:
                self.workers["evaluator"].restart()
                self.coordinator.count_restart()
        raise AssertionError("the evaluator dies again and again")

    def after_train(self) -> None:
        assert self.coordinator is not None
        if self.coordinator.train_count % SAVE_EVERY == 0:
            self.learner.call("save", self.path, self.coordinator.state_dict(with_batches=True))

    def on_restart(self, worker: int, error: Exception) -> None:
        if isinstance(error, WorkerDied):
            self.workers[f"collector {worker}"].restart()

    def run(self, max_train: int) -> RunResult:
        assert self.coordinator is not None
        return self.coordinator.run(
            self.collect,
            self.train,
            self.evaluate,
            eval_every=EVAL_EVERY,
            max_train=max_train,
            after_train=self.after_train,
            on_restart=self.on_restart,
            handle_signals=False,
            print_statistics=False,
        )

    def close(self) -> None:
        try:
            if self.coordinator is not None:
                self.coordinator.close()
        finally:
            for backend in self.backends:
                backend.close()

    # -- strikes -------------------------------------------------------------------------------------------------------

    def _arm(self, strike: Strike, name: str) -> None:
        if not name:  # the parent, between two calls
            os.kill(os.getpid(), strike.signal)
        self.armed.setdefault(name, []).append(strike)

    def _call(self, name: str, method: str, *args: Any, stop: Any) -> Any:
        worker, linger = self.workers[name], 0.0
        if self.armed.get(name):
            strike = self.armed[name].pop()
            if strike.busy:
                self.at_begin[name], linger = strike, FOREVER
            else:
                self._strike(strike, worker)
        return worker.call(method, *args, linger, stop=stop)

    def _began(self, name: str) -> None:
        """A role has begun its call."""
        if (strike := self.at_begin.pop(name, None)) is not None:
            self._strike(strike, self.workers[name])

    def _strike(self, strike: Strike, worker: Worker) -> None:
        self.struck.append(strike)
        os.kill(os.getpid() if strike.victim == "parent" else worker.pid, strike.signal)


def audit(training: Training, max_train: int) -> dict[str, Any]:
    """Whatever happened: the accounts are exact, the bound was kept, and no batch was trained twice."""
    coordinator = training.coordinator
    assert coordinator is not None
    stats, degree = coordinator.get_statistics(), coordinator.off_policy_degree
    assert coordinator.violations() == []
    assert stats["open_collects"] == 0
    assert stats["staleness_max"] <= degree
    assert stats["max_lag"] <= degree
    history = training.learner.call("history")
    assert len(history) == max_train == stats["train_count"] == coordinator.version
    assert len({batch for batch, _ in history}) == len(history)
    assert len({tuple(tag[:3]) for _, tag in history}) == len(history)
    waiting = {tuple(batch.meta[:3]) for batch in coordinator.waiting_batches}
    assert not waiting & {tuple(tag[:3]) for _, tag in history}
    for version, (_, tag) in enumerate(history):
        assert 0 <= version - tag[3] <= degree
    latest = coordinator.weights.latest()
    assert latest is not None and latest.version == latest.state.meta == coordinator.version
    return stats


@pytest.fixture(autouse=True)
def _nothing_is_left(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.CRITICAL, "lzero_async")  # a record that pytest keeps would keep what its traceback holds
    gc.collect()
    before, threads, opened = children(), threading.active_count(), len(os.listdir("/proc/self/fd"))
    yield
    close_idle()
    gc.collect()
    assert children() <= before
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= opened
    assert not [name for name in os.listdir("/dev/shm") if "lzero" in name]


def settings(stream: random.Random) -> tuple[int, int]:
    """A degree and a number of collectors."""
    degree = stream.randint(2, 4)
    return degree, stream.randint(2, min(3, degree))


def strikes_of(stream: random.Random, victims: list[str], count: int, last: int, **options: Any) -> list[Strike]:
    """That many strikes at different moments, idle and busy."""
    moments = sorted(stream.sample(range(1, last), count))
    return [Strike(at, stream.choice(victims), stream.random() < 0.5, **options) for at in moments]


# -- parts of a run die --------------------------------------------------------------------------------------------------------


def collectors_and_evaluator(seed: int, folder: Path) -> None:
    """4 kill points."""
    stream = random.Random(f"collectors {seed}")
    degree, collectors = settings(stream)
    victims = [*(f"collector {index}" for index in range(collectors)), "evaluator"]
    training = Training(folder, degree, collectors, strikes_of(stream, victims, 4, 40))
    try:
        trains = 200  # an evaluator that is killed twice has come back before the end
        result = training.run(max_train=trains)
        assert result.reason == "max_train"
        stats = audit(training, trains)
        assert len(training.struck) == 4
        of_collectors = sum(strike.victim != "evaluator" for strike in training.struck)
        assert stats["failed"] == of_collectors
        assert stats["restarts"] == 4
        assert stats["retired"] == 0
        assert result.last_eval is not None and result.last_eval.value == result.last_eval.version
    finally:
        training.close()


def hanging_collectors(seed: int, folder: Path) -> None:
    """2 kill points, by signs of life that stay away."""
    stream = random.Random(f"hanging {seed}")
    degree, collectors = settings(stream)
    victims = [*(f"collector {index}" for index in range(collectors)), "evaluator"]
    strikes = strikes_of(stream, victims, 2, 15, signal=signal.SIGSTOP)
    training = Training(folder, degree, collectors, strikes, hang_timeout=1.0)
    try:
        assert training.run(max_train=30).reason == "max_train"
        stats = audit(training, 30)
        assert len(training.struck) == 2
        assert stats["restarts"] >= 2
    finally:
        training.close()


def learner(seed: int, folder: Path) -> None:
    """3 kill points, each followed by a new run from the last checkpoint."""
    stream = random.Random(f"learner {seed}")
    degree, collectors = settings(stream)
    strikes = strikes_of(stream, ["learner"], 3, 40)
    for strike in [*strikes, None]:
        training = Training(folder, degree, collectors, [] if strike is None else [strike])
        try:
            if strike is None:
                assert training.run(max_train=44).reason == "max_train"
                audit(training, 44)
            else:
                with pytest.raises(WorkerDied, match="learner was ended by SIGKILL"):
                    training.run(max_train=44)
                assert training.struck == [strike]
                assert training.coordinator is not None
                assert training.coordinator.violations() == []
                assert training.coordinator.version == strike.at
        finally:
            training.close()


@pytest.mark.parametrize("seed", range(6))
def test_collectors_and_the_evaluator_may_be_killed_at_any_moment(seed: int, tmp_path: Path) -> None:
    collectors_and_evaluator(seed, tmp_path)


@pytest.mark.parametrize("seed", range(2))
def test_collectors_and_the_evaluator_may_hang_at_any_moment(seed: int, tmp_path: Path) -> None:
    hanging_collectors(seed, tmp_path)


@pytest.mark.parametrize("seed", range(2))
def test_a_run_goes_on_from_its_checkpoint_when_the_learner_was_killed(seed: int, tmp_path: Path) -> None:
    learner(seed, tmp_path)


@pytest.mark.parametrize("where", ["idle", "busy"])
def test_the_death_of_the_learner_ends_the_run_at_once(where: str, tmp_path: Path) -> None:
    training = Training(tmp_path, 2, 2, [Strike(5, "learner", where == "busy")])
    times: list[float] = []
    strike = training._strike
    training._strike = lambda *args: (times.append(time.monotonic()), strike(*args))  # type: ignore[method-assign]
    try:
        with pytest.raises(WorkerDied, match="learner"):
            training.run(max_train=20)
        assert time.monotonic() - times[0] < 1.5
    finally:
        training.close()


# -- the whole run dies --------------------------------------------------------------------------------------------------------


def parent(seed: int, folder: Path) -> None:
    """3 kill points; the workers die with the parent, and the next run goes on from the last checkpoint."""
    stream = random.Random(f"parent {seed}")
    degree, collectors = settings(stream)
    for strike in [*strikes_of(stream, ["parent"], 3, 40), None]:
        plan = {"degree": degree, "collectors": collectors, "strikes": [] if strike is None else [list(strike)]}
        with subprocess.Popen(
            [sys.executable, "-m", "tests.workers.test_chaos", str(folder), json.dumps(plan)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            pids = json.loads(process.stdout.readline())
            rest = process.stdout.read()  # until nobody holds the other end, so the workers are gone, too
        assert len(pids) == collectors + 2
        assert ended(pids)
        if strike is None:
            assert process.returncode == 0
            assert json.loads(rest)["train_count"] == 44
        else:
            assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("seed", range(2))
def test_a_run_goes_on_from_its_checkpoint_when_all_of_it_was_killed(seed: int, tmp_path: Path) -> None:
    parent(seed, tmp_path)


def main(folder: str, plan: dict[str, Any]) -> None:
    training = Training(Path(folder), plan["degree"], plan["collectors"], [Strike(*one) for one in plan["strikes"]])
    try:
        print(json.dumps([worker.pid for worker in training.workers.values()]), flush=True)
        training.run(max_train=44)
        print(json.dumps(audit(training, 44)), flush=True)
    finally:
        training.close()


# -- other trouble -------------------------------------------------------------------------------------------------------------


def test_a_learner_that_is_slower_than_its_collectors_loses_nothing(tmp_path: Path) -> None:
    training = Training(tmp_path, 3, 3, [], train_seconds=0.01, collect_seconds=0.0)
    try:
        training.run(max_train=50)
        stats = audit(training, 50)
        assert stats["max_lag"] == 3
        assert (stats["failed"], stats["dropped"], stats["restarts"]) == (0, 0, 0)
        assert stats["collect_wait_time"] > 0
    finally:
        training.close()


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_a_poisoned_collector_is_retired_and_the_others_go_on(backend: str, tmp_path: Path) -> None:
    training = Training(tmp_path, 3, 3, [], backend=backend, poisoned=(1,), max_restarts=2)
    try:
        assert training.run(max_train=30).reason == "max_train"
        stats = audit(training, 30)
        assert (stats["retired"], stats["failed"], stats["restarts"]) == (1, 3, 2)
        assert {tag[0] for _, tag in training.learner.call("history")} <= {0, 2}
    finally:
        training.close()


@pytest.mark.parametrize(("collectors", "poisoned"), [(1, (0,)), (3, (0, 1, 2))])
def test_the_last_poisoned_collector_ends_the_run_with_its_error(
    collectors: int, poisoned: tuple[int, ...], tmp_path: Path
) -> None:
    training = Training(tmp_path, 3, collectors, [], poisoned=poisoned, max_restarts=2)
    try:
        with pytest.raises(Interrupted, match="always fails") as caught:
            training.run(max_train=30)
        assert "in collect" in str(caught.value.__cause__)
        assert training.coordinator is not None
        stats = training.coordinator.get_statistics()
        assert stats["retired"] == collectors - 1
        assert stats["failed"] == 3 * collectors
        assert training.coordinator.violations() == []
    finally:
        training.close()


def test_the_same_training_runs_in_threads(tmp_path: Path) -> None:
    training = Training(tmp_path, 3, 2, [], backend="thread")
    try:
        training.run(max_train=21)
    finally:
        training.close()
    training = Training(tmp_path, 3, 2, [], backend="thread")
    try:
        training.run(max_train=40)
        audit(training, 40)
    finally:
        training.close()


# -- at length -----------------------------------------------------------------------------------------------------------------

SOAK: list[tuple[Callable[[int, Path], None], int]] = [
    *((collectors_and_evaluator, seed) for seed in range(100, 125)),
    *((hanging_collectors, seed) for seed in range(100, 108)),
    *((learner, seed) for seed in range(100, 114)),
    *((parent, seed) for seed in range(100, 114)),
]


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "seed"), SOAK, ids=[f"{kind.__name__}-{seed}" for kind, seed in SOAK])
def test_two_hundred_more_kill_points(kind: Callable[[int, Path], None], seed: int, tmp_path: Path) -> None:
    kind(seed, tmp_path)


def test_there_are_two_hundred_of_them() -> None:
    counts = Counter(kind.__name__ for kind, _ in SOAK)
    points = {"collectors_and_evaluator": 4, "hanging_collectors": 2, "learner": 3, "parent": 3}
    assert sum(points[name] * count for name, count in counts.items()) == 200


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
