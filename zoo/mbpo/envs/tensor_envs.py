"""Environments that are vectorised on one device, in the manner of Isaac Lab: tensors in, tensors out, nothing copied.

The contract is what Isaac Lab's ManagerBasedRLEnv and DirectRLEnv offer; see `TensorVecEnv`. Such an environment resets
itself within the step that ends an episode, so the observation that it returns there belongs to the next episode, and the
true one is known only if it is in `extras` (Isaac Lab: `compute_final_obs = True` in its configuration). Without it:
- a transition that a time limit ended is left out, because its next observation, from which its value follows, is unknown;
- one that ended in a terminal state is kept, because no value follows it; the observation before it stands in for its next.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lzero_async.errors import BadData, ConfigError
from lzero_async.runs.soundness import check_finite, check_like, finite_rows
from lzero_async.validation import positive_number
from zoo.mbpo.envs.guarding import Guard
from zoo.mbpo.envs.vectorised import Step

POLICY = "policy"
FINAL_KEYS = ("final_obs", "final_observation", "terminal_observation")


class TensorVecEnv(Protocol):
    """N environments on one device. Buffers that are returned may be overwritten by the next step."""

    num_envs: int
    device: Any  # of every tensor, such as "cuda:0"
    single_observation_space: Any  # a Dict with a Box under "policy"
    single_action_space: Any  # a Box; without finite bounds actions are given as they are, in [-1, 1]

    def reset(self, seed: int | None = None) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
        """Begin new episodes; observations {"policy": [N, O] float32} and extras."""

    def step(self, action: Tensor) -> tuple[Mapping[str, Tensor], Tensor, Tensor, Tensor, Mapping[str, Any]]:
        """One step with actions [N, A]: observations, reward [N] float32, terminated [N] bool, time-outs [N] bool, extras.

        An environment that ended is reset already; `extras["final_obs"]`, if there, holds the observations before that.
        """

    def close(self) -> None:
        """End the environments."""


class TensorEnvs:
    """A TensorVecEnv as VectorEnvs whose arrays are tensors of its device.

    The contract is checked at the start, which takes one reset and one step. `action_scale` is what 1 stands for where the
    action space has no finite bounds.

    One environment cannot be reset alone: a row that is not finite is told to `guard` and left out until its environment
    ends the episode itself, and the policy sees zeros there. When all rows are like that, all environments are reset.
    """

    def __init__(self, env: TensorVecEnv, *, action_scale: float = 1.0) -> None:
        check_contract(env)
        self._env = env
        self.device = torch.device(env.device)
        self.num_envs = int(env.num_envs)
        self.obs_size = _policy_box(env).shape[0]
        self.action_size = env.single_action_space.shape[0]
        self._middle, self._half = _action_scaling(env, positive_number("action_scale", action_scale))
        self.guard = Guard()
        self._obs = torch.empty(0)
        self._ruined = torch.zeros(self.num_envs, dtype=torch.bool, device=self.device)
        self._any_ruined = False
        self._seed: list[int] = []
        self._resets = 0

    def reset(self, seed: int | Sequence[int]) -> Tensor:
        self._seed, self._resets = [int(part) for part in np.atleast_1d(seed)], 0
        return self._reset(seed)

    def _reset(self, seed: int | Sequence[int]) -> Tensor:
        # below 2**31, which every library takes
        return self._reset_exactly(int(np.random.SeedSequence(seed).generate_state(1)[0]) >> 1)

    def reset_to(self, seed: int) -> Tensor:
        self._seed, self._resets = [seed], 0
        return self._reset_exactly(seed)  # such an environment gives its parts seeds of their own

    def _reset_exactly(self, number: int) -> Tensor:
        with self.guard.running("its environments"):
            obs, _ = self._env.reset(seed=number)
        self._ruined, self._any_ruined = torch.zeros_like(self._ruined), False
        self._obs = self._sound("reset", obs[POLICY].clone())
        return self._obs

    def flatten(self, observation: Mapping[str, Tensor]) -> Tensor:
        obs = observation[POLICY]
        check_like("observation", obs, (len(obs), self.obs_size), "f", "the tensor environment")
        return obs.to(self.device)

    def scale(self, action: Tensor) -> Tensor:
        return action * self._half + self._middle

    def step(self, action: Tensor) -> Step:
        with self.guard.running("its environments"):
            found, reward, terminated, time_outs, extras = self._env.step(self.scale(action))
        check_like("observation", found[POLICY], (self.num_envs, self.obs_size), "f", "the tensor environment")
        check_like("reward", reward, (self.num_envs,), "f", "the tensor environment")
        obs, before = found[POLICY].clone(), self._obs
        final = _final_obs(extras)
        if final is not None:
            next_obs = torch.where((terminated | time_outs)[:, None], final, obs)
            kept = None
        else:
            next_obs = torch.where(terminated[:, None], before, obs)
            kept = terminated | ~time_outs
        bad = self._leave_out(next_obs, reward, terminated | time_outs)
        self.guard.works = True
        self._obs = obs = self._sound("step", obs)
        if bad is None:
            return Step(next_obs, reward, terminated, time_outs & ~terminated, obs, kept)
        reward, next_obs = reward.masked_fill(bad, 0.0), next_obs.masked_fill(bad[:, None], 0.0)
        if self._any_ruined and bool(self._ruined.all()):
            self._resets += 1
            self._obs = obs = self._reset([*self._seed, self._resets])
        return Step(next_obs, reward, terminated & ~bad, time_outs & ~terminated, obs, kept, bad)

    def _leave_out(self, next_obs: Tensor, reward: Tensor, ended: Tensor) -> Tensor | None:
        """Which rows belong to a bad episode, None if none does; those that are so from now on are told."""
        broken = ~(finite_rows(next_obs) & reward.isfinite())
        if not self._any_ruined and not bool(broken.any()):
            return None
        bad: Tensor = self._ruined | broken
        for row in (broken & ~self._ruined).nonzero()[:, 0].tolist():
            self._tell(row, "observation", next_obs) or self._tell(row, "reward", reward)
        self._ruined = bad & ~ended
        self._any_ruined = bool(self._ruined.any())
        return bad

    def _sound(self, method: str, obs: Tensor) -> Tensor:
        """Observations to act on, zeros for those that are not finite, whose episodes are bad from here on."""
        broken = ~finite_rows(obs)
        if not bool(broken.any()):
            return obs
        for row in (broken & ~self._ruined).nonzero()[:, 0].tolist():
            self._tell(row, "first observation", obs)
        self._ruined = self._ruined | broken
        self._any_ruined = True
        return obs.masked_fill(broken[:, None], 0.0)

    def _tell(self, row: int, what: str, values: Tensor) -> bool:
        place = f"environment {row}"
        try:
            check_finite(what, values[row], place)
        except BadData as error:
            self.guard.failed("The tensor environment", place, error)
            return True
        return False

    def close(self) -> None:
        self._env.close()


def _final_obs(extras: Mapping[str, Any]) -> Tensor | None:
    for key in FINAL_KEYS:
        found = extras.get(key)
        if found is not None:
            final: Tensor = found[POLICY] if isinstance(found, Mapping) else found
            return final
    return None


def _action_scaling(env: TensorVecEnv, scale: float) -> tuple[Tensor, Tensor]:
    """Middle and half width [A] of the action space; 0 and `scale` if it has no finite bounds."""
    low, high = env.single_action_space.low, env.single_action_space.high
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        low, high = np.full_like(low, -scale), np.full_like(high, scale)
    bounds = torch.as_tensor(np.stack([low, high]), dtype=torch.float32, device=env.device)
    return (bounds[1] + bounds[0]) / 2, (bounds[1] - bounds[0]) / 2


# -- the contract ----------------------------------------------------------------------------------------------------------


def check_contract(env: TensorVecEnv) -> None:
    """Reset the environment and make one step; raise ConfigError for the first breach of the contract, if any."""
    _check_attributes(env)
    obs_shape = (env.num_envs, _policy_box(env).shape[0])
    result: Any = env.reset(seed=0)
    if not isinstance(result, tuple) or len(result) != 2:
        raise ConfigError(
            f"reset() of the tensor environment returned {_kind(result)}; it must be (observations, extras)."
        )
    _check_obs("reset()", env, result[0], obs_shape)
    action = torch.zeros(env.num_envs, env.single_action_space.shape[0], device=env.device)
    result = env.step(action)
    if not isinstance(result, tuple) or len(result) != 5:
        raise ConfigError(
            f"step() of the tensor environment returned {_kind(result)}; it must be (observations, reward, terminated, "
            "time_outs, extras)."
        )
    obs, reward, terminated, time_outs, extras = result
    _check_obs("step()", env, obs, obs_shape)
    _check_tensor("The reward of step()", env, reward, obs_shape[:1], torch.float32)
    _check_tensor("terminated of step()", env, terminated, obs_shape[:1], torch.bool)
    _check_tensor("time_outs of step()", env, time_outs, obs_shape[:1], torch.bool)
    if not isinstance(extras, Mapping):
        raise ConfigError(f"The extras of step() are {_kind(extras)}; they must be a dictionary.")
    final = _final_obs(extras)
    if final is not None:
        _check_tensor("The final observation in the extras", env, final, obs_shape, torch.float32)


def _check_attributes(env: Any) -> None:
    for name in ("num_envs", "device", "single_observation_space", "single_action_space", "reset", "step", "close"):
        if not hasattr(env, name):
            raise ConfigError(
                f"The tensor environment {type(env).__name__} has no {name}; give an environment like Isaac Lab's "
                "DirectRLEnv (`.unwrapped` of what gymnasium.make returns)."
            )
    if not isinstance(env.num_envs, int) or env.num_envs < 1:
        raise ConfigError(
            f"num_envs of the tensor environment is {env.num_envs!r}; it must be a whole number of at least 1."
        )
    _policy_box(env)
    space = env.single_action_space
    if not hasattr(space, "low") or len(space.shape) != 1:
        raise ConfigError(
            f"single_action_space of the tensor environment is {space}; SAC needs continuous actions: a Box of shape [A]."
        )


def _policy_box(env: Any) -> Any:
    space = env.single_observation_space
    try:
        box = space[POLICY]
    except (KeyError, TypeError, IndexError):
        box = None
    if box is None or len(getattr(box, "shape", None) or ()) != 1:
        raise ConfigError(
            f"single_observation_space of the tensor environment is {space}; it must be a Dict with a Box of shape [O] "
            f"under {POLICY!r} (Isaac Lab: concatenate_terms = True)."
        )
    return box


def _check_obs(where: str, env: TensorVecEnv, obs: Any, shape: tuple[int, int]) -> None:
    if not isinstance(obs, Mapping) or POLICY not in obs:
        raise ConfigError(f"The observations of {where} are {_kind(obs)}; they must be a dictionary with {POLICY!r}.")
    _check_tensor(f"The observation {POLICY!r} of {where}", env, obs[POLICY], shape, torch.float32)


def _check_tensor(what: str, env: TensorVecEnv, value: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(value, Tensor):
        raise ConfigError(f"{what} is {_kind(value)}; it must be a torch tensor on {env.device}.")
    if not _same_device(value.device, torch.device(env.device)):
        raise ConfigError(
            f"{what} is on {value.device}; everything must stay on the environment's device, {env.device}."
        )
    if tuple(value.shape) != shape:
        raise ConfigError(f"{what} has the shape {list(value.shape)}; it must be {list(shape)}.")
    if value.dtype is not dtype:
        raise ConfigError(f"{what} is of {value.dtype}; it must be {dtype}.")


def _same_device(one: torch.device, other: torch.device) -> bool:
    """Whether both name one device; "cuda" is the current one, whatever its number."""
    return one.type == other.type and (one.index == other.index or None in (one.index, other.index))


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return (
        f"a {type(value).__name__} with {sorted(value)}" if isinstance(value, Mapping) else f"a {type(value).__name__}"
    )


def tensor_envs(factory: str, factory_args: Mapping[str, Any] | None) -> TensorEnvs:
    """TensorEnvs around what the function at "module:function" makes of `factory_args`, checked against the contract."""
    module, colon, name = str(factory).partition(":")
    if not (module and colon and name):
        raise ConfigError(
            f"factory is {factory!r}; it must be 'module:function', where the function makes the environment."
        )
    try:
        make = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"factory is {factory!r}, which cannot be imported: {error}.") from error
    arguments = dict(factory_args or {})
    try:
        signature(make).bind(**arguments)
    except ValueError:  # what it takes cannot be known beforehand
        pass
    except TypeError as error:
        raise ConfigError(f"{factory} cannot be called with {', '.join(arguments)}: {error}.") from error
    return TensorEnvs(make(**arguments))
