"""Draws rows in proportion to their priority: a binary tree of sums, all rows of a call at once."""

from __future__ import annotations

import torch
from torch import Tensor


class SumTree:
    """`capacity` weights >= 0, all 0 at first; float64, so that a sum of many small weights keeps its digits."""

    def __init__(self, capacity: int, device: str | torch.device = "cpu") -> None:
        self._depth = max(1, (capacity - 1).bit_length())
        self._leaves = 1 << self._depth
        self._capacity = capacity
        self._tree = torch.zeros(2 * self._leaves, dtype=torch.float64, device=device)

    @property
    def weights(self) -> Tensor:
        """The weight of each row, as a live view."""
        return self._tree[self._leaves : self._leaves + self._capacity]

    @property
    def total(self) -> Tensor:
        """The sum of all weights."""
        return self._tree[1]

    def set(self, rows: Tensor, weights: Tensor) -> None:
        """Give the rows new weights; a row that occurs twice gets one of its two."""
        nodes = rows + self._leaves
        self._tree[nodes] = weights.to(torch.float64)
        for _ in range(self._depth):
            nodes = nodes // 2
            self._tree[nodes] = self._tree[2 * nodes] + self._tree[2 * nodes + 1]

    def find(self, points: Tensor) -> Tensor:
        """The rows in whose share of the running sum the points, from [0, total), lie; never one of weight 0."""
        nodes = torch.ones(points.shape, dtype=torch.int64, device=points.device)
        for _ in range(self._depth):
            nodes = 2 * nodes
            left = self._tree[nodes]
            # Rounding may leave a point at the very end of the sum; an empty right half cannot have it.
            right = (points >= left) & (self._tree[nodes + 1] > 0)
            points = torch.where(right, points - left, points)
            nodes = nodes + right
        return nodes - self._leaves
