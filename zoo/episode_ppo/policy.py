"""What a run of whole-episode PPO has learned, as the evaluator plays it: the most likely actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lzero_async.runs import checkpoint
from lzero_async.runs.policy import PlayedEpisode, Policy
from zoo.episode_ppo.learn.saving import load_whole
from zoo.episode_ppo.options import EpisodePPOOptions, build_options
from zoo.episode_ppo.play.policy import NumpyPolicy
from zoo.episode_ppo.roles import make_evaluator


def load(folder: Path, path: Path, device: str) -> EpisodePolicy:
    """The policy in a checkpoint of a run; it is played in numpy, whatever the device."""
    state = load_whole(path)
    with checkpoint.fitting(path):
        options = build_options({}, saved=state["options"])
        weights = state["weights"] if "weights" in state else state["learner"]["agent"]["policy"]
        network = NumpyPolicy(weights)
    return EpisodePolicy(options, network)


class EpisodePolicy(Policy):
    """An evaluator with one environment, whose observations are flattened and whose actions are scaled as in training."""

    def __init__(self, options: EpisodePPOOptions, network: NumpyPolicy) -> None:
        self._network = network
        self._evaluator = make_evaluator(options, 1, lambda event: None)

    def __call__(self, observation: Any) -> Any:
        return self._evaluator.act(observation, self._network)

    def play_episode(self, seed: int) -> PlayedEpisode:
        return PlayedEpisode(seed, *self._evaluator.play(seed, self._network))

    def close(self) -> None:
        self._evaluator.close()
