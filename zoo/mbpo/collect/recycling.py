"""Arrays for collected transitions that are used again as soon as nobody else holds them.

A parcel that leaves its process is a copy, so there the same arrays serve every collect. Within one process whoever got
the transitions may keep them, or a slice of them, as long as they like: such arrays are left alone and others are made.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from zoo.mbpo.learn.transitions import Transitions

KEPT_SETS: Final = 4


class RecycledRows:
    """Hands out Transitions of uninitialised float32 arrays for transitions of one size."""

    def __init__(self, obs_size: int, action_size: int) -> None:
        self._obs_size, self._action_size = obs_size, action_size
        self._sets: list[tuple[NDArray[Any], ...]] = []

    def take(self, rows: int) -> Transitions:
        """Arrays of `rows` rows that nobody else holds; they count as held until the last reference to them is gone."""
        for arrays in self._sets:
            if len(arrays[0]) == rows and _most_references(arrays) == _UNHELD:
                return Transitions(*arrays)
        arrays = tuple(np.empty((rows, *shape), dtype=np.float32) for shape in self._shapes())
        self._sets = [*self._sets[-(KEPT_SETS - 1) :], arrays]
        return Transitions(*arrays)

    def _shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of one row of each field of Transitions."""
        obs, action = (self._obs_size,), (self._action_size,)
        return obs, action, (), obs, ()


def _most_references(arrays: tuple[NDArray[Any], ...]) -> int:
    """The largest number of references to one of them; a slice or a tensor over an array is a reference, too."""
    return max(sys.getrefcount(array) for array in arrays)


_UNHELD: Final = _most_references((np.empty(0),))  # measured: how many the call itself takes differs between Pythons
