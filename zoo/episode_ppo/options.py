"""Every option of whole-episode PPO: its default, what it may be, and its meaning. Checked here, once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from easydict import EasyDict

from lzero_async.errors import ConfigError
from lzero_async.runs.options import (
    WATCHING,
    Option,
    OptionTable,
    arguments,
    between,
    device,
    flag,
    nonempty,
    optional,
    ray_options,
    seed,
    whole,
    words,
)
from lzero_async.validation import LONGEST, duration, positive_number

ASYNC, SYNC = "async", "sync"
DEFAULT_DEGREE: Final = 2
GROUPS: dict[str, dict[str, Option]] = {
    "environment": {
        "env": Option("CartPole-v1", nonempty, "any gymnasium id (also module:Name-v0), or module:factory"),
        "env_args": Option({}, arguments, "arguments of the environment as one JSON object; --env_arg adds one at a time"),
        "n_envs": Option(100, whole(1), "environments in all"),
        "num_workers": Option(0, whole(0), "processes that they are spread over (0: one per core; sync: one)"),
        "step_timeout": Option(
            300.0, between(0.01, 86_400), "seconds for a reset or step; an environment that takes longer is replaced"
        ),
        "max_episode_steps": Option(1_000_000, whole(1), "an episode that is longer is cut, as by a time limit"),
        "step_seconds": Option(
            0.0, between(0, 3600), "extra seconds that a step waits on average, as a slow simulator would"
        ),
        "step_sigma": Option(0.0, between(0, 5), "how uneven these waits are: sigma of a lognormal distribution"),
    },
    "run": {
        "collector": Option(ASYNC, words(ASYNC, SYNC), "async: whole episodes, nobody waits; sync: a barrier at every step"),
        "exp_name": Option("runs/episode_ppo", nonempty, "folder for everything that the run writes"),
        "seed": Option(0, seed, "seed of everything random"),
        "total_episodes": Option(100_000, whole(0), "episodes to train on, rounded up to whole updates (0: no limit)"),
        "episodes_per_update": Option(100, whole(1), "episodes of one update"),
        "max_seconds": Option(0.0, between(0, LONGEST), "seconds after which to end (0: no limit)"),
        "target_return": Option(
            None, optional(between(-1e12, 1e12)), "mean return of an evaluation that ends the run", kind=float
        ),
        "eval_every": Option(5, whole(0), "updates between evaluations (0: none)"),
        "eval_episodes": Option(20, whole(1), "episodes of an evaluation"),
        "on_bad_update": Option(
            "skip", words("skip", "stop"),
            "a loss or gradient that is not finite: skip that gradient step and count it, or stop the run",
        ),
        "checkpoint_every": Option(20, whole(0), "updates between checkpoints (0: only at the end)"),
    },
    "watching": dict(WATCHING),
    "staleness": {
        "off_policy_degree": Option(
            None, optional(whole(0)),
            f"how many updates old an episode's policy may be when it is trained on (default: {DEFAULT_DEGREE}; sync: 0, "
            "strictly in turn)", kind=int,
        ),
        "staleness_policy": Option(
            "wait", words("wait", "drop", "allow"),
            "wait: the learner waits for old episodes, so that none is older; drop: older ones are dropped and counted; allow: "
            "they are used and reported",
        ),
    },
    "where": {
        "device": Option("auto", device, "of the learner: auto, cpu, cuda or cuda:N"),
        "backend": Option(
            "auto", words("auto", "thread", "process", "ray"),
            "where the roles live; auto: processes; thread: all in one; ray: on a Ray cluster",
        ),
        **ray_options("envs", "evaluator", "learner"),
        "torch_threads": Option(1, whole(1), "torch threads of the learner"),
        "max_restarts": Option(5, whole(0), "restarts in a row of a role that fails"),
        "restart_backoff": Option(0.2, duration, "seconds before the first of them, doubling"),
    },
    "agent": {
        "learning_rate": Option(1e-3, positive_number, "of actor and critic"),
        "learning_rate_decay": Option(True, flag, "let it fall to 0 until total_episodes"),
        "hidden_size": Option(64, whole(1), "width of actor and critic"),
        "hidden_layers": Option(2, whole(1), "their hidden layers"),
        "discount": Option(0.99, between(0, 1), "per step"),
        "gae_lambda": Option(0.95, between(0, 1), "how far advantages look ahead"),
        "clip": Option(0.2, positive_number, "how far a probability may move from what it was when the episode was played"),
        "entropy_weight": Option(0.01, between(0, 1e6), "reward for undecided policies"),
        "value_weight": Option(0.5, positive_number, "weight of the critic's loss"),
        "epochs": Option(6, whole(1), "passes over the episodes of an update"),
        "minibatch_size": Option(256, whole(1), "steps of one gradient step"),
        "max_grad_norm": Option(0.5, positive_number, "longer gradients are cut"),
        "target_kl": Option(
            None, optional(positive_number), "an update ends early when the policy has moved further than this", kind=float
        ),
    },
}  # fmt: skip
TABLE: Final = OptionTable(GROUPS, ("resume", "env_arg"))
AGENT: Final = tuple(name for name in GROUPS["agent"] if name != "learning_rate_decay")  # arguments of PPO
FIXED: Final = ("env", "env_args", "hidden_size", "hidden_layers")  # a resumed run keeps these; all others may change


def build_options(changes: Mapping[str, Any], *, saved: Mapping[str, Any] | None = None) -> EasyDict:
    """The checked options: defaults, then those of a `saved` run, then `changes`."""
    kept = {name: value for name, value in (saved or {}).items() if name in TABLE.options}
    if changes.get("collector", kept.get("collector")) != kept.get("collector"):
        # What suits the one collector is not what suits the other.
        for name in ("off_policy_degree", "staleness_policy"):
            kept.pop(name, None)
    options = EasyDict(TABLE.check({**kept, **changes}))
    options.env_args = dict(options.env_args)
    if options.off_policy_degree is None:
        options.off_policy_degree = 0 if options.collector == SYNC else DEFAULT_DEGREE
    _check_together(options)
    return options


def _check_together(options: EasyDict) -> None:
    if options.collector == ASYNC and options.off_policy_degree == 0:
        raise ConfigError(
            "off_policy_degree 0 is strictly in turn, and the async collector plays while the learner learns; use at least 1, "
            "or --collector sync."
        )
    if options.target_return is not None and not options.eval_every:
        raise ConfigError("target_return is set, but eval_every is 0, so that it is never looked at; set eval_every.")
    if options.num_workers > options.n_envs:
        raise ConfigError(
            f"num_workers is {options.num_workers}, more than n_envs {options.n_envs}; a worker needs an environment."
        )
    if options.step_sigma and not options.step_seconds:
        raise ConfigError("step_sigma is set, but step_seconds is 0, so that no step waits; set step_seconds too.")
    if options.off_policy_degree == 0 and options.staleness_policy != "wait":
        raise ConfigError(
            f"staleness_policy is {options.staleness_policy!r}, but at off_policy_degree 0 nothing is stale; leave it out."
        )


def shares_of(options: EasyDict) -> list[int]:
    """How many environments each worker has. A barrier over several processes costs messages at every step, so with it there is
    one worker unless the user says otherwise, which pays for environments that compute for a millisecond or more."""
    workers = options.num_workers or (1 if options.collector == SYNC else min(options.n_envs, os.cpu_count() or 1))
    return [options.n_envs // workers + (place < options.n_envs % workers) for place in range(workers)]


def rounds_at_once(options: EasyDict) -> int:
    """Rounds that may be played at the same time."""
    return 1 if options.collector == SYNC else max(1, int(options.off_policy_degree))
