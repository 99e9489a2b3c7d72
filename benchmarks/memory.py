"""Memory over ten thousand batches: the slope of the whole process tree's, with its standard error.

    python -m benchmarks.memory [--batches N] [--samples FILE]

PriorZero's learner with its real replay buffer, full before anything is measured, and two collectors with an environment that
costs nothing, each in a process of its own; the coordinator with degree 4 between them. A train stores its batch, makes an update
now and then, and pauses a little, so that the collectors are always the faster ones and the line of waiting batches is full.
Weights and batches are large enough to travel in shared memory.

Memory is the proportional set size of this process and everything below it, plus files in memory that a descriptor holds
and nobody has mapped. Two things are left out. Pages of program files: what falls on us of them depends on who else runs the
same programs. What only waits to be used again: Python's free lists, its cache of attribute names, and free memory between the
allocator's blocks. These are bounded but fill so slowly that over 10,000 batches they look like a leak: of 20 bytes per batch
and process, and the last of them of 20 to 40 in the learner, whose buffer's arrays (`Learner._push`) come and go in all sizes.
Python's objects, counted there over 12,000 batches, stay the same, and the allocator's bytes in use nearly so. Every process
empties them now and then.

The samples of a run depend on each other: the line is fitted to the means of blocks of them, and the standard error counts the
correlation that is left between blocks.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Bar
from lzero_async import AsyncTrainingCoordinator, Batch, CollectContext, Parcel, make_backend

BATCHES, WARM_UP, SAMPLES, BLOCKS = 10_000, 2_000, 250, 25
COLLECTORS, DEGREE = 2, 4
EPISODES, STEPS = 2, 20  # per batch, and per episode on average: about 190 kB
PAUSE = 0.002  # seconds
# Arrays of the buffer go back to the system when they are freed, so that what is seen is what is held.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "32768", "MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_ARENA_MAX": "1"}
OPTIONS = {
    "policy_config.replay_buffer_size": 2_000, "policy_config.game_segment_length": 10, "policy_config.batch_size": 16,
    "policy_config.replay_ratio": 0.005, "policy_config.embed_dim": 16, "policy_config.num_unroll_steps": 5,
    "policy_config.num_layers": 1, "policy_config.num_heads": 2, "policy_config.off_policy_degree": DEGREE,
    "policy_config.num_collectors": COLLECTORS,
}  # fmt: skip


def bars() -> list[Bar]:
    """The bar of the slope, and what stands beside it; all of one run."""
    results: list[dict[str, float]] = []

    def in_errors() -> float:
        results.append(measure())
        return results[-1]["slope_in_standard_errors"]

    def part(name: str) -> Callable[[], float]:
        return lambda: results[-1][name]

    return [
        Bar("slope of memory over 10,000 batches, in standard errors", 2.0, False, in_errors, repeats=1),
        Bar("that slope (bytes per batch)", None, False, part("bytes_per_batch"), repeats=1),
        Bar("its standard error (bytes per batch)", None, False, part("standard_error"), repeats=1),
        Bar("growth by that line over 10,000 batches (MB)", None, False, part("megabytes_per_10000"), repeats=1),
        Bar("memory of the whole tree (MB)", None, False, part("megabytes"), repeats=1),
    ]


# -- the roles ------------------------------------------------------------


def make_learner(folder: str, emit: Callable[[Any], None]) -> Any:
    """PriorZero's learner role with small sizes, its buffer full, and a pause after every train."""
    from lzero_async.lightzero.silence import quiet
    from zoo.jericho.priorzero.games.files import SHIPPED_GAME, find_game
    from zoo.jericho.priorzero.options import build_options
    from zoo.jericho.priorzero.play.components import Parts

    with quiet():
        from zoo.jericho.priorzero.roles.learner import LearnerRole

    class SlowLearner(LearnerRole):
        def fill(self) -> tuple[int, int]:
            rng = np.random.default_rng(0)
            cfg = self.learner.cfg
            shape = int(cfg.model.observation_shape), int(cfg.model.action_space_size)
            while self.learner.stored < cfg.replay_buffer_size - EPISODES * STEPS:
                self.learner.train(random_episodes(rng, *shape), 0)
            return shape

        def train(self, batch: int, version: int, parcel: Parcel) -> dict[str, Any]:
            tidy_up(batch)
            done = super().train(batch, version, parcel)
            time.sleep(PAUSE)
            return done

    options = build_options(changes=OPTIONS)
    return SlowLearner(Parts(options, find_game(SHIPPED_GAME), Path(folder), threads=1), "cpu", emit)


class CheapCollector:
    """Takes the weights it is given, and plays at random in no environment at all."""

    def __init__(self, worker: int, shape: tuple[int, int], emit: Callable[[Any], None]) -> None:
        import torch

        torch.set_num_threads(1)
        self.worker, self.shape, self.collects = worker, shape, 0
        self.rng = np.random.default_rng(worker)
        self.weights: dict[str, Any] = {}

    def collect(self, version: int, weights: Parcel, stop: Any) -> Parcel:
        """One batch, as CollectorRole sends it."""
        from zoo.jericho.priorzero.play.batch import Collected

        self.collects += 1
        tidy_up(2 * self.collects)
        for name, value in weights.open().items():
            if name in self.weights:
                self.weights[name].copy_(value)
            else:
                self.weights[name] = value.clone()
        tags = {"version": version, "worker": self.worker, "source": f"collector {os.getpid()}"}
        collected = Collected(random_episodes(self.rng, *self.shape), 0.0, tags)
        return Parcel(collected, collected.summary())


def random_episodes(rng: np.random.Generator, features: int, slots: int) -> list[Any]:
    """Episodes of the right shapes, of lengths that vary by a quarter; every other one was ended by the game."""
    from zoo.jericho.priorzero.play.open_game import Episode

    episodes = []
    for number in range(EPISODES):
        steps = int(rng.integers(STEPS * 3 // 4, STEPS * 5 // 4 + 1))
        episodes.append(
            Episode(
                observations=rng.standard_normal((steps + 1, features), dtype=np.float32),
                actions=rng.integers(slots, size=steps),
                rewards=rng.integers(2, size=steps).astype(np.float32),
                masks=np.ones((steps + 1, slots), np.int8),
                visits=np.full((steps, slots), 1 / slots, np.float32),
                root_values=rng.standard_normal(steps, dtype=np.float32),
                predicted_values=rng.standard_normal(steps, dtype=np.float32),
                ended=bool(number % 2),
                info={"score": steps, "commands": ("look",) * steps},
            )
        )
    return episodes


def tidy_up(number: int) -> None:
    """Empty Python's free lists and its cache of attribute names, and give free memory back to the system, at every 200th batch;
    what is held stays."""
    if number % 200 == 0:
        gc.collect()
        sys._clear_type_cache()
        ctypes.CDLL(None).malloc_trim(0)


# -- the run ------------------------------------------------------------


def measure(batches: int = BATCHES, file: Path | None = None) -> dict[str, float]:
    """Run, sample evenly after the warm-up, fit. The samples go to `file`, if one is given, as lines of JSON."""
    warm_up = min(WARM_UP, batches // 2)
    every = max(1, batches // SAMPLES)
    with tempfile.TemporaryDirectory() as folder:
        record = file or Path(folder) / "samples"  # not a list, which would grow in the memory that is measured
        record.write_text("")
        backend = make_backend("process")
        try:
            learner = backend.start("learner", partial(make_learner, folder), environment=GIVE_BACK)
            shape = learner.call("fill")
            collectors = [
                backend.start(f"collector {number}", partial(CheapCollector, number, shape))
                for number in range(COLLECTORS)
            ]

            def collect(context: CollectContext) -> Parcel:
                assert context.snapshot is not None
                call = collectors[context.worker].call
                return call("collect", context.version, context.snapshot.state, stop=context.stop)

            def train(batch: Batch) -> Any:
                return learner.call("train", batch.id, batch.version, batch.data)["report"]

            def look() -> None:
                tidy_up(coordinator.train_count)
                done = coordinator.train_count - warm_up
                if done % every == 0:
                    with record.open("a") as out:
                        out.write(json.dumps({"batch": done, **memory_of_tree()}) + "\n")

            with AsyncTrainingCoordinator(
                DEGREE, num_collectors=COLLECTORS, get_weights=lambda: learner.call("weights")
            ) as coordinator:
                statistics = coordinator.run(
                    collect, train, max_train=warm_up + batches, after_train=look, print_statistics=False
                ).statistics
        finally:
            backend.close()
        samples = [sample for line in record.open() if (sample := json.loads(line))["batch"] >= 0]
    places = np.array([sample["batch"] for sample in samples], dtype=float)
    sizes = np.array([sum(sample["processes"].values()) + sample["loose"] for sample in samples], dtype=float)
    descriptors = [sample["descriptors"] for sample in samples]
    slope, error = slope_with_error(places, sizes)
    return {
        "slope_in_standard_errors": abs(slope) / error if slope else 0.0,
        "bytes_per_batch": slope,
        "standard_error": error,
        "megabytes_per_10000": slope * 1e-2,
        "megabytes": float(sizes.mean()) * 1e-6,
        "megabytes_min": float(sizes.min()) * 1e-6,
        "megabytes_max": float(sizes.max()) * 1e-6,
        "descriptors_min": float(min(descriptors)),
        "descriptors_max": float(max(descriptors)),
        "samples": float(len(sizes)),
        "mean_lag": statistics["mean_lag"],
        "train_ms": 1e3 * statistics["train_avg_time"],
        "collect_ms": 1e3 * statistics["collect_avg_time"],
        "wall_seconds": statistics["wall_time"],
    }


def slope_with_error(places: np.ndarray, sizes: np.ndarray, blocks: int = BLOCKS) -> tuple[float, float]:
    """The slope of a line through the means of equal blocks, and its standard error.

    Blocks take the correlation of near samples; what is left between neighbouring blocks widens the error as in a first-order
    autoregression.
    """
    length = len(places) // min(blocks, len(places))
    used = length * (len(places) // length)
    x, y = (column[-used:].reshape(-1, length).mean(axis=1) for column in (places, sizes))
    away = x - x.mean()
    slope = float(away @ y / (away @ away))
    left = y - y.mean() - slope * away
    squares = float(left @ left)
    error = (squares / max(1, len(x) - 2) / float(away @ away)) ** 0.5
    correlation = min(0.9, max(0.0, float(left[1:] @ left[:-1]) / squares)) if squares else 0.0
    return slope, error * ((1 + correlation) / (1 - correlation)) ** 0.5


# -- memory ------------------------------------------------------------


def memory_of_tree() -> dict[str, Any]:
    """Bytes of this process and of each one below it, of `loose` files in memory, and how many descriptors are open."""
    processes: dict[int, int] = {}
    descriptors, mapped = 0, set()
    held: dict[int, int] = {}
    for process in tree(os.getpid()):
        folder = Path(f"/proc/{process}")
        kinds = dict(line.split()[:2] for line in (folder / "smaps_rollup").read_text().splitlines()[1:])
        processes[process] = 1024 * sum(int(kinds[f"{kind}:"]) for kind in ("Pss_Anon", "Pss_Shmem", "SwapPss"))
        mapped |= {int(line.split()[4]) for line in (folder / "maps").read_text().splitlines() if "/memfd:" in line}
        for place in (folder / "fd").iterdir():
            try:
                descriptors += 1
                if "/memfd:" in os.readlink(place):
                    status = place.stat()
                    held[status.st_ino] = 512 * status.st_blocks
            except FileNotFoundError:
                pass  # closed meanwhile
    loose = sum(size for file, size in held.items() if file not in mapped)
    return {"processes": processes, "loose": loose, "descriptors": descriptors}


def tree(process: int) -> list[int]:
    """A process and everything that it started."""
    found = [process]
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except FileNotFoundError:
            continue  # a thread that has ended
        for child in children:
            found += tree(int(child))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=BATCHES, help="measured, after a warm-up (default %(default)s)")
    parser.add_argument("--samples", type=Path, help="write every sample to this file")
    args = parser.parse_args()
    print({name: round(value, 3) for name, value in measure(args.batches, args.samples).items()})
