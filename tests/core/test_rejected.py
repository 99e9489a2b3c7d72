"""A collect that returns None is rejected: counted, not trained, no failure."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator, Bound, CollectContext, ConfigError, Recovery
from lzero_async.core.statistics import format_box
from lzero_async.testing import VirtualClock
from lzero_async.tools.traces import read_events

PATIENT = Recovery(restart_backoff=0.001)
QUIET: dict[str, Any] = {"handle_signals": False, "print_statistics": False}
PAUSE = 8.0


def every_other(context: CollectContext) -> int | None:
    return context.ticket if context.ticket % 2 else None


async def every_other_awaited(context: CollectContext) -> int | None:
    await asyncio.sleep(0)
    return every_other(context)


@pytest.mark.parametrize("collect", [every_other, every_other_awaited])
@pytest.mark.parametrize(("degree", "workers"), [(0, 1), (1, 1), (3, 3)])
def test_only_what_was_returned_is_trained(degree: int, workers: int, collect: Any) -> None:
    trained: list[Any] = []
    with AsyncTrainingCoordinator(degree, num_collectors=workers, recovery=PATIENT) as coordinator:
        result = coordinator.run(collect, lambda batch: trained.append(batch.data), max_train=5, **QUIET)
        gate = coordinator._keeper.gate
        assert gate.violations() == []
        assert set(coordinator._keeper.data) == {ticket.id for ticket in gate.waiting}
        assert gate.admitted == 5 + len(gate.waiting) + gate.rejected + gate.abandoned
    stats = result.statistics
    assert len(trained) == 5 and all(number % 2 for number in trained)
    assert stats["rejected"] >= 3 and stats["failed"] == stats["restarts"] == stats["dropped"] == 0
    assert stats["collect_count"] == stats["train_count"] + stats["collect_train_lag"]


def test_run_collect_returns_none_and_frees_the_place() -> None:
    with AsyncTrainingCoordinator(1) as coordinator:
        for _ in range(3):
            assert coordinator.run_collect(lambda: None, timeout=0) is None
        assert not coordinator.can_train() and coordinator.can_collect()
        assert coordinator.run_collect(lambda: 0, timeout=0) == 0  # only None is nothing
        stats = coordinator.get_statistics()
    assert (stats["rejected"], stats["collect_count"], stats["open_collects"]) == (3, 1, 0)


def test_a_rejected_collect_admits_the_one_that_waits() -> None:
    """A lost wake-up: giving the ticket back must serve the line."""

    async def work() -> Any:
        coordinator, first = AsyncTrainingCoordinator(1), asyncio.Event()

        async def nothing() -> None:
            await first.wait()

        async def something() -> int:
            return 1

        tasks = [asyncio.create_task(coordinator.run_collect(fn)) for fn in (nothing, something)]
        await asyncio.sleep(0)
        first.set()
        return await asyncio.wait_for(asyncio.gather(*tasks), 10)

    assert asyncio.run(work()) == [None, 1]


def test_what_is_rejected_has_no_priority() -> None:
    by_score = Bound(
        staleness_policy="allow", queue_capacity=2, queue_order="priority", priority=lambda data: data["score"]
    )
    with AsyncTrainingCoordinator(1, bound=by_score) as coordinator:
        assert coordinator.run_collect(lambda: None) is None


def rejections(degree: int, none: int, **settings: Any) -> tuple[dict[str, Any], list[float]]:
    """Run until one batch is trained, after so many rejections; the statistics, and when each collect began."""
    begun: list[float] = []
    with VirtualClock() as clock:
        recovery = Recovery(restart_backoff=PAUSE, **settings)
        coordinator = AsyncTrainingCoordinator(degree, recovery=recovery, clock=clock)

        def collect(context: CollectContext) -> int | None:
            begun.append(clock.now())
            clock.sleep(1.0)
            return None if len(begun) <= none else 1

        stats = coordinator.run(collect, lambda batch: None, max_train=1, **QUIET).statistics
        coordinator.close()
    return stats, begun[: none + 1]


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
@pytest.mark.parametrize("degree", [0, 2])
def test_many_in_a_row_are_slowed_down_and_never_end_the_run(degree: int, on_failure: Any) -> None:
    """The pauses come from the second on, double, and are 30 s at most; nothing is restarted or retired."""
    stats, begun = rejections(degree, 6, max_restarts=2, on_failure=on_failure)
    assert [after - before for before, after in pairwise(begun)] == [
        1.0, 1.0 + PAUSE, 1.0 + 2 * PAUSE, 31.0, 31.0, 31.0,
    ]  # fmt: skip
    assert (stats["rejected"], stats["failed"], stats["restarts"], stats["retired"]) == (6, 0, 0, 0)
    assert stats["train_count"] == 1


def test_a_batch_ends_the_row(caplog: pytest.LogCaptureFixture) -> None:
    with VirtualClock() as clock, caplog.at_level(logging.WARNING, logger="lzero_async"):
        coordinator = AsyncTrainingCoordinator(1, recovery=Recovery(max_restarts=2, restart_backoff=PAUSE), clock=clock)
        coordinator.run(every_other, lambda batch: None, max_train=6, **QUIET)
        assert clock.now() == 0.0 and not caplog.records  # never two in a row
        coordinator.close()


def test_the_pause_ends_with_the_run() -> None:
    with VirtualClock() as clock:
        coordinator = AsyncTrainingCoordinator(
            1, recovery=Recovery(max_restarts=0, restart_backoff=1000.0), clock=clock
        )
        result = coordinator.run(lambda context: None, lambda batch: None, max_seconds=5.0, **QUIET)
        assert (result.reason, clock.now()) == ("max_seconds", 5.0)
        coordinator.close()


def test_it_is_counted_saved_traced_and_shown(tmp_path: Path) -> None:
    with AsyncTrainingCoordinator(1, trace=tmp_path / "trace.json") as coordinator:
        coordinator.run_collect(lambda: None)
        state = coordinator.state_dict()
        assert "failed: 0, rejected: 1, abandoned: 0" in format_box(coordinator.get_statistics())
        coordinator.reset_counters()
        assert coordinator.get_statistics()["rejected"] == 0
    assert [event["name"] for event in read_events(tmp_path / "trace.json") if event["ph"] == "X"] == [
        "collect rejected"
    ]
    with AsyncTrainingCoordinator(1) as resumed:
        resumed.load_state_dict(state)
        assert resumed.get_statistics()["rejected"] == 1
        with pytest.raises(ConfigError, match="format 2"):
            resumed.load_state_dict({**state, "format": 1})
