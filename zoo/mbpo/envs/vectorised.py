"""Vectorised environments as the collectors see them, and gymnasium's by their id. Needs no torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from lzero_async.errors import BadData, ConfigError, StepOverdue
from lzero_async.runs.soundness import check_finite, check_like
from lzero_async.validation import whole_number
from zoo.mbpo.envs.guarding import ATTEMPTS, Guard

MUJOCO_INSTALL = "install it with: pip install '.[mujoco]'"
LISTING = "List the known ones with: python -c 'import gymnasium; print(*gymnasium.registry)'."


class Step(NamedTuple):
    """What one step of N environments gives; an environment whose episode ended has been reset already.

    `kept` marks the rows whose transition is true; None means all of them. `bad` marks those whose episode failed, which is
    to be left out from its beginning; None means none of them.
    """

    next_obs: Any  # [N, O]; the true next observation, also at an episode's end
    reward: Any  # [N]
    terminated: Any  # [N] bool; ended in a terminal state
    truncated: Any  # [N] bool; ended by a time limit
    obs: Any  # [N, O]; what to act on next
    kept: Any = None  # [N] bool or None
    bad: Any = None  # [N] bool or None


class VectorEnvs(Protocol):
    """N environments that step together and reset themselves. Arrays are valid until the next step."""

    num_envs: int
    obs_size: int
    action_size: int
    guard: Guard  # set by the role that owns them

    def reset(self, seed: int | Sequence[int]) -> Any:
        """Begin new episodes in all environments, each with a seed derived from `seed`; the observations [N, O]."""

    def reset_to(self, seed: int) -> Any:
        """The same, where the first environment gets this very seed and each other one the next."""

    def step(self, action: Any) -> Step:
        """One step of every environment; `action` [N, A] is in [-1, 1]."""

    def flatten(self, observation: Any) -> Any:
        """Observations [N, O] of what an environment itself returns: N is 1 for one of gymnasium's."""

    def scale(self, action: Any) -> Any:
        """Actions [N, A] in [-1, 1] as the environments themselves take them, [N, ...]."""

    def close(self) -> None:
        """End the environments."""


class EnvSpec(NamedTuple):
    """What an agent needs to know; `max_steps` is an episode's time limit in steps, None without one."""

    obs_size: int
    action_size: int
    max_steps: int | None


class GymEnvs:
    """`num_envs` gymnasium environments of one id, `package.module:Name-v0` included.

    Observations are flattened and float32; actions in [-1, 1] are scaled to the action space. What cannot be used raises
    ConfigError. An episode that fails (an exception, a value that is not finite, a wrong shape, a call that takes too long)
    is told to `guard`, and another one begins there with a new seed; the other environments notice nothing.
    """

    def __init__(self, env_id: str, num_envs: int, *, env_args: Mapping[str, Any] | None = None) -> None:
        self.num_envs = whole_number("num_envs", num_envs, 1)
        self.obs_size, self.action_size, self.max_steps = describe(env_id, env_args)
        self.guard = Guard()
        self._id, self._make = env_id, partial(make_by_id, env_id, dict(env_args or {}))
        self._envs = [self._make() for _ in range(self.num_envs)]
        box = self._envs[0].action_space
        low, high = box.low.astype(np.float32), box.high.astype(np.float32)
        self._low, self._high = low.reshape(-1), high.reshape(-1)
        self._middle, self._half = (self._high + self._low) / 2, (self._high - self._low) / 2
        self._action_shape, self._action_type = box.shape, box.dtype
        self._obs_shape = tuple(self._envs[0].observation_space.shape)
        self._ages = [0] * self.num_envs  # steps of each episode
        self._seed: list[int] = []
        self._renewals = 0

    def reset(self, seed: int | Sequence[int]) -> NDArray[Any]:
        seeds = np.random.SeedSequence(seed).generate_state(self.num_envs)
        self._seed, self._renewals = [int(part) for part in np.atleast_1d(seed)], 0
        return np.stack([self._begin(row, int(number)) for row, number in enumerate(seeds)])

    def reset_to(self, seed: int) -> NDArray[Any]:
        self._seed, self._renewals = [seed], 0
        return np.stack([self._begin(row, seed + row) for row in range(self.num_envs)])

    def flatten(self, observation: Any) -> NDArray[Any]:
        found = self._flat(observation, 0)
        check_finite("observation", found)
        return found[None]

    def scale(self, action: NDArray[Any]) -> NDArray[Any]:
        scaled: NDArray[Any] = np.clip(action * self._half + self._middle, self._low, self._high)
        return scaled.reshape(-1, *self._action_shape).astype(self._action_type, copy=False)

    def step(self, action: NDArray[Any]) -> Step:
        scaled = self.scale(action)
        next_obs, reward = np.empty((self.num_envs, self.obs_size), np.float32), np.empty(self.num_envs, np.float32)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        failures: dict[int, Exception] = {}
        sound = bool(np.isfinite(scaled).all())
        for row, env in enumerate(self._envs):
            self._ages[row] += 1
            try:
                if not sound:
                    check_finite("action", scaled[row], self._place(row))
                with self.guard.running(f"environment {row}"):
                    obs, gain, terminated[row], truncated[row], _ = env.step(scaled[row])
                next_obs[row] = self._flat(obs, row)
                reward[row] = _number(gain, self._place, row)
            except Exception as error:  # of any library
                if self.guard.is_given_up(error):
                    raise  # nobody waits for the next environment, which may hang as well
                failures[row] = error
        if not (np.isfinite(next_obs).all() and np.isfinite(reward).all()):
            self._find_unsound(next_obs, reward, failures)
        if len(failures) < self.num_envs:
            self.guard.works = True
        obs = next_obs
        ended = terminated | truncated
        if failures or ended.any():
            obs = next_obs.copy()
            for row in [*failures, *(row for row in np.flatnonzero(ended) if row not in failures)]:
                obs[row] = self._begin(row, None, failures.get(row))
        if not failures:
            return Step(next_obs, reward, terminated, truncated, obs)
        bad = np.zeros(self.num_envs, bool)
        bad[list(failures)] = True
        reward[bad], terminated[bad], truncated[bad], next_obs[bad] = 0.0, False, True, 0.0
        return Step(next_obs, reward, terminated, truncated, obs, bad=bad)

    def close(self) -> None:
        for env in self._envs:
            env.close()

    def _find_unsound(self, next_obs: NDArray[Any], reward: NDArray[Any], failures: dict[int, Exception]) -> None:
        """Add the rows with a value that is not finite to the failures."""
        for row in range(self.num_envs):
            if row not in failures:
                try:
                    check_finite("observation", next_obs[row], self._place(row))
                    check_finite("reward", reward[row], self._place(row))
                except BadData as error:
                    failures[row] = error

    def _begin(self, row: int, seed: int | None, failure: Exception | None = None) -> NDArray[Any]:
        """A new episode in one environment, after a failure with a new seed; its first observation."""
        for _ in range(ATTEMPTS):
            spoilt = failure is not None and not isinstance(failure, BadData)  # nobody knows what state it is in
            if failure is not None:
                self.guard.failed(self._id, self._place(row), failure)
                self._renewals += 1
                seed = int(np.random.SeedSequence([*self._seed, row, self._renewals]).generate_state(1)[0])
            self._ages[row] = 0
            try:
                if spoilt:
                    self._renew(row)
                with self.guard.running(f"environment {row}"):
                    obs, _ = self._envs[row].reset() if seed is None else self._envs[row].reset(seed=seed)
                found = self._flat(obs, row)
                check_finite("observation", found, self._place(row))
                return found
            except Exception as error:  # of any library
                if self.guard.is_given_up(error):
                    raise
                failure = error
        assert failure is not None
        if not isinstance(failure, StepOverdue):  # which counts as a role that hung
            self.guard.failed(self._id, self._place(row), failure)
        raise failure

    def _renew(self, row: int) -> None:
        with suppress(Exception), self.guard.running(f"the end of environment {row}"):
            self._envs[row].close()
        with self.guard.running(f"environment {row}, which is made anew,"):
            self._envs[row] = self._make()

    def _flat(self, obs: Any, row: int) -> NDArray[Any]:
        """The observation as one row of float32; BadData unless it has the shape of the observation space."""
        if np.shape(obs) != self._obs_shape:
            check_like("observation", obs, self._obs_shape, where=self._place(row))
        with np.errstate(over="ignore"):  # it becomes infinite, which is found
            return np.asarray(obs).astype(np.float32).reshape(-1)

    def _place(self, row: int) -> str:
        return f"environment {row} at step {self._ages[row]}" if self._ages[row] else f"environment {row} at its reset"


def _number(value: Any, place: Callable[[int], str], row: int) -> float:
    """A reward as one number; some environments give an array of one."""
    if np.size(value) != 1 or value is None:
        check_like("reward", value, (), where=place(row))
    return float(np.reshape(value, ()))


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
