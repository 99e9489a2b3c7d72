"""UniZero's update by several ranks, each on its share of a batch, equal to the update of one process on the whole batch.

Four things of UniZero depend on the whole batch. Its losses are sums over steps divided by the number of steps that are not
padding, which differs from share to share: each rank's losses are weighted by its part of those. Its encoder has batch
normalisation: see shared_norm. Gradients are clipped by their norm, which is that of the sum: they are added up first. And what
is logged are means over the batch.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.jericho.priorzero.learn.careful import BadUpdate, CarefulUpdate
from zoo.jericho.priorzero.learn.ddp_norm import share_norms
from zoo.jericho.priorzero.learn.learner import LOSSES
from zoo.jericho.priorzero.learn.rank_errors import GroupBroken, RankFailed
from zoo.jericho.priorzero.learn.rank_group import RankGroup

_OF_FOLLOWED = ("obs_loss",)  # means over the steps that follow another
_OF_ROWS = ("target_reward", "target_value")  # means over everything, padding too
_NORM = "total_grad_norm_before_clip_wm"


class Share(NamedTuple):
    """One rank's rows of a batch; of the whole batch the steps that are not padding, and those of them that follow another."""

    data: list[list[NDArray[Any]]]
    update: int
    steps: float
    followed: float


def shares(data: list[list[NDArray[Any]]], update: int, ranks: int) -> list[Share]:
    """Cut a sampled batch into equal shares of neighbouring rows."""
    mask = np.asarray(data[0][3])[:, :-1]  # UniZero leaves the last column out as well
    steps, followed = float(mask.sum()), float(mask[:, 1:].sum())
    rows = len(mask) // ranks
    return [
        Share([[part[rank * rows : (rank + 1) * rows] for part in half] for half in data], update, steps, followed)
        for rank in range(ranks)
    ]


def share_config(cfg: Any, ranks: int) -> Any:
    """UniZero's configuration for a rank: its share of the rows, and gradients that are not clipped before they are added."""
    cfg = copy.deepcopy(cfg)
    cfg.batch_size //= ranks
    cfg.grad_clip_value = math.inf
    return cfg


class SharedUpdate:
    """One rank's part in every update; `policy` is made with `share_config`, `clip` is the norm to clip to."""

    def __init__(self, policy: Any, group: RankGroup, clip: float) -> None:
        self._group, self._clip = group, clip
        world_model = policy._model.world_model
        self._parameters = [one for one in world_model.parameters() if one.requires_grad]
        self._compute_loss = world_model.compute_loss
        world_model.compute_loss = self._weighted_loss
        policy._optimizer_world_model.register_step_pre_hook(self._before_step)
        for model in (policy._model, policy._target_model):
            share_norms(model, group)
        # After the above: it looks at the weighted loss, and at the gradients of the whole batch, the same bits in every rank.
        self._careful = CarefulUpdate(policy, group.any)
        self._share = Share([], 0, 1.0, 1.0)
        self._parts = (0.0, 0.0)  # this rank's part of the steps, and of those that follow another
        self._norm = 0.0

    def run(self, share: Share) -> dict[str, float]:
        """Make the update; the losses are those of the whole batch. BadUpdate is raised in all ranks, or in none.

        What fails here is raised here, and RankFailed in all other ranks, none of which waits for this one any longer.
        """
        self._share = share
        try:
            numbers = self._numbers(self._careful(share.data, share.update))
        except (BadUpdate, GroupBroken, RankFailed):
            raise
        except Exception:
            self._group.tell_failure()
            raise
        found = dict(zip(LOSSES, self._group.add_up(numbers).tolist(), strict=True))
        return found | {_NORM: self._norm}

    def _weighted_loss(self, batch: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        """UniZero's loss of the share, weighted so that the sum over all ranks is the loss of the whole batch."""
        losses = self._compute_loss(batch, *args, **kwargs)
        mask, found = batch["mask_padding"], losses.intermediate_losses
        steps, followed = float(mask.sum()), float(mask[:, 1:].sum())
        self._parts = steps / self._share.steps, followed / self._share.followed if followed else 0.0
        losses.loss_total = self._parts[0] * (
            losses.reward_loss_weight * found["loss_rewards"]
            + losses.value_loss_weight * found["loss_value"]
            + losses.policy_loss_weight * found["loss_policy"]
        )
        if followed:  # else it is 0 / 0
            losses.loss_total = losses.loss_total + self._parts[1] * losses.obs_loss_weight * found["loss_obs"]
        return losses

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Between UniZero's backward pass and its optimizer's step: the gradients of the whole batch, clipped.

        A share without a step that follows another has no gradient for the head that predicts those, but the batch has.
        """
        has = torch.tensor([float(one.grad is not None) for one in self._parameters], device=self._group.device)
        flat = torch.cat([has, *(_gradient(one).reshape(-1) for one in self._parameters)])
        total = self._group.add_up(flat)
        counts, place = total[: len(has)].tolist(), len(has)
        for one, count in zip(self._parameters, counts, strict=True):
            if count:
                one.grad = total[place : place + one.numel()].view_as(one).clone()
            place += one.numel()
        self._norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._clip))

    def _numbers(self, logged: dict[str, float]) -> torch.Tensor:
        """What this rank adds to the whole batch's LOSSES."""
        steps, followed = self._parts
        weights = dict.fromkeys(LOSSES, steps) | dict.fromkeys(_OF_FOLLOWED, followed)
        weights |= dict.fromkeys(_OF_ROWS, 1 / self._group.ranks) | {"weighted_total_loss": 1.0, _NORM: 0.0}
        return torch.tensor([weights[name] * logged[name] if weights[name] else 0.0 for name in LOSSES])


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
