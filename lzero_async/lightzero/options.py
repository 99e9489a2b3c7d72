"""Every option of an asynchronous LightZero run that the config does not have."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from lzero_async.errors import ConfigError
from lzero_async.runs.checks import between, nonempty, resources, seed, whole
from lzero_async.runs.options import RAY_ADDRESS, Also, CommandLine, Resources, Watching, ray_needs
from lzero_async.validation import LONGEST, duration

KINDS: Final = ("collector", "evaluator", "learner")
NO_LIMIT: Final = int(1e10)  # LightZero's own default


@dataclass(frozen=True, kw_only=True)
class Run:
    """Run; what is not given is as the config has it."""

    exp_name: Annotated[str | None, nonempty, "folder for everything that the run writes"] = None
    seed: Annotated[int, seed, "seed of everything random"] = 0
    max_env_step: Annotated[int, whole(1), "environment steps after which to end", Also("max_env_steps")] = NO_LIMIT
    max_train_iter: Annotated[int, whole(1), "updates after which to end"] = NO_LIMIT
    max_seconds: Annotated[float, between(0, LONGEST), "seconds after which to end (0: no limit)"] = 0.0
    checkpoint_seconds: Annotated[
        float,
        between(0, LONGEST),
        "seconds between checkpoints to resume from, replay buffer included (0: only at the end)",
    ] = 300.0


@dataclass(frozen=True, kw_only=True)
class Asynchrony:
    """Asynchrony; all but the last six may also stand in the config's policy section."""

    off_policy_degree: Annotated[
        int,
        whole(-1),
        "how many versions old the weights of a collect may be when it is trained; 0: LightZero's own order, bit for bit; "
        "-1: from the size of the buffer",
    ] = 2
    num_collectors: Annotated[int, whole(1), "collectors, each with all the environments of the config"] = 1
    async_eval: Annotated[
        bool, "evaluate in the background, on frozen weights, instead of between two trains", Also("enable_async_eval")
    ] = False
    backend: Annotated[
        Literal["auto", "inline", "process", "ray"],
        "where the roles live; auto: a process each, at degree 0 all in this one; ray: on a Ray cluster",
    ] = "auto"
    staleness_policy: Annotated[
        Literal["wait", "drop", "allow"],
        "wait: nothing is older than the degree; drop: what is older is dropped and counted; allow: it is used and reported",
    ] = "wait"
    threads: Annotated[
        int, whole(0), "torch threads of a role; 0: the cores divided by the roles, at degree 0 what torch chooses"
    ] = 0
    ray_address: Annotated[str, RAY_ADDRESS] = ""
    ray_resources: Annotated[Resources, resources(*KINDS), ray_needs(*KINDS)] = field(default_factory=dict)
    max_restarts: Annotated[int, whole(0), "restarts in a row of a role that fails"] = 5
    restart_backoff: Annotated[float, duration, "seconds before the first of them, doubling"] = 0.2
    hang_timeout: Annotated[float, duration, "seconds without a sign of life after which a role counts as hung"] = 60.0


@dataclass(frozen=True, kw_only=True)
class LightZeroOptions(Run, Asynchrony, Watching):
    """All options of a run."""


COMMAND: Final = CommandLine(LightZeroOptions, ("resume", "set", "list"))
IN_CONFIG: Final = (
    "off_policy_degree",
    "num_collectors",
    "async_eval",
    "enable_async_eval",
    "backend",
    "staleness_policy",
)


def build_options(given: dict[str, Any]) -> LightZeroOptions:
    """The checked options."""
    options = LightZeroOptions(**COMMAND.check(given))
    if options.backend == "inline" and (options.off_policy_degree or options.async_eval):
        raise ConfigError(
            "backend is 'inline', which only runs in turn; set off_policy_degree to 0, without async_eval."
        )
    if options.off_policy_degree == 0 and options.num_collectors > 1:
        raise ConfigError(
            f"num_collectors is {options.num_collectors}, but at off_policy_degree 0 one collects at a time; raise the degree."
        )
    return options


def backend_of(options: LightZeroOptions) -> str:
    """Where the roles live."""
    if options.backend != "auto":
        return options.backend
    return "process" if options.off_policy_degree or options.async_eval else "inline"


def threads_of(options: LightZeroOptions) -> int:
    """Torch threads of a role in a process of its own."""
    roles = options.num_collectors + 1 + options.async_eval
    return options.threads or max(1, (os.cpu_count() or 1) // roles)
