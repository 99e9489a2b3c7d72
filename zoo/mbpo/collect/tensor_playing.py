"""How a role acts and records with tensors of the environments' device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoo.mbpo.collect.actor import LOG_STD_HIGH, LOG_STD_LOW
from zoo.mbpo.envs.tensor_envs import TensorEnvs
from zoo.mbpo.learn.networks import copy_into, generator_of, tensor_of
from zoo.mbpo.learn.transitions import Transitions


class TensorActor:
    """The network of `actor.NumpyActor`, by the same names, on one device."""

    def __init__(self, weights: Mapping[str, Any], device: torch.device) -> None:
        self._weights = {name: tensor_of(value).to(device, torch.float32, copy=True) for name, value in weights.items()}
        names = [f"layer{index}" for index in range(len(self._weights) // 2)]
        self._layers = [(self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]) for name in names]

    def load(self, weights: Mapping[str, Any]) -> None:
        """Copy new weights of the same names and shapes into place; others raise ConfigError."""
        copy_into(self._weights, weights)

    def act(self, obs: Tensor, generator: torch.Generator, deterministic: bool = False) -> Tensor:
        """Actions [N, A] in [-1, 1] for observations [N, O], drawn with `generator` or, `deterministic`, the mode."""
        value = obs
        for index, (weight, bias) in enumerate(self._layers):
            value = torch.addmm(bias, value.relu() if index else value, weight)
        mean, log_std = value.chunk(2, dim=1)
        if deterministic:
            return mean.tanh()
        log_std = LOG_STD_LOW + 0.5 * (LOG_STD_HIGH - LOG_STD_LOW) * (log_std.tanh() + 1)
        noise = torch.randn(mean.shape, generator=generator, device=obs.device)
        return torch.addcmul(mean, noise, log_std.exp()).tanh()


class TensorPlaying:
    """Plays with tensors; see `playing.Playing`. Whoever gets its rows may keep them: each collect has new ones, and torch
    uses the memory of those again that nobody holds."""

    def __init__(self, envs: TensorEnvs) -> None:
        self._device = envs.device
        self._num_envs, self._obs_size, self._action_size = envs.num_envs, envs.obs_size, envs.action_size
        self._actor: TensorActor | None = None

    def load(self, weights: Mapping[str, Any]) -> None:
        if self._actor is None:
            self._actor = TensorActor(weights, self._device)
        else:
            self._actor.load(weights)

    def random(self, stream: Sequence[int]) -> torch.Generator:
        return generator_of(self._device, int(np.random.SeedSequence(stream).generate_state(1)[0]))

    @torch.no_grad()
    def act(self, obs: Tensor, random: torch.Generator, deterministic: bool = False) -> Tensor:
        assert self._actor is not None, "load the weights first"
        return self._actor.act(obs, random, deterministic)

    def explore(self, random: torch.Generator) -> Tensor:
        shape = (self._num_envs, self._action_size)
        return torch.rand(shape, generator=random, device=self._device) * 2 - 1

    def rows(self, count: int) -> Transitions:
        obs, action = (count, self._obs_size), (count, self._action_size)
        return Transitions(*(torch.empty(shape, device=self._device) for shape in (obs, action, count, obs, count)))

    def flags(self, count: int) -> Tensor:
        return torch.ones(count, dtype=torch.bool, device=self._device)

    def on_cpu(self, value: Tensor) -> NDArray[Any]:
        return value.cpu().numpy()
