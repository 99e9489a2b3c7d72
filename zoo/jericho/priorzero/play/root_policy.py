"""The policy at the root of the search: the language model's prior, the world model's policy, or a mixture; pure, numpy only.

Slot i of the world model belongs to action i of the language model's log-probabilities. Probabilities mix linearly:
`weight * llm + (1 - weight) * wm`. A side that says nothing usable (no finite value in a valid slot) leaves the other one alone;
with neither the result is uniform over the valid slots. Invalid slots have exactly zero probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lzero_async.errors import ConfigError

MODES = ("llm_plus_wm_logits", "llm_logits", "wm_logits")
WEIGHTINGS = ("fixed", "adaptive")
LOWEST_LOG_PROB = -30.0
"""Logit of a valid action of (almost) no probability: finite, so that a search may still try it."""
INVALID_LOGIT = -1e9
"""Logit of an invalid slot: finite, and zero after any softmax."""


def mix_root_policy(
    llm_log_probs: ArrayLike | None, wm_logits: ArrayLike, action_mask: ArrayLike, **options: Any
) -> NDArray[Any]:
    """Root logits for the search, float32 [slots], finite everywhere; arguments and options are `root_probabilities`'s."""
    return root_logits(root_probabilities(llm_log_probs, wm_logits, action_mask, **options), action_mask)


def mix_root_policies(
    llm_log_probs: Sequence[ArrayLike | None], wm_logits: ArrayLike, action_mask: ArrayLike, **options: Any
) -> NDArray[Any]:
    """`mix_root_policy` for a batch: one prior (of any length) per environment, logits and mask [environments, slots]."""
    logits, mask = np.asarray(wm_logits, np.float64), np.asarray(action_mask)
    if logits.ndim != 2 or logits.shape != mask.shape or len(logits) != len(llm_log_probs):
        raise ConfigError(
            f"{len(llm_log_probs)} priors, world-model logits of shape {logits.shape} and an action mask of shape {mask.shape} "
            "do not belong together: give one prior per row of two equal [environments, slots] arrays"
        )
    out = np.empty(logits.shape, np.float32)
    for i, one in enumerate(llm_log_probs):
        out[i] = mix_root_policy(one, logits[i], mask[i], **options)
    return out


def root_logits(probabilities: ArrayLike, action_mask: ArrayLike) -> NDArray[Any]:
    """Finite float32 logits of root probabilities: log p, not below LOWEST_LOG_PROB, and INVALID_LOGIT where the mask is 0."""
    values = np.maximum(np.asarray(probabilities, np.float64), math.exp(LOWEST_LOG_PROB))
    return np.where(np.asarray(action_mask).astype(bool), np.log(values), INVALID_LOGIT).astype(np.float32)


def root_probabilities(
    llm_log_probs: ArrayLike | None,
    wm_logits: ArrayLike,
    action_mask: ArrayLike,
    *,
    mode: str = "llm_plus_wm_logits",
    llm_weight: float = 0.5,
    weighting: str = "fixed",
    min_llm_weight: float = 0.0,
) -> NDArray[Any]:
    """Root probabilities, float32 [slots]: exactly 0 in invalid slots, summing to 1, or all 0 when no slot is valid.

    `llm_log_probs` may be None, shorter than the slots (the rest has no LLM probability) or longer (the rest is ignored).
    `llm_weight` is the LLM's share when `fixed`; when `adaptive` the share goes from `min_llm_weight` where the world model is
    certain to `llm_weight` where it knows nothing. Raises ConfigError for unknown names, weights outside 0..1 or unequal shapes.
    """
    _check(mode, llm_weight, weighting, min_llm_weight)
    logits, mask = np.asarray(wm_logits, np.float64), np.asarray(action_mask).astype(bool)
    if logits.ndim != 1 or logits.shape != mask.shape:
        raise ConfigError(
            f"world-model logits of shape {logits.shape} and an action mask of shape {mask.shape} must be one-dimensional "
            "and equal"
        )
    if not mask.any():
        return np.zeros(len(mask), np.float32)
    llm = softmax_over(_in_slots(llm_log_probs, len(mask)), mask) if mode != "wm_logits" else None
    wm = softmax_over(logits, mask) if mode != "llm_logits" else None
    if llm is not None and wm is not None:
        weight = llm_weight
        if weighting == "adaptive":
            weight = min_llm_weight + (llm_weight - min_llm_weight) * normalised_entropy(wm, mask)
        mixed = weight * llm + (1 - weight) * wm
    else:
        mixed = next((side for side in (llm, wm) if side is not None), mask / mask.sum())
    found: NDArray[Any] = (mixed / mixed.sum()).astype(np.float32)
    return found


def softmax_over(logits: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any] | None:
    """Softmax over the slots of a boolean mask, float64, 0 elsewhere; None without a usable value there.

    NaN and -inf are no probability; +inf is certainty, shared by all slots that have it.
    """
    usable = mask & ~np.isnan(logits) & ~np.isneginf(logits)
    if not usable.any():
        return None
    certain = usable & np.isposinf(logits)
    weights = certain.astype(np.float64)
    if not certain.any():
        weights[usable] = np.exp(logits[usable] - logits[usable].max())
    probabilities: NDArray[Any] = weights / weights.sum()
    return probabilities


def normalised_entropy(probabilities: NDArray[Any], mask: NDArray[Any]) -> float:
    """Entropy over the valid slots divided by its maximum: 0 is certain, 1 knows nothing; 0 with fewer than two valid slots."""
    valid = int(np.count_nonzero(mask))
    if valid < 2:
        return 0.0
    positive = probabilities[probabilities > 0]
    return float(np.clip(-(positive * np.log(positive)).sum() / math.log(valid), 0.0, 1.0))


def _in_slots(llm_log_probs: ArrayLike | None, slots: int) -> NDArray[Any]:
    out = np.full(slots, -np.inf)
    if llm_log_probs is not None:
        values = np.asarray(llm_log_probs, np.float64)
        if values.ndim != 1:
            raise ConfigError(f"the LLM's log-probabilities have shape {values.shape}, but must be one-dimensional")
        out[: len(values)] = values[:slots]
    return out


def _check(mode: str, llm_weight: float, weighting: str, min_llm_weight: float) -> None:
    if mode not in MODES:
        raise ConfigError(f"the root policy's mode is {mode!r}, but must be one of: {', '.join(MODES)}")
    if weighting not in WEIGHTINGS:
        raise ConfigError(f"the root policy's weighting is {weighting!r}, but must be one of: {', '.join(WEIGHTINGS)}")
    if not 0 <= min_llm_weight <= llm_weight <= 1 and weighting == "adaptive":
        raise ConfigError(
            f"min_llm_weight {min_llm_weight} and llm_weight {llm_weight} must be ordered and within 0 and 1"
        )
    if not 0 <= llm_weight <= 1:
        raise ConfigError(f"llm_weight is {llm_weight}, but must be within 0 and 1")
