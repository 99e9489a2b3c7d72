"""Times alone on the machine from times in a run, whose stages shared the cores: what the simulation of the run's own settings
must be given so that its stages take as long as the run's did."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lzero_async.advise.model import Pipeline, Setting, Stage

ROUNDS: Final = 8
CLOSE: Final = 0.005  # a stage's simulated seconds are near enough


def alone(pipeline: Pipeline, setting: Setting) -> Pipeline:
    """The pipeline with its stages as they would be alone, given one with the times that they took in a run at `setting`."""
    measured = pipeline.stages(setting.collectors)
    found = pipeline
    for _ in range(ROUNDS):
        simulated = found.simulate(setting).seconds
        gaps = {role: stage.total - simulated.get(role, stage.total) for role, stage in measured.items()}
        if all(abs(gap) <= CLOSE * measured[role].total for role, gap in gaps.items()):
            break
        now = found.stages(setting.collectors)
        moved = {role: _moved(now[role], stage.total, gaps[role], found.cores) for role, stage in measured.items()}
        found = found.with_stages(moved)
    return found


def _moved(stage: Stage, longest: float, gap: float, cores: float) -> Stage:
    """The stage with its waiting changed by `gap`: not shorter than it computes, not longer than it was measured."""
    shortest = stage.cpu if stage.cpu <= longest else stage.cpu / cores
    total = min(longest, max(shortest, stage.total + gap))
    fixed = min(stage.fixed, total)
    return replace(stage, seconds=total - fixed, fixed=fixed)
