"""Times alone on the machine from times in a run, whose stages shared the cores: what the simulation of the run's own settings
must be given so that its stages take as long as the run's did."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from lzero_async.advise.model import Pipeline, Setting, Stage

ROUNDS: Final = 12
CLOSE: Final = 0.01  # a stage's simulated seconds are near enough to the measured ones
ROUGH: Final = 0.1  # the same where other programs were busy, so that nobody knows which cores were free when


def alone(pipeline: Pipeline, setting: Setting, close: float = CLOSE) -> Pipeline:
    """The pipeline with its stages as they would be alone, given one with the times that they took in a run at `setting`."""
    measured = pipeline.stages(setting.collectors)
    # From below: on full cores, long waits explain the measured times just as well as waits for a core do. The shorter ones
    # are right for stages that compute, and grow until they explain what sharing the cores does not.
    found = pipeline.with_stages(
        {role: _moved(stage, stage, -stage.total, pipeline) for role, stage in measured.items()}
    )
    for _ in range(ROUNDS):
        simulated = found.simulate(setting).seconds
        gaps = {role: stage.total - simulated.get(role, stage.total) for role, stage in measured.items()}
        if all(abs(gap) <= close * measured[role].total for role, gap in gaps.items()):
            break
        now = found.stages(setting.collectors)
        found = found.with_stages(
            {role: _moved(now[role], stage, gaps[role], pipeline) for role, stage in measured.items()}
        )
    return found


def _moved(stage: Stage, measured: Stage, gap: float, pipeline: Pipeline) -> Stage:
    """The stage with its waiting changed by `gap`: not shorter than it computes, not longer than it was measured."""
    longest, cpu = measured.total, measured.cpu
    shortest = cpu if cpu <= longest else cpu / pipeline.cores
    total = min(longest, max(shortest, stage.total + gap))
    fixed = min(measured.fixed, total)
    return replace(measured, seconds=total - fixed, fixed=fixed)
