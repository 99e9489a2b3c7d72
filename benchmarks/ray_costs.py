"""What the pages on scale start from: costs of Ray, of a copy between nodes and of an all-reduce, and PriorZero's sizes.

The group "costs" of `python -m benchmarks.on_ray`; `benchmarks.scale` reads it from benchmarks/results/ray.json.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import _all_reduce
from benchmarks._ray_runs import SIZE, waiting_run
from benchmarks.harness import Bar
from lzero_async import Parcel, make_backend
from lzero_async.testing import ScriptedRole
from tests.workers.ray_nodes import RayNodes
from tests.workers.roles import CollectorRole, LearnerRole

ROUNDS = 5
RATE = "8 collectors that wait 0.2 s: batches/s"
CALL = "a call without data, ms"
CALL_CPU = "the owner's CPU for a collect call with 0.5 MB, ms"
OWNER_CPU = "the owner's CPU for a batch in a whole run (collect, train, weights), ms"
PUT = "100 MB into the store, ms per MB"
LINK = {20: "20 MB from another node over loopback, MB/s", 100: "100 MB from another node over loopback, MB/s"}
REDUCE = {(ranks, size): f"all-reduce of {size}, {ranks} ranks, ms" for ranks in (2, 4) for size in _all_reduce.SIZES}
WEIGHTS, GRADIENTS = "PriorZero's weights, MB", "PriorZero's gradients, MB"
BATCH, STEPS = "a PriorZero batch, MB", "environment steps in it"


def costs() -> list[Bar]:
    """All of it; nothing has a bar."""
    found = {**_calls(), **_whole_run(), **_copies(), **_reductions(), **_priorzero()}
    return [Bar(name, None, False, partial(next, iter(values)), len(values)) for name, values in found.items()]


def _calls() -> dict[str, list[float]]:
    backend = make_backend("ray")
    try:
        scripted = backend.start("scripted", ScriptedRole)
        collector = backend.start("collector", partial(CollectorRole, size=SIZE))
        weights = backend.start("learner", partial(LearnerRole, size=SIZE), pin_to_driver=True).call("weights")
        return {
            CALL: _series(time.perf_counter, lambda: scripted.call("do", "result = 1"), 40),
            CALL_CPU: _series(time.process_time, lambda: collector.call("collect", weights), 40),
        }
    finally:
        backend.close()


def _series(clock: Callable[[], float], call: Callable[[], Any], count: int) -> list[float]:
    """Milliseconds of a call by this clock, a mean for each series; the first series is thrown away."""
    found = []
    for _ in range(1 + ROUNDS):
        start = clock()
        for _ in range(count):
            call()
        found.append(1000 * (clock() - start) / count)
    return found[1:]


def _whole_run() -> dict[str, list[float]]:
    runs = [waiting_run("ray") for _ in range(3)]
    return {OWNER_CPU: [1000 * run.owner_cpu for run in runs], RATE: [run.rate for run in runs]}


def _copies() -> dict[str, list[float]]:
    """Into this machine's store, and from the store of a node to that of the head, where this program is."""
    nodes = RayNodes(1, store_bytes=1 << 30)
    try:
        import numpy as np
        import ray

        def make(size: int, value: int) -> list[Any]:
            return [ray.put(np.full(size, value % 250, np.uint8))]

        maker = ray.remote(num_cpus=1)(make)
        found: dict[str, list[float]] = {}
        for megabytes, name in LINK.items():
            for value in range(1 + ROUNDS):
                [there] = ray.get(maker.remote(megabytes * 1_000_000, value))
                start = time.perf_counter()
                copy = ray.get(there)
                seconds = time.perf_counter() - start
                if not copy[0] == copy[-1] == value:
                    raise SystemExit("what came from the other node is not what was made there.")
                found.setdefault(name, []).append(megabytes / seconds)
                del copy, there
        block = np.ones(100_000_000, np.uint8)
        found[PUT] = [_put_seconds(ray, block) / 100 * 1000 for _ in range(1 + ROUNDS)]
        return {name: values[1:] for name, values in found.items()}
    finally:
        nodes.close()


def _put_seconds(ray: Any, block: Any) -> float:
    start = time.perf_counter()
    ray.put(block)
    return time.perf_counter() - start


def _reductions() -> dict[str, list[float]]:
    times = {ranks: _all_reduce.measure(ranks) for ranks in (2, 4)}
    return {name: [1000 * each for each in times[ranks][size]] for (ranks, size), name in REDUCE.items()}


def _priorzero() -> dict[str, list[float]]:
    """Sizes of the shipped preset: its weights and gradients, and one collect by the untrained world model alone."""
    import threading

    from zoo.jericho.priorzero.games.files import SHIPPED_GAME, find_game
    from zoo.jericho.priorzero.options import build_options
    from zoo.jericho.priorzero.play.components import Parts
    from zoo.jericho.priorzero.roles import factories as roles

    modes = [f"run_config.{modes}=['world_model']" for modes in ("eval_modes", "final_eval_modes")]
    options = build_options(assignments=["llm_config.root_policy=wm_logits", *modes])
    with tempfile.TemporaryDirectory() as folder:
        parts = Parts(options, find_game(SHIPPED_GAME), Path(folder), threads=1)
        learner = roles.learner(parts, "cpu", lambda event: None)
        collector = roles.collector(parts, 0, "cpu", False, lambda event: None)
        try:
            weights = learner.weights()
            batch = collector.collect(roles.CollectOrder(0, 0, 0), weights, threading.Event())
            trained = [each for each in learner.learner.model.parameters() if each.requires_grad]
            return {
                WEIGHTS: [_megabytes(weights)],
                GRADIENTS: [sum(each.numel() * each.element_size() for each in trained) / 1e6],
                BATCH: [_megabytes(batch)],
                STEPS: [float(batch.meta["steps"])],
            }
        finally:
            collector.close()


def _megabytes(parcel: Parcel) -> float:
    payload, buffers = parcel.contents()
    return (len(payload) + sum(buffer.nbytes for buffer in buffers)) / 1e6
