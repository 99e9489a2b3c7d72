"""An application that is no part of lzero-async: it learns which of ten arms pays best, on numpy alone."""

from __future__ import annotations

import argparse
import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lzero_async import AsyncTrainingCoordinator, Batch, CollectContext, Worker, make_backend
from lzero_async.runs import checkpoint
from lzero_async.runs.applications import PipelineDescription
from lzero_async.runs.policy import PlayedEpisode, Policy
from lzero_async.runs.program import train
from lzero_async.runs.scored import ScoredApplication
from lzero_async.types import StopSignal

ARMS, PULLS = 10, 50
KIND = checkpoint.CheckpointKind("outside.bandit", 1, "the bandit")


@dataclasses.dataclass
class Options:
    off_policy_degree: int = 1
    num_collectors: int = 1
    max_seconds: float = 10.0
    pull_seconds: float = 0.0005
    eval_every: int = 10
    eval_episodes: int = 5
    checkpoint_every: int = 50
    max_restarts: int = 3
    restart_backoff: float = 1.0
    exp_name: str = "runs/bandit"


def pull(arms: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """What these arms pay, with noise: the last one pays best."""
    return arms / ARMS + random.normal(0.0, 0.5, len(arms))


class Player:
    """Collects and evaluates: a role, which lives in a process."""

    def __init__(self, seed: int, seconds: float, emit: Any) -> None:
        self.random, self.seconds = np.random.default_rng(seed), seconds

    def ready(self) -> None:
        """Answered when the role is made."""

    def collect(self, values: np.ndarray, *, stop: StopSignal) -> tuple[np.ndarray, np.ndarray]:
        explore = self.random.random(PULLS) < 0.2
        arms = np.where(explore, self.random.integers(0, ARMS, PULLS), values.argmax())
        stop.wait(self.seconds * PULLS)  # as an environment would be waited for
        return arms, pull(arms, self.random)

    def evaluate(
        self, version: int, values: np.ndarray, episodes: int, repeat: int, *, stop: StopSignal
    ) -> dict[str, Any]:
        returns = [float(pull(np.full(PULLS, values.argmax()), self.random).sum()) for _ in range(episodes)]
        scores = {"mean_return": np.mean(returns), "min_return": min(returns), "max_return": max(returns)}
        return {**scores, "mean_length": PULLS, "version": version, "episodes": episodes, "returns": returns}


class Learner:
    """Keeps the mean reward of each arm."""

    def __init__(self, emit: Any) -> None:
        self.sums, self.counts = np.zeros(ARMS), np.zeros(ARMS)

    def ready(self) -> None:
        """Answered when the role is made."""

    def train(self, arms: np.ndarray, rewards: np.ndarray) -> float:
        np.add.at(self.sums, arms, rewards)
        np.add.at(self.counts, arms, 1)
        return float(rewards.mean())

    def weights(self) -> np.ndarray:
        return self.sums / np.maximum(1, self.counts)

    def save(self, path: str, state: dict[str, Any], waiting: list[Any]) -> None:
        learner = {"sums": self.sums, "counts": self.counts}
        checkpoint.save(Path(path), {**state, "learner": learner, "waiting": waiting}, KIND)

    def save_weights(self, path: str, description: dict[str, Any], weights: np.ndarray) -> None:
        checkpoint.save(Path(path), {**description, "weights": weights}, KIND)


class Bandit(ScoredApplication):
    program, axis = "bandit", "steps_trained"

    def __init__(self, options: Options, folder: Path) -> None:
        super().__init__(options, folder, make_backend("process" if options.off_policy_degree else "inline"))
        self.pulls = 0
        self._build_or_close(self._build)

    def _build(self) -> None:
        options, start = self.options, self.role_set.start
        self.learner = start("learner", Learner, pin_to_driver=True)
        self.evaluator = start("evaluator", partial(Player, 1000, options.pull_seconds))
        names = [f"collector {number}" for number in range(options.num_collectors)]
        self.players = [start(name, partial(Player, seed, options.pull_seconds)) for seed, name in enumerate(names)]
        for worker in self._roles():
            worker.call("ready")
        self.coordinator = AsyncTrainingCoordinator(
            options.off_policy_degree,
            options.off_policy_degree > 0,
            num_collectors=options.num_collectors,
            get_weights=lambda: self.learner.call("weights"),
        )

    def _roles(self) -> list[Worker]:
        return [*super()._roles(), *self.players]

    def _title(self) -> str:
        return f"A bandit with {ARMS} arms"

    def _now(self) -> dict[str, int]:
        return {"steps_trained": self.pulls, "steps_played": PULLS * self.coordinator.collect_count}

    def _pipeline(self) -> PipelineDescription:
        return PipelineDescription(sample="a pull", collectors=self.options.num_collectors)

    def collect(self, context: CollectContext) -> Any:
        return self.players[context.worker].call("collect", context.snapshot.state, stop=context.stop)

    def train(self, batch: Batch) -> None:
        reward = self.learner.call("train", *batch.data)
        self.pulls += PULLS
        self._records.train({"train": self.coordinator.version + 1, "learner/reward": reward})

    def _loop(self) -> dict[str, Any]:
        return {
            "collect": self.collect,
            "eval_fn": self.evaluate,
            "eval_every": self.options.eval_every,
            "on_eval": self._evaluated,
            "max_seconds": self.options.max_seconds,
        }


class BanditPolicy(Policy):
    """Pulls the arm that paid best."""

    def __init__(self, values: np.ndarray) -> None:
        self.arm = int(values.argmax())

    def __call__(self, observation: Any = None) -> int:
        return self.arm

    def play_episode(self, seed: int) -> PlayedEpisode:
        rewards = pull(np.full(PULLS, self.arm), np.random.default_rng(seed))
        return PlayedEpisode(seed, float(rewards.sum()), PULLS)


def load(folder: Path, path: Path, device: str) -> BanditPolicy:
    """What `lzero-async play` and `load_policy` play: the best weights are saved as such, the last ones with the learner."""
    state = checkpoint.load(path, KIND)
    with checkpoint.fitting(path):
        learner = state.get("learner")
        values = state["weights"] if learner is None else learner["sums"] / np.maximum(1, learner["counts"])
    return BanditPolicy(values)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="lzero-async train bandit")
    for field in dataclasses.fields(Options):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    options = Options(**vars(parser.parse_args(arguments)))
    return train(partial(Bandit, options), options.exp_name, "bandit")
