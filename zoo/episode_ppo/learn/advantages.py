"""Generalised advantage estimation over whole episodes, in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def gae(
    reward: NDArray[Any],
    value: NDArray[Any],
    last_value: NDArray[Any],
    length: NDArray[Any],
    discount: float,
    gae_lambda: float,
) -> NDArray[Any]:
    """Advantages [S] float64 of the steps of E episodes that lie one after the other, `length` [E] steps each.

    `reward` and `value` are [S]; `last_value` [E] is the value after the last step: 0 where the episode terminated.
    """
    ends = np.cumsum(length) - 1
    next_value = np.empty(len(value), dtype=np.float64)
    next_value[:-1] = value[1:]
    next_value[ends] = last_value
    deltas = reward + discount * next_value - value
    decay = np.full(len(deltas), discount * gae_lambda)
    decay[ends] = 0.0  # what comes behind an episode's end belongs to another one
    found, running = [], 0.0
    # Plain numbers: the recursion cannot be vectorised along an episode, and padding would multiply long ones.
    for delta, factor in zip(deltas[::-1].tolist(), decay[::-1].tolist(), strict=True):
        running = delta + factor * running
        found.append(running)
    return np.array(found[::-1])
