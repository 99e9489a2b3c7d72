"""The checkpoints of whole-episode PPO: one safetensors file each, written and read by the learner's role."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lzero_async.runs import checkpoint
from lzero_async.runs.options import as_dict
from zoo.episode_ppo.options import FIXED, EpisodePPOOptions

KIND: Final = checkpoint.CheckpointKind("lzero-async.episode_ppo", 2, "episode PPO")


def load_whole(path: str | Path) -> dict[str, Any]:
    """A checkpoint with its arrays; ConfigError for one that cannot be read."""
    return checkpoint.load(Path(path), KIND)


def load_description(path: str | Path) -> dict[str, Any]:
    """The same without its arrays: quick, and without torch."""
    return checkpoint.load(Path(path), KIND, arrays=False)


def check_same_run(path: str | Path, state: Mapping[str, Any], options: EpisodePPOOptions) -> None:
    """ConfigError if a run with these options cannot go on from `state`, which was loaded from `path`."""
    checkpoint.check_same_run(path, state, as_dict(options), FIXED)
