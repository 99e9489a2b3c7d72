"""What a run's files say of its stages: how long they took, how much of it was computing, and how fast the whole run was."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lzero_async.core.trace import EVALUATOR, LEARNER
from lzero_async.errors import ConfigError
from lzero_async.runs.applications import PipelineDescription, pipeline_of
from lzero_async.runs.summary import read_summary
from lzero_async.tools.advise.model import COLLECT, EVAL, TRAIN, percent
from lzero_async.tools.traces import TRACE, Span, busy_seconds, read_items

REPLAY: Final = "replay"
LEAST_TRAINS: Final = 10
WARM_UP: Final = 10  # the first tenth of the trains is left out
ASSUMED_SPREAD: Final = 0.25  # sigma of durations that nobody measured
BUSY: Final = 0.1  # of the machine, by other programs: worth a note
LEAST_FREE: Final = 0.1  # of the cores, whatever the others had


@dataclass
class Measured:
    """A run in its steady part. By stage: `seconds` (mean) of its work, their `spread`, `fixed` seconds beside each, `cpu`
    seconds of each, and seconds that each was `queued` for a core, where that is known. `background` has the seconds and CPU
    seconds per train of roles that work beside the learner."""

    folder: Path
    summary: dict[str, Any]
    pipeline: PipelineDescription
    batches: float  # trained on, per second
    trains: int  # of which the times are
    seconds: dict[str, float]
    spread: dict[str, Sequence[float] | float]
    fixed: dict[str, float]
    beside: bool  # evaluations ran beside the learner
    collectors: int
    cpu: dict[str, float] = field(default_factory=dict)
    queued: dict[str, float] = field(default_factory=dict)
    background: dict[str, tuple[float, float]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # stages of this part of the run, its first ones included
    notes: list[str] = field(default_factory=list)
    free: float = 0.0  # cores that other programs left, where that is not all of them

    @property
    def statistics(self) -> dict[str, Any]:
        """The coordinator's, over the whole run."""
        return dict(self.summary["statistics"])

    @property
    def cores(self) -> int:
        """Of the machine that it ran on."""
        return int(self.summary["machine"]["cores"])

    @property
    def samples(self) -> float | None:
        """Of one batch, on average, in the unit of the summary's axis."""
        count, trains = self.summary["counts"].get(self.summary["axis"]), self.statistics["train_count"]
        return count / trains if count and trains else None

    @property
    def eval_every(self) -> int:
        """Trains between evaluations, 0 without; of a run that does not say it, by its counts."""
        if self.pipeline.eval_every is not None:
            return self.pipeline.eval_every
        trains, evaluations = self.statistics["train_count"], self.statistics["eval_count"]
        return max(1, round(trains / evaluations)) if evaluations else 0

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """The summary's rows of the learner, of the evaluator, or of all collectors."""
        return [row for row in self.summary["roles"] if row["role"] == kind or row["role"].startswith(f"{kind} ")]


def read_run(folder: Path) -> Measured:
    """Read a run's folder; ConfigError if it holds none, or one that is too short."""
    summary = read_summary(folder)
    try:
        trace = folder / TRACE
        traced = trace.is_file()
        found = _from_trace(folder, summary, _spans(trace)) if traced else _from_statistics(folder, summary)
        _add_cpu(found)
        _look_at_others(found)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{folder} holds a summary without {error}; give the folder of another run.") from error
    return found


def _refuse_short(folder: Path, trains: int) -> None:
    if trains < LEAST_TRAINS:
        raise ConfigError(
            f"{folder} has {trains} train(s), too few to advise on; let it run for at least {LEAST_TRAINS}."
        )


def _spans(path: Path) -> dict[str, list[Span]]:
    """Everything that each role did, waits included, by start."""
    found: defaultdict[str, list[Span]] = defaultdict(list)
    for item, _ in read_items(path):
        if isinstance(item, Span):
            found[item.role].append(item)
    return {role: sorted(spans, key=lambda span: span.start) for role, spans in found.items()}


def _from_trace(folder: Path, summary: dict[str, Any], spans: dict[str, list[Span]]) -> Measured:
    learner = spans.get(LEARNER, [])
    trains = sorted((span for span in learner if span.name == TRAIN), key=lambda span: span.end)
    _refuse_short(folder, len(trains))
    skipped = max(1, len(trains) // WARM_UP)
    start, end = trains[skipped - 1].end, trains[-1].end
    collectors = {role: found for role, found in spans.items() if any(span.name == COLLECT for span in found)}
    if not collectors:
        raise ConfigError(f"{folder / TRACE} has no collects; give the folder of another run.")
    inside = [span for found in spans.values() for span in found if start <= span.start and span.end <= end]
    evaluations = [span for found in spans.values() for span in found if span.name == EVAL]
    beside = any(_overlaps(evaluation, trains) for evaluation in evaluations)
    found = Measured(
        folder, summary, pipeline_of(summary), (len(trains) - skipped) / (end - start), len(trains) - skipped, {}, {}, {}, beside,
        len(collectors),
    )  # fmt: skip
    for stage in (COLLECT, TRAIN, EVAL):
        durations = [span.seconds for span in inside if span.name == stage]
        durations = durations or [span.seconds for span in (evaluations if stage == EVAL else [])]
        if durations:
            found.seconds[stage] = sum(durations) / len(durations)
            found.spread[stage] = tuple(seconds / found.seconds[stage] for seconds in durations)
    if COLLECT not in found.seconds:
        raise ConfigError(f"{folder} has no collect after its warm-up; let it run for longer.")
    done = Counter(span.name for own in spans.values() for span in own if span.end <= _known_until(summary, spans))
    found.counts = {COLLECT: done[COLLECT], TRAIN: done[TRAIN] + done[REPLAY], EVAL: done[EVAL]}
    found.fixed = _beside_stages(found, spans, collectors, start, end)
    per_train = 1 / sum(1 for span in inside if span.name in (TRAIN, REPLAY))
    for role, own in spans.items():
        if role not in (LEARNER, EVALUATOR) and role not in collectors:
            found.background[role] = _worked(own, start, end) * per_train, 0.0
    return found


def _known_until(summary: dict[str, Any], spans: dict[str, list[Span]]) -> float:
    """When the summary was written, on the trace's clock: of a run that goes on or was killed, CPU seconds are known so far."""
    if summary.get("ended_by", "") is not None:
        return math.inf
    first = min(own[0].start for own in spans.values() if own)
    return float(first + summary["seconds"])


def _beside_stages(
    found: Measured, spans: dict[str, list[Span]], collectors: dict[str, list[Span]], start: float, end: float
) -> dict[str, float]:
    """Seconds of a role per stage that it neither worked nor waited for its turn: handing over, recording, saving."""
    others = [] if found.beside else [span for span in spans.get(EVALUATOR, []) if span.name == EVAL]
    learner = [span for span in spans[LEARNER] if span.name != "publish"] + others
    learned = sum(1 for span in spans[LEARNER] if span.name in (TRAIN, REPLAY) and start <= span.start <= end)
    if found.statistics["off_policy_degree"] == 0:  # one thread does everything in turn
        learner += [span for own in collectors.values() for span in own]
        return {TRAIN: max(0.0, end - start - busy_seconds(learner, start, end)) / learned}
    gaps = number = 0.0
    for own in collectors.values():
        kept = [span for span in own if span.start >= start and span.end <= end]
        if kept:
            gaps += kept[-1].end - kept[0].start - busy_seconds(kept, start, end)
            number += sum(1 for span in kept if span.name == COLLECT)
    return {
        TRAIN: max(0.0, end - start - busy_seconds(learner, start, end)) / learned,
        COLLECT: max(0.0, gaps) / max(1.0, number),
    }


def _overlaps(span: Span, others: list[Span]) -> bool:
    """Whether it shares a moment with one of the others, which follow each other."""
    place = bisect_right(others, span.start, key=lambda other: other.end)
    return place < len(others) and others[place].start < span.end


def _worked(spans: Iterable[Span], start: float, end: float) -> float:
    """Seconds of work, waits left out, between `start` and `end`."""
    return busy_seconds((span for span in spans if not span.name.startswith("wait")), start, end)


def _from_statistics(folder: Path, summary: dict[str, Any]) -> Measured:
    """Without a trace: averages over the whole run, and a spread that is assumed."""
    statistics = summary["statistics"]
    trains = int(statistics["train_count"])
    _refuse_short(folder, trains)
    seconds = {
        stage: float(statistics[f"{stage}_avg_time"])
        for stage in (COLLECT, TRAIN, EVAL)
        if statistics[f"{stage}_avg_time"]
    }
    roles = summary["roles"]
    collectors = [row for row in roles if row["role"].startswith("collector ")]
    beside = statistics["off_policy_degree"] > 0
    rate = trains / statistics["wall_time"]
    spread: dict[str, Sequence[float] | float] = dict.fromkeys(seconds, ASSUMED_SPREAD)
    found = Measured(folder, summary, pipeline_of(summary), rate, trains, seconds, spread, {}, beside, len(collectors))
    # The statistics are of the whole run, CPU seconds of its part since the last resume.
    part = min(1.0, summary["seconds"] / max(1e-9, statistics["wall_time"]))
    done = {stage: int(statistics[f"{stage}_count"]) for stage in (COLLECT, TRAIN, EVAL)}
    done[TRAIN] += int(statistics["replay_count"])
    found.counts = {stage: round(part * number) for stage, number in done.items()}
    found.notes.append(f"There is no {TRACE}: the times are averages of the whole run, and their spread is assumed.")
    return found


def _add_cpu(found: Measured) -> None:
    """CPU seconds of each stage: of its role's process, or, of roles in one process, by their share of the time."""
    kinds = {COLLECT: "collector", TRAIN: LEARNER, EVAL: EVALUATOR}
    share = _common_share(found)
    for stage, seconds in found.seconds.items():
        rows, number = found.rows(kinds[stage]), found.counts[stage]
        found.cpu[stage] = share * seconds
        if number and rows and all(row["cpu_seconds"] is not None for row in rows):
            found.cpu[stage] = sum(row["cpu_seconds"] for row in rows) / number
            queued = [row["queued_seconds"] for row in rows if row.get("queued_seconds") is not None]
            if len(queued) == len(rows):
                found.queued[stage] = sum(queued) / number
    for role, (seconds, _) in list(found.background.items()):
        used = [row["cpu_seconds"] for row in found.rows(role) if row["cpu_seconds"] is not None]
        found.background[role] = seconds, sum(used) / found.counts[TRAIN] if used else share * seconds


def _common_share(found: Measured) -> float:
    """CPU seconds per second of a stage, where all roles live in one process."""
    used = found.summary["utilisation"].get("cpu_seconds")
    known = [row for row in found.summary["roles"] if row["cpu_seconds"] is not None]
    if known:
        return 1.0
    active = sum(row["active"] or 0.0 for row in found.summary["roles"])
    if used is None or active <= 0:
        found.notes.append("The CPU time of this run is not known: every stage is taken to compute all the time.")
        return 1.0
    return float(used) / active


def _look_at_others(found: Measured) -> None:
    """What other programs had of the cores was not there for this run."""
    use = found.summary["utilisation"]
    share, own, seconds = use.get("cpu"), use.get("cpu_seconds"), found.summary["seconds"]
    if share is None or own is None or seconds <= 0:
        return
    others = share - own / (seconds * found.cores)
    if others > BUSY:
        found.free = found.cores * max(LEAST_FREE, 1 - others)
        found.notes.append(
            f"Other programs had {percent(others)} of the machine's cores during this run; one on a quiet machine says more."
        )
