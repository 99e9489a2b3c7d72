"""How a role acts and records in numpy. `tensor_playing.TensorPlaying` does the same with tensors of one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zoo.mbpo.collect.actor import NumpyActor
from zoo.mbpo.collect.recycling import RecycledRows
from zoo.mbpo.envs.vectorised import VectorEnvs
from zoo.mbpo.learn.transitions import Transitions


class Playing(Protocol):
    """The policy, the random numbers and the arrays of one role."""

    def load(self, weights: Mapping[str, Any]) -> None:
        """Take these weights of the actor, by name; they are copied."""

    def random(self, stream: Sequence[int]) -> Any:
        """A source of random numbers of its own for each stream."""

    def act(self, obs: Any, random: Any, deterministic: bool = False) -> Any:
        """The policy's actions [N, A] for observations [N, O]."""

    def explore(self, random: Any) -> Any:
        """Uniform actions [N, A] in [-1, 1)."""

    def rows(self, count: int) -> Transitions:
        """Room for `count` transitions that nobody else holds."""

    def flags(self, count: int) -> Any:
        """Room for `count` truth values, all true."""

    def on_cpu(self, value: Any) -> NDArray[Any]:
        """The value as a numpy array."""


class NumpyPlaying:
    """Plays in numpy; see `Playing`."""

    def __init__(self, envs: VectorEnvs) -> None:
        self._shape = (envs.num_envs, envs.action_size)
        self._rows = RecycledRows(envs.obs_size, envs.action_size)
        self._actor: NumpyActor | None = None

    def load(self, weights: Mapping[str, Any]) -> None:
        if self._actor is None:
            self._actor = NumpyActor(weights)
        else:
            self._actor.load(weights)

    def random(self, stream: Sequence[int]) -> np.random.Generator:
        return np.random.default_rng(stream)

    def act(self, obs: NDArray[Any], random: np.random.Generator, deterministic: bool = False) -> NDArray[Any]:
        assert self._actor is not None, "load the weights first"
        return self._actor.act(obs, random, deterministic)

    def explore(self, random: np.random.Generator) -> NDArray[Any]:
        return random.random(self._shape, dtype=np.float32) * 2 - 1

    def rows(self, count: int) -> Transitions:
        return self._rows.take(count)

    def flags(self, count: int) -> NDArray[Any]:
        return np.ones(count, dtype=bool)

    def on_cpu(self, value: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(value)
