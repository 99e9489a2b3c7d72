"""What there is to tell of a run, from whatever files it left: a summary as complete as they allow, and what is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lzero_async.errors import ConfigError
from lzero_async.runs.run_dir import SUMMARY, TRACE
from lzero_async.runs.summary import OtherFormat, read_summary
from lzero_async.tools.report.markup import is_number, plural
from lzero_async.tools.report.trace_digest import Digest, complete, digest

POINTS: Final = 120  # a series has this many at most
MOST_SERIES: Final = 80
TRAIN: Final = "train"


@dataclass
class Series:
    """A scalar over the trains, in stretches of trains: (first train, mean, lowest, highest) each, and its last value."""

    stretches: list[tuple[float, float, float, float]] = field(default_factory=list)
    last: float = 0.0
    _share: int = 1  # rows in a stretch
    _open: list[float] = field(default_factory=list)  # first train, sum, lowest, highest, rows

    def add(self, train: float, value: float) -> None:
        """One more row; when the series is full, stretches are joined two by two."""
        self.last = value
        if not self._open:
            self._open = [train, 0.0, value, value, 0]
        now = self._open
        now[1] += value
        now[2], now[3], now[4] = min(now[2], value), max(now[3], value), now[4] + 1
        if now[4] >= self._share:
            self.close()
        if len(self.stretches) >= 2 * POINTS:
            self._halve()

    def close(self) -> None:
        """End the stretch that is open."""
        if self._open:
            first, total, low, high, rows = self._open
            self.stretches.append((first, total / rows, low, high))
            self._open = []

    def _halve(self) -> None:
        pairs = zip(self.stretches[::2], self.stretches[1::2], strict=True)
        self.stretches = [
            (one[0], (one[1] + two[1]) / 2, min(one[2], two[2]), max(one[3], two[3])) for one, two in pairs
        ]
        self._share *= 2

    @property
    def changes(self) -> bool:
        """Whether it ever had another value."""
        return any(low != high or mean != self.last for _, mean, low, high in self.stretches)


@dataclass
class Scalars:
    """The numbers of metrics.jsonl by name. `broken` lines could not be read; `left_out` names came after the first many."""

    series: dict[str, Series] = field(default_factory=dict)
    rows: int = 0
    broken: int = 0
    left_out: set[str] = field(default_factory=set)

    def add(self, row: dict[str, Any]) -> None:
        """One train's numbers."""
        self.rows += 1
        train = row[TRAIN] if is_number(row.get(TRAIN)) else self.rows
        for name, value in row.items():
            if name == TRAIN or not is_number(value):
                continue
            if name not in self.series and len(self.series) >= MOST_SERIES:
                if len(self.left_out) < MOST_SERIES:
                    self.left_out.add(name)
                continue
            self.series.setdefault(name, Series()).add(train, value)


def read_scalars(path: Path) -> Scalars | None:
    """The scalars of a run; None without the file. A line that a crash cut off is counted, not an error."""
    if not path.is_file():
        return None
    found = Scalars()
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError(line)
            except ValueError:
                found.broken += 1
                continue
            found.add(row)
    for series in found.series.values():
        series.close()
    return found


OPTIONS: Final = "options.json"
METRICS: Final = "metrics.jsonl"
_MAPPINGS: Final = ("versions", "machine", "score", "counts", "rates", "statistics", "measures", "utilisation")
_LISTS: Final = ("evaluations", "roles", "events")
_TELLING: Final = ("statistics", "counts", "evaluations", "roles", "events")  # without any of them it tells nothing
_KINDS: Final[dict[str, type]] = {"mode": str, "staleness_policy": str, "async_eval": bool, "staleness_counts": Mapping}


@dataclass(frozen=True)
class Material:
    """One run. `summary` is that of summary.json, completed from the trace: every mapping and list is there,
    perhaps empty. `missing` are sentences about what is not. `behind`: the trace goes on well after the summary."""

    name: str
    folder: Path
    summary: dict[str, Any]
    options: dict[str, Any]
    digest: Digest | None
    scalars: Scalars | None
    missing: tuple[str, ...]
    behind: bool = False

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.summary.get("ended_by") is not None

    @property
    def statistics(self) -> dict[str, Any]:
        """The coordinator's statistics."""
        return dict(self.summary["statistics"])

    @property
    def seconds(self) -> float | None:
        """How long it ran, or ran until the last that is known of it, the time before a resume included."""
        part, whole = self.summary.get("seconds"), self.statistics.get("wall_time")
        if is_number(part):
            return part + self.earlier_seconds
        if is_number(whole):
            return whole
        return None if self.digest is None else self.digest.seconds

    @property
    def earlier_seconds(self) -> float:
        """How long it ran before its last resume."""
        value = self.summary.get("earlier_seconds")
        return max(0.0, value) if is_number(value) else 0.0


def read_all(folders: Sequence[Path]) -> list[Material]:
    """The runs in these folders, each by a name of its own; ConfigError for one that holds nothing of a run."""
    return [read_material(folder, name) for folder, name in zip(folders, names_of(folders), strict=True)]


def names_of(folders: Sequence[Path]) -> list[str]:
    """The folders' names, with as many folders above them as it takes to tell them apart."""
    whole = [folder.resolve().parts for folder in folders]
    depth = 1
    while len({parts[-depth:] for parts in whole}) < len(set(whole)):
        depth += 1
    return ["/".join(parts[-depth:]) for parts in whole]


def read_material(folder: Path, name: str | None = None) -> Material:
    """Read what a run left; ConfigError if there is nothing, or nothing that can be shown."""
    there = [file for file in (SUMMARY, METRICS, TRACE) if (folder / file).is_file()]
    if not there:
        raise ConfigError(
            f"{folder} holds no run (none of {SUMMARY}, {METRICS}, {TRACE} is there); give the folder of a run."
        )
    missing: list[str] = []
    summary = _summary(folder, missing)
    options = _json(folder / OPTIONS, missing, "the settings are not known")
    traced = _trace(folder, missing)
    scalars = read_scalars(folder / METRICS)
    if scalars is None:
        missing.append(f"{METRICS} is not there: no scalars of the learner.")
    elif scalars.broken:
        missing.append(f"{plural(scalars.broken, 'line')} of {METRICS} cannot be read and left out.")
    if traced is None and not (scalars is not None and scalars.rows) and not _tells(summary):
        raise ConfigError(
            f"{folder} holds nothing of a run that can be shown: nothing could be read in {', '.join(there)}; give the folder of "
            "another run."
        )
    later = None if traced is None else complete(summary, traced)
    missing += [] if later is None else [later]
    name = name or folder.resolve().name
    return Material(name, folder, summary, options, traced, scalars, tuple(missing), behind=later is not None)


def _summary(folder: Path, missing: list[str]) -> dict[str, Any]:
    """The summary; every mapping and list of it is there."""
    found: dict[str, Any] = {}
    if (folder / SUMMARY).is_file():
        try:
            found = read_summary(folder)
        except OtherFormat:
            raise
        except ConfigError as error:
            missing.append(f"{SUMMARY} is left out, and with it what only it tells: {error}")
    else:
        missing.append(f"{SUMMARY} is not there: only the trace and the scalars tell of this run.")
    for name in _MAPPINGS:
        found[name] = dict(found[name]) if isinstance(found.get(name), Mapping) else {}
    for name in _LISTS:
        value = found.get(name)
        found[name] = [dict(row) for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []
    found["statistics"] = {name: value for name, value in found["statistics"].items() if _is_statistic(name, value)}
    found["roles"] = [
        {name: value for name, value in row.items() if name == "role" or is_number(value)} for row in found["roles"]
    ]
    found["evaluations"] = [row for row in found["evaluations"] if is_number(row.get("score"))]
    return found


def _is_statistic(name: str, value: Any) -> bool:
    return isinstance(value, _KINDS[name]) if name in _KINDS else value is None or is_number(value)


def _tells(summary: Mapping[str, Any]) -> bool:
    return any(summary[name] for name in _TELLING) or is_number(summary["score"].get("best"))


def _json(path: Path, missing: list[str], problem: str) -> dict[str, Any]:
    if not path.is_file():
        missing.append(f"{path.name} is not there: {problem}.")
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8", errors="replace")))
    except (ValueError, TypeError) as error:
        missing.append(f"{path.name} cannot be read ({error}): {problem}.")
        return {}


def _trace(folder: Path, missing: list[str]) -> Digest | None:
    path = folder / TRACE
    if not path.is_file():
        missing.append(f"{TRACE} is not there (the run's option trace is off): no throughput over time, no timeline.")
        return None
    try:
        found = digest(path)
    except ConfigError as error:
        missing.append(f"{TRACE} is left out: {error}")
        return None
    if found is None:
        missing.append(f"{TRACE} holds no span: no throughput over time, no timeline.")
    elif (folder / "trace-1.json").is_file():
        missing.append("The run was resumed: throughput over time, lag and timeline are those since then; "
                       "trace-1.json and those after it hold what was before.")  # fmt: skip
    return found
