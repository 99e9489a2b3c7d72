"""Environments by name: any gymnasium id, or `module:factory`. Needs no torch.

Observations become one vector of float32: a Box is flattened as it is, without scaling; a Discrete of n values becomes n
numbers of which one is 1; a MultiBinary becomes zeros and ones; a Dict or Tuple of these is their vectors one after the
other, a Dict's in the order of its space (gymnasium sorts the keys of a plain dictionary).

Actions are Discrete, counted from 0 whatever the space starts with, or a Box of floats: where both bounds are finite, [-1, 1]
is scaled to them; what lies outside the bounds is clipped.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lzero_async.errors import BadData, ConfigError, StepOverdue
from lzero_async.runs.soundness import check_finite, check_like
from lzero_async.workers.step_watch import StepWatch
from zoo.mbpo.envs.vectorised import make_by_id

KINDS = ("discrete", "box")
LARGEST = float(np.finfo(np.float32).max)  # rewards and observations are float32 from here on
API = "it must have gymnasium's interface: observation_space, action_space, reset(seed=...), step(action) and close()"
EXTRAS = {
    "nasim": "Install it with: pip install '.[nasim]'.",
    "tkinter": "It belongs to Python, not to pip: install python3-tk, or what your system calls it.",
}


class Spaces(NamedTuple):
    """What an agent needs to know of an environment."""

    obs_size: int  # numbers in a flattened observation
    kind: str  # "discrete" or "box"
    action_size: int  # number of actions, or of numbers in one action


class FlatEnv:
    """One environment with flat observations and unscaled actions; apart from that, gymnasium's interface. Observations and
    rewards that are not finite, or of a wrong shape or type, raise BadData; what is not gymnasium's interface, ConfigError."""

    def __init__(self, env: Any, name: str) -> None:
        for attribute in ("observation_space", "action_space", "reset", "step"):
            if not hasattr(env, attribute):
                raise ConfigError(f"env {name!r} gives a {type(env).__name__} without {attribute}; {API}.")
        self.env, self.name = env, name
        self.spaces = Spaces(_obs_size(name, env.observation_space), *_action_kind(name, env.action_space))
        self._where, self._shape = f"env {name!r}", _shape(env.observation_space)
        self._flatten = _flattener(env.observation_space)
        self.translate = _translator(env.action_space)

    def reset(self, seed: int | None = None) -> tuple[NDArray[Any], dict[str, Any]]:
        """Begin an episode: its first observation [O], an array of its own, and the environment's information."""
        found = self.env.reset(seed=seed)
        if not isinstance(found, tuple) or len(found) != 2:
            raise ConfigError(f"reset of env {self.name!r} gives no pair (observation, information); {API}.")
        return self.flat(found[0]), found[1]

    def flat(self, obs: Any) -> NDArray[Any]:
        """What the environment observes as a vector [O]; BadData for what does not fit its space."""
        if self._shape is not None:
            check_like("the observation", obs, self._shape, "fiub", self._where)
        try:
            flat = self._flatten(obs)
        except Exception as failure:  # whatever the parts of a Dict or Tuple raise
            raise BadData(f"the observation of {self._where} does not fit its space: {failure!r}") from failure
        check_like("the flattened observation", flat, (self.spaces.obs_size,), "f", self._where)
        check_finite("the observation", flat, self._where)
        return flat

    def _reward(self, reward: Any) -> float:
        try:
            value = float(reward)
        except (TypeError, ValueError) as failure:
            raise BadData(f"the reward of {self._where} is {reward!r}; it must be one number") from failure
        if not -LARGEST <= value <= LARGEST:
            check_finite("the reward", math.nan if math.isnan(value) else math.copysign(math.inf, value), self._where)
        return value

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Observation [O], reward, terminated, truncated and information after an action as the policy drew it."""
        found = self.env.step(self.translate(action))
        if not isinstance(found, tuple) or len(found) != 5:
            given = f"{len(found)} values" if isinstance(found, tuple) else f"a {type(found).__name__}"
            raise ConfigError(
                f"step of env {self.name!r} gives {given}; gymnasium's interface has 5: observation, reward, "
                "terminated, truncated and information. Wrap an environment of the older gym."
            )
        obs, reward, terminated, truncated, info = found
        return self.flat(obs), self._reward(reward), bool(terminated), bool(truncated), info

    def close(self) -> None:
        """End the environment, if it has an end."""
        if hasattr(self.env, "close"):
            self.env.close()


def make_env(spec: str, env_args: Mapping[str, Any] | None = None) -> FlatEnv:
    """An environment; `env_args` reach gymnasium.make or the factory as keyword arguments.

    With a colon, `spec` is `module:factory` if the module has that name, else the id of an environment that importing the
    module registers. What cannot be made or played raises ConfigError.
    """
    arguments = dict(env_args or {})
    factory = _factory(spec) if isinstance(spec, str) and ":" in spec else None
    if factory is None:
        return FlatEnv(make_by_id(spec, arguments), spec)
    _check_arguments(spec, factory, arguments)
    try:
        made = factory(**arguments)
    except ImportError as failure:
        reason = f"env {spec!r} cannot be made: {failure}."
        raise ConfigError(" ".join([reason, *_install_hint(spec.partition(":")[0], failure)])) from failure
    return FlatEnv(made, spec)


def describe(spec: str, env_args: Mapping[str, Any] | None = None, step_timeout: float = 300.0) -> Spaces:
    """The sizes of an environment, found by making one and resetting it; raises ConfigError for one that cannot be used."""
    env = make_env(spec, env_args)
    watch = StepWatch(step_timeout)
    try:
        with watch.running(f"reset of env {spec!r}"):
            _try_reset(env)
        return env.spaces
    except (BadData, StepOverdue) as failure:
        space = f" (its observation_space is {env.env.observation_space})" if isinstance(failure, BadData) else ""
        raise ConfigError(f"{failure}{space}; correct the environment.") from failure
    finally:
        watch.close()
        env.close()


def parse_env_args(pairs: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE pairs as keyword arguments; a value that is JSON is taken as such (3, true, [1, 2]), any other as text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, word = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name.isidentifier():
            raise ConfigError(f"env_arg is {pair!r}; it must be NAME=VALUE, such as red_agent=B_lineAgent.")
        if name in found:
            raise ConfigError(f"env_arg {name} is given twice; give it once.")
        try:
            found[name] = json.loads(word)
        except ValueError:
            found[name] = word
    return found


def _factory(spec: str) -> Callable[..., Any] | None:
    """What `module:name` names, or None if the name is a registered environment's."""
    import gymnasium

    module_name, _, name = spec.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as failure:
        reason = f"env is {spec!r}, but {module_name!r} cannot be imported: {failure}."
        raise ConfigError(" ".join([reason, *_install_hint(module_name, failure)])) from failure
    found = getattr(module, name, None)
    if callable(found):
        return found  # type: ignore[no-any-return]
    if found is None and name in gymnasium.registry:
        return None
    close = difflib.get_close_matches(name, [word for word in dir(module) if callable(getattr(module, word))], n=1)
    raise ConfigError(
        f"env is {spec!r}, but {module_name} has no function {name!r} and registers no such environment. "
        + (f"Did you mean {module_name}:{close[0]}?" if close else "Write it as module:function.")
    )


def _install_hint(module_name: str, failure: Exception) -> list[str]:
    """How to get what an import lacked, if it is known: that package, or else the one whose module was asked for."""
    lacked = (getattr(failure, "name", None) or "").lstrip("_")
    return [EXTRAS[name] for name in (lacked, module_name.partition(".")[0]) if name in EXTRAS][:1]


def _check_arguments(spec: str, factory: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Find wrong names before the call, so that a TypeError from inside the factory stays what it is."""
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some functions of compiled modules have none
        return
    try:
        signature.bind(**arguments)
    except TypeError as failure:
        raise ConfigError(f"env_args {arguments!r} do not fit {spec}{signature}: {failure}.") from failure


def _try_reset(env: FlatEnv) -> None:
    """Reset it, once more if that fails as an episode may; ConfigError if it takes no seed."""
    try:
        try:
            env.reset(seed=0)
        except (ConfigError, StepOverdue):
            raise
        except Exception:
            env.reset(seed=1)
    except TypeError as failure:
        if "seed" not in str(failure):
            raise
        raise ConfigError(f"reset of env {env.name!r} takes no seed ({failure}); {API}.") from failure


# -- spaces ----------------------------------------------------------------------------------------------------------------


def _obs_size(name: str, space: Any) -> int:
    from gymnasium.spaces import flatdim

    if not _can_be_flat(space):
        raise ConfigError(
            f"env {name!r} observes {space}; it must be a gymnasium Box, Discrete or MultiBinary, or a Dict or Tuple of these."
        )
    return int(flatdim(space))


def _can_be_flat(space: Any) -> bool:
    from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple

    if isinstance(space, (Dict, Tuple)):
        inner = space.spaces.values() if isinstance(space, Dict) else space.spaces
        return bool(inner) and all(map(_can_be_flat, inner))
    return isinstance(space, (Box, Discrete, MultiBinary))


def _action_kind(name: str, space: Any) -> tuple[str, int]:
    from gymnasium.spaces import Box, Discrete

    if isinstance(space, Discrete):
        return "discrete", int(space.n)
    if isinstance(space, Box) and np.issubdtype(space.dtype, np.floating):
        return "box", int(np.prod(space.shape))
    raise ConfigError(
        f"env {name!r} has the action space {space}; it must be a gymnasium Discrete, or a Box of floats. Wrap the "
        "environment to give it one of these."
    )


def _shape(space: Any) -> tuple[int, ...] | None:
    """Of a Box's observations; None for other spaces, whose flattened size is looked at."""
    from gymnasium.spaces import Box

    return tuple(space.shape) if isinstance(space, Box) else None


def _flattener(space: Any) -> Callable[[Any], NDArray[Any]]:
    """From an observation to a new vector; `np.array` copies, because environments may write into theirs again."""
    from gymnasium.spaces import Box, flatten

    if isinstance(space, Box):
        return lambda obs: np.array(obs, dtype=np.float32).reshape(-1)
    return lambda obs: np.array(flatten(space, obs), dtype=np.float32)


def _translator(space: Any) -> Callable[[Any], Any]:
    """From the policy's actions to the environment's."""
    from gymnasium.spaces import Discrete

    if isinstance(space, Discrete):
        start = int(space.start)
        return lambda action: int(action) + start
    low, high = space.low.reshape(-1).astype(np.float64), space.high.reshape(-1).astype(np.float64)
    finite = np.isfinite(low) & np.isfinite(high)
    half, middle = np.ones_like(low), np.zeros_like(low)
    half[finite] = (high[finite] - low[finite]) / 2
    middle[finite] = (high[finite] + low[finite]) / 2

    def scaled(action: NDArray[Any]) -> NDArray[Any]:
        inside = np.minimum(np.maximum(action * half + middle, low), high)
        sent: NDArray[Any] = inside.reshape(space.shape).astype(space.dtype)
        return sent

    return scaled
