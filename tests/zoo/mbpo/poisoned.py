"""Environments that go wrong in ways that a test has chosen, and collectors of them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

FOR_EVER = 3600.0


class Wrong(gymnasium.Env):
    """Episodes of 10 steps that observe (episode, step). In the episodes of `bad` (a list) something goes wrong at step
    `at`, in the way that `how` says. One that hangs makes the file `note` first."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    observation_space = spaces.Box(-np.inf, np.inf, (2,), dtype=np.float64)
    action_space = spaces.Box(-1.0, 1.0, (1,), dtype=np.float32)
    made = 0

    def __init__(self, how: str = "", bad: Any = (), at: int = 4, length: int = 10, note: str = "") -> None:
        self.how, self.bad, self.at, self.length, self.note = how, list(bad), at, length, note

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        Wrong.made += 1  # over all environments of the process
        self.episode, self.count = Wrong.made, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.count += 1
        observed: Any = self._observe()
        reward: Any = 1.0
        if self.count == self.at and (self.episode in self.bad or not self.bad):
            if self.how == "nan reward":
                reward = np.nan
            elif self.how == "nan observation":
                observed = observed * np.nan
            elif self.how == "inf":
                observed = observed + np.inf
            elif self.how == "shape":
                observed = np.zeros(3)
            elif self.how == "no reward":
                reward = None
            elif self.how == "crash":
                raise RuntimeError("the simulator broke")
            elif self.how == "hang":
                if self.note:
                    Path(self.note).touch()
                time.sleep(FOR_EVER)
        return observed, reward, False, self.count == self.length, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.episode, self.count], dtype=np.float64)


class OldReset(Wrong):
    """`reset` as the old gym had it."""

    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(2)


class OldStep(Wrong):
    """`step` as the old gym had it."""

    def step(self, action: Any) -> Any:
        return np.zeros(2), 0.0, False, {}


if "Wrong-v0" not in gymnasium.registry:
    gymnasium.register("Wrong-v0", Wrong)
    gymnasium.register("OldReset-v0", OldReset)
    gymnasium.register("OldStep-v0", OldStep)
