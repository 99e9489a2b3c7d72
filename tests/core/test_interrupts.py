"""A KeyboardInterrupt at every line of the library's own frames in the calling thread: the account stays right, and the
coordinator can be used again. `make soak` interrupts every line as often as it is passed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import lzero_async
from lzero_async import AsyncTrainingCoordinator, Batch, Bound, CollectContext, EvalContext, Recovery
from lzero_async.errors import GateTimeout, Stopped
from lzero_async.testing import VirtualClock
from lzero_async.threads import ThreadGroup

LIBRARY = str(Path(lzero_async.__file__).parent)
TOOLS = str(Path(LIBRARY) / "testing")  # what tests run on is not interrupted
LIMIT = 1000.0  # virtual seconds: a wait that nobody ends fails as a time-out that says why
ROUNDS = 2


class Interrupt:
    """Raises KeyboardInterrupt at the `at`-th line event of the library's own frames in this thread; at 0, never."""

    def __init__(self, at: int) -> None:
        self.at, self.where = at, ""
        self.places: list[tuple[str, int]] = []

    def __enter__(self) -> Interrupt:
        self._before = sys.gettrace()
        sys.settrace(self._enter_frame)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _enter_frame(self, frame: FrameType, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        if frame.f_code.co_name == "__del__":  # Python itself swallows what a finalizer raises
            return None
        return self._line if name.startswith(LIBRARY) and not name.startswith(TOOLS) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.places.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self.places) == self.at:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                raise KeyboardInterrupt
        return self._line


class Ledger:
    """The user's side: what was collected, and what was trained to the end."""

    def __init__(self, clock: VirtualClock, *, failing: bool = False, per_train: int = 1) -> None:
        self.clock, self.failing, self.per_train = clock, failing, per_train
        self.collected: list[int] = []
        self.trained: list[int] = []
        self.weights = 0

    def collect(self, context: CollectContext) -> str:
        self.clock.sleep(1.0)
        self.collected.append(context.ticket)
        return f"data {context.ticket}"

    def train(self, batch: Batch) -> float:
        self.clock.sleep(1.5)
        if self.failing:
            self.failing = False
            raise ValueError("once")
        if not batch.replay:
            data = batch.data if isinstance(batch.data, list) else [batch.data]
            assert data[0] == f"data {batch.id}"
            self.trained += [int(one.removeprefix("data ")) for one in data]
        self.weights += 1
        return 0.1

    def evaluate(self, context: EvalContext) -> float:
        self.clock.sleep(0.5)
        return float(context.version)

    def get_weights(self) -> int:
        return self.weights

    def state_dict(self) -> dict[str, int]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.weights = state["weights"]


Scene = Callable[[AsyncTrainingCoordinator, Ledger], None]


def alone(coordinator: AsyncTrainingCoordinator, ledger: Ledger) -> None:
    """One thread does everything in turn."""
    for _ in range(ROUNDS):
        while coordinator.collect_train_lag < ledger.per_train:  # an earlier train may have been interrupted
            coordinator.run_collect(ledger.collect, with_context=True, timeout=LIMIT)
        coordinator.run_train(ledger.train, with_batch=True, timeout=LIMIT)
        coordinator.run_eval(ledger.evaluate, with_context=True, timeout=LIMIT)
    coordinator.wait_for_eval(LIMIT)


def in_blocks(coordinator: AsyncTrainingCoordinator, ledger: Ledger) -> None:
    """The same, as `with` blocks."""
    for _ in range(ROUNDS):
        if not coordinator.can_train():
            coordinator.can_collect()
            with coordinator.collecting(timeout=LIMIT) as ticket:
                context = CollectContext(ticket.worker, ticket.id, ticket.version, ticket.snapshot, ticket.stop)
                ticket.data = ledger.collect(context)
        with coordinator.training(timeout=LIMIT) as batch:
            if batch.id not in ledger.trained:  # an interrupt between the block and its count leaves the batch owed
                ledger.train(batch)


def over_batches(coordinator: AsyncTrainingCoordinator, ledger: Ledger) -> None:
    for batch in coordinator.batches(ledger.collect, max_train=coordinator.train_count + ROUNDS, timeout=LIMIT):
        if batch.id not in ledger.trained:  # as above
            ledger.train(batch)


def with_pauses(coordinator: AsyncTrainingCoordinator, ledger: Ledger) -> None:
    with coordinator.paused(timeout=LIMIT):
        pass
    coordinator.run_train(ledger.train, with_batch=True, timeout=LIMIT)


def train_here(coordinator: AsyncTrainingCoordinator, ledger: Ledger) -> None:
    for _ in range(ROUNDS):
        coordinator.run_train(ledger.train, with_batch=True, timeout=LIMIT)


def collect_here(coordinator: AsyncTrainingCoordinator, ledger: Ledger) -> None:
    for _ in range(ROUNDS + 1):
        coordinator.run_collect(ledger.collect, with_context=True, timeout=LIMIT)


def reject_here(coordinator: AsyncTrainingCoordinator, ledger: Ledger) -> None:
    for _ in range(ROUNDS):
        coordinator.run_collect(lambda: None, timeout=LIMIT)


def run_it(coordinator: AsyncTrainingCoordinator, ledger: Ledger) -> None:
    coordinator.run(
        ledger.collect,
        ledger.train,
        ledger.evaluate,
        eval_every=1,
        max_train=coordinator.train_count + ROUNDS,
        print_statistics=False,
    )


@contextmanager
def beside(coordinator: AsyncTrainingCoordinator, ledger: Ledger, role: str) -> Iterator[None]:
    """Another thread collects, or trains, again and again, until the coordinator is closed."""
    threads = ThreadGroup(coordinator.clock, "lzero-beside")

    def work() -> None:
        try:
            while True:
                if role == "collector":
                    coordinator.run_collect(ledger.collect, with_context=True, worker=1)
                else:
                    coordinator.run_train(ledger.train, with_batch=True)
        except Stopped:
            return

    if role:
        threads.start(role, work)
    try:
        yield
    finally:
        coordinator.close()
        assert threads.join(LIMIT) == []
        assert threads.failures == []


def check(coordinator: AsyncTrainingCoordinator, ledger: Ledger) -> None:
    keeper = coordinator._keeper
    assert not any(lock._is_owned() for lock in keeper.locks), "a lock is left locked"
    with keeper.lock:
        gate = keeper.gate
        assert gate.violations() == [] and not keeper.pauses.count
        assert set(keeper._holders) == set(gate.tickets)
        assert (gate.running is None) == (keeper._turn is None)
        lined_up = {parked.ticket.id for parked in keeper._commits}
        assert set(keeper.data) == {ticket.id for ticket in gate.waiting} | lined_up
        assert gate.committed == gate.trained + gate.dropped + len(gate.waiting)
    assert len(set(ledger.trained)) == len(ledger.trained), "a batch was trained twice"
    assert set(ledger.trained) <= set(ledger.collected)


def attempt(at: int, degree: int, scene: Scene, role: str, options: dict[str, Any], failing: bool) -> Interrupt:
    """One scene, interrupted at one line; then the same scene again, undisturbed."""
    with VirtualClock() as clock:
        ledger = Ledger(clock, failing=failing, per_train=options.get("bound", Bound()).collects_per_train)
        coordinator = AsyncTrainingCoordinator(
            degree,
            get_weights=ledger.get_weights,
            num_collectors=max(1, min(2, degree)),
            clock=clock,
            recovery=Recovery(train_retries=1, learner=ledger) if failing else Recovery(),
            **options,
        )
        handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
        with beside(coordinator, ledger, role):
            try:
                with Interrupt(at) as interrupt:
                    scene(coordinator, ledger)
                assert not interrupt.where, f"the interrupt at {interrupt.where} was swallowed"
            except KeyboardInterrupt:
                pass
            try:
                assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
                check(coordinator, ledger)
                trained = len(ledger.trained)
                scene(coordinator, ledger)
                if scene not in (collect_here, reject_here):
                    assert len(ledger.trained) > trained
                check(coordinator, ledger)
            except GateTimeout as error:
                raise AssertionError(f"not usable after an interrupt at {interrupt.where}: {error}") from error
            except BaseException as error:
                error.add_note(f"after an interrupt at event {at}, {interrupt.where}")
                raise
    return interrupt


CASES: list[tuple[str, int, Scene, str, dict[str, Any], bool]] = [
    *((f"alone, degree {d}", d, alone, "", {}, False) for d in (0, 1, 2)),
    *((f"alone, degree {d}, evaluations in the background", d, alone, "", {"enable_async_eval": True}, False) for d in (0, 2)),
    *((f"a train that fails once, degree {d}", d, alone, "", {}, True) for d in (0, 1)),
    *((f"in blocks, degree {d}", d, in_blocks, "", {}, False) for d in (0, 2)),
    *((f"over batches, degree {d}", d, over_batches, "", {}, False) for d in (0, 1)),
    *((f"paused beside a collector, degree {d}", d, with_pauses, "collector", {}, False) for d in (1, 2)),
    *((f"beside a collector, degree {d}", d, train_here, "collector", {}, False) for d in (1, 2)),
    *((f"beside a learner, degree {d}", d, collect_here, "learner", {}, False) for d in (0, 1, 2)),
    *((f"rejected beside a collector, degree {d}", d, reject_here, "collector", {}, False) for d in (1, 2)),
    ("replays beside a collector", 2, train_here, "collector", {"bound": Bound(max_train_ahead=2)}, False),
    *((f"two collects per train, degree {d}", d, alone, "", {"bound": Bound(collects_per_train=2)}, False) for d in (0, 1)),
    ("oversampled beside a learner", 1, collect_here, "learner",
     {"bound": Bound(collects_per_train=2, oversampling=1, staleness_policy="drop")}, False),
    ("a queue that is full", 2, collect_here, "", {"bound": Bound(queue_capacity=1, staleness_policy="allow")}, False),
    ("a queue by priority", 2, collect_here, "learner",
     {"bound": Bound(queue_capacity=2, staleness_policy="drop", queue_order="priority", priority=len)}, False),
    *((f"run, degree {d}", d, run_it, "", {}, False) for d in (0, 1, 2)),
    *((f"run, degree {d}, evaluations in the background", d, run_it, "", {"enable_async_eval": True}, False) for d in (0, 2)),
]  # fmt: skip


every_case = pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
ALIKE = {  # lines that others pass, too
    "alone, degree 0", "alone, degree 1", "a train that fails once, degree 1", "beside a collector, degree 1",
    "beside a learner, degree 1", "rejected beside a collector, degree 2", "run, degree 0", "run, degree 1", "run, degree 2",
    "run, degree 0, evaluations in the background", "alone, degree 0, evaluations in the background", "in blocks, degree 0",
    "paused beside a collector, degree 1", "two collects per train, degree 0",
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case[0], marks=[pytest.mark.soak] * (case[0] in ALIKE)) for case in CASES]
)
def test_an_interrupt_at_any_line_leaves_a_coordinator_that_can_be_used(
    case: tuple[str, int, Scene, str, dict[str, Any], bool],
) -> None:
    _, *scene = case
    last = {place: at for at, place in enumerate(attempt(0, *scene).places, 1)}
    assert len(last) > 50
    for at in last.values():
        attempt(at, *scene)


@pytest.mark.soak
@every_case
def test_an_interrupt_at_any_line_at_any_time_leaves_a_coordinator_that_can_be_used(
    case: tuple[str, int, Scene, str, dict[str, Any], bool],
) -> None:
    name, *scene = case
    at = 1
    while attempt(at, *scene).where:
        at += 1
    print(f"{name}: {at - 1} line events, 0 broken accounts")
    assert at > 50
