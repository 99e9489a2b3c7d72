"""Publishing weights of 10 million parameters from a learner's process and loading them in a collector's, against memcpy.

    python -m benchmarks.publish [--cycles N]

A cycle is what a run does between a train and the next collect: the learner packs its weights into a parcel, the parent
publishes it, the collector opens it and loads it into its model. The comparison copies as many bytes between two arrays that
were written before. Both are measured in turn within one run, one thread each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.harness import Bar
from lzero_async import Parcel, make_backend
from lzero_async.core.weights import WeightStore

LAYERS, WIDTH = 10, 1000  # ten Linear layers: 10.01 million parameters in 20 tensors
CYCLES, WARM_UP = 200, 20
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def bars() -> list[Bar]:
    """The bar of the cycle, and its parts beside it; all of one measurement."""
    results: list[dict[str, float]] = []

    def ratio() -> float:
        results.append(measure())
        return results[-1]["ratio"]

    def part(name: str) -> Callable[[], float]:
        return lambda: results[-1][name]

    return [
        Bar("weights of 10M parameters, publish + load: times one memcpy", 3.0, False, ratio, repeats=1),
        Bar("of that, publish (the learner packs): times one memcpy", None, False, part("publish"), repeats=1),
        Bar("of that, load (the collector maps and copies): times one memcpy", None, False, part("load"), repeats=1),
        Bar("one memcpy of these bytes (ms)", None, False, part("memcpy_ms"), repeats=1),
    ]


class Holder:
    """A role with a model: the learner's when it gives its weights away, a collector's when it takes some."""

    def __init__(self, emit: Callable[[Any], None]) -> None:
        import torch

        torch.set_num_threads(1)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))

    def change(self, value: float) -> None:
        """Stands for a train: every weight is another one afterwards."""
        import torch

        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(value)

    def weights(self) -> Parcel:
        """As LearnerRole.weights."""
        return Parcel(dict(self.model.state_dict()), live=True)

    def load(self, weights: Parcel) -> None:
        """As a collector does before it plays."""
        self.model.load_state_dict(weights.read())

    def same(self, value: float) -> bool:
        """Whether every weight is this one."""
        return all(bool((parameter == value).all()) for parameter in self.model.parameters())


def measure(cycles: int = CYCLES) -> dict[str, float]:
    """Medians over the cycles after the warm-up: seconds of publish, load and memcpy, and each over the memcpy's."""
    count = LAYERS * WIDTH * (WIDTH + 1)
    source, target = np.ones(count, np.float32), np.zeros(count, np.float32)
    store, backend = WeightStore(), make_backend("process")
    publishes, loads, copies = [], [], []
    try:
        learner = backend.start("learner", Holder, environment=ONE_THREAD)
        collector = backend.start("collector", Holder, environment=ONE_THREAD)
        for version in range(WARM_UP + cycles):
            learner.call("change", float(version))
            start = time.perf_counter()
            snapshot = store.publish(learner.call("weights"), version)
            published = time.perf_counter()
            collector.call("load", snapshot.state)
            loaded = time.perf_counter()
            np.copyto(target, source)
            copied = time.perf_counter()
            if version < WARM_UP or version % 50 == 0:
                assert collector.call("same", float(version)), "the collector has other weights than the learner"
            if version >= WARM_UP:
                publishes.append(published - start)
                loads.append(loaded - published)
                copies.append(copied - loaded)
    finally:
        backend.close()
    memcpy = statistics.median(copies)
    return {
        "ratio": statistics.median(a + b for a, b in zip(publishes, loads, strict=True)) / memcpy,
        "publish": statistics.median(publishes) / memcpy,
        "load": statistics.median(loads) / memcpy,
        "memcpy_ms": 1e3 * memcpy,
        "megabytes": 4e-6 * count,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=CYCLES, help="measured cycles (default %(default)s)")
    print({name: round(value, 2) for name, value in measure(parser.parse_args().cycles).items()})
