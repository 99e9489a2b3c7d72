"""Updates of UniZero that cannot spoil the model: one that is not finite is left out, and nothing of it stays.

UniZero computes the loss, its gradients and the optimizer's step in one function. The loss is looked at where it is computed,
the gradients just before the step. What the forward pass has moved by then, the running statistics of batch normalisation, is
put back; weights, moments of the optimizer and the target network have not changed yet.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from lzero_async.errors import BadData
from lzero_async.runs.soundness import check_finite, check_like, first_bad
from zoo.jericho.priorzero.play.open_game import Episode

MOST_BAD_UPDATES: Final = 10
"""Updates in a row that may be left out; the next one ends the run."""


class BadUpdate(BadData):
    """An update whose data, loss or gradients are not finite. It was left out: nothing has changed."""


class CarefulUpdate:
    """Makes updates of `policy`, or raises BadUpdate. `any_rank(bad)` says whether a loss is bad for one of those who share the
    update."""

    def __init__(self, policy: Any, any_rank: Callable[[bool], bool] = bool) -> None:
        self._policy, self._any_rank = policy, any_rank
        world_model = policy._model.world_model
        self._compute_loss = world_model.compute_loss
        world_model.compute_loss = self._checked_loss
        policy._optimizer_world_model.register_step_pre_hook(self._check_gradients)
        self._moving = [
            buffer
            for model in (policy._model, policy._target_model)
            for module in model.modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
            for buffer in module.buffers()
        ]

    def __call__(self, data: list[list[NDArray[Any]]], number: int) -> dict[str, float]:
        """One update on a sampled batch; `number` counts the updates. Returns what UniZero logs."""
        before = [buffer.clone() for buffer in self._moving]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # LightZero takes the mean of an empty step while episodes are short
                logged: dict[str, float] = self._policy._forward_learn([*data, number])
        except BadUpdate:
            for buffer, value in zip(self._moving, before, strict=True):
                buffer.copy_(value)
            raise
        return logged

    def _checked_loss(self, *args: Any, **kwargs: Any) -> Any:
        losses = self._compute_loss(*args, **kwargs)
        if self._any_rank(not bool(losses.loss_total.isfinite())):
            raise BadUpdate(f"the loss is {float(losses.loss_total):g}")
        return losses

    def _check_gradients(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        gradients = [
            parameter.grad
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        norms = torch.stack(torch._foreach_norm(gradients)) if gradients else torch.zeros(0)
        if not bool(norms.isfinite().all()):
            raise BadUpdate(f"gradients of {int((~norms.isfinite()).sum())} of {len(norms)} parameters are not finite")


def check_batch(data: list[list[NDArray[Any]]]) -> None:
    """Raise BadUpdate unless everything that was sampled is finite: UniZero would look up a category for a NaN."""
    for half, name in zip(data, ("sampled", "target"), strict=True):
        if found := first_bad([np.asarray(part) for part in half], name):
            raise BadUpdate(found)


def check_episode(episode: Episode, features: int, slots: int) -> None:
    """Raise BadData unless an episode can be learned from: its arrays have the right shapes, and their numbers are finite."""
    steps = len(episode.actions)
    where = f"an episode of {episode.info.get('label', 'a game')}"
    check_like("actions", episode.actions, (steps,), "iu", where)
    if not steps or not ((episode.actions >= 0) & (episode.actions < slots)).all():
        raise BadData(
            f"actions of {where} are {list(episode.actions[:5])}...; each must be a slot from 0 to {slots - 1}"
        )
    for name, shape, kinds in (
        ("observations", (steps + 1, features), "f"), ("rewards", (steps,), "f"), ("masks", (steps + 1, slots), "iub"),
        ("visits", (steps, slots), "f"), ("root_values", (steps,), "f"), ("predicted_values", (steps,), "f"),
    ):  # fmt: skip
        values = getattr(episode, name)
        check_like(name, values, shape, kinds, where)
        check_finite(name, values, where)
