"""Sizes for more environments, by simulating the pipeline on the real gate with the times that were measured."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lzero_async.simulate.distributions import Distribution
from lzero_async.simulate.pipeline import simulate
from lzero_async.simulate.rounds import simulate_rounds

ENVIRONMENTS: Final = (64, 128, 256)
COLLECTORS: Final = (1, 2, 4, 8, 16, 32)
QUEUES: Final = (1, 2, 4, 8, 16)
TRAINS: Final = 300
ROUNDS: Final = 40  # trains, where single episodes are simulated
CLOSE: Final = 0.98  # of what the cores can compute: they are the limit
LEAST_TRAINS: Final = 30
MOST_COLLECTS: Final = 3_000
WITHIN: Final = 0.02  # of the best rate


@dataclass(frozen=True)
class Times:
    """What the stages take, in seconds.

    A step of a collector's n environments takes `wait` + n * `compute`; a train takes `fixed` + `update` for each sample.
    `collect_spread` and `train_spread` are single durations as multiples of their mean. `drops`: a full queue drops its oldest
    batch. `others`: what further roles compute for each sample. `episode`: steps of an episode on average, where each
    environment plays whole episodes at its own pace, and a collector computes on one core at most; 0: environments step
    together.
    """

    wait: float
    compute: float
    update: float
    fixed: float
    collect_spread: Sequence[float]
    train_spread: Sequence[float]
    cores: int
    drops: bool = False
    others: float = 0.0
    episode: float = 0.0


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


def predict(times: Times, envs: int, plan: Plan, trains: int = TRAINS) -> Choice:
    """Simulate a plan; its rate is never above what the cores can compute."""
    if times.episode:
        return _predict_rounds(times, envs, plan)
    mine = envs / plan.collectors
    batch, collect = plan.steps * mine, plan.steps * (times.wait + times.compute * mine)
    if times.drops:  # collectors never wait: many of them make many collects for each train
        most = MOST_COLLECTS * collect / (plan.collectors * (times.fixed + times.update * batch))
        trains = min(trains, max(LEAST_TRAINS, int(most)))
    run = simulate(
        _spread(collect, times.collect_spread),
        _train(times, batch),
        num_collectors=plan.collectors,
        off_policy_degree=plan.queue,
        policy="allow" if times.drops else "wait",
        queue_capacity=plan.queue if times.drops else None,
        trains=trains,
    )
    return _capped(times, envs, plan, batch, run.throughput_after(trains // 6) * batch, run.mean_staleness)


def _predict_rounds(times: Times, envs: int, plan: Plan) -> Choice:
    episodes = max(1, round(plan.steps * envs / times.episode))
    mean = times.episode * step_seconds(times, envs, plan.collectors)
    run = simulate_rounds(
        envs, episodes, lambda generator, index: generator.expovariate(1 / mean),
        _train(times, episodes * times.episode), plan.queue, trains=ROUNDS,
    )  # fmt: skip
    batch = episodes * times.episode
    choice = _capped(times, envs, plan, batch, run.rate * batch, run.staleness)
    bound = plan.collectors >= times.cores and mean > times.episode * (times.wait + times.compute)
    return choice._replace(cores_bind=choice.cores_bind or bound)


def step_seconds(times: Times, envs: int, workers: int) -> float:
    """What a step of one environment takes among the others of its worker, and those of all workers on the cores."""
    at_once = max(envs / workers, envs / times.cores)
    return max(times.wait + times.compute, at_once * times.compute)


def _capped(times: Times, envs: int, plan: Plan, batch: float, rate: float, staleness: float) -> Choice:
    ceiling = times.cores / (times.compute + times.update + times.others + times.fixed / batch)
    return Choice(envs, plan, min(rate, ceiling), staleness, rate >= CLOSE * ceiling)


def recommend(times: Times, envs: int, plans: Iterable[Plan], within: float = WITHIN) -> Choice:
    """The smallest plan (collectors first, then queue, then steps) whose rate is within a share of the best one's."""
    plans = sorted(plan for plan in plans if plan.collectors <= envs)
    if times.episode:  # more workers than make a step shorter change nothing
        best_step = min(step_seconds(times, envs, plan.collectors) for plan in plans)
        enough = [plan for plan in plans if step_seconds(times, envs, plan.collectors) <= (1 + within) * best_step]
        plans = [plan for plan in enough if plan.collectors == enough[0].collectors]
    choices = [predict(times, envs, plan) for plan in plans]
    best = max(choice.rate for choice in choices)
    return next(choice for choice in choices if choice.rate >= (1 - within) * best)


def _train(times: Times, batch: float) -> Distribution:
    return _spread(times.fixed + times.update * batch, times.train_spread)


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
