"""AsyncDataCollector: what each worker is told, and the numbers about them."""

from __future__ import annotations

from typing import Any

import pytest

from lzero_async import CollectContext, ConfigError, Snapshot, make_backend
from lzero_async.workers.calls import CallStop
from zoo.mbpo.collect.data_collector import AsyncDataCollector
from zoo.mbpo.envs.sources import GymSource
from zoo.mbpo.options import build_options, queue_batches


def collector(**settings: Any) -> AsyncDataCollector:
    source = GymSource(build_options({"step_timeout": 300.0, "seed": 3}))
    arguments = {"num_envs": 8, "num_collectors": 4, "collection_batch_size": 8, "random_steps": 10**6, **settings}
    return AsyncDataCollector(make_backend("inline"), source, **arguments)


def collect(found: AsyncDataCollector, worker: int) -> dict[str, Any]:
    return found.collect(CollectContext(worker, 0, 0, Snapshot(0, None), CallStop())).meta


def test_staggered_collectors_begin_with_collects_of_different_lengths() -> None:
    found = collector(staggered=True)
    assert [collect(found, worker)["steps"] for worker in range(4)] == [2, 4, 6, 8]
    assert [collect(found, worker)["steps"] for worker in range(4)] == [8] * 4
    assert [collect(collector(), worker)["steps"] for worker in range(4)] == [8] * 4


def test_every_worker_has_its_share_of_the_environments_and_is_counted() -> None:
    found = collector(num_envs=5, num_collectors=2, collection_batch_size=6)
    assert found.shares == [3, 2]
    assert [collect(found, worker)["steps"] for worker in (0, 1, 1)] == [6, 6, 6]
    statistics = found.statistics()
    assert (statistics.steps, statistics.collects, statistics.alive, statistics.restarts) == (18, 3, 2, 0)
    assert [own["steps"] for own in statistics.by_worker] == [6, 12]
    found.restarted(1, RuntimeError("it fell over"))
    assert found.statistics().restarts == 1
    assert collect(found, 1)["number"] == 2  # random numbers that were not drawn before
    found.retire(0)
    assert found.statistics().alive == 1
    with pytest.raises(ConfigError, match="5 environment"):
        collector(num_envs=5, num_collectors=6)


def test_a_resumed_collector_draws_what_was_not_drawn_before_whatever_its_number() -> None:
    first = collector()
    for worker in (0, 1, 1, 1):
        collect(first, worker)
    second = collector(num_collectors=2)
    second.load_state_dict(first.state_dict())
    assert second.steps == 32
    assert [collect(second, worker)["number"] for worker in (0, 1)] == [3, 3]


@pytest.mark.parametrize(("queue", "batch", "batches"), [(1000, 256, 4), (2000, 512, 4), (256, 256, 1), (700, 256, 3)])
def test_the_queue_holds_its_transitions_to_the_nearest_batch(queue: int, batch: int, batches: int) -> None:
    options = build_options({"trainer": "continuous", "max_queue_size": queue, "collection_batch_size": batch})
    assert queue_batches(options) == batches
