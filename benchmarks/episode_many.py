"""A hundred thousand short episodes with a learner that is slower than the workers: memory, and the account of every episode.

The learner is the real one, PPO in a process of its own, with so many epochs that it takes longer for an update than the workers
for a round; the pool is the real one without a barrier, at degree 2. How memory is measured and judged is described in
benchmarks.memory. As many episodes come before as a warm-up: they are in the account like the others, and what memory gains in
them is told. In every process the system's allocator has one arena and gives back what is free: with one arena per thread, free
memory lies about in steps that look like growth. Numpy keeps up to 7 freed buffers of every size below 1,024 bytes and gives none
of them back (`_npy_free_cache` in its alloc.c): at most 3.7 MB per process, but episodes of all lengths fill it so slowly that it
looked like a leak of 5 bytes per episode; every process fills it at its start.
"""

from __future__ import annotations

import ctypes
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._episode_envs import MODULE
from benchmarks._episode_runs import backend, start
from benchmarks.harness import Bar
from benchmarks.memory import GIVE_BACK, memory_of_tree, slope_with_error, tidy_up
from lzero_async import AsyncTrainingCoordinator, Batch, CollectContext, Parcel
from zoo.episode_ppo import roles
from zoo.episode_ppo.envs.factories import describe
from zoo.episode_ppo.options import build_options, rounds_at_once, shares_of
from zoo.episode_ppo.play.pool import EpisodePool

EPISODES, WARM_UP, PER_ROUND = 100_000, 100_000, 100
BEGUN = 10_000  # episodes after which everything is loaded
SAMPLE_EVERY = 4  # trains
STANDARD_ERRORS = 2.0
ARENAS, TRIM, MMAP = -8, -1, -3  # names of settings in the system's allocator
OPTIONS = {
    "env": f"{MODULE}:short", "env_args": {"longest": 3}, "n_envs": 8, "off_policy_degree": 2, "episodes_per_update": PER_ROUND,
    "epochs": 15, "device": "cpu",
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """Memory per 1,000 episodes in bytes; the account; what kept the learner."""

    slope: float
    error: float
    megabytes: float
    gained: float  # megabytes in the warm-up
    descriptors: tuple[int, int]
    processes: dict[str, float]  # slope of each
    account: dict[str, int]
    wrong: list[str]  # sentences about what does not add up
    violations: list[str]
    learner_busy: float
    seconds: float


class Tidy:
    """A role that empties Python's free lists now and then, as benchmarks.memory explains; apart from that, the role."""

    def __init__(self, make: Callable[..., Any], call: str, emit: Callable[[Any], None]) -> None:
        fill_numpy_cache()
        self._role, self._call, self._calls = make(emit), call, 0

    @classmethod
    def of(cls, make: Callable[..., Any], call: str, *arguments: Any) -> Callable[..., Tidy]:
        """A factory of it; `call` is the method that is called for every piece of work."""
        return partial(cls, partial(make, *arguments), call)

    def __getattr__(self, name: str) -> Any:
        if name == self._call:
            self._calls += 1
            tidy_up(self._calls)
        return getattr(self._role, name)


@lru_cache(maxsize=1)
def found() -> Found:
    """Make the run and judge it."""
    _give_back()
    fill_numpy_cache()
    options = build_options(OPTIONS)
    shares = shares_of(options)
    with backend() as there, tempfile.TemporaryDirectory() as folder:
        made = {
            f"envs {place}": Tidy.of(roles.make_workers_envs, "play", options, share, place)
            for place, share in enumerate(shares)
        }
        spaces = tuple(describe(options.env, options.env_args))
        made["learner"] = Tidy.of(roles.make_learner, "train", options, spaces)
        *envs, learner = [start(there, name, factory, GIVE_BACK) for name, factory in made.items()]
        pool = EpisodePool(envs, shares)
        run = _Run(pool, learner, Path(folder) / "samples")
        with AsyncTrainingCoordinator(
            options.off_policy_degree,
            num_collectors=rounds_at_once(options),
            get_weights=lambda: learner.call("weights"),
        ) as coordinator:
            begun = time.monotonic()
            coordinator.run(
                run.collect, run.train, max_train=(WARM_UP + EPISODES) // PER_ROUND, after_train=run.look, print_statistics=False,
                background={f"envs {place}": partial(pool.drive, place) for place in range(len(shares))},
            )  # fmt: skip
            seconds = time.monotonic() - begun
            account, wrong = judge(run, pool, coordinator.state_dict()["gate"])
            violations = coordinator.violations()
        names = {str(worker.pid): worker.name for worker in [*envs, learner]} | {str(os.getpid()): "coordinator"}
        places, sizes, descriptors = run.samples()
    before = np.sum([own[places <= WARM_UP] for own in sizes.values()], axis=0)
    sizes = {key: own[places > WARM_UP] for key, own in sizes.items()}
    places, whole = places[places > WARM_UP], np.sum(list(sizes.values()), axis=0)
    slope, error = slope_with_error(places, whole)
    processes = {names.get(key, key): 1000 * slope_with_error(places, own)[0] for key, own in sizes.items()}
    result = Found(
        slope=1000 * slope,
        error=1000 * error,
        megabytes=float(whole.mean()) * 1e-6,
        gained=float(before[-1] - before[0]) * 1e-6,
        descriptors=(min(descriptors), max(descriptors)),
        processes=processes,
        account=account,
        wrong=wrong,
        violations=violations,
        learner_busy=run.train_seconds / seconds,
        seconds=seconds,
    )
    _say(result)
    return result


def fill_numpy_cache() -> None:
    """Let numpy keep as many small buffers as it ever will: 7 of each size."""
    for size in range(1, 1024):
        kept = [np.empty(size, np.uint8) for _ in range(8)]
        del kept


def _give_back() -> None:
    """GIVE_BACK for this process, which runs already."""
    allocator = ctypes.CDLL(None)
    for name, value in (
        (ARENAS, "MALLOC_ARENA_MAX"),
        (TRIM, "MALLOC_TRIM_THRESHOLD_"),
        (MMAP, "MALLOC_MMAP_THRESHOLD_"),
    ):
        allocator.mallopt(name, int(GIVE_BACK[value]))


class _Run:
    """The stages of the run, and what they note: memory goes to a file, since a list would grow in what is measured."""

    def __init__(self, pool: EpisodePool, learner: Any, record: Path) -> None:
        self._pool, self._learner, self._record = pool, learner, record
        self._record.write_text("")
        self.times_trained = np.full(2 * (WARM_UP + EPISODES), 1, dtype=np.uint8)  # of each number
        self.times_trained[:] = 0  # written once already, so that all of it is in memory before anything is measured
        self.trained = self.trains = self.learned = 0
        self.train_seconds = 0.0
        self._said = time.monotonic()

    def collect(self, context: CollectContext) -> list[Parcel]:
        return self._pool.play(context, PER_ROUND).parcels

    def train(self, batch: Batch) -> None:
        begun = time.monotonic()
        done = self._learner.call("train", batch.data, 1.0)
        self.train_seconds += time.monotonic() - begun
        self.learned = done["counters"]["episodes"]
        for parcel in batch.data:
            numbers = parcel.meta["numbers"]
            np.add.at(self.times_trained, numbers, 1)
            self.trained += len(numbers)
        self.trains += 1

    def look(self) -> None:
        """After a train."""
        tidy_up(self.trains)
        if self.trains % SAMPLE_EVERY == 0 and self.trained > BEGUN:
            with self._record.open("a") as out:
                out.write(json.dumps({"episodes": self.trained, **memory_of_tree()}) + "\n")
        if time.monotonic() - self._said > 10:
            self._said = time.monotonic()
            print(f"  {self.trained:,} of {WARM_UP + EPISODES:,} episodes trained on", flush=True)

    def samples(self) -> tuple[np.ndarray, dict[str, np.ndarray], list[int]]:
        """Episodes trained on; bytes of every process, and of loose files in memory; open descriptors."""
        rows = [json.loads(line) for line in self._record.read_text().splitlines()]
        sizes = {key: np.array([row["processes"][key] for row in rows], dtype=float) for key in rows[0]["processes"]}
        sizes["files in memory"] = np.array([row["loose"] for row in rows], dtype=float)
        return np.array([row["episodes"] for row in rows], dtype=float), sizes, [row["descriptors"] for row in rows]


def judge(run: _Run, pool: EpisodePool, gate: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    """The account at the end, and what is wrong with it."""
    counts = pool.statistics()
    account = {
        "started": counts.started,
        "in whole rounds": counts.complete,
        "abandoned": counts.abandoned,
        "left out": counts.left_out,
        "failed": counts.failed,
        "trained": run.trained,
        "left in line": PER_ROUND * len(gate["waiting"]),
    }
    ended = sum(gate[name] for name in ("trained", "failed", "dropped", "rejected", "abandoned"))
    rounds = ended + len(gate["waiting"]) + len(gate["tickets"])
    checks = {
        "started = in whole rounds + left out + abandoned": counts.started
        == counts.complete + counts.left_out + counts.abandoned,
        "in whole rounds = trained + left in line": counts.complete == run.trained + account["left in line"],
        "trained = asked for = what the learner counted": run.trained == WARM_UP + EPISODES == run.learned,
        "no number is trained on twice": int(run.times_trained.max()) == 1,
        "as many numbers as episodes": int(run.times_trained.sum()) == WARM_UP + EPISODES,
        "no number beyond those started": not run.times_trained[counts.started :].any(),
        "rounds admitted = trained + in line + open + failed + dropped + rejected + abandoned": gate["admitted"]
        == rounds,
        "episodes admitted = started": gate["admitted"] * PER_ROUND == counts.started,
    }
    return account, [name for name, right in checks.items() if not right]


def _say(result: Found) -> None:
    print(
        f"  {result.seconds:.0f} s, learner busy {result.learner_busy:.1%}, {result.megabytes:.1f} MB, {result.gained:+.2f} MB "
        f"in the warm-up, slope {result.slope:.0f} +- {result.error:.0f} bytes per 1,000 episodes, descriptors "
        f"{result.descriptors}, {result.account}",
        flush=True,
    )
    slopes = ", ".join(f"{name} {slope:.0f}" for name, slope in result.processes.items())
    print(f"  slope of each process: {slopes}", flush=True)
    for sentence in [*result.wrong, *result.violations]:
        print(f"  WRONG: {sentence}", flush=True)


def bars() -> list[Bar]:
    """Memory, the account, the rules of the gate; and that the learner was the slower one."""

    def part(name: str, value: Callable[[Found], float], most: float | None = None) -> Bar:
        return Bar(name, most, False, lambda: float(value(found())), 1)

    return [
        part(
            "slope of memory in standard errors", lambda f: f.slope / f.error if f.slope > 0 else 0.0, STANDARD_ERRORS
        ),
        part("that slope (bytes per 1,000 episodes)", lambda f: f.slope),
        part("its standard error", lambda f: f.error),
        part("memory of the whole tree (MB)", lambda f: f.megabytes),
        part("growth by that line over 100,000 episodes (MB)", lambda f: f.slope * EPISODES * 1e-9),
        part("growth in the warm-up, from 10,000 to 100,000 episodes (MB)", lambda f: f.gained),
        part("sums of the account that do not add up", lambda f: len(f.wrong), 0.0),
        part("violated rules of the gate", lambda f: len(f.violations), 0.0),
        part(
            "episodes trained on: distance from 200,000", lambda f: abs(f.account["trained"] - WARM_UP - EPISODES), 0.0
        ),
        *(
            part(f"episodes {name}", lambda f, name=name: f.account[name])
            for name in ("started", "in whole rounds", "left in line", "left out", "abandoned", "failed")
        ),
        Bar("learner busy", None, True, lambda: found().learner_busy, 1),
        Bar("episodes per second", None, True, lambda: (WARM_UP + EPISODES) / found().seconds, 1),
    ]
