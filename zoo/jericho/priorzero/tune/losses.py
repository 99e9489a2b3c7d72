"""What the language model is trained by, as pure functions of scores over candidates.

Rows are padded: `scores`, `present` and everything over candidates are [rows, candidates], and what is not `present` counts for
nothing. The policy is the prior's: softmax(scores / temperature), where equal actions share one action's probability.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

Ratio = Literal["ppo", "gspo"]


def log_policy(scores: torch.Tensor, present: torch.Tensor, copies: torch.Tensor, temperature: float) -> torch.Tensor:
    """Log-probabilities of the candidates; -inf for what is not present. `copies` says how many candidates have the same text as
    this one, itself included: together they have the probability of one."""
    values = scores / temperature - torch.log(copies.to(scores.dtype))
    return torch.log_softmax(values.masked_fill(~present, float("-inf")), -1)


def distillation(log_pi: torch.Tensor, present: torch.Tensor, visits: torch.Tensor) -> torch.Tensor:
    """Cross-entropy to the search's visits, by row; visits of what the model cannot say are left out."""
    target = visits.masked_fill(~present, 0.0)
    target = target / target.sum(-1, keepdim=True).clamp_min(1e-9)
    return -(target * _known(log_pi, present)).sum(-1)


def entropy(log_pi: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Entropy of the policy, by row."""
    known = _known(log_pi, present)
    return -(known.exp().masked_fill(~present, 0.0) * known).sum(-1)


def kl_to_reference(log_pi: torch.Tensor, log_reference: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """KL(policy || reference), exact over the candidates, by row."""
    known, reference = _known(log_pi, present), _known(log_reference, present)
    return (known.exp().masked_fill(~present, 0.0) * (known - reference)).sum(-1)


def policy_gradient(
    log_ratio: torch.Tensor, advantage: torch.Tensor, correction: torch.Tensor, clip: float
) -> torch.Tensor:
    """PPO's clipped loss, by step. `log_ratio`: how much likelier the taken action is now than when it was scored (of the
    policy, or of the text: GSPO). `correction`: see `truncated_correction`."""
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -correction * torch.minimum(ratio * advantage, clipped * advantage)


def truncated_correction(log_pi_old: torch.Tensor, taken: torch.Tensor, most: float) -> torch.Tensor:
    """What makes up for the search having acted instead of the language model: pi_old(a) / mu(a), at most `most`."""
    return (log_pi_old.exp() / taken.clamp_min(1e-9)).clamp(max=most)


def advantages(
    rewards: NDArray[np.float32], values: NDArray[np.float32], ended: bool, discount: float, steps: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Of each step of an episode: its n-step return minus the value that the search gave its state, and whether it has one.

    The return takes `steps` rewards and the searched value behind them. An episode that the game ended has no value behind its
    end. One that was cut off has none that was searched: it bootstraps from its last searched state, and its last step has
    no advantage.
    """
    count = len(rewards)
    found, known = np.zeros(count, np.float32), np.ones(count, bool)
    last = count if ended else count - 1
    for start in range(count):
        end = min(start + steps, last)
        if end <= start:
            known[start] = False
            continue
        powers = discount ** np.arange(end - start)
        behind = values[end] * discount ** (end - start) if end < count else 0.0
        found[start] = float((rewards[start:end] * powers).sum() + behind - values[start])
    return found, known


def normalised(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The values with mean 0 and standard deviation 1; all 0 where they do not differ."""
    if not len(values):
        return values
    spread = float(values.std())
    found: NDArray[np.float32] = ((values - values.mean()) / spread if spread > 1e-6 else values * 0).astype(np.float32)
    return found


def _known(log_probs: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
    """Without the -inf of what is not present, whose gradient would be NaN."""
    return log_probs.masked_fill(~present, 0.0)
