"""Environments for the tests of `zoo.episode_ppo`: episodes whose length follows from their seed, and what tests do to them.

Everything that a test wants to see or to hold up goes through this module's `watch`, which works in threads of one process; a
wish to die is a file, which works in any.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from zoo.episode_ppo.factories import FlatEnv
from zoo.episode_ppo.playing import ENV_STREAM

LONGEST = 12
SPEC = "tests.episode_ppo_envs:make"


def env_seed(seed: int, number: int) -> int:
    """What the environment of an episode is seeded with, in a run with this seed."""
    return int(np.random.SeedSequence([seed, ENV_STREAM, number]).generate_state(1)[0]) >> 1


def length_of(seed: int, longest: int = LONGEST) -> int:
    """Steps of an episode with that seed."""
    return 1 + seed % longest


class Watch:
    """What is seen of environments in this process, and what is called in the middle of a step."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: list[dict[str, Any]] = []  # arguments of every environment
        self.steps: list[tuple[int, int, int]] = []  # (environment, seed, step), in the order in which they were made
        self.failed: Counter[int] = Counter()  # by seed
        self.before_step: Callable[[Counting], None] | None = None

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


watch = Watch()


class Counting(gymnasium.Env):
    """Counts its steps; reward 1 for the action 1. `fails` maps a length to how often episodes of it fail at their second step
    or, if they have none, at their first; a file named by an episode's seed in the folder `struck` kills the process there."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, longest: int = LONGEST, fails: dict[int, int] | None = None, struck: str = "", **others: Any):
        self.longest, self.struck = longest, struck
        self.fails = {int(length): times for length, times in (fails or {}).items()}  # JSON has text for keys
        with watch.lock:
            self.place = len(watch.made)
            watch.made.append(others)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        assert seed is not None
        self.seed, self.count = seed, 0
        self.length = length_of(seed, self.longest)
        return self._observe(-1), {}

    def step(self, action: int) -> Any:
        if watch.before_step is not None:
            watch.before_step(self)
        self.count += 1
        if self.count == min(2, self.length):
            self._strike()
        with watch.lock:
            watch.steps.append((self.place, self.seed, self.count))
        return self._observe(action), float(action), self.count >= self.length, False, {}

    def _strike(self) -> None:
        if self.struck and (Path(self.struck) / str(self.seed)).exists():
            (Path(self.struck) / str(self.seed)).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if watch.failed[self.seed] < self.fails.get(self.length, 0):
            watch.failed[self.seed] += 1
            raise RuntimeError("out of order")

    def _observe(self, action: int) -> np.ndarray:
        return np.array([self.length / self.longest, self.count / self.longest, action], np.float32)


def make(red_agent: str = "none", **settings: Any) -> Counting:
    """A factory as a user has one."""
    return Counting(red_agent=red_agent, **settings)


def make_flat(**settings: Any) -> FlatEnv:
    """The same as collectors have it."""
    return FlatEnv(make(**settings), SPEC)


def make_needy(red_agent: str) -> Counting:
    """Cannot be called without an argument."""
    return Counting(red_agent=red_agent)


class Endless(Counting):
    """Its episodes do not end."""

    def step(self, action: int) -> Any:
        return self._observe(action), 0.0, False, False, {}
