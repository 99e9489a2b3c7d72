"""Vectorised environments as the collectors see them, and gymnasium's by their id. Needs no torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from lzero_async.config import whole_number
from lzero_async.errors import ConfigError

MUJOCO_INSTALL = "install it with: pip install '.[mujoco]'"
LISTING = "List the known ones with: python -c 'import gymnasium; print(*gymnasium.registry)'."


class Step(NamedTuple):
    """What one step of N environments gives; an environment whose episode ended has been reset already.

    `kept` marks the rows whose transition is true; None means all of them.
    """

    next_obs: Any  # [N, O]; the true next observation, also at an episode's end
    reward: Any  # [N]
    terminated: Any  # [N] bool; ended in a terminal state
    truncated: Any  # [N] bool; ended by a time limit
    obs: Any  # [N, O]; what to act on next
    kept: Any = None  # [N] bool or None


class VectorEnvs(Protocol):
    """N environments that step together and reset themselves. Arrays are valid until the next step."""

    num_envs: int
    obs_size: int
    action_size: int

    def reset(self, seed: int | Sequence[int]) -> Any:
        """Begin new episodes in all environments, each with a seed derived from `seed`; the observations [N, O]."""

    def step(self, action: Any) -> Step:
        """One step of every environment; `action` [N, A] is in [-1, 1]."""

    def close(self) -> None:
        """End the environments."""


class EnvSpec(NamedTuple):
    """What an agent needs to know; `max_steps` is an episode's time limit in steps, None without one."""

    obs_size: int
    action_size: int
    max_steps: int | None


class GymEnvs:
    """`num_envs` gymnasium environments of one id, `package.module:Name-v0` included; `asynchronous` gives each a process.

    Observations are flattened and float32; actions in [-1, 1] are scaled to the action space. What cannot be used raises
    ConfigError.
    """

    def __init__(
        self, env_id: str, num_envs: int, *, env_args: Mapping[str, Any] | None = None, asynchronous: bool = False
    ) -> None:
        self.num_envs = whole_number("num_envs", num_envs, 1)
        self.obs_size, self.action_size, self.max_steps = describe(env_id, env_args)
        makers = [partial(make_by_id, env_id, dict(env_args or {}))] * self.num_envs
        self._vector = _vector(makers, asynchronous)
        box = self._vector.single_action_space
        low, high = box.low.astype(np.float32), box.high.astype(np.float32)
        self._low, self._high = low.reshape(-1), high.reshape(-1)
        self._middle, self._half = (self._high + self._low) / 2, (self._high - self._low) / 2
        self._action_shape, self._action_type = (self.num_envs, *box.shape), box.dtype

    def reset(self, seed: int | Sequence[int]) -> np.ndarray:
        seeds = np.random.SeedSequence(seed).generate_state(self.num_envs)
        obs, _ = self._vector.reset(seed=[int(number) for number in seeds])
        return self._flat(obs)

    def step(self, action: np.ndarray) -> Step:
        scaled = np.clip(action * self._half + self._middle, self._low, self._high)
        obs, reward, terminated, truncated, info = self._vector.step(
            scaled.reshape(self._action_shape).astype(self._action_type, copy=False)
        )
        obs = next_obs = self._flat(obs)
        final = info.get("final_observation")
        if final is not None:
            next_obs = obs.copy()
            for row in np.flatnonzero(info["_final_observation"]):
                next_obs[row] = np.asarray(final[row], dtype=np.float32).reshape(-1)
        return Step(next_obs, reward.astype(np.float32), terminated, truncated, obs)

    def close(self) -> None:
        self._vector.close()

    def _flat(self, obs: np.ndarray) -> np.ndarray:
        """A copy: gymnasium writes the next observations into the same array."""
        return np.array(obs, dtype=np.float32).reshape(self.num_envs, -1)


def describe(env_id: str, env_args: Mapping[str, Any] | None = None) -> EnvSpec:
    """The sizes of an environment, found by making one; raises ConfigError for one that SAC cannot play."""
    env = make_by_id(env_id, dict(env_args or {}))
    try:
        limit = None if env.spec is None else env.spec.max_episode_steps
        return EnvSpec(
            _obs_size(env_id, env.observation_space),
            _action_size(env_id, env.action_space),
            None if limit is None else int(limit),
        )
    finally:
        env.close()


def split(num_envs: int, num_collectors: int) -> list[int]:
    """How many environments each collector gets, as even as possible; fewer than one each raises ConfigError."""
    whole_number("num_envs", num_envs, 1)
    whole_number("num_collectors", num_collectors, 1)
    if num_collectors > num_envs:
        raise ConfigError(
            f"num_collectors is {num_collectors}, but there are only {num_envs} environment(s) to share; use at most "
            f"{num_envs} collector(s) or raise num_envs."
        )
    return shares(num_envs, num_collectors)


def shares(total: int, parts: int) -> list[int]:
    """`total` in `parts` whole numbers that differ by at most 1, the larger ones first."""
    each, rest = divmod(total, parts)
    return [each + (part < rest) for part in range(parts)]


def _vector(makers: list[Callable[[], Any]], asynchronous: bool) -> Any:
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    if asynchronous:  # spawned, because a collector's process has threads, which a fork would leave out
        return AsyncVectorEnv(makers, context="spawn")
    return SyncVectorEnv(makers, copy=False)


def make_by_id(env_id: str, env_args: dict[str, Any]) -> Any:
    """One environment without gymnasium's checker, whose warnings and time a collector does not want."""
    import gymnasium
    from gymnasium import error

    if not isinstance(env_id, str) or not env_id:
        raise ConfigError(f"env is {env_id!r}; it must be the id of a gymnasium environment, such as 'Pendulum-v1'.")
    try:
        return gymnasium.make(env_id, disable_env_checker=True, **env_args)
    except (error.DependencyNotInstalled, ImportError) as failure:
        raise ConfigError(_what_is_missing(env_id, failure)) from failure
    except error.Error as failure:
        raise ConfigError(_not_known(env_id, failure)) from failure
    except TypeError as failure:
        if not env_args:
            raise
        raise ConfigError(f"env_args {env_args!r} do not fit {env_id}: {failure}.") from failure


def _what_is_missing(env_id: str, failure: Exception) -> str:
    import gymnasium

    spec = gymnasium.registry.get(env_id)
    if spec is not None and "envs.mujoco" in str(spec.entry_point):
        if "mujoco_py" in str(failure):
            newer = f"{spec.name}-v4"
            return f"env is {env_id!r}, which needs the abandoned package mujoco_py; use {newer!r} instead."
        return f"env is {env_id!r}, which needs MuJoCo ({failure}); {MUJOCO_INSTALL}"
    return f"env is {env_id!r}, but a package that it needs cannot be imported: {failure}"


def _not_known(env_id: str, failure: Exception) -> str:
    import gymnasium

    ids = {name.lower(): name for name in gymnasium.registry}
    close = difflib.get_close_matches(env_id.rpartition(":")[2].lower(), ids, n=1)
    hint = f"Did you mean {ids[close[0]]!r}?" if close else LISTING
    return f"env is {env_id!r}, which gymnasium cannot make ({str(failure).rstrip('.')}). {hint}"


def _obs_size(env_id: str, space: Any) -> int:
    from gymnasium.spaces import Box

    if not isinstance(space, Box):
        raise ConfigError(
            f"{env_id} observes {type(space).__name__}; a Box of numbers is needed. Wrap the environment with "
            "gymnasium.wrappers.FlattenObservation and register the result."
        )
    return int(np.prod(space.shape))


def _action_size(env_id: str, space: Any) -> int:
    from gymnasium.spaces import Box

    if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
        raise ConfigError(
            f"{env_id} has the action space {space}, but SAC needs continuous actions; choose an environment whose "
            "actions are a Box of floats, such as 'Pendulum-v1'."
        )
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ConfigError(
            f"{env_id} has the action space {space} without finite bounds, so [-1, 1] cannot be scaled to it; wrap it "
            "with gymnasium.wrappers.RescaleAction or give it bounds."
        )
    return int(np.prod(space.shape))
