"""Whole-episode PPO as an application of lzero-async; its entry point names this."""

from __future__ import annotations

from lzero_async.runs.applications import ApplicationEntry

APPLICATION = ApplicationEntry(
    name="episode_ppo",
    help="PPO on whole episodes, without a step barrier",
    train="zoo.episode_ppo.train:main",
)
