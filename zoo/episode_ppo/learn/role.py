"""The learner's role: PPO, its checkpoints and its weights."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lzero_async.errors import BadData, ConfigError
from lzero_async.runs import checkpoint
from lzero_async.runs.soundness import first_bad
from lzero_async.workers.parcels import Parcel
from zoo.episode_ppo.envs.factories import Spaces
from zoo.episode_ppo.learn.ppo import PPO
from zoo.episode_ppo.learn.saving import KIND, load_whole
from zoo.episode_ppo.options import AGENT, EpisodePPOOptions
from zoo.episode_ppo.play.episode import pack, unpack

MOST_BAD_IN_A_ROW = 5  # trains in which every gradient step had to be skipped
log = logging.getLogger(__name__)


class LearnerRole:
    """Trains on the episodes of one round at a time; a train that broke off is not saved."""

    def __init__(self, options: EpisodePPOOptions, spaces: Sequence[Any]) -> None:
        torch.set_num_threads(options.torch_threads)
        self.agent = PPO(
            Spaces(*spaces),
            **{name: getattr(options, name) for name in AGENT},
            on_bad_update=options.on_bad_update,
            device=options.device,
            seed=options.seed,
        )
        self.episodes = self.steps = 0  # trained on
        self.bad_updates = 0  # gradient steps that were skipped
        self._bad_in_a_row = 0  # trains without one that was made
        self._waiting: list[list[dict[str, Any]]] = []  # of a loaded checkpoint
        self._broken = ""

    def ready(self) -> dict[str, int]:
        """Answered once the role is made: the counters so far."""
        return self._counters()

    def _counters(self) -> dict[str, int]:
        return {
            "episodes": self.episodes, "steps": self.steps, "updates": self.agent.updates, "bad_updates": self.bad_updates
        }  # fmt: skip

    def weights(self) -> Parcel:
        """The policy's weights as they are now, as numpy arrays; BadData if they are not finite."""
        weights = self.agent.weights()
        if bad := first_bad(weights):
            raise BadData(f"The policy's weights are not handed on: {bad}.")
        return Parcel(weights)

    def train(self, parcels: Sequence[Parcel], learning_rate_scale: float) -> dict[str, Any]:
        """Train on the episodes of these parcels, in the order of their numbers, whoever ended first; the report."""
        start = time.monotonic()
        try:
            episodes = [episode for parcel in parcels for episode in unpack(parcel.open())]
            record = pack(sorted(episodes, key=lambda episode: episode.number))
            report: dict[str, Any] = self.agent.update(record, learning_rate_scale)
            self._look_at(report)
        except BaseException as error:
            self._broken = repr(error)
            raise
        self.episodes += len(record["length"])
        self.steps += len(record["reward"])
        ends = np.cumsum(record["length"])[:-1]
        returns = [float(part.sum(dtype=np.float64)) for part in np.split(record["reward"], ends)]
        report |= {
            "mean_return": float(np.mean(returns)),
            "mean_length": float(record["length"].mean()),
            "max_length": int(record["length"].max()),
            "trained_episodes": len(returns),
            "trained_steps": len(record["reward"]),
        }
        return {**report, "counters": self._counters(), "seconds": time.monotonic() - start}

    def _look_at(self, report: Mapping[str, Any]) -> None:
        """Count and log gradient steps that were skipped; BadData after too many trains without one that was made."""
        skipped = int(report["bad_updates"])
        self._bad_in_a_row = 0 if report["updates"] else self._bad_in_a_row + 1
        if not skipped:
            return
        self.bad_updates += skipped
        why = self.agent.why_bad
        log.warning("%d gradient steps of a train were skipped: %s", skipped, why)
        if self._bad_in_a_row >= MOST_BAD_IN_A_ROW:
            raise BadData(
                f"Nothing could be learned from {self._bad_in_a_row} rounds in a row ({why}); look at the rewards, or lower "
                "--learning_rate, and go on from the last good checkpoint with --resume."
            )

    # -- saving and resuming -------------------------------------------------------------------------------------------

    def save(self, path: str, state: Mapping[str, Any], waiting: Sequence[Sequence[Parcel]]) -> None:
        """Write a checkpoint: `state`, what this role knows, and the rounds that wait."""
        if self._broken:
            raise ConfigError(
                f"The learner broke off a train ({self._broken}), so its state is not saved; the checkpoint before stands."
            )
        agent = self.agent.state_dict()
        if bad := first_bad(agent):
            raise BadData(f"The learner's state is not saved: {bad}; the checkpoint before stands.")
        rounds = [
            [{"data": dict(parcel.open()), "meta": dict(parcel.meta)} for parcel in parcels] for parcels in waiting
        ]
        whole = {
            **state,
            "learner": {
                "agent": agent,
                "episodes": self.episodes,
                "steps": self.steps,
                "bad_updates": self.bad_updates,
            },
            "waiting": rounds,
        }
        checkpoint.save(Path(path), whole, KIND)

    def save_weights(self, path: str, state: Mapping[str, Any], weights: Parcel) -> None:
        """Write a checkpoint that holds one version of the policy and nothing to go on from."""
        checkpoint.save(Path(path), {**state, "weights": dict(weights.open())}, KIND)

    def load(self, path: str) -> int:
        """Go on from a checkpoint; how many rounds wait in it (`waiting` hands them out)."""
        state = load_whole(path)
        if bad := first_bad(state.get("learner")):
            raise ConfigError(f"No run can go on from the checkpoint {path}: {bad}; give --resume an earlier one.")
        with checkpoint.fitting(path):
            learner = state["learner"]
            self.agent.load_state_dict(learner["agent"])
            self.episodes, self.steps = int(learner["episodes"]), int(learner["steps"])
            self.bad_updates = int(learner["bad_updates"])
            self._waiting = list(state["waiting"])
        return len(self._waiting)

    def waiting(self, place: int) -> list[Parcel]:
        """The round that waited at this place of the line."""
        parts, self._waiting[place] = self._waiting[place], []
        return [
            Parcel({name: np.asarray(value) for name, value in part["data"].items()}, part["meta"]) for part in parts
        ]
