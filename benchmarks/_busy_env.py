"""A pendulum whose simulator computes: each step is integrated in many small ones, in plain Python, on one core.

Importing this registers `BusyPendulum-v0`; gymnasium does that itself for `benchmarks._busy_env:BusyPendulum-v0`.
"""

from __future__ import annotations

import math
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.pendulum import PendulumEnv, angle_normalize

ID = "benchmarks._busy_env:BusyPendulum-v0"


class BusyPendulum(PendulumEnv):
    """Pendulum-v1 with `substeps` steps of the same physics in each of its own; their cost is proportional to it."""

    def __init__(self, substeps: int = 1, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.substeps = int(substeps)

    def step(self, u: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        angle, speed = map(float, self.state)
        torque = float(np.clip(u, -self.max_torque, self.max_torque)[0])
        costs = angle_normalize(angle) ** 2 + 0.1 * speed**2 + 0.001 * torque**2
        dt, limit = self.dt / self.substeps, float(self.max_speed)
        pull, push = 3 * self.g / (2 * self.l), 3.0 / (self.m * self.l**2) * torque
        for _ in range(self.substeps):
            speed = min(limit, max(-limit, speed + (pull * math.sin(angle) + push) * dt))
            angle += speed * dt
        self.state, self.last_u = np.array([angle, speed]), torque
        return self._get_obs(), -costs, False, False, {}


def substeps_per_second(seconds: float) -> float:
    """The speed of this environment here, in steps of 1,000 substeps."""
    env = BusyPendulum(1_000)
    env.reset(seed=0)
    action, steps, begun = np.zeros(1, dtype=np.float32), 0, time.perf_counter()
    while (taken := time.perf_counter() - begun) < seconds:
        env.step(action)
        steps += 1
    return steps * env.substeps / taken


gymnasium.register("BusyPendulum-v0", entry_point=BusyPendulum, max_episode_steps=200)
