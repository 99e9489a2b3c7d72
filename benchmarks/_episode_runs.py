"""Play a fixed amount of episodes with either collector of whole-episode PPO: real pools, processes and policy, and a learner
that takes no time. What is timed begins after a warm-up and ends when the last round is handed over.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np

from lzero_async import AsyncTrainingCoordinator, Batch, CollectContext, Parcel, Worker, make_backend
from lzero_async.runs.role_set import thread_limit
from lzero_async.workers.backend import Backend
from zoo.episode_ppo import roles
from zoo.episode_ppo.envs.factories import Spaces, describe
from zoo.episode_ppo.envs.waiting import WAIT_STREAM
from zoo.episode_ppo.options import SYNC, build_options, rounds_at_once, shares_of
from zoo.episode_ppo.play.player import ENV_STREAM
from zoo.episode_ppo.play.pool import EpisodePool
from zoo.episode_ppo.play.step_barrier import BarrierPool

SYNC_NAME, ASYNC_NAME = "barrier", "no barrier"
HIDDEN = 64


@dataclass
class Lengths:
    """Seconds that a run without a barrier takes if nothing is lost; what is quick or made often takes a part of it."""

    measured: float = 30.0


lengths = Lengths()


@dataclass(frozen=True)
class Work:
    """What is played: `rounds` of `per_round` episodes each, after one round of warm-up with as many episodes as environments."""

    env: str
    n_envs: int
    per_round: int
    rounds: int
    env_args: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    step_seconds: float = 0.0
    step_sigma: float = 0.0

    @property
    def episodes(self) -> int:
        """Episodes that are timed."""
        return self.per_round * self.rounds

    @property
    def first(self) -> int:
        """The number of the first of them."""
        return self.n_envs

    def lasting(self, episodes: float) -> Work:
        """The same with about so many episodes: at least two rounds."""
        return replace(self, rounds=max(2, round(episodes / self.per_round)))


@dataclass(frozen=True)
class Played:
    """What came of it; `episode_lengths` are in the order of the episodes' numbers, `cores` is processor seconds per second."""

    seconds: float
    episode_lengths: np.ndarray
    cores: float
    said: str

    @property
    def episodes_per_second(self) -> float:
        """eps/sec."""
        return len(self.episode_lengths) / self.seconds

    @property
    def steps_per_second(self) -> float:
        """Environment steps."""
        return float(self.episode_lengths.sum()) / self.seconds


def play(work: Work, collector: str, workers: int = 0, degree: int | None = None) -> Played:
    """Play the work once and say how it went; `workers` 0 and `degree` None are the product's defaults."""
    changes = {
        "collector": "sync" if collector == SYNC_NAME else "async", "env": work.env, "env_args": dict(work.env_args),
        "n_envs": work.n_envs, "num_workers": workers, "seed": work.seed, "step_seconds": work.step_seconds,
        "step_sigma": work.step_sigma, "off_policy_degree": degree,
    }  # fmt: skip
    options = build_options({name: value for name, value in changes.items() if value is not None})
    shares = shares_of(options)
    with backend() as there:
        made = [
            start(there, f"envs {place}", partial(roles.make_workers_envs, options, envs, place))
            for place, envs in enumerate(shares)
        ]
        pool = (BarrierPool if options.collector == SYNC else EpisodePool)(made, shares)
        weights = untrained(describe(work.env, work.env_args))
        _run(pool, options, weights, work.n_envs, 1)
        before = processor_seconds(made)
        seconds, found = _run(pool, options, weights, work.per_round, work.rounds)
        cores = (processor_seconds(made) - before) / seconds
        if isinstance(pool, BarrierPool):
            pool.close()
    numbers = sorted(found)
    if numbers != list(range(work.first, work.first + work.episodes)):
        raise SystemExit(f"{len(numbers)} episodes came back, not the {work.episodes} that were to be played")
    played = Played(seconds, np.array([found[number] for number in numbers]), cores, "")
    said = (
        f"{collector}, {len(shares)} worker(s), degree {options.off_policy_degree}: {work.episodes} episodes, "
        f"{int(played.episode_lengths.sum())} steps in {seconds:.2f} s: {played.episodes_per_second:.2f} eps/sec, "
        f"{played.steps_per_second:.0f} steps/s, {cores:.2f} cores"
    )
    print(f"  {said}", flush=True)
    return replace(played, said=said)


def _run(
    pool: BarrierPool | EpisodePool, options: Any, weights: dict[str, np.ndarray], count: int, rounds: int
) -> tuple[float, dict[int, int]]:
    """Play so many rounds; seconds until the last was handed over, and the length of every episode by its number."""
    found: dict[int, int] = {}
    ended = 0.0

    def collect(context: CollectContext) -> list[Parcel]:
        return pool.play(context, count).parcels

    def train(batch: Batch) -> None:
        nonlocal ended
        for parcel in batch.data:
            found.update(zip(parcel.meta["numbers"], parcel.meta["lengths"], strict=True))
        ended = time.monotonic()

    drives = {}
    if isinstance(pool, EpisodePool):
        drives = {f"envs {place}": partial(pool.drive, place) for place in range(len(pool.workers))}
    with AsyncTrainingCoordinator(
        options.off_policy_degree, options.off_policy_degree > 0, num_collectors=rounds_at_once(options),
        get_weights=lambda: Parcel(weights),
    ) as coordinator:  # fmt: skip
        begun = time.monotonic()
        coordinator.run(collect, train, max_train=rounds, max_collect=rounds, background=drives, print_statistics=False)
    return ended - begun, found


# -- roles -----------------------------------------------------------------------------------------------------------------


@contextmanager
def backend() -> Iterator[Backend]:
    """Processes, which end with the block."""
    made = make_backend("process")
    try:
        yield made
    finally:
        made.close()


def start(there: Backend, name: str, factory: Any, environment: Mapping[str, str] | None = None) -> Worker:
    """A role in a process with one thread for numpy, once it is made."""
    worker = there.start(name, factory, environment={**thread_limit(1), **(environment or {})})
    worker.call("ready")
    return worker


def untrained(spaces: Spaces) -> dict[str, np.ndarray]:
    """Weights of a policy of the usual size that finds all actions equally good."""
    sizes = [spaces.obs_size, HIDDEN, HIDDEN, spaces.action_size]
    rng, weights = np.random.default_rng(0), {}
    for layer, (size, out) in enumerate(pairwise(sizes)):
        scale = 0.0 if layer == len(sizes) - 2 else size**-0.5
        weights[f"layer{layer}.weight"] = (scale * rng.standard_normal((size, out))).astype(np.float32)
        weights[f"layer{layer}.bias"] = np.zeros(out, np.float32)
    return weights


def processor_seconds(workers: Iterable[Worker]) -> float:
    """Processor time of this process and of the workers'."""
    import psutil

    times = [psutil.Process(worker.pid).cpu_times() for worker in workers] + [psutil.Process().cpu_times()]
    return float(sum(each.user + each.system for each in times))


# -- what the waits allow --------------------------------------------------------------------------------------------------


def expected_gain(n_envs: int, sigma: float) -> float:
    """E[longest of n] / E[mean] of lognormal waits, by integration over the normal variable."""
    normal, z = NormalDist(), np.linspace(-10.0, 14.0, 48_001)
    below = np.array([normal.cdf(value) for value in z])
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    longest = np.exp(sigma * z) * n_envs * below ** (n_envs - 1) * density
    return float(longest.sum() * (z[1] - z[0]) / math.exp(sigma * sigma / 2))


def drawn_waits(work: Work, episode_lengths: Sequence[int]) -> list[np.ndarray]:
    """The seconds that every step of every timed episode waits, as its environment draws them."""
    log_mean = math.log(work.step_seconds) - work.step_sigma**2 / 2
    waits = []
    for number, steps in enumerate(episode_lengths, work.first):
        seed = int(np.random.SeedSequence([work.seed, ENV_STREAM, number]).generate_state(1)[0]) >> 1
        rng = np.random.default_rng([seed, WAIT_STREAM])
        waits.append(np.exp(log_mean + work.step_sigma * rng.standard_normal(int(steps))))
    return waits


def seconds_with_barrier(waits: Sequence[np.ndarray], work: Work) -> float:
    """The least that all rounds take if every step lasts as long as its longest wait; a free environment takes the next
    episode of the round."""
    total = 0.0
    for first in range(0, len(waits), work.per_round):
        queue = [episode.tolist()[::-1] for episode in waits[first : first + work.per_round]][::-1]
        playing: list[list[float]] = []
        while playing or queue:
            playing += [queue.pop() for _ in range(min(work.n_envs - len(playing), len(queue)))]
            total += max(episode.pop() for episode in playing)
            playing = [episode for episode in playing if episode]
    return total


def seconds_without(waits: Sequence[np.ndarray], work: Work) -> float:
    """The least that all episodes take if a free environment always takes the next one."""
    free = [0.0] * work.n_envs
    for episode in waits:
        heapq.heapreplace(free, free[0] + float(episode.sum()))
    return max(free)
