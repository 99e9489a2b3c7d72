"""Environments for the tests of `zoo.mbpo`, registered with gymnasium, and collectors that can be asked things."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from zoo.mbpo.collect.roles import CollectorRole, gym_collector


class Counting(gymnasium.Env):
    """Counts to a length drawn at reset; even lengths end in a terminal state, odd ones by a time limit."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space = spaces.Box(-np.inf, np.inf, (2, 2), dtype=np.float64)
    action_space = spaces.Box(np.array([0.0, -3.0]), np.array([1.0, 5.0]), dtype=np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.length, self.count = int(self.np_random.integers(2, 12)), 0
        return self._observe(np.zeros(2)), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        ended = self.count == self.length
        return (
            self._observe(action),
            float(self.count),
            ended and self.length % 2 == 0,
            ended and self.length % 2 == 1,
            {},
        )

    def _observe(self, action: np.ndarray) -> np.ndarray:
        return np.array([[self.length, self.count], action])


class Failing(Counting):
    """Fails at its fourth step, in the middle of an episode."""

    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.length = 20
        return self._observe(np.zeros(2)), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 4:
            raise RuntimeError("the simulator broke")
        return super().step(action)


class Endless(Counting):
    """Never ends."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._observe(action), 0.0, False, False, {}


def _with_spaces(**changed: spaces.Space) -> Counting:
    env = Counting()
    for name, space in changed.items():
        setattr(env, name, space)
    return env


ODD_SPACES = {
    "Dict-v0": {"observation_space": spaces.Dict({"a": spaces.Box(0, 1, (1,))})},
    "Discrete-v0": {"action_space": spaces.Discrete(3)},
    "Whole-v0": {"action_space": spaces.Box(0, 9, (1,), dtype=np.int64)},
    "Unbounded-v0": {"action_space": spaces.Box(-np.inf, np.inf, (1,))},
}

if "Counting-v0" not in gymnasium.registry:
    gymnasium.register("Counting-v0", Counting)
    gymnasium.register("Failing-v0", Failing)
    gymnasium.register("Endless-v0", Endless)
    for name, changed in ODD_SPACES.items():
        gymnasium.register(name, partial(_with_spaces, **changed))


def asked_collector(*args: Any) -> CollectorRole:
    """A collector that also says whether its process has imported a module."""
    role = gym_collector(*args)
    role.has_imported = sys.modules.__contains__  # type: ignore[attr-defined]
    return role
