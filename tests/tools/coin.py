"""An application for the tests of `play`, as somebody outside would write it: its policy is a number in its checkpoints."""

from __future__ import annotations

import random
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from lzero_async.runs import applications, checkpoint
from lzero_async.runs.applications import ApplicationEntry
from lzero_async.runs.policy import PlayedEpisode, Policy
from lzero_async.runs.summary import write_summary

KIND = checkpoint.CheckpointKind("tests.coin", 1, "coin")
APPLICATION = ApplicationEntry("coin", "throw a coin", "tests.tools.coin:train", policy="tests.tools.coin:load")
DUMB = ApplicationEntry("dumb", "learn nothing", "tests.tools.coin:train")


class CoinPolicy(Policy):
    score_name = "heads"
    closed = 0

    def __init__(self, skill: float, device: str, options: dict[str, Any]) -> None:
        self.skill, self.device, self.options = skill, device, options

    def __call__(self, observation: float) -> bool:
        return observation < self.skill

    def play_episode(self, seed: int) -> PlayedEpisode:
        coins = random.Random(seed)
        steps = 1 + seed % 3
        return PlayedEpisode(seed, float(sum(self(coins.random()) for _ in range(steps))), steps)

    def close(self) -> None:
        CoinPolicy.closed += 1


def load(
    folder: Path, path: Path, device: str, *, sides: int = 2, name: str = "", bias: float | None = None
) -> CoinPolicy:
    state = checkpoint.load(path, KIND)
    with checkpoint.fitting(path):
        return CoinPolicy(float(state["skill"]), device, {"sides": sides, "name": name, "bias": bias})


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if both applications of this module were installed, and no other."""
    names = {"coin": "APPLICATION", "dumb": "DUMB"}
    points = [metadata.EntryPoint(name, f"{__name__}:{value}", applications.GROUP) for name, value in names.items()]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)


def write_run(folder: Path, *, program: str = "coin", best: float | None = 0.8, last: float | None = 0.3) -> Path:
    """A run whose best and last weights are these; None: there is no such checkpoint."""
    folder.mkdir(parents=True)
    write_summary(folder, {"program": program, "title": "Coins: one"})
    for name, skill in (("best", best), ("last", last)):
        if skill is not None:
            checkpoint.save(folder / "ckpt" / f"{name}.safetensors", {"skill": skill}, KIND)
    return folder
