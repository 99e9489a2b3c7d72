"""Times alone on the machine from times in a run, whose stages shared the cores.

Where the run knows how long its roles were ready to compute and waited for a core, that is taken away. Else the simulation of the
run's own setting is given shorter times until its stages take as long as the run's did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from lzero_async.tools.advise.model import Pipeline, Setting, Stage

ROUNDS: Final = 12
CLOSE: Final = 0.01  # a stage's simulated seconds are near enough to the measured ones
# The same for a stage that waits for cores: on full cores long waits of its own would explain as much, so none are assumed.
ROUGH: Final = 0.1
STRETCHED: Final = 1.05
LEAST: Final = 0.05  # of the measured seconds, whatever the CPU time


def without_queues(stage: Stage, queued: float) -> Stage:
    """The stage without the seconds that it waited for cores, which are those of all its threads."""
    waited = queued / max(1.0, stage.share)
    total = max(min(stage.cpu, stage.total), stage.total - waited)
    return _lasting(stage, total)


def alone(pipeline: Pipeline, setting: Setting) -> Pipeline:
    """The pipeline with its stages as they would be alone, given one with the times that they took in a run at `setting`."""
    measured = pipeline.stages(setting.collectors)
    found = pipeline.with_stages({role: _lasting(stage, _shortest(stage)) for role, stage in measured.items()})
    for _ in range(ROUNDS):
        now = found.stages(setting.collectors)
        gaps = _gaps(measured, now, found.simulate(setting).seconds)
        if not any(gaps.values()):
            break
        found = found.with_stages({role: _moved(now[role], measured[role], gap) for role, gap in gaps.items()})
    return found


def _gaps(measured: Mapping[str, Stage], now: Mapping[str, Stage], simulated: Mapping[str, float]) -> dict[str, float]:
    """Seconds by which each stage took longer in the run than in the simulation; 0 where that is near enough."""
    found = {}
    for role, stage in measured.items():
        seconds = simulated.get(role, stage.total)
        gap = stage.total - seconds
        close = ROUGH if seconds > STRETCHED * now[role].total else CLOSE
        found[role] = 0.0 if abs(gap) <= close * stage.total else gap
    return found


def _moved(stage: Stage, measured: Stage, gap: float) -> Stage:
    """The stage with its waiting changed by `gap`: not shorter than it computes, not longer than it was measured."""
    return _lasting(measured, min(measured.total, max(_shortest(measured), stage.total + gap)))


def _shortest(measured: Stage) -> float:
    """What it takes if it never waits; of several threads nobody knows how long each computed."""
    return max(LEAST * measured.total, min(measured.cpu, measured.total))


def _lasting(stage: Stage, total: float) -> Stage:
    fixed = min(stage.fixed, total)
    return replace(stage, seconds=total - fixed, fixed=fixed)
