"""PriorZero as an application of lzero-async: its entry point names this, and the tools know of it what is said here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lzero_async.runs.applications import ApplicationEntry, Command, Comparison, PipelineDescription

if TYPE_CHECKING:
    from zoo.jericho.priorzero.sections import PriorZeroOptions

APPLICATION = ApplicationEntry(
    name="priorzero",
    help="PriorZero: UniZero with a language model's prior, on text games",
    train="zoo.jericho.priorzero.priorzero_entry:main",
    policy="zoo.jericho.priorzero.roles.policy:load",
    commands={
        "export-llm": Command(
            "write a run's language model as a folder for transformers and vLLM", "zoo.jericho.priorzero.roles.export:main"
        )
    },
    lock="lzero_async.lightzero:stack.lock.txt",
    comparison=Comparison(
        seconds=("--max_seconds", "{seconds:g}"),
        limits={"max_env_steps": ("--max_env_steps", "0")},
        defaults={
            "trace": ("--trace", "true"),
            "final_eval_modes": ("--final_eval_modes", "[]"),  # after the run: not compared
        },
        async_only=frozenset((
            "off_policy_degree", "num_collectors", "async_eval", "enable_async_eval", "adaptive_degree", "max_degree",
            "staleness_policy", "backend", "env_asynchrony",
        )),
    ),
)  # fmt: skip


def describe(options: PriorZeroOptions) -> PipelineDescription:
    """The pipeline of a run with these options."""
    policy, games = options.policy_config, options.env_config.num_envs
    own_pace = (
        "From degree 1 on each game goes at its own pace (env_asynchrony auto), and its collects may be shorter than those of "
        "degree 0: what a run with the one says of the other is less sure."
    )
    return PipelineDescription(
        collectors=policy.num_collectors,
        environments=policy.num_collectors * games,
        size_flags="--num_envs {each} --n_episode {episodes}",
        amounts={"episodes": policy.n_episode},
        notes=(own_pace,) if options.env_config.env_asynchrony == "auto" else (),
    )
