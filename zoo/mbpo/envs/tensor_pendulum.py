"""The Pendulum of gymnasium's Pendulum-v1 for thousands of rows at once, as a TensorVecEnv of any device."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lzero_async.validation import whole_number

GRAVITY, MASS, LENGTH = 10.0, 1.0, 1.0
SECONDS, MAX_SPEED, MAX_TORQUE, MAX_STEPS = 0.05, 8.0, 2.0, 200


class TensorPendulum:
    """`num_envs` pendulums to swing up; an episode is 200 steps. `final_obs` gives the observations before a reset in
    the extras; switched off, they are lost, as with most environments of this kind."""

    def __init__(self, num_envs: int, device: str = "cpu", seed: int = 0, *, final_obs: bool = True) -> None:
        from gymnasium.spaces import Box, Dict

        self.num_envs = whole_number("num_envs", num_envs, 1)
        self.device = device
        self.single_observation_space = Dict({"policy": Box(-math.inf, math.inf, (3,))})
        self.single_action_space = Box(-MAX_TORQUE, MAX_TORQUE, (1,))
        self.max_episode_length = MAX_STEPS
        self._final_obs = final_obs
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self.angle = torch.zeros(num_envs, device=device)  # radians, 0 is upright
        self.speed = torch.zeros(num_envs, device=device)  # radians per second
        self.age = torch.zeros(num_envs, dtype=torch.long, device=device)  # steps in this episode

    def reset(self, seed: int | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Begin a new episode in every row."""
        if seed is not None:
            self._generator.manual_seed(seed)
        self._begin(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        return self._observe(), {}

    def step(self, action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, dict[str, Any]]:
        """One step of 0.05 s with torques [N, 1]."""
        torque = action[:, 0].clamp(-MAX_TORQUE, MAX_TORQUE)
        off = torch.remainder(self.angle + math.pi, 2 * math.pi) - math.pi
        reward = -(off.square() + 0.1 * self.speed.square() + 0.001 * torque.square())
        pull = 3 * GRAVITY / (2 * LENGTH) * torch.sin(self.angle) + 3 / (MASS * LENGTH**2) * torque
        self.speed = (self.speed + pull * SECONDS).clamp(-MAX_SPEED, MAX_SPEED)
        self.angle = self.angle + self.speed * SECONDS
        self.age = self.age + 1
        time_outs = self.age >= MAX_STEPS
        extras = {"final_obs": self._observe()} if self._final_obs else {}
        self._begin(time_outs)
        return self._observe(), reward, torch.zeros_like(time_outs), time_outs, extras

    def close(self) -> None:
        """Nothing to end."""

    def _begin(self, rows: Tensor) -> None:
        """New episodes where `rows` is true. All rows are drawn, so that nobody has to wait for a count of them."""
        drawn = torch.rand(2, self.num_envs, device=self.device, generator=self._generator) * 2 - 1
        self.angle = torch.where(rows, drawn[0] * math.pi, self.angle)
        self.speed = torch.where(rows, drawn[1], self.speed)
        self.age = torch.where(rows, 0, self.age)

    def _observe(self) -> dict[str, Tensor]:
        return {"policy": torch.stack([self.angle.cos(), self.angle.sin(), self.speed], dim=1)}
