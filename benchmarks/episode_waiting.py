"""Whole episodes against the step barrier, with environments that wait: lognormal waits, sigma 1, 10 ms a step on average.

Both collectors play the same episodes with the same waits, which follow from the episodes' numbers. Where all episodes have the
same length, the barrier at every step is the only difference, and the waits say what it costs: E[longest of n] / E[mean].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from benchmarks._episode_envs import MODULE
from benchmarks._episode_runs import (
    ASYNC_NAME,
    SYNC_NAME,
    Played,
    Work,
    drawn_waits,
    expected_gain,
    lengths,
    play,
    seconds_with_barrier,
    seconds_without,
)
from benchmarks.harness import Bar

MEAN, SIGMA, STEPS = 0.01, 1.0, 50
SEEDS = (0, 1, 2)
ATTAINED = 0.95
MANY, MANY_WORKERS = 100, 4
# With the default degree 2, the second round of 32 episodes keeps 8 environments in work while the first waits for its last.
EQUAL = Work(f"{MODULE}:equal", 8, 32, 2, {"steps": STEPS}, step_seconds=MEAN, step_sigma=SIGMA)
UNEVEN = replace(EQUAL, env="CartPole-v1", env_args={})
UNEVEN_STEPS = 22  # of an untrained policy's episode, about
DEGREES, ROUNDS = (1, 2, 4, 8), (8, 32)


@dataclass(frozen=True)
class Pair:
    """Both collectors on the same work; `drawn` is E[max]/E[mean] of the waits that were drawn, `possible` the ratio that they
    allow when the last episodes leave environments without work."""

    barrier: Played
    free: Played
    expected: float
    drawn: float
    possible: float
    least_barrier: float  # seconds, if nothing but the waits took time
    least_free: float

    @property
    def ratio(self) -> float:
        """How many times faster whole episodes are."""
        return self.barrier.seconds / self.free.seconds


def lasting(work: Work, seconds: float, steps: float = STEPS) -> Work:
    """Work that takes all environments so many seconds without a barrier."""
    return work.lasting(seconds * work.n_envs / (MEAN * steps))


def compare(work: Work, workers: int = 0) -> Pair:
    """Measure both; `workers` are those without a barrier."""
    free, barrier = play(work, ASYNC_NAME, workers), play(work, SYNC_NAME)
    if (free.episode_lengths != barrier.episode_lengths).any():
        raise SystemExit("the two collectors did not play the same episodes")
    waits = drawn_waits(work, free.episode_lengths.tolist())
    with_barrier, without = seconds_with_barrier(waits, work), seconds_without(waits, work)
    expected = expected_gain(work.n_envs, SIGMA)
    drawn = with_barrier * work.n_envs / sum(float(episode.sum()) for episode in waits)
    pair = Pair(barrier, free, expected, drawn, with_barrier / without, with_barrier, without)
    print(
        f"  ratio {pair.ratio:.3f}; E[max]/E[mean] {expected:.3f} ({pair.ratio / expected:.1%}), of these waits {drawn:.3f} "
        f"({pair.ratio / drawn:.1%}), with their end {pair.possible:.3f} ({pair.ratio / pair.possible:.1%}); at least "
        f"{with_barrier:.2f} s with a barrier, {without:.2f} s without",
        flush=True,
    )
    return pair


@lru_cache(maxsize=len(SEEDS))
def equal(seed: int) -> Pair:
    """Eight environments, episodes of equal length."""
    return compare(lasting(replace(EQUAL, seed=seed), lengths.measured))


@lru_cache(maxsize=len(SEEDS))
def uneven(seed: int) -> Pair:
    """Eight environments, episodes of uneven length; the barrier's rounds have a tail."""
    return compare(lasting(replace(UNEVEN, seed=seed), lengths.measured / 3, UNEVEN_STEPS))


@lru_cache(maxsize=1)
def many() -> Pair:
    """A hundred environments; more workers than cores, so that fewer threads share a Python lock."""
    return compare(lasting(replace(EQUAL, n_envs=MANY, per_round=2 * MANY), lengths.measured * 2 / 3), MANY_WORKERS)


def other_workers(collector: str, workers: int) -> float:
    """A shorter run with another number of workers, against one with the default number."""
    work = lasting(EQUAL, lengths.measured / 3)
    return play(work, collector).seconds / play(work, collector, workers).seconds


def of_the_possible(degree: int, per_round: int) -> float:
    """A short run without a barrier: the least that its waits allow, over what it took."""
    work = lasting(replace(EQUAL, per_round=per_round), lengths.measured * 0.4)
    played = play(work, ASYNC_NAME, degree=degree)
    return seconds_without(drawn_waits(work, played.episode_lengths.tolist()), work) / played.seconds


def bars() -> list[Bar]:
    """Eight environments: the ratio against its limit, uneven episodes beside it, and what the bound on staleness costs."""
    return [
        _each("no barrier / barrier, share of E[max]/E[mean]", lambda p: p.ratio / p.expected, equal, ATTAINED),
        _each("no barrier / barrier, eps/sec", lambda p: p.ratio, equal),
        _each("E[longest of 8] / E[mean]", lambda p: p.expected, equal),
        _each("the same of the waits that were drawn", lambda p: p.drawn, equal),
        _each("no barrier / barrier, share of that", lambda p: p.ratio / p.drawn, equal),
        _each("the ratio that the drawn waits allow, last episodes included", lambda p: p.possible, equal),
        _each("barrier: eps/sec", lambda p: p.barrier.episodes_per_second, equal),
        _each("no barrier: eps/sec", lambda p: p.free.episodes_per_second, equal),
        _each("barrier: least seconds by its waits / measured", lambda p: p.least_barrier / p.barrier.seconds, equal),
        _each("no barrier: least seconds by its waits / measured", lambda p: p.least_free / p.free.seconds, equal),
        Bar("barrier: speed with 2 workers / with 1", None, True, lambda: other_workers(SYNC_NAME, 2), 1),
        Bar("no barrier: speed with 1 worker / with 2", None, True, lambda: other_workers(ASYNC_NAME, 1), 1),
        _each("CartPole, uneven episodes: no barrier / barrier, eps/sec", lambda p: p.ratio, uneven),
        _each("CartPole: the ratio that waits and lengths allow", lambda p: p.possible, uneven),
        _each("CartPole: barrier, eps/sec", lambda p: p.barrier.episodes_per_second, uneven),
        _each("CartPole: no barrier, eps/sec", lambda p: p.free.episodes_per_second, uneven),
        *(
            Bar(
                f"degree {degree}, rounds of {per_round}: share of the possible speed",
                None,
                True,
                lambda degree=degree, per_round=per_round: of_the_possible(degree, per_round),
                1,
            )
            for per_round in ROUNDS
            for degree in DEGREES
        ),
    ]


def many_bars() -> list[Bar]:
    """A hundred environments: the rates, their ratio and what it could be, and how much of the cores this takes."""
    parts: dict[str, Callable[[Pair], float]] = {
        "barrier: eps/sec": lambda pair: pair.barrier.episodes_per_second,
        "no barrier: eps/sec": lambda pair: pair.free.episodes_per_second,
        "barrier: steps/s": lambda pair: pair.barrier.steps_per_second,
        "no barrier: steps/s": lambda pair: pair.free.steps_per_second,
        "no barrier / barrier, eps/sec": lambda pair: pair.ratio,
        f"E[longest of {MANY}] / E[mean]": lambda pair: pair.expected,
        "no barrier / barrier, share of that": lambda pair: pair.ratio / pair.expected,
        "the same of the waits that were drawn": lambda pair: pair.drawn,
        "the ratio that the drawn waits allow, last episodes included": lambda pair: pair.possible,
        "barrier: cores in use": lambda pair: pair.barrier.cores,
        "no barrier: cores in use": lambda pair: pair.free.cores,
        "barrier: least seconds by its waits / measured": lambda pair: pair.least_barrier / pair.barrier.seconds,
        "no barrier: least seconds by its waits / measured": lambda pair: pair.least_free / pair.free.seconds,
    }
    return [Bar(name, None, True, lambda part=part: part(many()), 1) for name, part in parts.items()]


def _each(name: str, part: Callable[[Pair], float], found: Callable[[int], Pair], least: float | None = None) -> Bar:
    """A value of every seed."""
    seeds = iter(SEEDS)
    return Bar(name, least, True, lambda: part(found(next(seeds))), len(SEEDS))
