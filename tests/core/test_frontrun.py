"""`frontrun` explores thread interleavings of the locking keeper, bytecode by bytecode.

Skipped by plain pytest; `make test` runs it as `frontrun pytest tests/core/test_frontrun.py`.
"""

from __future__ import annotations

import os
import threading

import pytest

from lzero_async.clock import RealClock
from lzero_async.core.gate import Gate
from lzero_async.core.keeping.gatekeeper import Gatekeeper
from lzero_async.core.keeping.parked import Parked
from lzero_async.errors import GateTimeout, Stopped

frontrun = pytest.importorskip("frontrun")
pytestmark = pytest.mark.skipif("FRONTRUN_ACTIVE" not in os.environ, reason="run through the frontrun command")


class SemaphoreWaiter:
    """The product waits on a lock that another thread releases, which frontrun takes for a deadlock with itself."""

    def __init__(self) -> None:
        self._semaphore = threading.Semaphore(0)

    def wait(self, timeout: float | None) -> bool:
        return self._semaphore.acquire()

    def wake(self) -> None:
        self._semaphore.release()


class Shell:
    """One learner and one collector, or two collectors, on a fresh keeper."""

    def __init__(self) -> None:
        self.stopped = False
        self.keeper = Gatekeeper(Gate(1, num_collectors=2), RealClock())

    def wait(self, answer):
        if hasattr(answer, "waiter"):
            answer.waiter.wait(None)
            return self.keeper.served(answer)
        return answer

    def collect(self) -> None:
        ticket = self.wait(self.keeper.request_collect(SemaphoreWaiter))
        self.wait(self.keeper.request_commit(ticket, "data", 0.0, 1.0, SemaphoreWaiter))

    def train(self) -> None:
        self.wait(self.keeper.request_train(SemaphoreWaiter))
        self.keeper.finish_train(0.0, 1.0, True, lambda result, starved: None, None)

    def train_twice(self) -> None:
        self.train()
        self.train()

    def stop(self) -> None:
        self.keeper.stop(Stopped("test"), patient=False)

    def train_or_be_stopped(self) -> None:
        try:
            self.train()
        except Stopped:
            self.stopped = True


class LeakyShell(Shell):
    """Asks and parks in two steps, as a careless keeper would: a commit in between is not noticed."""

    def train(self) -> None:
        with self.keeper.lock:
            ready = self.keeper.gate.train_rule() is None
        if not ready:
            parked = Parked("train", SemaphoreWaiter(), 0.0)
            with self.keeper.lock:
                self.keeper._park(parked)
            try:
                self.wait(parked)
            except GateTimeout:  # how a thread that frontrun found stuck gets out
                return
        else:
            self.wait(self.keeper.request_train(SemaphoreWaiter))
        self.keeper.finish_train(0.0, 1.0, True, lambda result, starved: None, None)


def account(state: Shell, batches: int) -> bool:
    gate = state.keeper.gate
    return gate.violations() == [] and gate.committed == gate.trained == batches and not state.keeper.data


def test_a_learner_that_waits_is_always_woken() -> None:
    result = frontrun.explore(setup=Shell, workers=[Shell.collect, Shell.train], invariant=lambda s: account(s, 1))
    result.assert_holds()
    assert result.num_explored > 1


def test_two_collectors_and_a_learner_end_with_an_exact_account() -> None:
    result = frontrun.explore(
        setup=Shell,
        workers=[Shell.collect, Shell.collect, Shell.train_twice],
        invariant=lambda s: account(s, 2),
        max_executions=300,
    )
    result.assert_holds()
    assert result.num_explored > 10


def test_a_stop_releases_a_learner_at_any_moment() -> None:
    result = frontrun.explore(
        setup=Shell,
        workers=[Shell.stop, Shell.train_or_be_stopped],
        invariant=lambda s: s.stopped and not s.keeper._lines["train"],
    )
    result.assert_holds()


def test_a_lost_wake_up_would_be_found() -> None:
    result = frontrun.explore(
        setup=LeakyShell, workers=[LeakyShell.collect, LeakyShell.train], invariant=lambda s: account(s, 1)
    )
    assert result.property_holds is not True  # a counterexample, or a run that got stuck
