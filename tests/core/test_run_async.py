"""`await coordinator.run_async(...)`: the event loop goes on, and a cancelled task ends the run in order."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator, CollectContext, ConfigError
from lzero_async.testing import VirtualClock

QUIET: dict[str, Any] = {"print_statistics": False}


@pytest.mark.parametrize("degree", [0, 1, 3])
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_the_event_loop_is_never_blocked(degree: int, kind: str) -> None:
    def collect(context: CollectContext) -> str:
        assert ticked.wait(10.0)  # which the event loop sets, if it is free
        return "data"

    async def collect_too(context: CollectContext) -> str:
        return collect(context)

    async def main() -> None:
        running = asyncio.create_task(
            coordinator.run_async(
                collect_too if kind == "coroutine" else collect, lambda batch: None, max_train=4, **QUIET
            )
        )
        await asyncio.sleep(0.01)
        assert not running.done()
        ticked.set()
        result = await asyncio.wait_for(running, 20.0)
        assert (result.reason, result.statistics["train_count"]) == ("max_train", 4)

    ticked = threading.Event()
    with AsyncTrainingCoordinator(degree) as coordinator:
        asyncio.run(main())


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_cancelling_stops_the_run_in_order(degree: int) -> None:
    trained = threading.Event()

    async def main() -> None:
        running = asyncio.create_task(
            coordinator.run_async(lambda context: "data", lambda batch: trained.set(), **QUIET)
        )
        assert await asyncio.to_thread(trained.wait, 20.0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert coordinator.threads.alive() == [] and not coordinator.stop_signal.is_set()
        made = coordinator.train_count
        result = await coordinator.run_async(lambda context: "data", lambda batch: None, max_train=made + 2, **QUIET)
        assert result.reason == "max_train"

    with AsyncTrainingCoordinator(degree) as coordinator:
        asyncio.run(main())
        assert coordinator.violations() == [] and coordinator.get_statistics()["failed"] == 0


def test_cancelling_lets_what_runs_finish_and_cancelling_again_does_not() -> None:
    collecting, may_end = threading.Event(), threading.Event()

    def collect(context: CollectContext) -> str:
        collecting.set()
        assert may_end.wait(20.0)
        return "data"

    async def main(times: int) -> None:
        collecting.clear()
        may_end.clear()
        running = asyncio.create_task(coordinator.run_async(collect, lambda batch: None, **QUIET))
        assert await asyncio.to_thread(collecting.wait, 20.0)
        for _ in range(times):
            running.cancel()
            await asyncio.sleep(0.01)
            assert times > 1 or not running.done()
        if times == 1:
            may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 10.0)
        may_end.set()

    with AsyncTrainingCoordinator(1) as coordinator:
        asyncio.run(main(1))
        assert coordinator.collect_count == 1
        coordinator.run_train(lambda: None)
        asyncio.run(main(2))


def test_a_failure_reaches_the_task() -> None:
    async def main() -> None:
        await coordinator.run_async(lambda context: "data", lambda batch: 1 / 0, **QUIET)

    with AsyncTrainingCoordinator(1) as coordinator, pytest.raises(ZeroDivisionError):
        asyncio.run(main())


def test_a_virtual_clock_has_no_event_loop() -> None:
    async def main(clock: VirtualClock) -> None:
        await AsyncTrainingCoordinator(1, clock=clock).run_async(lambda context: "data", lambda batch: None)

    with VirtualClock() as clock, pytest.raises(ConfigError, match="virtual clock"):
        asyncio.run(main(clock))
