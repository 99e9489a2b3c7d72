"""Batch normalisation over the rows of all ranks, on any device (torch's SyncBatchNorm needs a GPU)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from zoo.jericho.priorzero.learn.rank_group import RankGroup


def share_norms(model: nn.Module, group: RankGroup) -> None:
    """Let every batch normalisation of the model use, while it trains, the mean and variance of all ranks' rows."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.forward = partial(_forward, module, group, module.forward)  # type: ignore[method-assign]


def _forward(norm: Any, group: RankGroup, alone: Any, rows: torch.Tensor) -> torch.Tensor:
    """The normalised rows; every rank has equally many."""
    if not norm.training:
        found: torch.Tensor = alone(rows)
        return found
    others = [axis for axis in range(rows.dim()) if axis != 1]
    count = rows.numel() // rows.shape[1]
    variances, means = torch.var_mean(rows, others, correction=0)
    table: torch.Tensor = _Gathered.apply(torch.stack([means, variances]), group)  # type: ignore[no-untyped-call]  # ranks, 2, channels
    mean = table[:, 0].mean(0)
    variance = table[:, 1].mean(0) + (table[:, 0] - mean).square().mean(0)
    with torch.no_grad():
        _keep(norm, mean, variance, count * group.ranks)
    shape = [1, -1] + [1] * (rows.dim() - 2)
    normal: torch.Tensor = (rows - mean.view(shape)) * (variance + norm.eps).rsqrt().view(shape)
    if norm.affine:
        normal = normal * norm.weight.view(shape) + norm.bias.view(shape)
    return normal


def _keep(norm: Any, mean: torch.Tensor, variance: torch.Tensor, count: int) -> None:
    """Move the running statistics as torch does: towards the mean and the unbiased variance."""
    if not norm.track_running_stats:
        return
    norm.num_batches_tracked += 1
    part = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean, part)
    norm.running_var.lerp_(variance * count / max(1, count - 1), part)


class _Gathered(torch.autograd.Function):
    """A tensor of every rank, one below the other; its gradient is the sum of what all ranks make of it."""

    @staticmethod
    def forward(ctx: Any, mine: torch.Tensor, group: RankGroup) -> torch.Tensor:
        ctx.group = group
        table = mine.new_zeros((group.ranks, *mine.shape))
        table[group.rank] = mine
        return group.add_up(table)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        group: RankGroup = ctx.group
        return group.add_up(gradient.contiguous().clone())[group.rank], None
