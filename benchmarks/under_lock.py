"""What the gate's lock is held for, as queues get longer and collectors more.

    python -m benchmarks.under_lock [--repeats N]

Ratios within one run, of medians: a put into a full queue of 20,000 over one of 100, and a settle with 1,000 collectors over
one with 10. The 1,000 are in the worst state for it: all but one wait for their commit, and that one must come first.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
import warnings
from collections.abc import Callable

from lzero_async import AsyncTrainingCoordinator, Bound
from lzero_async.core.gate import Gate

LONG, SHORT = 20_000, 100
MANY, FEW = 1_000, 10
CUT_FROM, CUT_TO = 10_000, 5_000


def full_queue(size: int, policy: str = "allow", order: str = "fifo") -> Gate:
    """A gate whose queue is full."""
    gate = Gate(size, policy=policy, capacity=size, order=order)
    for place in range(size):
        gate.commit(gate.start_collect().id, float(place % 7) if order == "priority" else 0.0)
    return gate


def put(gate: Gate, priority: float) -> None:
    """Collect and commit once more; the queue drops a batch for it."""
    gate.commit(gate.start_collect().id, priority)


async def settle_seconds(number: int) -> float:
    """A settle when all collects but the oldest wait for their commit, and that must come first."""
    may_end = asyncio.Event()

    async def slow() -> str:
        await may_end.wait()
        return "data"

    async def quick() -> str:
        return "data"

    with AsyncTrainingCoordinator(number, num_collectors=number) as coordinator:
        collects = [asyncio.create_task(coordinator.run_collect(slow))]
        await asyncio.sleep(0)
        for _ in range(number):
            await coordinator.run_collect(quick)
            await coordinator.run_train(quick)
        collects += [asyncio.create_task(coordinator.run_collect(quick)) for _ in range(number - 1)]
        while len(coordinator.waiting_batches) < number - 1:
            await asyncio.sleep(0)
        assert coordinator.collect_count == number
        seconds = median_seconds(lambda: coordinator.set_active_collectors(number))  # which settles
        may_end.set()
        await collects[0]
    await asyncio.gather(*collects, return_exceptions=True)
    return seconds


def median_seconds(step: Callable[[], object], number: int = 2000) -> float:
    """The median time of one step."""
    times = []
    for _ in range(number):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def put_ratio(policy: str, order: str) -> float:
    """A put into a long full queue over one into a short one."""

    def seconds(size: int) -> float:
        gate, priorities = full_queue(size, policy, order), iter(range(10**9))
        return median_seconds(lambda: put(gate, float(next(priorities) % 7)))

    return seconds(LONG) / seconds(SHORT)


def settle_ratio() -> float:
    """A settle with many collectors over one with few."""
    return asyncio.run(settle_seconds(MANY)) / asyncio.run(settle_seconds(FEW))


def cut_seconds() -> float:
    """How long the lock is held when a queue of 10,000 becomes one of 5,000."""
    coordinator = AsyncTrainingCoordinator(CUT_FROM, bound=Bound(staleness_policy="allow", queue_capacity=CUT_FROM))
    for _ in range(CUT_FROM):
        coordinator.run_collect(dict)
    start = time.perf_counter()
    coordinator.set_queue_capacity(CUT_TO)
    seconds = time.perf_counter() - start
    coordinator.close()
    return seconds


def main() -> int:
    """Measure and print; 1 if a bar was missed."""
    parser = argparse.ArgumentParser(description="What the gate's lock is held for.")
    parser.add_argument("--repeats", type=int, default=5, help="repeats of each measurement (default: 5)")
    repeats = parser.parse_args().repeats
    warnings.simplefilter("ignore")
    bars: list[tuple[str, float | None, Callable[[], float]]] = [
        ("put at 20,000 / put at 100, first in first out", 2.0, lambda: put_ratio("allow", "fifo")),
        ("put at 20,000 / put at 100, by priority", 2.0, lambda: put_ratio("allow", "priority")),
        ("put at 20,000 / put at 100, late batches dropped", 2.0, lambda: put_ratio("drop", "fifo")),
        ("settle with 1,000 collectors / with 10", 3.0, settle_ratio),
        ("seconds to cut a queue of 10,000 to 5,000", None, cut_seconds),
    ]
    missed = 0
    print(f"{'measurement':<52}{'median':>10}{'min':>10}{'max':>10}{'bar':>8}")
    for name, limit, measure in bars:
        values = [measure() for _ in range(repeats)]
        median = statistics.median(values)
        missed += limit is not None and median > limit
        bar = "" if limit is None else f"<= {limit:g}"
        print(f"{name:<52}{median:>10.3g}{min(values):>10.3g}{max(values):>10.3g}{bar:>8}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
