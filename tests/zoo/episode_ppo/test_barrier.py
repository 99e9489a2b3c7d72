"""The two collectors of `zoo.episode_ppo`: the barrier plays the same episodes as the pool without one, in lockstep; and neither
prefers short episodes, as a collector of whatever ends first does."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from lzero_async import CollectContext, LzeroAsyncError, Parcel, make_backend
from lzero_async.errors import ConfigError, Stopped
from lzero_async.types import BackgroundContext, Snapshot
from lzero_async.workers.calls import CallStop
from tests.zoo.episode_ppo.envs import Counting, env_seed, length_of, make_flat, watch
from zoo.episode_ppo import parallel_env_async
from zoo.episode_ppo.parallel_env_async import AsyncEnvs
from zoo.episode_ppo.play import player as playing
from zoo.episode_ppo.play.episode import PER_STEP, Episode, unpack
from zoo.episode_ppo.play.player import LOOKED_AT, STEP_TIMEOUT, WORTH_A_THREAD, Failure, Look, Slot, Usage
from zoo.episode_ppo.play.pool import EpisodePool
from zoo.episode_ppo.play.rounds import MOST_CAUSES, Pool
from zoo.episode_ppo.play.step_barrier import BarrierPool, StepEnvs

SEED = 5
COLLECTORS: dict[str, tuple[Any, Any]] = {"sync": (StepEnvs, BarrierPool), "async": (AsyncEnvs, EpisodePool)}
FOREVER = 30.0  # seconds; only what is broken waits that long


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    watch.clear()
    yield
    watch.clear()


def weights_of(version: int) -> dict[str, np.ndarray]:
    """A policy that looks at its observations, another for every version."""
    rng = np.random.default_rng(version)
    sizes = (3, 8, 2)
    found = {}
    for place, (before, after) in enumerate(itertools.pairwise(sizes)):
        found[f"layer{place}.weight"] = rng.standard_normal((before, after)).astype(np.float32)
        found[f"layer{place}.bias"] = rng.standard_normal(after).astype(np.float32)
    return found


def make_role(
    kind: str, envs: int, worker: int, settings: dict[str, Any], emit: Any, step_timeout: float = STEP_TIMEOUT
) -> Any:
    make = partial(make_flat, **settings)
    role = COLLECTORS[kind][0](make, envs, worker, SEED, emit, step_timeout=step_timeout)
    roles.append(role)
    return role


roles: list[Any] = []  # that were made in this process


class Table:
    """A pool with its workers, driven as a run does it."""

    def __init__(
        self, kind: str, backend: str, shares: list[int], settings: dict[str, Any], step_timeout: float = STEP_TIMEOUT
    ) -> None:
        self.stop, self.run = CallStop(), CallStop()
        self.backend = make_backend(backend)
        self.errors: list[Exception] = []
        workers = [
            self.backend.start(
                f"envs {place}",
                partial(make_role, kind, envs, place, settings, step_timeout=step_timeout),
                on_event=lambda what, place=place: self.pool.told(place, what),
            )
            for place, envs in enumerate(shares)
        ]
        self.pool: Pool = COLLECTORS[kind][1](workers, shares)
        drive = [] if kind == "sync" else range(len(shares))
        self.threads = [threading.Thread(target=self._drive, args=(place,), daemon=True) for place in drive]
        for thread in self.threads:
            thread.start()

    def _drive(self, place: int) -> None:
        assert isinstance(self.pool, EpisodePool)
        while not self.run.is_set():
            try:
                self.pool.drive(place, BackgroundContext("envs", self.run))
            except Stopped:
                return
            except Exception as error:
                self.errors.append(error)
                return

    def play(self, count: int, version: int = 0, stop: CallStop | None = None) -> list[Episode]:
        """One round; its episodes in their order."""
        snapshot = Snapshot(version, Parcel(weights_of(version)))
        context = CollectContext(0, 0, version, snapshot, stop or self.stop)
        parcels = self.pool.play(context, count).parcels
        return sorted((e for parcel in parcels for e in unpack(parcel.open())), key=lambda e: e.number)

    def close(self) -> None:
        self.run.set("the test is over")
        for thread in self.threads:
            thread.join(FOREVER)
        if isinstance(self.pool, BarrierPool):
            self.pool.close()
        self.backend.close()
        assert self.errors == []


@contextmanager
def table(kind: str, backend: str = "thread", shares: tuple[int, ...] = (4,), **settings: Any) -> Iterator[Table]:
    made = Table(kind, backend, list(shares), settings)
    try:
        yield made
    finally:
        made.close()


def numbers_of(episodes: list[Episode]) -> list[int]:
    return [episode.number for episode in episodes]


# -- the same episodes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference() -> list[list[Episode]]:
    """Three rounds of the collector without a barrier, each with a policy of its own."""
    with table("async") as made:
        return [made.play(10, version) for version in (0, 1, 4)]


@pytest.mark.parametrize(
    ("kind", "backend", "shares"),
    [
        ("sync", "thread", (1,)),
        ("sync", "thread", (4,)),
        ("sync", "thread", (3, 2)),
        ("sync", "thread", (8, 8)),
        ("sync", "process", (4,)),
        ("sync", "process", (2, 3)),
        ("async", "process", (2, 3)),
    ],
)
def test_every_collector_plays_the_same_episodes(
    kind: str, backend: str, shares: tuple[int, ...], reference: list[list[Episode]]
) -> None:
    with table(kind, backend, shares) as made:
        for version, expected in zip((0, 1, 4), reference, strict=True):
            played = made.play(10, version)
            assert numbers_of(played) == numbers_of(expected)
            for one, other in zip(played, expected, strict=True):
                assert (one.version, one.length, one.terminated) == (version, other.length, other.terminated)
                for name in (*PER_STEP, "last_obs"):
                    np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
                assert 0 <= one.worker < len(shares)


def test_the_reference_is_not_trivial(reference: list[list[Episode]]) -> None:
    assert [numbers_of(episodes) for episodes in reference] == [list(range(n, n + 10)) for n in (0, 10, 20)]
    for episode in (episode for episodes in reference for episode in episodes):
        assert episode.length == length_of(env_seed(SEED, episode.number))
    assert len({episode.length for episodes in reference for episode in episodes}) > 5
    actions = np.concatenate([episode.action for episodes in reference for episode in episodes])
    assert set(actions.tolist()) == {0, 1}


# -- the barrier -----------------------------------------------------------------------------------------------------------


def assert_lockstep() -> None:
    """Of any two environments that both have steps left, none is ever more than one ahead."""
    left, done = Counter(place for place, _, _ in watch.steps), Counter[int]()
    places = list(left)
    for place, _, _ in watch.steps:
        done[place], left[place] = done[place] + 1, left[place] - 1
        busy = [done[other] for other in places if left[other]]
        assert not busy or max(busy) - min(busy) <= 1


@pytest.mark.parametrize("shares", [(4,), (2, 2), (1, 3)])
@pytest.mark.parametrize("waiting", [False, True])
def test_all_environments_advance_in_lockstep(
    shares: tuple[int, ...], waiting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playing, "usage", FakeUse(0.01 if waiting else 0.0, 0.01).usage)
    with table("sync", shares=shares) as made:
        for version in range(3):
            watch.steps.clear()
            episodes = made.play(20, version)
            assert_lockstep()
            assert len(watch.steps) == sum(episode.length for episode in episodes)


def test_without_a_barrier_there_is_no_lockstep() -> None:
    ahead = threading.Event()

    def hold(env: Counting) -> None:
        if env.place == 0:  # waits until another one is three steps ahead, which a barrier would never let happen
            assert ahead.wait(FOREVER)
        elif Counter(place for place, _, _ in list(watch.steps))[env.place] >= 3:
            ahead.set()

    watch.before_step = hold
    with table("async") as made:
        assert len(made.play(20)) == 20
    with pytest.raises(AssertionError):
        assert_lockstep()


# -- threads for environments that wait ------------------------------------------------------------------------------------


class FakeUse:
    """What a thread has used, which grows with every look at it, as if a step of an environment lay between two of them."""

    def __init__(self, waits: float, computes: float, *, gives_way: bool = True) -> None:
        self.used = Usage(0.0, 0.0, 0)
        self.waits, self.computes, self.gives_way = waits, computes, gives_way

    def usage(self) -> Usage:
        wall, cpu, waits = self.used
        gave_way = waits + (self.waits > 0 and self.gives_way)
        self.used = Usage(wall + self.waits + self.computes, cpu + self.computes, gave_way)
        return self.used


@pytest.mark.parametrize(
    ("waits", "computes", "envs", "gives_way", "threads"),
    [
        (0.01, 0.0, 4, True, True),
        (WORTH_A_THREAD * 1.1, 0.05, 4, True, True),
        (WORTH_A_THREAD * 0.9, 0.05, 4, True, False),
        (0.01, 0.05, 4, False, False),  # pushed aside by other programs
        (0.0, 0.05, 4, True, False),
        (0.01, 0.0, 1, True, False),
    ],
)
def test_environments_that_wait_have_threads(
    waits: float, computes: float, envs: int, gives_way: bool, threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    monkeypatch.setattr(playing, "usage", FakeUse(waits, computes, gives_way=gives_way).usage)
    watch.before_step = lambda env: used.append(threading.get_ident())
    role = StepEnvs(partial(make_flat, longest=100), envs, 0, SEED, lambda event: None)
    try:
        slots, weights = [Slot(number, 0, 0) for number in range(40)], [(0, Parcel(weights_of(0)))]
        found = role.step(0, slots, weights, True)
        while sum(len(parcel.meta["numbers"]) for _, parcel, _ in found) < 40:
            found += role.step(0, [], [], True)
    finally:
        role.close()
    assert set(used[:LOOKED_AT]) == {threading.get_ident()}  # they are looked at one by one
    others = set(used[LOOKED_AT:]) - {threading.get_ident()}
    assert bool(others) == threads
    if threads:
        assert threading.get_ident() not in used[LOOKED_AT:]


@pytest.mark.parametrize("waits", [True, False])
def test_without_a_barrier_those_that_wait_play_at_once_and_those_that_compute_in_turn(
    waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(playing, "usage", FakeUse(0.01 if waits else 0.0, 0.01).usage)
    monkeypatch.setattr(parallel_env_async, "LOOK_SECONDS", FOREVER)
    together, used = threading.Barrier(4, timeout=FOREVER), []

    def before_step(env: Counting) -> None:
        used.append(threading.get_ident())
        if waits and len(used) > LOOKED_AT and len(used) <= LOOKED_AT + 4:
            together.wait()  # goes on only when all four environments are in a step

    watch.before_step = before_step
    with table("async", shares=(4,)) as made:
        assert len(made.play(40)) == 40
        assert made.pool.statistics().at_once == (4 if waits else 1)
    assert len(set(used[:LOOKED_AT])) == 1
    assert len(set(used)) == (4 if waits else 1)


@pytest.mark.parametrize(("each", "waits"), [(3, True), (32, False)])
def test_environments_that_wait_now_and_then_wait(each: int, waits: bool) -> None:
    """A wait of 1 ms in every third step is worth a thread, one in 32 steps is not."""
    decided: list[bool] = []
    look = Look(decided.append)
    for step in range(LOOKED_AT):
        wait = step % each == 0
        assert look.over(Usage(0.0, 0.0, 0), Usage(1e-5 + wait * 1e-3, 1e-5, int(wait))) == (step == LOOKED_AT - 1)
    assert decided == [waits]
    assert look.over(Usage(0.0, 0.0, 0), Usage(1.0, 0.0, 1))
    assert decided == [waits]


def test_environments_in_turn_get_no_long_queue_that_others_could_play_from() -> None:
    pool = EpisodePool([object(), object()], [50, 50])  # type: ignore[list-item]
    pool._deal(Snapshot(0, Parcel(weights_of(0))), 200)
    assert [pool._free(place) for place in range(2)] == [50, 50]
    for seconds, episodes, at_once, room in ((1.0, 10, 1, 2), (0.1, 10, 1, 4), (1e-6, 10, 1, 100), (9.0, 3, 50, 50)):
        pool._look_at_pace(0, {"numbers": list(range(episodes)), "seconds": seconds, "at_once": at_once})
        assert pool._free(0) == room
    assert pool._free(1) == 50


def test_without_a_barrier_nobody_waits_for_a_first_environment_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_env_async, "LOOK_SECONDS", 0.0)
    others_play = threading.Event()

    def before_step(env: Counting) -> None:
        if env.place == 0:
            assert others_play.wait(FOREVER)
        else:
            others_play.set()

    watch.before_step = before_step
    with table("async", shares=(2,)) as made:
        assert len(made.play(10)) == 10


# -- failures and rounds that are given up ---------------------------------------------------------------------------------


class Unusual(BaseException):
    """Not an Exception, as the panics of some compiled simulators are none."""


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_whatever_an_environment_raises_its_episode_is_played_again_and_the_reason_is_logged(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    if kind == "thread":
        first = {env_seed(SEED, number) for number in range(5)}

        def panic(env: Counting) -> None:
            if env.seed in first:
                raise Unusual("panic")

        watch.before_step = panic
    with table("async", kind, shares=(2,), **({} if kind == "thread" else {"fails": {7: 1, 9: 1}})) as made:
        assert numbers_of(made.play(20)) == list(range(20))
        assert made.pool.statistics().failed > 0
    where = "in panic" if kind == "thread" else "in _strike"
    assert sum(where in record.getMessage() for record in caplog.records) == 1  # one traceback of a kind is enough


def test_a_worker_whose_answer_cannot_be_sent_is_made_anew_and_nothing_is_lost() -> None:
    backend = make_backend("thread")
    worker = backend.start("envs 0", partial(make_role, "async", 2, 0, {}))
    pool, stop, broken = EpisodePool([worker], [2]), CallStop(), []

    class Broken:
        """The worker, whose first answer with an episode gets lost on its way."""

        def __getattr__(self, name: str) -> Any:
            return getattr(worker, name)

        def call(self, *words: Any, **more: Any) -> Any:
            found = worker.call(*words, **more)
            if found and not broken:
                broken.append(found)
                raise OSError(24, "Too many open files")
            return found

    pool.workers[0] = Broken()  # type: ignore[assignment]
    wanted = pool._deal(Snapshot(0, Parcel(weights_of(0))), 10)
    errors = []
    try:
        while wanted.missing and len(errors) < 3:
            try:
                pool.drive(0, BackgroundContext("envs 0", stop))
            except OSError as error:
                errors.append(error)
    finally:
        backend.close()
    assert (len(errors), wanted.missing, worker.restarts) == (1, 0, 1)
    assert sorted(n for parcel in wanted.parcels for n in parcel.meta["numbers"]) == list(range(10))


FAILING = (7, 9, 11)  # lengths of which every episode fails


def lengths_of_tries(number: int) -> list[int]:
    """Lengths of the tries of an episode until one succeeds, if one does, when those of FAILING fail."""
    lengths = [length_of(env_seed(SEED, number, attempt)) for attempt in range(2)]
    return lengths if lengths[0] in FAILING else lengths[:1]


@pytest.mark.parametrize(
    ("kind", "backend", "shares"),
    [
        ("sync", "thread", (4,)),
        ("sync", "thread", (2, 3)),
        ("sync", "process", (2, 3)),
        ("async", "thread", (4,)),
        ("async", "process", (2, 3)),
    ],
)
def test_a_failed_episode_is_played_once_more_with_another_seed_and_then_left_out(
    kind: str, backend: str, shares: tuple[int, ...]
) -> None:
    """What fails depends on the seed alone, so the old seed would fail for ever."""
    with table("sync") as made:
        expected = {episode.number: episode for episode in made.play(100)}
    tries = {number: lengths_of_tries(number) for number in range(100)}
    left_out = [number for number, lengths in tries.items() if lengths[-1] in FAILING]
    failed = sum(length in FAILING for lengths in tries.values() for length in lengths)
    assert 3 <= len(left_out) <= 12 and failed >= 20
    watch.clear()
    with table(kind, backend, shares, fails=dict.fromkeys(FAILING, 10**6)) as made:
        played = made.play(100)
        statistics = made.pool.statistics()
    assert numbers_of(played) == [number for number in range(100) if number not in left_out]
    for episode in played:
        assert episode.length == tries[episode.number][-1]
        if len(tries[episode.number]) == 1:
            np.testing.assert_array_equal(episode.action, expected[episode.number].action)
    assert statistics[:8] == (100, 100 - len(left_out), 0, len(left_out), failed, 0, 0, 0)
    assert statistics.steps == sum(episode.length for episode in played)
    if backend == "thread":
        assert len(watch.made) == sum(shares) + failed  # a failed environment is not used again


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_round_of_which_nothing_can_be_played_fails_and_the_next_one_is_whole(kind: str) -> None:
    with table(kind, shares=(2,)) as made:
        assert len(made.play(4)) == 4
        watch.before_step = fail
        with pytest.raises(
            LzeroAsyncError, match=r"All 4 episodes of a round failed, 2 times each.*RuntimeError\('no'\)"
        ):
            made.play(4)
        watch.before_step = None
        assert numbers_of(made.play(4)) == list(range(8, 12))
        assert made.pool.statistics()[:5] == (12, 8, 4, 0, 8)


def fail(env: Counting) -> None:
    raise RuntimeError("no")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_environments_of_which_none_ever_plays_end_the_run_at_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    watch.before_step = fail
    with table(kind, shares=(3, 3)) as made:
        with pytest.raises(
            ConfigError, match=r"all failed for one cause: RuntimeError\('no'\); correct the environment"
        ):
            made.play(100)
        assert 8 <= made.pool.statistics().failed < 20
        assert made.pool.statistics().abandoned == 100
    assert len(caplog.records) <= 2


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_environment_of_the_older_gym_is_refused_at_its_first_step(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Counting, "step", lambda self, action: (self._observe(action), 1.0, False, {}))
    with table(kind, shares=(3,)) as made:
        with pytest.raises(ConfigError, match=r"step of env .* gives 4 values; gymnasium's interface has 5"):
            made.play(100)
        assert made.pool.statistics().failed <= 3
    assert not caplog.records  # the sentence is enough


def test_what_is_remembered_of_failures_is_bounded() -> None:
    pool = EpisodePool([object()], [1])  # type: ignore[list-item]
    for number in range(10_000):
        pool.told(0, Failure(number, f"error {number}", cause=f"E at line {number}"))
    assert len(pool._causes) <= MOST_CAUSES + 1
    assert pool.statistics().failed == 10_000 == sum(pool._causes.values())


@pytest.mark.parametrize(("kind", "shares"), [("sync", (4,)), ("sync", (2, 2)), ("async", (4,)), ("async", (2, 2))])
def test_episodes_of_a_round_that_was_given_up_are_in_no_other(kind: str, shares: tuple[int, ...]) -> None:
    stop, hold = CallStop(), threading.Event()

    def give_up(env: Counting) -> None:
        if len(watch.steps) == 12:
            stop.set("SIGINT")
        if kind == "async" and not hold.is_set() and env.count >= 3:
            assert hold.wait(FOREVER)  # in the middle of an episode of the first round

    watch.before_step = give_up
    with table(kind, shares=shares, longest=40) as made:
        with pytest.raises(Stopped):
            made.play(20, stop=stop)
        statistics = made.pool.statistics()
        assert (statistics.started, statistics.complete, statistics.abandoned) == (20, 0, 20)
        hold.set()
        first = set(watch.steps)
        played = made.play(20, version=1)
        assert numbers_of(played) == list(range(20, 40))
        assert {episode.version for episode in played} == {1}
        for episode in played:
            assert episode.length == length_of(env_seed(SEED, episode.number), 40)
            assert episode.obs[:, 1].tolist() == pytest.approx([step / 40 for step in range(episode.length)])
        old = {env_seed(SEED, number) for number in range(20)}
        if kind == "sync":  # nobody goes on with them
            assert not {step for step in set(watch.steps) - first if step[1] in old}
        assert made.pool.statistics()[:3] == (40, 20, 20)


def test_a_round_that_comes_just_before_a_worker_is_asked_is_begun_at_once() -> None:
    """A free environment begins an episode though its worker has another one that does not end."""
    begun = threading.Event()
    first = env_seed(SEED, 0)

    def hold(env: Counting) -> None:
        if env.seed == first:
            assert begun.wait(FOREVER)
        else:
            begun.set()

    watch.before_step = hold
    with table("async", shares=(2,)) as made:
        worker, call = made.pool.workers[0], made.pool.workers[0].call
        others: list[threading.Thread] = []
        dealt = threading.Event()

        def deal_first(method: str, *words: Any, **more: Any) -> Any:
            if not others:
                others.append(threading.Thread(target=made.play, args=(1,), daemon=True))
                others[0].start()
                assert dealt.wait(FOREVER)
            return call(method, *words, **more)

        deal = made.pool._deal

        def tell(*words: Any) -> Any:
            found = deal(*words)
            if found.number:
                dealt.set()
            return found

        worker.call, made.pool._deal = deal_first, tell  # type: ignore[method-assign]
        assert numbers_of(made.play(1)) == [0]
        others[0].join(FOREVER)
        assert made.pool.statistics().complete == 2


# -- no preference for short episodes ----------------------------------------------------------------------------------------

ENVS, COUNT, ROUNDS, LONG = 16, 8, 6, 40


class Ticks:
    """Lets all environments that play make a step at the same time, so that an episode's duration is its length. A tick comes
    when as many wait for it as `playing()` says."""

    def __init__(self, playing: Callable[[], int]) -> None:
        self._playing, self._changed = playing, threading.Condition()
        self._waiting = self._now = 0
        self._over = False
        self._thread = threading.Thread(target=self._conduct, daemon=True)

    def __enter__(self) -> Ticks:
        watch.before_step = self._wait
        self._thread.start()
        return self

    def __exit__(self, *words: Any) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join(FOREVER)

    def _wait(self, env: Counting) -> None:
        with self._changed:
            now = self._now
            self._waiting += 1
            self._changed.notify_all()
            while self._now == now and not self._over:
                self._changed.wait()

    def _conduct(self) -> None:
        with self._changed:
            while not self._over:
                if 0 < self._playing() <= self._waiting:
                    self._waiting, self._now = 0, self._now + 1
                    self._changed.notify_all()
                self._changed.wait(0.001)  # what plays may change without a word


def assert_trained_is_started(rounds: list[list[Episode]]) -> None:
    """Rounds of consecutive numbers, every number once, and so the lengths of all that was started."""
    numbers = [episode.number for episodes in rounds for episode in episodes]
    lengths = [episode.length for episodes in rounds for episode in episodes]
    assert sorted(lengths) == sorted(started_lengths(len(numbers)))
    assert sorted(numbers) == list(range(len(numbers)))
    for episodes in rounds:
        assert numbers_of(episodes) == list(range(episodes[0].number, episodes[0].number + COUNT))


def started_lengths(count: int) -> list[int]:
    return [length_of(env_seed(SEED, number), LONG) for number in range(count)]


def mean_length(rounds: list[list[Episode]]) -> float:
    return float(np.mean([episode.length for episodes in rounds for episode in episodes]))


def test_what_is_trained_has_the_lengths_of_what_was_started() -> None:
    with table("async", shares=(ENVS // 2, ENVS // 2), longest=LONG) as made:
        pool = made.pool
        assert isinstance(pool, EpisodePool)

        def playing() -> int:
            with pool._changed:
                return min(ENVS, len(pool._pending) + sum(map(len, pool._playing)))

        rounds: list[list[Episode]] = []
        done = threading.Lock()

        def collect() -> None:  # two at a time, as at degree 2
            for _ in range(ROUNDS // 2):
                episodes = made.play(COUNT)
                with done:
                    rounds.append(episodes)

        with Ticks(playing):
            collectors = [threading.Thread(target=collect, daemon=True) for _ in range(2)]
            for collector in collectors:
                collector.start()
            for collector in collectors:
                collector.join(FOREVER)
    assert len(rounds) == ROUNDS
    assert_trained_is_started(rounds)
    assert mean_length(rounds) == pytest.approx(np.mean(started_lengths(COUNT * ROUNDS)))


@pytest.mark.parametrize("late", ["discarded", "kept for later"])
def test_a_collector_of_what_ends_first_prefers_short_episodes(late: str) -> None:
    """The collector that this one is not: as soon as enough episodes have ended, they are a batch."""
    role = AsyncEnvs(partial(make_flat, longest=LONG), ENVS, 0, SEED, lambda event: None)
    weights, oldest = [(0, Parcel(weights_of(0)))], 0
    rounds: list[list[Episode]] = [[]]
    wanted, started = 0, 0
    try:
        with Ticks(lambda: ENVS):
            slots = [Slot(number, 0, 0) for number in range(ENVS)]
            started = ENVS
            while len(rounds) <= ROUNDS:
                found = role.play(slots, weights, oldest)
                weights, slots = [], []
                for number, parcel, _ in found:
                    episodes = unpack(parcel.open())
                    slots += [Slot(started + place, wanted, 0) for place in range(len(episodes))]
                    started += len(episodes)
                    if late == "kept for later" or number == wanted:
                        rounds[-1] += episodes
                if len(rounds[-1]) >= COUNT:
                    rounds[-1].sort(key=lambda episode: episode.number)
                    rounds.append([])
                    wanted += late == "discarded"
                    slots = [slot._replace(round=wanted) for slot in slots]
    finally:
        watch.before_step = None
        role.close()
    assert len(rounds.pop()) == 0
    with pytest.raises(AssertionError):
        assert_trained_is_started(rounds)
    assert mean_length(rounds[:2]) < 0.7 * np.mean(started_lengths(started))
    if late == "discarded":
        assert mean_length(rounds) < 0.7 * np.mean(started_lengths(started))
