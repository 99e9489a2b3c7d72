"""Where environments come from: gymnasium by id, or a function that makes a tensor-vectorised environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from zoo.mbpo.collect import roles as collecting
from zoo.mbpo.envs.vectorised import describe
from zoo.mbpo.options import MbpoOptions

Factory = Callable[[Callable[[Any], None]], Any]


class EnvSource(Protocol):
    """Makes the factories of the roles that play."""

    def sizes(self) -> tuple[int, int] | None:
        """Sizes of observation and action; None if only the environments themselves know."""

    def collector(self, num_envs: int, worker: int) -> Factory:
        """The factory of a collector with so many environments."""

    def evaluator(self, num_envs: int) -> Factory | None:
        """The factory of the evaluator; None if there cannot be one beside the collectors."""

    def description(self) -> dict[str, Any]:
        """What `source_of` makes the same source of, for a checkpoint."""


class GymSource:
    """Gymnasium's environments by id. Making it checks the id and the arguments."""

    def __init__(self, options: MbpoOptions) -> None:
        self._options = options
        self._sizes = describe(options.env, options.env_args)[:2]

    def sizes(self) -> tuple[int, int]:
        return self._sizes

    def collector(self, num_envs: int, worker: int) -> Factory:
        o = self._options
        return partial(
            collecting.gym_collector,
            o.env,
            num_envs,
            o.env_args,
            o.step_seconds,
            worker,
            o.seed,
            step_timeout=o.step_timeout,
        )

    def evaluator(self, num_envs: int) -> Factory:
        o = self._options  # evaluations measure the policy, not the simulator: they do not wait
        return partial(collecting.evaluator, o.env, num_envs, o.env_args, 0.0, o.seed, step_timeout=o.step_timeout)

    def description(self) -> dict[str, Any]:
        return {}


class TensorSource:
    """What the function at "module:function" makes, called with num_envs and whatever else it was given."""

    def __init__(
        self, options: MbpoOptions, factory: str, arguments: Mapping[str, Any], *, evaluates: bool = True
    ) -> None:
        self._options, self._factory, self._arguments = options, factory, dict(arguments)
        self._evaluates = evaluates

    def sizes(self) -> None:
        return None

    def collector(self, num_envs: int, worker: int) -> Factory:
        arguments = {**self._arguments, "num_envs": num_envs}
        o = self._options
        return partial(
            collecting.tensor_collector, self._factory, arguments, worker, o.seed, step_timeout=o.step_timeout
        )

    def evaluator(self, num_envs: int) -> Factory | None:
        if not self._evaluates:
            return None
        arguments = {**self._arguments, "num_envs": num_envs}
        o = self._options
        return partial(collecting.tensor_evaluator, self._factory, arguments, o.seed, step_timeout=o.step_timeout)

    def description(self) -> dict[str, Any]:
        return {"factory": self._factory, "arguments": self._arguments}


def source_of(options: Any, description: Mapping[str, Any], device: str) -> EnvSource:
    """The source of a run with these options, whose evaluator lives alone: tensor environments are made on `device`."""
    if not description:
        return GymSource(options)
    return TensorSource(options, description["factory"], {**description["arguments"], "device": device})
