"""LightZero's eight training entries as data: which policies each takes, its parts, when it evaluates and reanalyzes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MUZERO: Final = "MuZeroGameBuffer"
BUFFERS: Final = {
    "muzero": MUZERO,
    "muzero_context": MUZERO,
    "muzero_rnn_full_obs": MUZERO,
    "muzero_rnd": MUZERO,
    "efficientzero": "EfficientZeroGameBuffer",
    "sampled_efficientzero": "SampledEfficientZeroGameBuffer",
    "sampled_muzero": "SampledMuZeroGameBuffer",
    "gumbel_muzero": "GumbelMuZeroGameBuffer",
    "stochastic_muzero": "StochasticMuZeroGameBuffer",
    "unizero": "UniZeroGameBuffer",
    "sampled_unizero": "SampledUniZeroGameBuffer",
}
SEARCHING: Final = (
    "efficientzero", "muzero", "muzero_context", "muzero_rnn_full_obs", "sampled_efficientzero", "sampled_muzero",
    "gumbel_muzero", "stochastic_muzero",
)  # fmt: skip
WORLD_MODELS: Final = ("unizero", "sampled_unizero")
REZERO_BATCH: Final = 2000  # transitions that train_rezero searches again at a time


@dataclass(frozen=True)
class Entry:
    """One of LightZero's `train_*` functions. No policies: any that DI-engine knows."""

    policies: tuple[str, ...] = ()
    collector: str = "MuZeroCollector"
    evaluator: str = "MuZeroEvaluator"
    buffers: Mapping[str, str] = field(default_factory=lambda: BUFFERS)
    evaluates_first: bool = False  # once before anything is trained
    ignores_random_collect: bool = False
    evaluates_offline: bool = False  # knows eval_offline
    reanalyzes: bool = False
    gym_envs: bool = False
    pure_policy: bool = False
    reward_model: bool = False

    @property
    def transitions(self) -> bool:
        """Whether its buffer holds transitions (AlphaZero), not game segments."""
        return self.collector == "AlphaZeroCollector"

    @property
    def segments(self) -> bool:
        """Whether its collector hands out parts of episodes."""
        return self.collector == "MuZeroSegmentCollector"

    @property
    def world_model(self) -> bool:
        """Whether it trains UniZero's world model."""
        return self.policies == WORLD_MODELS


ENTRIES: Final = {
    "train_muzero": Entry(SEARCHING, evaluates_first=True, evaluates_offline=True),
    "train_muzero_segment": Entry(
        SEARCHING, collector="MuZeroSegmentCollector", reanalyzes=True, evaluates_offline=True
    ),
    "train_unizero": Entry(WORLD_MODELS, evaluates_first=True),
    "train_unizero_segment": Entry(WORLD_MODELS, collector="MuZeroSegmentCollector", reanalyzes=True),
    "train_alphazero": Entry(
        collector="AlphaZeroCollector", evaluator="AlphaZeroEvaluator", ignores_random_collect=True
    ),
    "train_rezero": Entry(
        ("efficientzero", "muzero"),
        buffers={"muzero": "ReZeroMZGameBuffer", "efficientzero": "ReZeroEZGameBuffer"},
        evaluates_first=True, evaluates_offline=True, reanalyzes=True, pure_policy=True,
    ),
    "train_muzero_with_gym_env": Entry(
        ("efficientzero", "muzero", "sampled_efficientzero"), ignores_random_collect=True, gym_envs=True
    ),
    "train_muzero_with_reward_model": Entry(
        ("efficientzero", "muzero", "muzero_rnd", "sampled_efficientzero"), reward_model=True
    ),
}  # fmt: skip


class EvalSchedule:
    """When an entry evaluates: `eval_freq` counts updates."""

    def __init__(self, name: str, eval_freq: int, last: int = 0) -> None:
        self._name, self._freq, self.last = name, eval_freq, last

    def is_due(self, updates: int) -> bool:
        """Whether an evaluation is due after so many updates; asking counts."""
        if updates == 0:
            return self._name == "train_unizero"  # in every round until there are data enough
        if updates == self.last or updates - self.last < self._freq:
            return False
        self.last = updates
        return True


def reanalyze_rule(name: str, policy: Any) -> tuple[int, int]:
    """How many transitions or sequences a reanalysis searches at a time, and how many transitions there must be more than."""
    if name == "train_rezero":
        return REZERO_BATCH, REZERO_BATCH
    size = policy.reanalyze_batch_size
    return size, int(size / policy.reanalyze_partition) * policy.num_unroll_steps + policy.num_unroll_steps - 1
