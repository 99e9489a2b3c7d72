"""Durations for simulations and fakes: a number, or a function of a random generator and the index of the call."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

Distribution = float | Callable[[random.Random, int], float]


def sample(distribution: Distribution, generator: random.Random, index: int) -> float:
    """One duration in seconds."""
    return distribution(generator, index) if callable(distribution) else float(distribution)


def lognormal(mean: float, sigma: float) -> Distribution:
    """Lognormal durations with this mean; `sigma` is the deviation of their logarithm."""
    mu = math.log(mean) - sigma * sigma / 2
    return lambda generator, index: generator.lognormvariate(mu, sigma)


def switch(at: int, before: Distribution, after: Distribution) -> Distribution:
    """`before` up to the call with index `at`, then `after`."""
    return lambda generator, index: sample(before if index < at else after, generator, index)
