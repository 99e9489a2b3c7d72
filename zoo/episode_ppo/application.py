"""Whole-episode PPO as an application of lzero-async: its entry point names this, and the tools know of it what is said here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lzero_async.runs.applications import ApplicationEntry, Comparison, PipelineDescription, Rounds

if TYPE_CHECKING:
    from zoo.episode_ppo.options import EpisodePPOOptions

APPLICATION = ApplicationEntry(
    name="episode_ppo",
    help="PPO on whole episodes, without a step barrier",
    train="zoo.episode_ppo.train:main",
    policy="zoo.episode_ppo.policy:load",
    comparison=Comparison(
        sync=("--collector", "sync"),
        ways={"async": ("--collector", "async")},
        limits={"total_episodes": ("--total_episodes", "0")},
        async_defaults={},
        # A barrier over several processes is slower, so the baseline keeps its one worker.
        async_only=frozenset(["off_policy_degree", "staleness_policy", "num_workers"]),
        refused={"collector": "it is what is compared"},
    ),
)


def describe(options: EpisodePPOOptions, played: Any) -> PipelineDescription:
    """The pipeline of a run with these options whose environments have `played` so much."""
    sync = options.collector == "sync"
    return PipelineDescription(
        environments=options.num_envs,
        least_degree=1,
        flags="--off_policy_degree {degree}",
        size_flags="--num_envs {environments} --episodes_per_update {episodes}",
        amounts={"episodes": options.episodes_per_update},
        one_collector="environments are dealt episodes of any open round; --num_envs and --num_workers say how many play",
        rounds=Rounds(options.episodes_per_update, played.at_once, played.complete, played.steps, played.busy_seconds),
        refused="it was made with --collector sync, which says nothing of episodes without a barrier; give a run with "
        "--collector async" * sync,
        notes=("Degree 0 is --collector sync, with a barrier at every step; it is not simulated.",) * (not sync),
    )
