"""Learner, two collectors and an evaluator, each in a process of its own: `python docs/examples/processes.py`.

A role is a plain class; a backend makes it from a picklable factory and calls its methods. Weights and batches are parcels: their
arrays lie in shared memory, written once by the process that made them and mapped by the one that opens them.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # not needed where lzero_async is installed

import numpy as np

from lzero_async import AsyncTrainingCoordinator, Parcel, Recovery, make_backend

DEGREE = 2


class Learner:
    """Fits a line to what the collectors saw; it alone owns the weights."""

    def __init__(self, emit):
        self.weights_now = np.zeros(100_000)

    def weights(self):
        return Parcel(self.weights_now, live=True)  # live: the learner goes on changing them

    def train(self, batch):
        self.weights_now += 0.1 * (batch.open().mean() - self.weights_now)
        return float(self.weights_now[0])


class Collector:
    """Looks at the world with one version of the weights."""

    def __init__(self, emit):
        self.dice = np.random.default_rng()

    def collect(self, weights, stop):
        centre = weights.open()[0]
        seen = self.dice.normal(3.0, 0.1, size=50_000) + 0 * centre
        return Parcel(seen, {"samples": len(seen)})


class Evaluator:
    """Judges frozen weights."""

    def __init__(self, emit):
        pass

    def evaluate(self, weights, stop):
        return -abs(3.0 - float(weights.open()[0]))


def main():
    """Train 40 batches; a collector that dies is started again and the others go on meanwhile."""
    backend = make_backend("process")  # "thread" and "inline" (degree 0) take the same roles
    try:
        learner = backend.start("learner", Learner)
        collectors = [backend.start(f"collector {number}", Collector) for number in range(2)]
        evaluator = backend.start("evaluator", Evaluator)
        with AsyncTrainingCoordinator(
            DEGREE,
            enable_async_eval=True,
            num_collectors=2,
            recovery=Recovery(on_failure="restart"),
            get_weights=lambda: learner.call("weights"),
        ) as coordinator:
            result = coordinator.run(
                lambda context: collectors[context.worker].call("collect", context.snapshot.state, stop=context.stop),
                lambda batch: learner.call("train", batch.data),
                lambda context: evaluator.call("evaluate", context.snapshot.state, stop=context.stop),
                eval_every=10,
                max_train=40,
                on_restart=lambda worker, error: collectors[worker].restart(),
            )
    finally:
        backend.close()
    print(f"best evaluation {result.best_eval.value:.3f} at version {result.best_eval.version}")


if __name__ == "__main__":
    main()
