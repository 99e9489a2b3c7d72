"""Every option of whole-episode PPO: its type, default, range and meaning. Checked here, once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Final, Literal

from lzero_async.errors import ConfigError
from lzero_async.runs.checks import arguments, between, device, nonempty, resources, seed, whole
from lzero_async.runs.options import RAY_ADDRESS, Also, CommandLine, Resources, Watching, ray_needs
from lzero_async.validation import LONGEST, duration, positive_number

ASYNC, SYNC = "async", "sync"
KINDS: Final = ("envs", "evaluator", "learner")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Environment."""

    env: Annotated[str, nonempty, "any gymnasium id (also module:Name-v0), or module:factory"] = "CartPole-v1"
    env_args: Annotated[
        dict[str, Any], arguments, "arguments of the environment as one JSON object; --env_arg adds one at a time"
    ] = field(default_factory=dict)
    num_envs: Annotated[int, whole(1), "environments in all", Also("n_envs")] = 100
    num_workers: Annotated[int, whole(0), "processes that they are spread over (0: one per core; sync: one)"] = 0
    step_timeout: Annotated[
        float, between(0.01, 86_400), "seconds for a reset or step; an environment that takes longer is replaced"
    ] = 300.0
    max_episode_steps: Annotated[int, whole(1), "an episode that is longer is cut, as by a time limit"] = 1_000_000
    step_seconds: Annotated[
        float, between(0, 3600), "extra seconds that a step waits on average, as a slow simulator would"
    ] = 0.0
    step_sigma: Annotated[float, between(0, 5), "how uneven these waits are: sigma of a lognormal distribution"] = 0.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """Run."""

    collector: Annotated[
        Literal["async", "sync"], "async: whole episodes, nobody waits; sync: a barrier at every step"
    ] = "async"
    exp_name: Annotated[str, nonempty, "folder for everything that the run writes"] = "runs/episode_ppo"
    seed: Annotated[int, seed, "seed of everything random"] = 0
    total_episodes: Annotated[int, whole(0), "episodes to train on, rounded up to whole updates (0: no limit)"] = (
        100_000
    )
    episodes_per_update: Annotated[int, whole(1), "episodes of one update"] = 100
    max_seconds: Annotated[float, between(0, LONGEST), "seconds after which to end (0: no limit)"] = 0.0
    target_score: Annotated[
        float | None,
        between(-1e12, 1e12),
        "mean return that ends the run, once a second evaluation confirms it (default: none)",
        Also("target_return"),
    ] = None
    eval_every: Annotated[int, whole(0), "updates between evaluations (0: none)"] = 5
    eval_episodes: Annotated[int, whole(1), "episodes of an evaluation"] = 20
    on_bad_update: Annotated[
        Literal["skip", "stop"],
        "a loss or gradient that is not finite: skip that gradient step and count it, or stop the run",
    ] = "skip"
    checkpoint_every: Annotated[int, whole(0), "updates between checkpoints (0: only at the end)"] = 20


@dataclass(frozen=True, kw_only=True)
class Staleness:
    """Staleness."""

    off_policy_degree: Annotated[
        int,
        whole(0),
        "how many updates old an episode's policy may be when it is trained on; the sync collector's is 0, strictly in turn",
    ] = 2
    staleness_policy: Annotated[
        Literal["wait", "drop", "allow"],
        "wait: the learner waits for old episodes, so that none is older; drop: older ones are dropped and counted; allow: they "
        "are used and reported",
    ] = "wait"


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where."""

    device: Annotated[str, device, "of the learner: auto, cpu, cuda or cuda:N"] = "auto"
    backend: Annotated[
        Literal["auto", "thread", "process", "ray"],
        "where the roles live; auto: processes; thread: all in one; ray: on a Ray cluster",
    ] = "auto"
    ray_address: Annotated[str, RAY_ADDRESS] = ""
    ray_resources: Annotated[Resources, resources(*KINDS), ray_needs(*KINDS)] = field(default_factory=dict)
    torch_threads: Annotated[int, whole(1), "torch threads of the learner"] = 1
    max_restarts: Annotated[int, whole(0), "restarts in a row of a role that fails"] = 5
    restart_backoff: Annotated[float, duration, "seconds before the first of them, doubling"] = 0.2


@dataclass(frozen=True, kw_only=True)
class Agent:
    """Agent."""

    learning_rate: Annotated[float, positive_number, "of actor and critic"] = 1e-3
    learning_rate_decay: Annotated[bool, "let it fall to 0 until total_episodes"] = True
    hidden_size: Annotated[int, whole(1), "width of actor and critic"] = 64
    hidden_layers: Annotated[int, whole(1), "their hidden layers"] = 2
    discount: Annotated[float, between(0, 1), "per step"] = 0.99
    gae_lambda: Annotated[float, between(0, 1), "how far advantages look ahead"] = 0.95
    clip: Annotated[
        float, positive_number, "how far a probability may move from what it was when the episode was played"
    ] = 0.2
    entropy_weight: Annotated[float, between(0, 1e6), "reward for undecided policies"] = 0.01
    value_weight: Annotated[float, positive_number, "weight of the critic's loss"] = 0.5
    epochs: Annotated[int, whole(1), "passes over the episodes of an update"] = 6
    minibatch_size: Annotated[int, whole(1), "steps of one gradient step"] = 256
    max_grad_norm: Annotated[float, positive_number, "longer gradients are cut"] = 0.5
    target_kl: Annotated[
        float | None, positive_number, "an update ends early when the policy has moved further than this"
    ] = None


@dataclass(frozen=True, kw_only=True)
class EpisodePPOOptions(Environment, Run, Watching, Staleness, Where, Agent):
    """All options of a run."""


COMMAND: Final = CommandLine(EpisodePPOOptions, ("resume", "env_arg", "red_agent"))
OPTIONS: Final = COMMAND.options
AGENT: Final = tuple(one.name for one in fields(Agent) if one.name != "learning_rate_decay")  # arguments of PPO
FIXED: Final = ("env", "env_args", "hidden_size", "hidden_layers")  # a resumed run keeps these; all others may change


def build_options(changes: Mapping[str, Any], *, saved: Mapping[str, Any] | None = None) -> EpisodePPOOptions:
    """The checked options: defaults, then those of a `saved` run, then `changes`."""
    given = COMMAND.named(changes)
    kept = COMMAND.named({name: value for name, value in (saved or {}).items() if COMMAND.has(name)})
    if given.get("collector", kept.get("collector")) != kept.get("collector"):
        # What suits the one collector is not what suits the other.
        for name in ("off_policy_degree", "staleness_policy"):
            kept.pop(name, None)
    values = {**kept, **given}
    if values.get("collector") == SYNC:
        values.setdefault("off_policy_degree", 0)
    options = EpisodePPOOptions(**COMMAND.check(values))
    _check_together(options)
    return options


def _check_together(options: EpisodePPOOptions) -> None:
    if options.collector == ASYNC and options.off_policy_degree == 0:
        raise ConfigError(
            "off_policy_degree 0 is strictly in turn, and the async collector plays while the learner learns; use at least 1, "
            "or --collector sync."
        )
    if options.target_score is not None and not options.eval_every:
        raise ConfigError("target_score is set, but eval_every is 0, so that it is never looked at; set eval_every.")
    if options.num_workers > options.num_envs:
        raise ConfigError(
            f"num_workers is {options.num_workers}, more than num_envs {options.num_envs}; a worker needs an environment."
        )
    if options.step_sigma and not options.step_seconds:
        raise ConfigError("step_sigma is set, but step_seconds is 0, so that no step waits; set step_seconds too.")
    if options.off_policy_degree == 0 and options.staleness_policy != "wait":
        raise ConfigError(
            f"staleness_policy is {options.staleness_policy!r}, but at off_policy_degree 0 nothing is stale; leave it out."
        )


def shares_of(options: EpisodePPOOptions) -> list[int]:
    """How many environments each worker has. A barrier over several processes costs messages at every step, so with it there is
    one worker unless the user says otherwise, which pays for environments that compute for a millisecond or more."""
    workers = options.num_workers or (1 if options.collector == SYNC else min(options.num_envs, os.cpu_count() or 1))
    return [options.num_envs // workers + (place < options.num_envs % workers) for place in range(workers)]


def rounds_at_once(options: EpisodePPOOptions) -> int:
    """Rounds that may be played at the same time."""
    return 1 if options.collector == SYNC else max(1, options.off_policy_degree)
