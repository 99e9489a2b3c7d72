"""Sizes for more environments, by simulating the pipeline on the real gate with the times that were measured."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lzero_async.distributions import Distribution
from lzero_async.simulation import simulate

ENVIRONMENTS: Final = (64, 128, 256)
COLLECTORS: Final = (1, 2, 4, 8, 16, 32)
QUEUES: Final = (1, 2, 4, 8, 16)
TRAINS: Final = 300
WARM: Final = 50  # trains that are not counted
WITHIN: Final = 0.02  # of the best rate


@dataclass(frozen=True)
class Times:
    """What the stages take, in seconds.

    A step of a collector's n environments takes `wait` + n * `compute`; a train takes `fixed` + `update` for each sample.
    `collect_spread` and `train_spread` are single durations as multiples of their mean. `lockstep`: environments step together;
    if not, each goes at its own pace and a step takes it `wait` + `compute`. `drops`: a full queue drops its oldest batch.
    `others`: what further roles compute for each sample.
    """

    wait: float
    compute: float
    update: float
    fixed: float
    collect_spread: Sequence[float]
    train_spread: Sequence[float]
    cores: int
    lockstep: bool = True
    drops: bool = False
    others: float = 0.0


class Plan(NamedTuple):
    """Sizes to try: collectors (each with its share of the environments), batches that may wait, and steps of every
    environment in one collect."""

    collectors: int
    queue: int
    steps: float


class Choice(NamedTuple):
    """A plan with its simulated rate; `cores_bind`: more collectors or a longer queue would not help on these cores."""

    envs: int
    plan: Plan
    rate: float  # samples trained on per second
    staleness: float
    cores_bind: bool


def sizes_of(times: Times, envs: int, plan: Plan) -> tuple[float, float]:
    """Seconds of a collect of one collector, and its samples."""
    mine = envs / plan.collectors
    if times.lockstep:
        return plan.steps * (times.wait + times.compute * mine), plan.steps * mine
    # Each worker steps its environments at their own pace, and computes on one core at most.
    pace = min(mine / (times.wait + times.compute), 1 / times.compute if times.compute else float("inf"))
    return plan.steps * envs / (pace * plan.collectors), plan.steps * envs


def predict(times: Times, envs: int, plan: Plan, trains: int = TRAINS) -> Choice:
    """Simulate a plan; its rate is never above what the cores can compute."""
    seconds, batch = sizes_of(times, envs, plan)
    run = simulate(
        _spread(seconds, times.collect_spread),
        _spread(times.fixed + times.update * batch, times.train_spread),
        num_collectors=plan.collectors if times.lockstep else 1,
        off_policy_degree=plan.queue,
        policy="allow" if times.drops else "wait",
        queue_capacity=plan.queue if times.drops else None,
        trains=trains,
    )
    rate = run.throughput_after(WARM) * batch
    ceiling = times.cores / (times.compute + times.update + times.others + times.fixed / batch)
    return Choice(envs, plan, min(rate, ceiling), run.mean_staleness, ceiling < rate)


def recommend(times: Times, envs: int, plans: Iterable[Plan], within: float = WITHIN) -> Choice:
    """The smallest plan (collectors first, then queue, then steps) whose rate is within a share of the best one's."""
    choices = [predict(times, envs, plan) for plan in sorted(plans)]
    best = max(choice.rate for choice in choices)
    return next(choice for choice in choices if choice.rate >= (1 - within) * best)


def _spread(mean: float, multiples: Sequence[float]) -> Distribution:
    """Durations with this mean that spread as the measured ones did."""
    if len(multiples) < 2:
        return mean

    def draw(generator: random.Random, index: int) -> float:
        return mean * generator.choice(multiples)

    return draw


def spread_of(seconds: Sequence[float]) -> tuple[float, ...]:
    """Durations as multiples of their mean; the first one, which warms up, is left out."""
    kept = seconds[1:] if len(seconds) > 3 else seconds
    mean = sum(kept) / len(kept) if kept else 0.0
    return tuple(duration / mean for duration in kept) if mean > 0 else ()
