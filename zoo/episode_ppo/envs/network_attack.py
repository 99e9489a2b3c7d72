"""Attacks on simulated networks: nasim's environments, in which everything random follows from the seed given to `reset`.

By itself nasim draws whether an attack works from numpy's global generator, which all environments of a process share, and
keeps the layout of its observations in a class, which every environment that is made writes anew while others may be playing.
"""

from __future__ import annotations

import copy
import difflib
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lzero_async.errors import ConfigError, LzeroAsyncError
from lzero_async.validation import whole_number

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # about the window that it could not draw in
    from nasim.envs import NASimEnv
    from nasim.envs.host_vector import HostVector
    from nasim.scenarios import Scenario, load_scenario, make_benchmark_scenario
    from nasim.scenarios.benchmark import AVAIL_BENCHMARKS


def make(scenario: str = "tiny", *, fully_obs: bool = False, scenario_seed: int = 0) -> NetworkAttack:
    """An environment of a benchmark's name or a .yaml file; all environments of a process must be of one scenario.

    `scenario_seed` fixes the network of benchmarks that are generated, whose names have `gen` in them. What is not known
    raises ConfigError.
    """
    whole_number("scenario_seed", scenario_seed, 0)
    if not isinstance(fully_obs, bool):
        raise ConfigError(f"fully_obs is {fully_obs!r}; it must be true or false.")
    return copy.deepcopy(_first(scenario, fully_obs, scenario_seed))


class NetworkAttack(NASimEnv):  # type: ignore[misc]
    """nasim's environment with a random generator of its own; rewards are what an action gains less what it costs.

    The observed values of hosts are divided by the largest: a 100 among zeros and ones leaves a tanh network nothing to see.
    """

    _layout: Any = None  # of the observations; None until the environment is made
    _scale: Any = 1.0

    def __init__(self, scenario: Scenario, fully_obs: bool) -> None:
        super().__init__(scenario, fully_obs=fully_obs)
        self._layout = _layout()
        self._scale = _value_scale(self.current_state.tensor, self.last_obs.shape())
        self._chances = [action.prob for action in self.action_space.actions]
        self._working = [_with_chance(action, 1.0) for action in self.action_space.actions]
        self._failing = [_with_chance(action, -1.0) for action in self.action_space.actions]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode; raises LzeroAsyncError after another scenario was made in this process."""
        if self._layout is not None and self._layout != _layout():
            raise LzeroAsyncError(
                f"an environment of another scenario was made after this one of {self.name!r}, and nasim keeps a single "
                "layout of observations; play each scenario in a process of its own."
            )
        obs, info = super().reset(seed=seed, options=options)
        return obs * self._scale, info

    def step(self, action: int) -> Any:
        """Draw here whether the attack works, and leave nothing to nasim's own draw."""
        works = self.np_random.random() < self._chances[action]
        obs, *others = super().step((self._working if works else self._failing)[action])
        return obs * self._scale, *others


@lru_cache(maxsize=1)
def _first(name: str, fully_obs: bool, scenario_seed: int) -> NetworkAttack:
    """Made once, because making writes the layout; the others are copies, which do not."""
    return NetworkAttack(_scenario(name, scenario_seed), fully_obs)


def _scenario(name: str, seed: int) -> Scenario:
    if name in AVAIL_BENCHMARKS:
        return make_benchmark_scenario(name, seed)
    if str(name).endswith(".yaml") and Path(name).is_file():
        return load_scenario(name)
    close = difflib.get_close_matches(str(name), AVAIL_BENCHMARKS, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"The names are {', '.join(AVAIL_BENCHMARKS)}."
    raise ConfigError(f"scenario is {name!r}; it must be the name of a benchmark or a .yaml file that exists. {hint}")


def _with_chance(action: Any, chance: float) -> Any:
    """A copy that nasim lets through for 1 and stops for -1, if nothing else stops it."""
    changed = copy.copy(action)
    changed.prob = chance
    return changed


def _value_scale(hosts: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """What to multiply a flat observation with; `hosts` [H, F] has the values of all of them."""
    columns = [HostVector._value_idx, HostVector._discovery_value_idx]
    scale = np.ones(shape, dtype=np.float32)
    scale[:, columns] = 1.0 / max(1.0, float(np.abs(hosts[:, columns]).max()))
    return scale.reshape(-1)


def _layout() -> Any:
    names = (HostVector.os_idx_map, HostVector.service_idx_map, HostVector.process_idx_map)
    return HostVector.address_space_bounds, [list(group) for group in names]
