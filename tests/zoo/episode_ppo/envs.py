"""Environments for the tests of `zoo.episode_ppo`: episodes whose length follows from their seed, and what tests do to them.

Everything that a test wants to see or to hold up goes through this module's `watch`, which works in threads of one process; a
wish to die is a file, which works in any.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from zoo.episode_ppo.envs.factories import FlatEnv
from zoo.episode_ppo.play.player import ENV_STREAM

LONGEST = 12
SPEC = "tests.zoo.episode_ppo.envs:make"


def env_seed(seed: int, number: int, attempt: int = 0) -> int:
    """What the environment of an episode is seeded with, in a run with this seed."""
    words = [seed, ENV_STREAM, number, *([attempt] if attempt else [])]
    return int(np.random.SeedSequence(words).generate_state(1)[0]) >> 1


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
        self.released = threading.Event()  # ends what hangs

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


watch = Watch()


class Counting(gymnasium.Env):
    """Counts its steps; reward 1 for the action 1. `fails` maps a length to how often episodes of it fail at their second step
    or, if they have none, at their first; a file named by an episode's seed in the folder `struck` kills the process there. `bad`
    maps a length to what is wrong with the data of that step; an episode with a seed of `hangs` hangs, and leaves a file `hung`
    in that folder."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(
        self,
        longest: int = LONGEST,
        fails: dict[int, int] | None = None,
        struck: str = "",
        bad: dict[int, str] | None = None,
        hangs: Sequence[int] = (),
        **others: Any,
    ):
        self.longest, self.struck, self.hangs = longest, struck, hangs
        self.bad = {int(length): how for length, how in (bad or {}).items()}
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
        observed, reward = self._observe(action), float(action)
        if self.count == min(2, self.length) and self.length in self.bad:
            observed, reward = spoil(self.bad[self.length], observed, reward)
        return observed, reward, self.count >= self.length, False, {}

    def _strike(self) -> None:
        if self.seed in self.hangs:
            if self.struck:
                (Path(self.struck) / "hung").touch()
            watch.released.wait()
        if self.struck and (Path(self.struck) / str(self.seed)).exists():
            (Path(self.struck) / str(self.seed)).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if watch.failed[self.seed] < self.fails.get(self.length, 0):
            watch.failed[self.seed] += 1
            raise RuntimeError("out of order")

    def _observe(self, action: int) -> np.ndarray:
        return np.array([self.length / self.longest, self.count / self.longest, action], np.float32)


def spoil(how: str, observed: Any, reward: Any) -> tuple[Any, Any]:
    """What an environment gives in place of its observation and reward."""
    if how in ("nan", "inf", "huge"):
        observed = observed.astype(np.float64)
        observed[1] = {"nan": np.nan, "inf": np.inf, "huge": 1e39}[how]
    found = {
        "shape": (np.zeros(4, np.float32), reward),
        "row": (observed[None], reward),
        "ragged": ([[1.0], [2.0, 3.0], 4.0], reward),
        "text": (np.array(["a", "b", "c"]), reward),
        "none": (None, reward),
        "reward nan": (observed, np.nan),
        "reward inf": (observed, np.float32(-np.inf)),
        "reward huge": (observed, 1e39),
        "reward array": (observed, np.zeros(2)),
        "reward none": (observed, None),
    }
    return found.get(how, (observed, reward))


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
