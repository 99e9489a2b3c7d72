"""What a run of MBPO has learned, as the evaluator plays it: the mode of SAC's policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lzero_async.errors import BadData
from lzero_async.runs import checkpoint
from lzero_async.runs.policy import PlayedEpisode, Policy
from lzero_async.workers.parcels import Parcel
from zoo.mbpo.collect.roles import EvaluatorRole
from zoo.mbpo.envs.guarding import BAD_EPISODE
from zoo.mbpo.envs.sources import Factory, source_of
from zoo.mbpo.options import build_options
from zoo.mbpo.saving import load_whole


def load(folder: Path, path: Path, device: str) -> MbpoPolicy:
    """The policy in a checkpoint of a run. Environments by gymnasium's id are played on the CPU; tensor environments are made
    on `device`, and so are the actions for them."""
    state = load_whole(path)
    with checkpoint.fitting(path):
        options = build_options({}, saved=state["options"])
        weights = state["weights"] if "weights" in state else state["learner"]["agent"]["actor"]
        description = state["source"]
    evaluator = source_of(options, description, device).evaluator(1)
    assert evaluator is not None
    policy = MbpoPolicy(evaluator)
    try:
        with checkpoint.fitting(path):
            policy.load(weights)
    except BaseException:
        policy.close()
        raise
    return policy


class MbpoPolicy(Policy):
    """An evaluator with one environment. An observation of gymnasium's gives an action in the bounds of its action space; the
    dictionary of N tensor environments gives N actions."""

    def __init__(self, make_evaluator: Factory) -> None:
        self._bad = ""
        self._evaluator: EvaluatorRole = make_evaluator(self._told)

    def load(self, weights: Mapping[str, Any]) -> None:
        """Take these weights of the actor."""
        self._evaluator.load(0, Parcel(dict(weights)))

    def _told(self, event: Any) -> None:
        if event[0] == BAD_EPISODE:
            self._bad = event[2]

    def __call__(self, observation: Any) -> Any:
        actions = self._evaluator.act(observation)
        return actions if isinstance(observation, Mapping) else actions[0]

    def play_episode(self, seed: int) -> PlayedEpisode:
        self._bad = ""
        found = self._evaluator.play(seed)
        if self._bad:
            raise BadData(f"The episode with seed {seed} failed: {self._bad}")
        return PlayedEpisode(seed, *found)

    def close(self) -> None:
        self._evaluator.close()
