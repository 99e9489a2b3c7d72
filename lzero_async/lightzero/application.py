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
        size_flags="--set env.collector_env_num={each}",
    )
