"""Short rollouts inside the dynamics model that branch off from real observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor

from lzero_async.validation import whole_number
from zoo.mbpo.learn.dynamics import DynamicsEnsemble
from zoo.mbpo.learn.transitions import Transitions, concatenate

MARGIN = 0.1  # share of the range of the real data by which a prediction may leave it on each side


class Rollout(NamedTuple):
    """What a rollout gave: its transitions (tensors on the model's device), and what was wrong with the predictions."""

    transitions: Transitions
    clamped: int  # rows with a value brought back to the range of the real data, with margin
    dropped: int  # rows with a value that was not finite; they are not among the transitions and do not go on


@torch.no_grad()
def rollout(dynamics: DynamicsEnsemble, act: Callable[[Tensor], Tensor], starts: Tensor, length: int) -> Rollout:
    """Follow the policy `act` (observations [N, O] to actions [N, A]) for `length` steps from each start [N, O].

    A row that terminates does not go on. Next observations and rewards are clamped to the range of the real data plus MARGIN.
    """
    length = whole_number("rollout_length", length, 1)
    low, high = dynamics.bounds
    margin = MARGIN * (high - low)
    low, high = low - margin, high + margin
    parts: list[Transitions] = []
    clamped = dropped = 0
    obs = starts
    for _ in range(length):
        action = act(obs)
        next_obs, reward, terminated = dynamics.predict(obs, action)
        reached = torch.cat((next_obs, reward[:, None]), 1)
        inside = reached.clamp(low, high)
        finite = reached.isfinite().all(1)
        clamped += int(((inside != reached).any(1) & finite).sum())
        step = Transitions(obs, action, inside[:, -1], inside[:, :-1], terminated)
        if not finite.all():
            dropped += int((~finite).sum())
            step = step.take(finite)
        parts.append(step)
        going = step.terminated == 0
        obs = cast(Tensor, step.next_obs if going.all() else step.next_obs[going])
        if not len(obs):
            break
    return Rollout(concatenate(parts), clamped, dropped)
