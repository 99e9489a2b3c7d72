"""Environments that take uneven time without taking a core, as simulators do that run elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.episode_ppo.envs.factories import FlatEnv, make_env

WAIT_STREAM = 3


class WaitingEnv(FlatEnv):
    """An environment whose steps wait: on average `seconds`, drawn from a lognormal distribution with `sigma` (0: always equally
    long). The waits follow from the episode's seed, so that two collectors can be compared on the same ones."""

    def __init__(self, inner: FlatEnv, seconds: float, sigma: float) -> None:
        super().__init__(inner.env, inner.name)
        self._log_mean, self._sigma = math.log(seconds) - sigma * sigma / 2, sigma
        self._rng = np.random.default_rng(WAIT_STREAM)

    def reset(self, seed: int | None = None) -> tuple[NDArray[Any], dict[str, Any]]:
        if seed is not None:
            self._rng = np.random.default_rng([seed, WAIT_STREAM])
        return super().reset(seed)

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        time.sleep(math.exp(self._log_mean + self._sigma * self._rng.standard_normal()))
        return super().step(action)


def make_waiting(env: str, env_args: Mapping[str, Any], seconds: float = 0.0, sigma: float = 0.0) -> FlatEnv:
    """The environment of that name; with `seconds`, its steps wait."""
    inner = make_env(env, env_args)
    return WaitingEnv(inner, seconds, sigma) if seconds > 0 else inner
