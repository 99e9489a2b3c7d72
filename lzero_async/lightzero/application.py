"""LightZero's configs as an application of lzero-async: its entry point names this, and the tools know what is said here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lzero_async.runs.applications import ApplicationEntry, Command, Comparison, PipelineDescription

if TYPE_CHECKING:
    from lzero_async.lightzero.options import LightZeroOptions

MAIN = "lzero_async.lightzero.command:main"
APPLICATION = ApplicationEntry(
    name="lightzero",
    help="any LightZero config: lzero-async train lightzero CONFIG",
    train=MAIN,
    commands={"lightzero": Command("run a LightZero config asynchronously, unchanged", MAIN)},
    policy="lzero_async.lightzero.policy:load",
    lock="lzero_async.lightzero:stack.lock.txt",
    comparison=Comparison(
        subject="CONFIG",
        async_only=frozenset((
            "off_policy_degree", "num_collectors", "async_eval", "enable_async_eval", "staleness_policy", "backend", "threads"
        )),
    ),
)  # fmt: skip


def describe(options: LightZeroOptions, config: Mapping[str, Any]) -> PipelineDescription:
    """The pipeline of a run with these options."""
    each = int(config["env"]["collector_env_num"])
    return PipelineDescription(
        collectors=options.num_collectors,
        environments=options.num_collectors * each,
        size_flags=" ".join(f"--set {place}={{each}}" for place in _sizes(config)),
    )


def _sizes(config: Mapping[str, Any]) -> list[str]:
    """Where a config says how many environments a collector has, and what must not be less."""
    policy = config["policy"]
    places = ["env.collector_env_num", "policy.collector_env_num"]
    places += [f"policy.{name}" for name in ("n_episode", "num_segments") if policy.get(name) is not None]
    world = (policy.get("model") or {}).get("world_model_cfg") or {}
    return places + [
        f"policy.model.world_model_cfg.{name}" for name in ("env_num", "collector_env_num") if name in world
    ]
