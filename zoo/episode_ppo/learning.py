"""The learner's role: PPO, its checkpoints and its weights."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lzero_async import checkpoint
from lzero_async.errors import ConfigError
from lzero_async.parcels import Parcel
from zoo.episode_ppo.episode import pack, unpack
from zoo.episode_ppo.factories import Spaces
from zoo.episode_ppo.options import AGENT
from zoo.episode_ppo.ppo import PPO
from zoo.episode_ppo.saving import KIND, load_whole


class LearnerRole:
    """Trains on the episodes of one round at a time; a train that broke off is not saved."""

    def __init__(self, options: Any, spaces: Sequence[Any]) -> None:
        torch.set_num_threads(options.torch_threads)
        self.agent = PPO(
            Spaces(*spaces), **{name: options[name] for name in AGENT}, device=options.device, seed=options.seed
        )
        self.episodes = self.steps = 0  # trained on
        self._waiting: list[list[dict[str, Any]]] = []  # of a loaded checkpoint
        self._broken = ""

    def ready(self) -> dict[str, int]:
        """Answered once the role is made: the counters so far."""
        return self._counters()

    def _counters(self) -> dict[str, int]:
        return {"episodes": self.episodes, "steps": self.steps, "updates": self.agent.updates}

    def weights(self) -> Parcel:
        """The policy's weights as they are now, as numpy arrays."""
        return Parcel(self.agent.weights())

    def train(self, parcels: Sequence[Parcel], learning_rate_scale: float) -> dict[str, Any]:
        """Train on the episodes of these parcels, in the order of their numbers, whoever ended first; the report."""
        start = time.monotonic()
        try:
            episodes = [episode for parcel in parcels for episode in unpack(parcel.open())]
            record = pack(sorted(episodes, key=lambda episode: episode.number))
            report: dict[str, Any] = self.agent.update(record, learning_rate_scale)
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

    # -- saving and resuming -------------------------------------------------------------------------------------------

    def save(self, path: str, state: Mapping[str, Any], waiting: Sequence[Sequence[Parcel]]) -> None:
        """Write a checkpoint: `state`, what this role knows, and the rounds that wait."""
        if self._broken:
            raise ConfigError(
                f"The learner broke off a train ({self._broken}), so its state is not saved; the checkpoint before stands."
            )
        rounds = [
            [{"data": dict(parcel.open()), "meta": dict(parcel.meta)} for parcel in parcels] for parcels in waiting
        ]
        whole = {
            **state,
            "learner": {"agent": self.agent.state_dict(), "episodes": self.episodes, "steps": self.steps},
            "waiting": rounds,
        }
        checkpoint.save(Path(path), whole, KIND)

    def save_weights(self, path: str, state: Mapping[str, Any], weights: Parcel) -> None:
        """Write a checkpoint that holds one version of the policy and nothing to go on from."""
        checkpoint.save(Path(path), {**state, "weights": dict(weights.open())}, KIND)

    def load(self, path: str) -> int:
        """Go on from a checkpoint; how many rounds wait in it (`waiting` hands them out)."""
        state = load_whole(path)
        with checkpoint.fitting(path):
            learner = state["learner"]
            self.agent.load_state_dict(learner["agent"])
            self.episodes, self.steps = int(learner["episodes"]), int(learner["steps"])
            self._waiting = list(state["waiting"])
        return len(self._waiting)

    def waiting(self, place: int) -> list[Parcel]:
        """The round that waited at this place of the line."""
        parts, self._waiting[place] = self._waiting[place], []
        return [
            Parcel({name: np.asarray(value) for name, value in part["data"].items()}, part["meta"]) for part in parts
        ]
