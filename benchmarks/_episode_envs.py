"""Environments for the benchmarks of whole-episode PPO, named as `benchmarks._episode_envs:factory`. Everything random in an
episode follows from the seed that `reset` gets."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

MODULE = "benchmarks._episode_envs"
CHUNK = bytes(1 << 15)  # hashed at once: about 0.1 ms without Python's lock


class Counting(gymnasium.Env):
    """Observes noise and ends after a number of steps, drawn evenly from `shortest` to `longest`."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shortest: int, longest: int) -> None:
        self._shortest, self._longest = shortest, longest
        self._left = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._left = int(self.np_random.integers(self._shortest, self._longest + 1))
        return self._noise(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._left -= 1
        return self._noise(), float(action), self._left <= 0, False, {}

    def _noise(self) -> np.ndarray:
        return self.np_random.standard_normal(4, dtype=np.float32)


class Timed(Counting):
    """Episodes of `steps` steps, each of which calls `spend` with lognormal seconds; `record` gets when that began and ended."""

    def __init__(
        self,
        steps: int,
        seconds: float,
        sigma: float,
        spend: Callable[[float], None],
        record: Callable[[float, float, int], None] | None = None,
    ) -> None:
        super().__init__(steps, steps)
        self._log_mean, self._sigma, self._spend = math.log(seconds) - sigma * sigma / 2, sigma, spend
        self._record, self._episodes = record, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self._episodes += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        begun = time.monotonic()
        self._spend(math.exp(self._log_mean + self._sigma * self.np_random.standard_normal()))
        if self._record is not None:
            self._record(begun, time.monotonic(), self._episodes)
        return super().step(action)


def equal(steps: int) -> Counting:
    """Episodes of equal length that cost nothing."""
    return Counting(steps, steps)


def short(longest: int) -> Counting:
    """Episodes of 1 to `longest` steps that cost nothing."""
    return Counting(1, longest)


def busy(steps: int, seconds: float, sigma: float, lock: bool) -> Timed:
    """Computes: with Python's lock (`lock`), as a simulator in Python does, or without it, as one in C may."""
    return Timed(steps, seconds, sigma, spin if lock else hash_on)


def recorded(steps: int, seconds: float, sigma: float, folder: str) -> Timed:
    """Waits, and writes each step to a file of its own in `folder`: begin and end on the monotonic clock, and its episode."""
    own = (Path(folder) / f"{time.monotonic_ns()}.jsonl").open("a", buffering=1)

    def record(begun: float, ended: float, episode: int) -> None:
        own.write(json.dumps([begun, ended, episode]) + "\n")

    return Timed(steps, seconds, sigma, time.sleep, record)


def spin(seconds: float) -> None:
    """Use so much of the thread's own processor time, in Python."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def hash_on(seconds: float) -> None:
    """Use so much of the thread's own processor time, mostly without Python's lock."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        hashlib.sha256(CHUNK)
