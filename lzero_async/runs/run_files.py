"""A finished run, read from the files that it left in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from lzero_async.core.activity import rank
from lzero_async.core.trace import read_trace
from lzero_async.errors import ConfigError

EVALUATION: Final = "eval"


class Span(NamedTuple):
    """What one role did from `start` to `end`, in seconds since the first span of the run."""

    role: str
    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True)
class Run:
    """What a run left: results, options, one row per train, and what its roles did, and apart from that how they waited."""

    folder: Path
    results: dict[str, Any]
    options: dict[str, Any]
    rows: list[dict[str, Any]]
    spans: list[Span]
    waits: list[Span] = field(default_factory=list)

    def of(self, *names: str) -> list[Span]:
        """The spans of these names, in order."""
        return [span for span in self.spans if span.name in names]

    @property
    def seconds(self) -> float:
        """When the last span ended."""
        return max((span.end for span in self.spans), default=0.0)


def load_run(folder: Path) -> Run:
    """Read a run's folder; ConfigError if it holds no finished run with a trace."""
    results = _read_json(folder / "results.json", f"{folder} holds no finished run")
    options = _read_json(folder / "options.json", f"{folder} holds no options of a run")
    metrics, trace = folder / "metrics.jsonl", folder / "trace.json"
    try:
        rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.is_file() else []
    except ValueError as error:
        raise ConfigError(f"{metrics} cannot be read ({error}); give the folder of a run that ended.") from error
    if not trace.is_file():
        raise ConfigError(f"{folder} has no trace.json; run the application with its trace on, as compare does.")
    return Run(folder, results, options, rows, *work_and_waits(read_trace(trace)))


def _read_json(path: Path, problem: str) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        raise ConfigError(f"{problem} ({path.name} is missing); give the folder of a run that ended.") from None
    except (ValueError, TypeError, NotADirectoryError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); give the folder of a run that ended.") from error


def spans_of(events: Iterable[dict[str, Any]]) -> list[Span]:
    """The work in a trace's events, by start. An evaluation is the evaluator's, also where the learner waits for it."""
    return work_and_waits(events)[0]


def work_and_waits(events: Iterable[dict[str, Any]]) -> tuple[list[Span], list[Span]]:
    """The same, and the waits, whose times are also counted from the first work."""
    names: dict[tuple[int, int], str] = {}
    work: list[Span] = []
    waits: list[Span] = []
    for event in events:
        place = event.get("pid", 0), event.get("tid", 0)
        if event["ph"] == "M" and event["name"] == "thread_name":
            names[place] = event["args"]["name"]
        elif event["ph"] == "X":
            role = "evaluator" if event["name"] == EVALUATION else names.get(place, "?")
            found = waits if event["name"].startswith("wait") else work
            found.append(Span(role, event["name"], event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6))
    first = min((span.start for span in work), default=0.0)
    return _since(work, first), _since(waits, first)


def _since(spans: Iterable[Span], first: float) -> list[Span]:
    return sorted((span._replace(start=span.start - first, end=span.end - first) for span in spans), key=_by_start)


def _by_start(span: Span) -> tuple[float, str]:
    return span.start, span.role


def busy_seconds(spans: Iterable[Span], start: float, end: float) -> float:
    """Seconds between `start` and `end` that at least one of the spans covers."""
    total, reached = 0.0, start
    for span in sorted(spans, key=_by_start):
        left, right = max(span.start, reached), min(span.end, end)
        if right > left:
            total += right - left
            reached = right
    return total


def by_role(spans: Iterable[Span]) -> dict[str, list[Span]]:
    """The spans of each role: collectors by their numbers, then the learner and what else there is, the evaluator last."""
    found: dict[str, list[Span]] = {}
    for span in spans:
        found.setdefault(span.role, []).append(span)
    return {role: found[role] for role in sorted(found, key=rank)}
