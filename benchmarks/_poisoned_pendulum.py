"""Pendulum that goes wrong now and then for a while: whoever counts faults wants none under way when the run ends."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium

from benchmarks._poisoned_env import FOLDER, Poison, Poisoned


class Ending(Poison):
    """Poison that strikes for so many seconds after the first step of any environment."""

    def __init__(self, probability: float, length: int, seconds: float) -> None:
        super().__init__(probability, length)
        self._seconds, self._until = seconds, 0.0

    def strike(self) -> str:
        if not self._until:
            begun = Path(os.environ[FOLDER]) / "begun"
            with open(begun, "a"):  # whoever is first makes it; nobody writes
                self._until = begun.stat().st_mtime + self._seconds
        return super().strike() if time.time() < self._until else ""


def make(probability: float, seconds: float, length: int = 50) -> gymnasium.Env[Any, Any]:
    """Episodes of `length` steps."""
    inner = gymnasium.make("Pendulum-v1", max_episode_steps=length, disable_env_checker=True)
    env = Poisoned(inner, probability, length)
    env._poison = Ending(probability, length, seconds)
    return env
