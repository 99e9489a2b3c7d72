"""The carrier of all data: N transitions as five arrays. Needs numpy only, so that collectors start without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lzero_async.errors import ConfigError

if TYPE_CHECKING:
    import torch

    Array = NDArray[Any] | torch.Tensor


class Transitions(NamedTuple):
    """N environment steps, float32: all numpy arrays, or all torch tensors of one device.

    `len()` is the tuple's, 5; `count` is the number of transitions.
    """

    obs: Array  # [N, O]
    action: Array  # [N, A], scaled to [-1, 1]
    reward: Array  # [N]
    next_obs: Array  # [N, O]; of the step itself, never the first observation of a new episode
    terminated: Array  # [N], 1 where the episode ended in a terminal state; a time limit is 0

    @property
    def count(self) -> int:  # type: ignore[override]  # a tuple's own `count` is of no use here
        """Number of transitions."""
        return int(self.obs.shape[0])

    def take(self, rows: Any) -> Transitions:
        """The transitions at `rows`: a slice, a mask or indices."""
        return Transitions(*(field[rows] for field in self))

    def to_arrays(self) -> dict[str, Array]:
        """The fields by name, as a checkpoint or a message holds them."""
        return self._asdict()

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Transitions:
        """The inverse of `to_arrays`; missing or unequal fields raise ConfigError."""
        try:
            found = cls(*(arrays[name] for name in cls._fields))
        except KeyError as error:
            raise ConfigError(f"transitions lack the field {error}; they need {', '.join(cls._fields)}.") from error
        check(found)
        return found


def check(transitions: Transitions) -> None:
    """Raise ConfigError unless the five fields have the shapes of the same number of transitions."""
    shapes = {name: tuple(field.shape) for name, field in zip(transitions._fields, transitions, strict=True)}
    obs, action = shapes["obs"], shapes["action"]
    right = (
        len(obs) == 2
        and len(action) == 2
        and action[0] == obs[0]
        and shapes["next_obs"] == obs
        and shapes["reward"] == shapes["terminated"] == obs[:1]
    )
    if not right:
        raise ConfigError(
            f"transitions have the shapes {shapes}; "
            "they must be obs [N, O], action [N, A], reward [N], next_obs [N, O] and terminated [N]."
        )


def concatenate(parts: Sequence[Transitions]) -> Transitions:
    """All parts in their order as one; no part at all raises ConfigError."""
    if not parts:
        raise ConfigError("there are no transitions to concatenate; give at least one part.")
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0].obs, np.ndarray):
        return Transitions(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))
    import torch

    return Transitions(*(torch.cat(fields) for fields in zip(*parts, strict=True)))
