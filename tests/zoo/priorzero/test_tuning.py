"""When the language model trains, on what, and what becomes of it when a learner fails: with learners that only count."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator, Bound, Parcel
from lzero_async.core.gate import Gate
from lzero_async.errors import LzeroAsyncError, WorkerDied
from lzero_async.testing.walk import Budget, walk
from lzero_async.workers.calls import CallStop
from zoo.jericho.priorzero.play.batch import LLMWeights
from zoo.jericho.priorzero.roles.tuning import Schedule, Tuning


class CountingLearner:
    """Adds up the numbers that it is given; dies or fails when it is told to."""

    def __init__(self) -> None:
        self.name, self.alive, self.restarts, self.total, self.version = "llm learner", True, 0, 0, 0
        self.dies: list[bool] = []  # at the next trains
        self.fails: list[Exception | None] = []
        self.calls: list[str] = []
        self.cpu = 1.0
        self.during: Callable[[], None] = lambda: None

    def call(self, method: str, *arguments: Any) -> Any:
        if not self.alive:
            raise WorkerDied("it is dead")
        self.calls.append(method)
        return getattr(self, f"_{method}")(*arguments)

    def _ready(self) -> None:
        pass

    def _load(self, state: Parcel | None) -> None:
        self.total, self.version = (0, 0) if state is None else state.open()

    def _train(self, batches: list[Parcel]) -> dict[str, Any]:
        self.total += sum(batch.open() for batch in batches)
        self.version += 1
        self.during()
        if not self.alive or (self.dies and self.dies.pop(0)):
            self.alive = False
            raise WorkerDied("it was killed")
        if self.fails and (error := self.fails.pop(0)) is not None:
            raise error
        weights = LLMWeights(self.version, f"digest {self.total}", Parcel(self.total))
        return {
            "values": {"loss": 1.0, "top1": float("nan")}, "weights": weights,
            "state": Parcel((self.total, self.version)), "seconds": 1.0, "cpu_seconds": self.cpu,
        }  # fmt: skip

    def restart(self) -> None:
        self.alive, self.total, self.version = True, -1000, -1000  # what it was is gone
        self.restarts += 1

    def kill(self) -> None:
        self.alive = False


def tuning(learner: CountingLearner, schedule: Schedule = Schedule(), **changes: Any) -> Tuning:  # noqa: B008
    options: dict[str, Any] = dict(
        alternate=False, beside=True, share=0.0, max_restarts=2, restart_backoff=0.001, given_up=lambda: False,
        on_restart=lambda: None,
    )  # fmt: skip
    return Tuning(learner, schedule, **{**options, **changes})  # type: ignore[arg-type]


def batch(number: int, llm_version: int = 0, staleness: int = 0) -> Any:
    return SimpleNamespace(data=Parcel(number, {"llm_version": llm_version}), staleness=staleness, stop=CallStop())


def train(
    made: Tuning, number: int, world_model: Callable[[], dict[str, Any]] = dict, **about: Any
) -> dict[str, float]:
    about.setdefault("llm_version", made.version)
    return made.train(number, batch(number, **about), world_model, 100.0)[1]


def test_every_batch_is_trained_on_once_by_the_train_that_is_due() -> None:
    learner = CountingLearner()
    made = tuning(learner, Schedule(3))
    sums = []
    for number in range(1, 8):
        train(made, number, staleness=3, llm_version=0 if made.version == 0 else made.version - 1)
        sums.append((learner.total, made.version))
    assert sums == [(0, 0), (0, 0), (6, 1), (6, 1), (6, 1), (21, 2), (21, 2)]
    assert made.published is not None and made.published.digest == "digest 21"


def test_after_the_warm_up_it_begins_with_the_last_batches() -> None:
    learner = CountingLearner()
    made = tuning(learner, Schedule(2, 5))
    for number in range(1, 9):
        train(made, number, staleness=2, llm_version=0)
    assert (learner.total, made.version) == (5 + 6 + 7 + 8, 2)


@pytest.mark.parametrize("every", range(1, 6))
@pytest.mark.parametrize("warmup", [0, 1, 4, 7])
def test_no_batch_is_older_than_the_schedule_says_at_any_staleness(every: int, warmup: int) -> None:
    """All trains and all versions that the gate may have given to their batches."""
    schedule = Schedule(every, warmup)
    for train_number in range(1, 40):
        due = next(number for number in itertools.count(train_number) if schedule.is_due(number))
        if due - train_number >= every:
            continue  # of the warm-up, forgotten
        for staleness in range(min(7, train_number)):
            played = schedule.version(train_number - 1 - staleness)
            age = schedule.version(due - 1) - played
            assert 0 <= age <= schedule.oldest(staleness), (train_number, staleness)


@pytest.mark.parametrize(("degree", "every"), [(1, 1), (2, 1), (2, 2), (3, 2), (4, 3), (1, 3)])
def test_the_bound_of_the_gate_bounds_the_language_models_versions_in_every_order(degree: int, every: int) -> None:
    """The exhaustive walk of the gate, with faults: whatever it lets be trained is young enough for the schedule's bound."""
    schedule, seen = Schedule(every), set()

    class Watched(Gate):
        def finish_train(self, *args: Any, **kwargs: Any) -> Any:
            for phase in range(every):  # the walk counts versions from the current one
                number, played = self.version + 1 + phase, self.waiting[0].version + phase
                due = -(-number // every) * every
                age = schedule.version(due - 1) - schedule.version(played)
                seen.add(age)
                assert 0 <= age <= -(-degree // every), (
                    "older in the language model's versions than ceil(degree / every)"
                )
            return super().finish_train(*args, **kwargs)

    walk(lambda: Watched(degree, num_collectors=2), Budget(batches=6, interruptions=1), degrees=())
    assert max(seen) == -(-degree // every)  # it is reached, too


def test_a_batch_that_is_too_old_is_a_fault_that_is_said() -> None:
    made = tuning(CountingLearner())
    for number in range(1, 4):
        train(made, number)
    with pytest.raises(LzeroAsyncError, match="2 versions of the language model old"):
        train(made, 4, llm_version=1, staleness=1)


@pytest.mark.parametrize("alternate", [False, True])
def test_both_train_at_the_same_time_or_one_after_the_other(alternate: bool) -> None:
    learner, order = CountingLearner(), []
    both = threading.Barrier(2, timeout=10)
    learner.during = lambda: (order.append("llm"), None if alternate else both.wait())[1]
    made = tuning(learner, alternate=alternate)

    def world_model() -> dict[str, Any]:
        order.append("world model")
        if not alternate:
            both.wait()
        return {"done": True}

    done, _ = made.train(1, batch(1), world_model, 100.0)
    assert done == {"done": True} and set(order) == {"world model", "llm"}
    if alternate:
        assert order == ["world model", "llm"]


@pytest.mark.parametrize("deaths", [[True], [True, True], [False, True, False, True]])
def test_a_dead_learner_comes_back_as_it_was_and_trains_again(deaths: list[bool]) -> None:
    learner, updates = CountingLearner(), []
    learner.dies = list(deaths)
    made = tuning(learner)
    for number in range(1, 6):
        train(made, number, lambda: updates.append(1) or {})
    assert (learner.total, made.version, len(updates)) == (15, 5, 5)
    assert learner.restarts == sum(deaths)


def test_a_learner_that_dies_too_often_ends_the_run() -> None:
    learner = CountingLearner()
    learner.dies = [True] * 3
    with pytest.raises(WorkerDied):
        train(tuning(learner), 1)


def test_what_fails_in_the_language_model_is_raised_after_the_other_is_done_and_undone_later() -> None:
    learner, done = CountingLearner(), []
    made = tuning(learner)
    train(made, 1)
    learner.fails = [ValueError("no")]
    with pytest.raises(ValueError, match="no"):
        train(made, 2, lambda: done.append(1) or {})
    assert done == [1] and made.version == 1 and made.published.digest == "digest 1"
    train(made, 2)  # as if the first try had never been
    assert (learner.total, made.version) == (3, 2)


def test_when_the_world_model_fails_what_the_other_made_is_not_taken() -> None:
    learner = CountingLearner()
    made = tuning(learner)
    train(made, 1)

    def fails() -> dict[str, Any]:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        train(made, 2, fails)
    assert made.version == 1
    train(made, 2)
    assert (learner.total, made.version) == (3, 2)


def test_a_learner_that_is_busy_when_the_world_model_fails_is_ended_and_does_not_train_again() -> None:
    learner, busy, ended = CountingLearner(), threading.Event(), threading.Event()
    made = tuning(learner)
    train(made, 1)
    kill = learner.kill
    learner.kill = lambda: (kill(), ended.set())[0]  # type: ignore[method-assign]
    learner.during = lambda: (busy.set(), ended.wait(10))[0]

    def fails() -> dict[str, Any]:
        assert busy.wait(10)
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        train(made, 2, fails)
    assert learner.calls.count("train") == 2 and learner.restarts == 0
    learner.during = lambda: None
    for number in (2, 3):
        train(made, number)
    assert (learner.total, made.version) == (1 + 2 + 3, 3)


def test_more_than_its_share_of_the_time_is_not_taken() -> None:
    learner = CountingLearner()
    made, elapsed = tuning(learner, share=0.25), 0.0
    for number in range(1, 101):
        elapsed += 1.0
        made.train(number, batch(number, made.version), dict, elapsed)
        assert number < 4 or made.cpu_seconds <= 0.25 * elapsed  # the first one shows what it costs
    assert made.version == made.cpu_seconds == 25 and made.skipped == 75


def test_what_is_saved_goes_on_where_it_was() -> None:
    learner = CountingLearner()
    made = tuning(learner, Schedule(2))
    for number in range(1, 4):
        train(made, number, staleness=2, llm_version=0)
    saved = made.saved()
    assert [parcel.open() for parcel in saved["kept"]] == [3]
    other = CountingLearner()
    resumed = tuning(other, Schedule(2))
    resumed.load({**saved, "trained": Parcel(3)})
    assert resumed.published is not None and (resumed.published.version, resumed.published.digest) == (1, "digest 3")
    for one in (made, resumed):
        train(one, 4, staleness=2, llm_version=1)
    assert other.total == learner.total == 1 + 2 + 3 + 4 and resumed.version == made.version == 2


@pytest.mark.parametrize(("degree", "every"), [(0, 1), (2, 1), (2, 2), (3, 2)])
def test_in_a_run_of_the_coordinator_the_age_stays_within_the_bound(degree: int, every: int) -> None:
    learner, ages = CountingLearner(), []
    made = tuning(learner, Schedule(every))

    def collect(context: Any) -> Parcel:
        llm = context.snapshot.state.llm
        return Parcel(1, {"llm_version": 0 if llm is None else llm.version})

    def run_train(batch: Any) -> None:
        tuned = made.train(coordinator.train_count + 1, batch, dict, 100.0)[1]
        ages.append(tuned.get("staleness", 0.0))

    with AsyncTrainingCoordinator(
        degree, num_collectors=max(1, degree), bound=Bound(), get_weights=lambda: made.weights(Parcel(0))
    ) as coordinator:
        coordinator.run(collect=collect, train_fn=run_train, max_train=40, print_statistics=False)
    assert made.version == 40 // every and learner.total == 40 // every * every
    assert max(ages) <= -(-degree // every) and made.oldest == max(ages)
