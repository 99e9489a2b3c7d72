"""How much faster asynchronous training can be than synchronous training that was measured, and how much of that it was.

In turn, a sample costs the time of all stages; at the same time, that of the longest one. So the limit is the sum over the
longest, and on cores that all stages share also what the cores allow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lzero_async.tools.compare.measured import Run

CORES: Final = "cores"
METRICS: Final = "metrics.jsonl"
ABOVE: Final = 1.02  # of the limit: more than rounding and noise


@dataclass(frozen=True)
class Limit:
    """Times are seconds per sample: of the synchronous run in turn, and of the stages that run at the same time."""

    collect: float
    train: float
    evaluate: float
    stages: Mapping[str, float]
    cores: float | None  # CPU seconds per sample divided by the number of cores
    own: Mapping[str, float]  # what the stages by themselves took in the asynchronous run
    speed_up: float
    notes: tuple[str, ...]
    own_cpu: bool  # the CPU seconds are those of the runs alone, not of all that the machine did

    @property
    def in_turn(self) -> float:
        """Seconds per sample of all stages, one after the other."""
        return self.collect + self.train + self.evaluate

    @property
    def bound(self) -> str:
        """What takes longest."""
        longest = max(self.stages, key=lambda name: self.stages[name])
        return CORES if self.cores is not None and self.cores > self.stages[longest] else longest

    @property
    def overlap(self) -> float:
        """The limit by overlapping the stages."""
        return self.in_turn / max(self.stages.values())

    @property
    def limit(self) -> float:
        """The limit by overlapping and by the cores."""
        return self.overlap if self.bound != CORES else self.in_turn / float(self.cores or 0)

    @property
    def share(self) -> float:
        """How much of the limit was reached."""
        return self.speed_up / self.limit


def limit_of(sync: Run, asynchronous: Run, cores: int) -> Limit:
    """The limit of these runs.

    Of both runs the one that used less CPU per sample says what the work needs: threads that spin use more.
    """
    used = [_cpu_seconds(run, cores) for run in (sync, asynchronous)]
    known = [seconds for seconds in used if seconds is not None]
    return Limit(
        collect=sync.collect_seconds / sync.trained,
        train=sync.train,
        evaluate=sync.eval_seconds / sync.trained,
        stages=_stages(sync, asynchronous),
        cores=min(known) / cores if len(known) == 2 else None,
        own={"collect": _played(asynchronous) or asynchronous.collect, "train": asynchronous.train},
        speed_up=asynchronous.effective / sync.effective,
        own_cpu=all(run.utilisation.get("cpu_seconds") is not None for run in (sync, asynchronous)),
        notes=tuple(_notes(sync, asynchronous)),
    )


def _played(run: Run) -> float | None:
    """Seconds per sample of environments that are always at work, where they play rounds of episodes."""
    rounds = run.pipeline.rounds
    return None if rounds is None else rounds.busy_seconds / rounds.at_once / max(1, rounds.steps)


def _stages(sync: Run, asynchronous: Run) -> dict[str, float]:
    """Seconds per sample of what runs at the same time. Collectors that share environments step fewer of them each, so their own
    time counts; evaluations that are not in the background take the learner's turn."""
    shared = asynchronous if asynchronous.pipeline.shared else sync
    collect = _played(asynchronous) or shared.collect / asynchronous.collectors
    turn = 0.0 if asynchronous.async_eval else sync.eval_seconds / sync.trained
    return {"collect": collect, **(_parts(sync, asynchronous) or {"train": sync.train + turn})}


def _parts(sync: Run, asynchronous: Run) -> dict[str, float]:
    """Seconds per sample of the roles that share a train in the asynchronous run, and do it in turn in the other."""
    parts, metrics = asynchronous.pipeline.train_parts, sync.folder / METRICS
    found = dict.fromkeys(parts, 0.0)
    if parts and metrics.is_file():
        for line in metrics.read_text().splitlines():
            row = json.loads(line)
            for role, columns in parts.items():
                found[role] += sum(row.get(column, 0.0) for column in columns) / sync.trained
    return found if any(found.values()) else {}


def _notes(sync: Run, asynchronous: Run) -> Iterator[str]:
    yield from dict.fromkeys((*asynchronous.pipeline.notes, *sync.pipeline.notes))
    if not asynchronous.async_eval and sync.eval_seconds:
        yield "Evaluations take the learner's turn in the asynchronous run, too."
    if played := _played(asynchronous):
        yield (
            "The collect at the same time is that of environments which are always at work. In turn, with the step barrier and "
            f"the end of every round to wait for, collecting takes {sync.collect / played:.2f} times as long; so much of the "
            "limit is theirs."
        )


def _cpu_seconds(run: Run, cores: int) -> float | None:
    """CPU seconds per sample: of the run's own processes where it says that, else of the whole machine."""
    own, share = run.utilisation.get("cpu_seconds"), run.utilisation.get("cpu")
    if own is not None:
        return own / run.trained
    return None if share is None else share * cores * run.seconds / run.trained


def _why_above(limit: Limit) -> str:
    """What the times say about a speed-up above the limit; they do not always say something."""
    shorter = [
        name
        for name, before in (("collect", limit.collect), ("train", limit.train))
        if limit.own.get(name, before) < before
    ]
    if not shorter:
        return "it is above the limit though no stage was shorter, so the two runs are not alike"
    return f"it is above the limit, and {' and '.join(shorter)} took less time here than in the synchronous run"


def format_limit(limit: Limit, batch: float, cores: int) -> str:
    """The limit in words; times are shown per `batch` samples, which is one train of the synchronous run."""

    def shown(seconds: float) -> str:
        return f"{seconds * batch:.3f}"

    in_turn = {"collect": limit.collect, "train": limit.train, "evaluate": limit.evaluate}
    lines = [
        f"seconds per train of the synchronous run, which is {batch:,.0f} samples",
        "  in turn: " + ", ".join(f"{name} {shown(seconds)}" for name, seconds in in_turn.items()),
        "  at the same time: " + ", ".join(f"{name} {shown(seconds)}" for name, seconds in limit.stages.items()),
        f"limit of overlapping: {shown(limit.in_turn)} / {shown(max(limit.stages.values()))} = {limit.overlap:.2f}",
    ]
    if limit.cores is not None:
        lines.append(
            f"limit of {cores} cores, for {shown(limit.cores * cores)} CPU seconds"
            f"{'' if limit.own_cpu else ' (what else ran on this machine included)'}: "
            f"{shown(limit.in_turn)} / {shown(limit.cores)} = {limit.in_turn / limit.cores:.2f}"
            + ("; the cores are the bound here" if limit.bound == CORES else "")
        )
    lines.append(
        f"speed-up (effective samples/s): {limit.speed_up:.2f}, {100 * limit.share:.0f} % of the limit {limit.limit:.2f} "
        f"(set by: {limit.bound})"
    )
    lines.append(
        "the stages by themselves in the asynchronous run: "
        + ", ".join(f"{name} {shown(seconds)}" for name, seconds in limit.own.items())
        + (f"; {_why_above(limit)}" if limit.share > ABOVE else "")
    )
    return "\n".join([*lines, *limit.notes])
