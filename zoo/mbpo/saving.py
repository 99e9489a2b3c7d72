"""MBPO's checkpoints: one safetensors file each, written and read by the learner's role."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from lzero_async import checkpoint

KIND: Final = checkpoint.CheckpointKind("lzero-async.mbpo", 1, "MBPO")


def load_whole(path: str | Path) -> dict[str, Any]:
    """A checkpoint with its arrays; ConfigError for one that cannot be read or holds only the best weights."""
    return checkpoint.load(Path(path), KIND)


def load_description(path: str | Path) -> dict[str, Any]:
    """The same without its arrays: quick, and without torch."""
    return checkpoint.load(Path(path), KIND, arrays=False)
