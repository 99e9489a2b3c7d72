"""How the roles are made; torch is imported only where the learner lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from zoo.episode_ppo.envs.factories import FlatEnv
from zoo.episode_ppo.envs.waiting import make_waiting
from zoo.episode_ppo.options import EpisodePPOOptions

Emit = Callable[[Any], None]
PRELOAD = (
    "gymnasium",
    "torch._dynamo",  # by the first optimizer that is made
    "zoo.episode_ppo.learn.role",
    "zoo.episode_ppo.parallel_env_async",
    "zoo.episode_ppo.play.evaluator",
    "zoo.episode_ppo.play.step_barrier",
)


def env_factory(options: EpisodePPOOptions, *, waits: bool = True) -> Callable[[], FlatEnv]:
    """Makes one environment; evaluations leave the extra waits out, since they measure the policy."""
    seconds = options.step_seconds if waits else 0.0
    return partial(make_waiting, options.env, dict(options.env_args), seconds, options.step_sigma)


def make_workers_envs(options: EpisodePPOOptions, num_envs: int, worker: int, emit: Emit) -> Any:
    """The environments of one worker, with or without a barrier."""
    from zoo.episode_ppo.parallel_env_async import AsyncEnvs
    from zoo.episode_ppo.play.step_barrier import StepEnvs

    kind = StepEnvs if options.collector == "sync" else AsyncEnvs
    sizes = (num_envs, worker, options.seed)
    return kind(env_factory(options), *sizes, emit, options.max_episode_steps, options.step_timeout)


def make_evaluator(options: EpisodePPOOptions, num_envs: int, emit: Emit) -> Any:
    """The evaluator."""
    from zoo.episode_ppo.play.evaluator import EvaluatorRole

    make = env_factory(options, waits=False)
    return EvaluatorRole(make, num_envs, options.seed, emit, options.max_episode_steps, options.step_timeout)


def make_learner(options: EpisodePPOOptions, spaces: Sequence[Any], emit: Emit) -> Any:
    """The learner."""
    from zoo.episode_ppo.learn.role import LearnerRole

    return LearnerRole(options, spaces)
