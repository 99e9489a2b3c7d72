"""Whole episodes against the step barrier, with environments that compute, on two cores: CartPole as it is, and environments that
take 2 ms of processor time a step on average, unevenly (lognormal, sigma 1), with Python's lock or without it.

The limit is what as many processes as there are cores reach that just play the same episodes, one after the other and with no
coordination at all. The best barrier is the better of one and two workers. Everything is measured twice, in turn, and the better
one counts: others may have used the cores meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from benchmarks._episode_envs import MODULE
from benchmarks._episode_runs import ASYNC_NAME, SYNC_NAME, Played, Work, backend, lengths, play, start, untrained
from benchmarks.harness import Bar
from zoo.episode_ppo import roles
from zoo.episode_ppo.envs.factories import describe
from zoo.episode_ppo.options import build_options
from zoo.episode_ppo.play.player import Player, Slot
from zoo.episode_ppo.play.policy import NumpyPolicy

CORES, PASSES = 2, 2
BUSY = {"steps": 50, "seconds": 0.002, "sigma": 1.0}
WORKS = {
    "CartPole": Work("CartPole-v1", 8, 64, 2),
    "busy with the lock": Work(f"{MODULE}:busy", 8, 32, 2, {**BUSY, "lock": True}),
    "busy without the lock": Work(f"{MODULE}:busy", 8, 32, 2, {**BUSY, "lock": False}),
}
WAYS = tuple((collector, workers) for collector in (SYNC_NAME, ASYNC_NAME) for workers in (1, CORES))


@dataclass(frozen=True)
class Found:
    """Steps per second of processes that play alone, of one and of one per core; and what each way to collect reached."""

    one_alone: float
    all_alone: float
    ways: dict[tuple[str, int], Played]

    def best(self, collector: str) -> float:
        """Steps per second with the better number of workers."""
        return max(played.steps_per_second for (name, _), played in self.ways.items() if name == collector)


class Alone:
    """Plays episodes one after the other, for nobody."""

    def __init__(self, work: Work, worker: int, emit: Callable[[Any], None]) -> None:
        options = build_options({"env": work.env, "env_args": dict(work.env_args), "seed": work.seed})
        self._player = Player(roles.env_factory(options), worker, work.seed)
        self._policy = NumpyPolicy(untrained(describe(work.env, work.env_args)))

    def ready(self) -> None:
        """Play one, so that everything is loaded."""
        self._player.play(Slot(0, 0, 0), self._policy)

    def play(self, first: int, count: int) -> tuple[int, float]:
        """The steps of so many episodes, and the seconds that they took."""
        begun = time.monotonic()
        steps = sum(self._player.play(Slot(first + n, 0, 0), self._policy).length for n in range(count))
        return steps, time.monotonic() - begun

    def play_for(self, seconds: float) -> float:
        """Episodes per second, over so many seconds."""
        begun, count = time.monotonic(), 0
        while (taken := time.monotonic() - begun) < seconds:
            self._player.play(Slot(count, 0, 0), self._policy)
            count += 1
        return count / taken


@lru_cache(maxsize=len(WORKS))
def computing(name: str) -> Found:
    """Measure one kind of environments in every way, on work that takes one core half as long as a run is to last."""
    print(f"  {name}:", flush=True)
    work = WORKS[name].lasting(_alone(WORKS[name], None)[0] * lengths.measured / 2)
    alone: list[tuple[float, float]] = []
    ways: dict[tuple[str, int], list[Played]] = {way: [] for way in WAYS}
    for _ in range(PASSES):
        alone.append(_alone(work, work.episodes // CORES))
        for way, found in ways.items():
            found.append(play(work, *way))
    best = {way: max(found, key=lambda played: played.steps_per_second) for way, found in ways.items()}
    return Found(max(one for one, _ in alone), max(both for _, both in alone), best)


def _alone(work: Work, count: int | None) -> tuple[float, float]:
    """Steps per second of one process that plays `count` episodes, and of one per core; without a count, episodes per second
    of one."""
    with backend() as there, ThreadPoolExecutor(CORES) as threads:
        players = [start(there, f"alone {n}", partial(Alone, work, n)) for n in range(CORES)]
        if count is None:
            return players[0].call("play_for", lengths.measured / 10), 0.0
        one = _speed(players[0].call("play", work.first, count))
        calls = [threads.submit(each.call, "play", work.first + n * count, count) for n, each in enumerate(players)]
        every = sum(_speed(call.result()) for call in calls)
    print(f"  alone: {one:.0f} steps/s in one process, {every:.0f} in {CORES} at once", flush=True)
    return one, every


def _speed(found: tuple[int, float]) -> float:
    steps, seconds = found
    return steps / seconds


def bars() -> list[Bar]:
    """For each kind: the ratio, beside its limit, and what they are made of."""
    found: list[Bar] = []
    for name in WORKS:
        parts: dict[str, Callable[[Found], float]] = {
            "no barrier / best barrier, steps/s": lambda f: f.best(ASYNC_NAME) / f.best(SYNC_NAME),
            "the limit, two processes alone / best barrier": lambda f: f.all_alone / f.best(SYNC_NAME),
            "two processes alone / one": lambda f: f.all_alone / f.one_alone,
            "one process alone: steps/s": lambda f: f.one_alone,
            **{
                f"{way[0]}, {way[1]} worker(s): steps/s": lambda f, way=way: f.ways[way].steps_per_second
                for way in WAYS
            },
        }
        found += [
            Bar(f"{name}: {part}", None, True, lambda name=name, value=value: value(computing(name)), 1)
            for part, value in parts.items()
        ]
    return found
