"""The bounded queue: three rules for a full one, exact counts, no lost wake-up."""

from __future__ import annotations

import threading

import pytest

from lzero_async import ConfigError, GateTimeout
from lzero_async.testing import VirtualClock
from lzero_async.threads import ThreadGroup
from zoo.mbpo.queues import BoundedQueue, QueueClosed


def drain(queue: BoundedQueue) -> list:
    return [queue.get() for _ in range(len(queue))]


def test_drop_oldest_keeps_the_newest_and_counts() -> None:
    queue: BoundedQueue[int] = BoundedQueue(3, "drop_oldest")
    assert all(queue.put(i) for i in range(10))
    assert drain(queue) == [7, 8, 9]
    stats = queue.statistics()
    assert (stats.put, stats.got, stats.dropped, stats.size) == (10, 3, 7, 0)


def test_priority_keeps_and_gives_the_best_first() -> None:
    queue: BoundedQueue[str] = BoundedQueue(3, "priority")
    for name, priority in (("c", 1), ("a", 5), ("b", 3)):
        assert queue.put(name, priority=priority)
    assert not queue.put("worse", priority=1)
    assert queue.put("best", priority=9)
    assert drain(queue) == ["best", "a", "b"]
    stats = queue.statistics()
    assert (stats.put, stats.got, stats.dropped, stats.rejected) == (4, 3, 1, 1)


def test_equal_priorities_come_out_in_order_of_arrival() -> None:
    queue: BoundedQueue[object] = BoundedQueue(5, "priority")
    items = [object() for _ in range(5)]
    for item in items:
        queue.put(item)
    assert drain(queue) == items


def test_block_waits_for_room_and_for_items() -> None:
    with VirtualClock() as clock:
        queue: BoundedQueue[int] = BoundedQueue(2, clock=clock)
        group = ThreadGroup(clock, "lzero-test")
        group.start("producer", lambda: [queue.put(i) for i in range(6)])
        clock.sleep(1)
        assert len(queue) == 2
        assert [queue.get() for _ in range(6)] == list(range(6))
        group.join(None)
        stats = queue.statistics()
    assert stats.put_waits > 0
    assert (stats.put, stats.got, stats.dropped) == (6, 6, 0)


def test_timeouts() -> None:
    queue: BoundedQueue[int] = BoundedQueue(1)
    with pytest.raises(GateTimeout, match="the queue is empty"):
        queue.get(timeout=0.001)
    queue.put(1)
    with pytest.raises(TimeoutError, match=r"the queue is full \(1 items\)"):
        queue.put(2, timeout=0)
    assert queue.get() == 1


def test_close_releases_waiters_and_keeps_what_is_in() -> None:
    with VirtualClock() as clock:
        queue: BoundedQueue[int] = BoundedQueue(1, clock=clock)
        group = ThreadGroup(clock, "lzero-test")
        group.start("getter", queue.get)
        clock.sleep(1)
        queue.close()
        group.join(None)
        assert isinstance(group.failures[0], QueueClosed)
        full: BoundedQueue[int] = BoundedQueue(1, clock=clock)
        full.put(1)
        full.close()
        assert full.get() == 1
        with pytest.raises(QueueClosed, match="closed and empty"):
            full.get()
        with pytest.raises(QueueClosed):
            full.put(2)


@pytest.mark.parametrize("policy", ["block", "drop_oldest", "priority"])
def test_nothing_is_lost_or_doubled_under_many_threads(policy: str) -> None:
    queue: BoundedQueue[int] = BoundedQueue(7, policy)
    got: list[int] = []
    producers = [threading.Thread(target=lambda n=n: [queue.put(n * 1000 + i) for i in range(1000)]) for n in range(4)]

    def consume() -> None:
        try:
            while True:
                got.append(queue.get(timeout=30))
        except QueueClosed:
            return

    consumers = [threading.Thread(target=consume) for _ in range(3)]
    for thread in producers + consumers:
        thread.start()
    for thread in producers:
        thread.join()
    queue.close()
    for thread in consumers:
        thread.join()
    stats = queue.statistics()
    assert len(got) == len(set(got)) == stats.got
    assert stats.put + stats.rejected == 4000
    assert stats.put == stats.got + stats.dropped
    if policy == "block":
        assert sorted(got) == list(range(4000))


def test_bad_arguments() -> None:
    with pytest.raises(ConfigError, match="max_size is 0"):
        BoundedQueue(0)
    with pytest.raises(ConfigError, match="choose one of block, drop_oldest, priority"):
        BoundedQueue(1, "lifo")
