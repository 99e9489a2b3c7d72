"""Whole episodes without a barrier: rounds, what is started is what comes back, failures, dead workers."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from lzero_async import AsyncTrainingCoordinator, Batch, CollectContext, Parcel, Recovery, make_backend
from lzero_async.errors import ConfigError, WorkerDied
from lzero_async.types import BackgroundContext, Snapshot
from lzero_async.workers.calls import CallStop, listen
from zoo.episode_ppo.envs.factories import FlatEnv
from zoo.episode_ppo.parallel_env_async import AsyncEnvs
from zoo.episode_ppo.play.episode import unpack
from zoo.episode_ppo.play.player import REFUSED, Failure, Slot
from zoo.episode_ppo.play.pool import EpisodePool
from zoo.episode_ppo.play.rounds import FIRST_TRIES

WEIGHTS = {"layer0.weight": np.zeros((1, 2), np.float32), "layer0.bias": np.zeros(2, np.float32)}
gates: dict[str, threading.Event] = {}
failed: list[int | None] = []  # seeds of episodes that failed


class Counting(gymnasium.Env):
    """Episodes of a length that their seed decides; `slow` ones wait for a gate at every step."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, gate: str = "", dies: int = -1) -> None:
        self.gate, self.dies = gate, dies

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.seed = seed
        self.length = 1 + (seed or 0) % 20
        self.slow = self.length > 15
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        if self.slow and self.gate:
            gates[self.gate].wait()
        if self.length == self.dies:
            failed.append(self.seed)
            raise RuntimeError("out of order")
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, self.steps >= self.length, False, {}


def make(**settings: Any) -> FlatEnv:
    return FlatEnv(Counting(**settings), "Counting")


def players(worker: int, num_envs: int, settings: dict[str, Any], emit: Any) -> AsyncEnvs:
    return AsyncEnvs(partial(make, **settings), num_envs, worker, 5, emit)


def run(kind: str, shares: list[int], trained: list[Any], *, trains: int = 6, count: int = 10, degree: int = 2, **more):
    """Rounds of episodes through a coordinator; `trained` gets the episodes of every train."""
    hook, max_restarts = more.pop("hook", None), more.pop("max_restarts", 3)
    wrap, settings = more.pop("wrap", lambda place, worker: worker), more
    backend = make_backend(kind)
    workers = [
        backend.start(
            f"envs {place}",
            partial(players, place, envs, settings),
            on_event=lambda what, place=place: pool.told(place, what),
        )
        for place, envs in enumerate(shares)
    ]
    pool = EpisodePool([wrap(place, worker) for place, worker in enumerate(workers)], shares)

    def collect(context: CollectContext) -> list[Parcel]:
        return pool.play(context, count).parcels

    def train(batch: Batch) -> None:
        episodes = sorted((e for p in batch.data for e in unpack(p.open())), key=lambda e: e.number)
        trained.append((batch, episodes))
        if hook is not None:
            hook(pool, workers, len(trained))

    with AsyncTrainingCoordinator(
        degree,
        num_collectors=degree,
        get_weights=lambda: Parcel(WEIGHTS),
        recovery=Recovery(on_failure="restart", restart_backoff=0.01, max_restarts=max_restarts),
    ) as coordinator:
        try:
            result = coordinator.run(
                collect, train, max_train=trains, print_statistics=False,
                background={f"envs {place}": partial(pool.drive, place) for place in range(len(shares))},
            )  # fmt: skip
        finally:
            for gate in gates.values():
                gate.set()
            backend.close()
    return result, pool


@pytest.mark.parametrize(("kind", "shares"), [("thread", [3]), ("thread", [4, 4]), ("process", [3, 2])])
def test_what_is_trained_is_what_was_started(kind: str, shares: list[int]) -> None:
    trained: list[Any] = []
    result, pool = run(kind, shares, trained)
    assert result.reason == "max_train"
    assert sorted(e.number for _, episodes in trained for e in episodes) == list(range(60))
    for batch, episodes in trained:
        assert [e.number for e in episodes] == list(range(episodes[0].number, episodes[0].number + 10))
        (version,) = {e.version for e in episodes}  # the ticket's, or newer by a hair
        assert batch.version <= version <= batch.version + batch.staleness
        assert batch.staleness <= 2
    lengths = {e.number: e.length for _, episodes in trained for e in episodes}
    assert lengths == {number: length_of(number) for number in lengths}  # whoever played them, and none left out
    assert pool.statistics().failed == 0


def test_a_slow_episode_holds_nobody_but_its_own_round() -> None:
    gates["slow"] = threading.Event()
    trained: list[Any] = []
    ended: list[int] = []

    class Watching(EpisodePool):
        def _take(self, *arguments: Any) -> None:
            super()._take(*arguments)
            ended.append(len(arguments[2].meta["numbers"]))
            if sum(ended) >= 12:  # more than one round's worth, while slow ones of the first round still play
                gates["slow"].set()

    original, module = EpisodePool, run.__globals__
    module["EpisodePool"] = Watching
    try:
        run("thread", [8], trained, trains=3, gate="slow")
    finally:
        module["EpisodePool"] = original
    assert len(trained) == 3
    assert max(e.length for _, episodes in trained for e in episodes) > 15


def test_an_episode_that_fails_with_every_seed_is_missing_in_its_round_and_the_round_is_trained() -> None:
    failed.clear()
    trained: list[Any] = []
    result, pool = run("thread", [4], trained, dies=7, count=100)
    numbers = sorted(e.number for _, episodes in trained for e in episodes)
    dying = {number for number in range(600) if length_of(number) == length_of(number, 1) == 7}
    assert dying and numbers == [number for number in range(600) if number not in dying]
    for _, episodes in trained:
        first = episodes[0].number // 100 * 100
        assert [e.number for e in episodes] == [n for n in range(first, first + 100) if n not in dying]
    statistics = pool.statistics()
    assert (statistics.failed, statistics.left_out) == (len(failed), len(dying))
    assert (statistics.started, statistics.complete) == (600, 600 - len(dying))
    assert (result.statistics["failed"], result.statistics["restarts"]) == (0, 0)


def test_a_killed_worker_costs_no_episode() -> None:
    """The first worker is killed with its second order in hand; until then the second one plays nothing."""
    trained: list[Any] = []
    killed = threading.Event()

    class Watched:
        def __init__(self, worker: Any, place: int) -> None:
            self._worker, self._place, self.orders = worker, place, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self._worker, name)

        def call(self, *arguments: Any, **more: Any) -> Any:
            self.orders += bool(arguments[1])
            if self._place == 1:
                assert killed.wait(60)
            elif self.orders == 2 and not killed.is_set():
                os.kill(self._worker.pid, signal.SIGKILL)
                killed.set()
            return self._worker.call(*arguments, **more)

    result, pool = run("process", [3, 3], trained, wrap=lambda place, worker: Watched(worker, place))
    assert killed.is_set() and pool.workers[0].restarts == 1
    assert result.statistics["restarts"] == 1
    assert sorted(e.number for _, episodes in trained for e in episodes) == list(range(60))


def test_a_worker_that_finds_no_place_any_more_holds_nobody_up() -> None:
    class Homeless:
        """A worker that is lost over its first episodes, and then is not ready before the run ends."""

        def __init__(self, worker: Any) -> None:
            self._worker, self.alive, self.lost = worker, True, False

        def call(self, *arguments: Any, **more: Any) -> Any:
            assert not self.lost, "it was given episodes before it was ready"
            self.lost = True
            raise WorkerDied("envs 0 was lost.")

        def kill(self) -> None:
            self.alive = False

        def restart(self) -> None:
            self.alive = True

        def wait_until_ready(self, stop: Any) -> None:
            if self.lost:
                ended = threading.Event()
                listen(stop, lambda reason: ended.set())
                assert ended.wait(60)

    trained: list[Any] = []
    result, pool = run("thread", [3, 3], trained, wrap=lambda place, worker: worker if place else Homeless(worker))
    assert result.statistics["restarts"] == 1 and pool.workers[0].lost
    assert sorted(e.number for _, episodes in trained for e in episodes) == list(range(60))


def test_a_round_that_opens_while_a_worker_is_being_called_is_not_overlooked() -> None:
    """The worker's environments are all but one idle, and the one plays an episode that does not end before the new round."""
    gates["late"] = threading.Event()
    backend = make_backend("thread")
    worker = backend.start("envs 0", partial(players, 0, 2, {"gate": "late"}))
    pool = EpisodePool([worker], [2])
    stop = CallStop()
    snapshot = Snapshot(0, Parcel(WEIGHTS))
    slow = next(number for number in range(100) if length_of(number) > 15)
    pool._started = slow
    opened: list[Any] = []

    class Late:
        """The worker, with a round that opens after the pool has decided what to ask for, and before the worker is asked."""

        alive = True

        def wait_until_ready(self, stop: Any) -> None: ...

        def call(self, *arguments: Any, **more: Any) -> Any:
            if not opened:
                pool._started = next(number for number in range(100) if length_of(number) < 5)
                opened.append(pool._deal(snapshot, 1))
            return worker.call(*arguments, **more)

    pool.workers[0] = Late()  # type: ignore[assignment]
    first = pool._deal(snapshot, 1)
    driver = threading.Thread(target=lambda: [pool.drive(0, BackgroundContext("envs 0", stop)) for _ in range(2)])
    driver.start()
    driver.join(10)
    try:
        assert not driver.is_alive(), "the worker waits for the slow episode, and nobody begins the other one"
        assert (first.missing, opened[0].missing) == (1, 0)
    finally:
        gates["late"].set()
        stop.set("over")
        driver.join()
        backend.close()


def length_of(number: int, *attempt: int) -> int:
    return 1 + (int(np.random.SeedSequence([5, 1, number, *attempt]).generate_state(1)[0]) >> 1) % 20


@pytest.mark.parametrize("sort", ["", REFUSED])
@pytest.mark.parametrize("opened", [1, 2, 5])
def test_when_no_episode_can_succeed_all_open_rounds_end_with_one_error(sort: str, opened: int) -> None:
    pool = EpisodePool([], [])
    rounds = [pool._open(Snapshot(0, None), 4) for _ in range(opened)]
    for number in range(FIRST_TRIES):
        failure = Failure(number, "out of order", "", sort, "one cause")
        pool._note(0, failure)
        with pool._changed:
            pool._again(rounds[0], rounds[0].slots[number % 4], failure)
        if rounds[0].error is not None:
            break
    assert isinstance(rounds[0].error, ConfigError)
    rounds.append(pool._open(Snapshot(0, None), 4))
    assert {id(wanted.error) for wanted in rounds} == {id(rounds[0].error)}


def test_an_environment_that_is_busy_when_its_worker_closes_leaves_no_thread() -> None:
    """The next step of its episode starts the watch of steps again, after it was closed: the environment ends it, and itself."""
    gates["busy"] = threading.Event()
    inside, closed = threading.Event(), threading.Event()

    class Busy(Counting):
        def step(self, action: int) -> Any:
            inside.set()
            self.slow, self.length = True, 3
            return super().step(action)

        def close(self) -> None:
            closed.set()

    before = set(threading.enumerate())
    envs = AsyncEnvs(lambda: FlatEnv(Busy("busy"), "Busy"), 1, 0, 5, print)
    envs._policies.take([(0, Parcel(WEIGHTS))], 0)
    envs._slots.put(Slot(0, 0, 0))
    assert inside.wait(60)
    envs.close()
    assert not closed.is_set()
    gates["busy"].set()
    assert closed.wait(60)
    left = [thread for thread in threading.enumerate() if thread not in before]
    for thread in left:
        thread.join(10)
    assert not [thread.name for thread in left if thread.is_alive()]
