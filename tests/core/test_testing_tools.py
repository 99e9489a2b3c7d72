"""The test tools themselves: a clock that deadlocks loudly, a sequencer that forces an order, a simulator that adds up."""

from __future__ import annotations

import threading

import pytest

from lzero_async.errors import Deadlock, LzeroAsyncError
from lzero_async.simulate.distributions import lognormal
from lzero_async.simulate.pipeline import simulate
from lzero_async.testing import Sequencer, VirtualClock
from lzero_async.threads import ThreadGroup


def test_virtual_time_passes_only_when_everybody_waits() -> None:
    log = []
    with VirtualClock() as clock:
        group = ThreadGroup(clock, "lzero-test")
        for name, pause in (("a", 3.0), ("b", 2.0)):
            group.start(
                name, lambda n=name, p=pause: [(clock.sleep(p), log.append((n, clock.now()))) for _ in range(3)]
            )
        group.join(None)
        assert clock.now() == 9
    assert log == [("b", 2), ("a", 3), ("b", 4), ("a", 6), ("b", 6), ("a", 9)]


def test_a_seed_draws_the_order_of_ready_threads_and_repeats_it() -> None:
    def order(seed: int) -> list[int]:
        log: list[int] = []
        with VirtualClock(seed) as clock:
            group = ThreadGroup(clock, "lzero-test")
            for name in range(6):
                group.start(str(name), lambda n=name: (clock.sleep(1), log.append(n)))
            group.join(None)
        return log

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(10)}) > 5


def test_a_deadlock_on_the_virtual_clock_raises_in_every_thread() -> None:
    with VirtualClock() as clock:
        group = ThreadGroup(clock, "lzero-test")
        group.start("stuck", lambda: clock.waiter().wait(None))
        with pytest.raises(Deadlock, match="all 2 threads wait"):
            clock.waiter().wait(None)
        group.join(None) if not group.alive() else None
    group.join(10)
    assert isinstance(group.failures[0], Deadlock)


def test_virtual_waits_time_out_at_their_time() -> None:
    with VirtualClock() as clock:
        assert clock.waiter().wait(2.5) is False
        assert clock.now() == 2.5
        waiter = clock.waiter()
        waiter.wake()
        assert waiter.wait(1.0) is True
        assert clock.now() == 2.5


def test_the_sequencer_forces_an_order() -> None:
    sequence, log = Sequencer(), []

    def odd() -> None:
        for step in (1, 3, 5):
            with sequence(step):
                log.append(step)

    thread = threading.Thread(target=odd)
    thread.start()
    for step in (0, 2, 4):
        with sequence(step):
            log.append(step)
    thread.join(10)
    assert log == [0, 1, 2, 3, 4, 5]


def test_the_sequencer_notices_a_step_that_never_comes_and_one_used_twice() -> None:
    sequence = Sequencer(patience=0.01)
    with pytest.raises(Deadlock, match="Step 1 waited for step 0"), sequence(1):
        pass
    sequence = Sequencer()
    with sequence(0):
        pass
    with pytest.raises(LzeroAsyncError, match="used twice"), sequence(0):
        pass


def test_the_simulator_adds_up_on_constant_stages() -> None:
    serial = simulate(2.0, 1.0, off_policy_degree=0, trains=100)
    assert (serial.wall, serial.overlap_efficiency, serial.mean_staleness) == (300, pytest.approx(2 / 3), 0)
    overlapped = simulate(2.0, 1.0, off_policy_degree=1, trains=100)
    assert overlapped.wall == 201
    assert overlapped.learner_idle == pytest.approx(1 - 100 / 201)
    assert simulate(2.0, 1.0, num_collectors=2, off_policy_degree=4, trains=100).wall == pytest.approx(102)


def test_the_simulated_queue_drops_what_the_learner_has_no_time_for() -> None:
    run = simulate(1.0, 4.0, num_collectors=2, policy="allow", queue_capacity=2, trains=100)
    assert run.throughput == pytest.approx(100 / 401)
    assert run.dropped == pytest.approx(2 * 401 - 102, abs=5)


def test_synchronous_evaluation_costs_the_learner_and_background_evaluation_nothing() -> None:
    blocking = simulate(1.0, 1.0, 5.0, off_policy_degree=2, trains=100, eval_every=10)
    background = simulate(1.0, 1.0, 5.0, off_policy_degree=2, trains=100, eval_every=10, async_eval=True)
    assert background.wall == 101
    assert blocking.wall == pytest.approx(101 + 9 * 5, abs=10)


def test_the_simulator_repeats_itself_and_follows_its_seed() -> None:
    runs = [
        simulate(lognormal(1, 1), lognormal(1, 1), num_collectors=3, off_policy_degree=3, seed=s) for s in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]
    assert sum(runs[0].staleness.values()) == 1000
    assert max(runs[0].staleness) <= 3
    assert max(runs[0].lag) <= 3


def test_several_threads_can_wait_for_one_group() -> None:
    """close() joins a group that run() is watching; both must see its end."""
    with VirtualClock() as clock:
        watched, watchers = ThreadGroup(clock, "lzero-watched"), ThreadGroup(clock, "lzero-watchers")
        watched.start("worker", lambda: clock.sleep(1))
        for name in ("one", "two"):
            watchers.start(name, lambda: watched.join(None))
        assert watched.join(5) == []
        assert watchers.join(5) == []
        assert clock.now() == 1
