"""MBPO's checkpoints: one safetensors file each, written and read by the learner's role."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lzero_async.errors import ConfigError
from lzero_async.runs import checkpoint
from lzero_async.runs.options import as_dict
from lzero_async.runs.soundness import first_bad
from zoo.mbpo.options import FIXED, MbpoOptions

KIND: Final = checkpoint.CheckpointKind("lzero-async.mbpo", 1, "MBPO")


def load_whole(path: str | Path) -> dict[str, Any]:
    """A checkpoint with its arrays; ConfigError for one that cannot be read, holds only the best weights, or has values that
    are not finite."""
    state = checkpoint.load(Path(path), KIND)
    if bad := unsound(state):
        raise ConfigError(
            f"{path} cannot be used: {bad}, and so would be all that is learned from it; use another one."
        )
    return state


def unsound(state: Mapping[str, Any]) -> str:
    """What is not finite in the networks, optimizers and data of a checkpoint; '' if all is well."""
    parts = {name: state.get(name) for name in ("learner", "other", "waiting", "weights")}
    for name in ("learner", "other"):
        part = parts[name]
        if isinstance(part, Mapping) and "dynamics" in part:  # its bounds are infinite as long as it has seen no data
            weights = {
                key: value
                for key, value in part["dynamics"]["weights"].items()
                if key not in ("low", "high") or (value != value).any()
            }
            parts[name] = {**part, "dynamics": {**part["dynamics"], "weights": weights}}
    return first_bad(parts)


def load_description(path: str | Path) -> dict[str, Any]:
    """The same without its arrays: quick, and without torch."""
    return checkpoint.load(Path(path), KIND, arrays=False)


def check_same_run(path: str | Path, state: Mapping[str, Any], options: MbpoOptions) -> None:
    """ConfigError if a run with these options cannot go on from `state`, which was loaded from `path`."""
    checkpoint.check_same_run(path, state, as_dict(options), FIXED)
