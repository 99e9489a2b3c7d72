"""Environments that take time without taking a core, as simulators do that run on another machine or device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lzero_async.types import StopSignal
from lzero_async.validation import duration
from zoo.mbpo.envs.guarding import Guard
from zoo.mbpo.envs.vectorised import Step, VectorEnvs


class WaitingEnvs:
    """`inner`, with `seconds` of waiting in each step of all its environments together.

    A wait ends early when `stop`, if there is one, is set. `waited_seconds` counts the time spent waiting.
    """

    def __init__(self, inner: VectorEnvs, seconds: float) -> None:
        self._inner = inner
        self._seconds = duration("step_seconds", seconds)
        self.num_envs, self.obs_size, self.action_size = inner.num_envs, inner.obs_size, inner.action_size
        self.stop: StopSignal | None = None
        self.waited_seconds = 0.0

    @property
    def guard(self) -> Guard:
        """What watches the environments inside."""
        return self._inner.guard

    @guard.setter
    def guard(self, guard: Guard) -> None:
        self._inner.guard = guard

    def reset(self, seed: int | Sequence[int]) -> Any:
        return self._inner.reset(seed)

    def reset_to(self, seed: int) -> Any:
        return self._inner.reset_to(seed)

    def flatten(self, observation: Any) -> Any:
        return self._inner.flatten(observation)

    def scale(self, action: Any) -> Any:
        return self._inner.scale(action)

    def step(self, action: Any) -> Step:
        begun = time.monotonic()
        if self.stop is None:
            time.sleep(self._seconds)
        else:
            self.stop.wait(self._seconds)
        self.waited_seconds += time.monotonic() - begun
        return self._inner.step(action)

    def close(self) -> None:
        self._inner.close()
