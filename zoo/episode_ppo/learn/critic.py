"""The critic: a tanh network whose outputs are in units of the returns' own spread, whatever the size of the rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lzero_async.runs.soundness import check_finite
from zoo.mbpo.learn.networks import BatchedMLP, copies_of

SLOWEST = 0.1  # share of the newest batch in the running statistics, from the tenth batch on
SMALLEST_STD = 1e-3


class Critic:
    """Values of observations. `mean` and `std` follow the returns; the last layer is corrected for that."""

    def __init__(self, sizes: Sequence[int], generator: torch.Generator) -> None:
        self.network = BatchedMLP([*sizes, 1], 0, torch.tanh_, generator)
        self.mean, self.std = 0.0, 1.0
        self._square, self._batches = 1.0, 0

    def scaled(self, obs: Tensor) -> Tensor:
        """Values [N] in units of `std` above `mean`, with their graph."""
        return self.network(obs).squeeze(1)

    @torch.no_grad()
    def values(self, obs: Tensor) -> NDArray[Any]:
        """Values [N] float64 in the units of the rewards."""
        return self.scaled(obs).cpu().numpy().astype(np.float64) * self.std + self.mean

    def scale(self, returns: NDArray[Any]) -> NDArray[Any]:
        """These returns in the units of `scaled`."""
        return (returns - self.mean) / self.std

    @torch.no_grad()
    def follow(self, returns: NDArray[Any]) -> None:
        """Move `mean` and `std` toward those of `returns`; the values of all observations stay what they are.

        Only the first time they move along: an untrained critic then starts at the mean instead of far from all returns.
        Returns whose mean square is not finite raise BadData and change nothing.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            new_mean, new_square = float(returns.mean()), float(np.square(returns).mean())
        check_finite("the mean square of the returns", new_square)
        self._batches += 1
        share = max(1.0 / self._batches, SLOWEST)
        mean = self.mean + share * (new_mean - self.mean)
        self._square += share * (new_square - self._square)
        std = max(math.sqrt(max(self._square - mean * mean, 0.0)), SMALLEST_STD)
        if self._batches > 1:
            weight, bias = self.network.parameters[-2:]
            weight *= self.std / std
            bias *= self.std / std
            bias += (self.mean - mean) / std
        self.mean, self.std = mean, std

    def state_dict(self) -> dict[str, Any]:
        """Weights and running statistics."""
        numbers = {"mean": self.mean, "std": self.std, "square": self._square, "batches": self._batches}
        return {"network": copies_of(self.network.named()), **numbers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned; another network size raises ConfigError."""
        self.network.load(state["network"])
        self.mean, self.std, self._square = (float(state[name]) for name in ("mean", "std", "square"))
        self._batches = int(state["batches"])
