"""The one reader of a trace: item by item, so that a long trace needs no memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from lzero_async.errors import ConfigError

TRACE: Final = "trace.json"
_MICRO: Final = 1e6  # of a second
_EDGE: Final = 1 << 18  # bytes at both ends of a file that tell how long it lasts


class Span(NamedTuple):
    """What one role did from `start` to `end`, in seconds."""

    role: str
    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start

    def since(self, origin: float) -> Span:
        """The same span with its times counted from `origin`."""
        return self._replace(start=self.start - origin, end=self.end - origin)


class Moment(NamedTuple):
    """A counter's change (`what` is C), or an arrow's end (s or f); `at` in seconds of the trace's own clock."""

    what: str
    name: str
    at: float
    value: float
    role: str


Item = tuple[Span | Moment, dict[str, Any]]


def find_trace(given: Path) -> Path:
    """The trace file that a run's folder holds, or the file itself; ConfigError where there is none."""
    path = given / TRACE if given.is_dir() else given
    if not path.is_file():
        raise ConfigError(f"There is no trace at {path}; give the folder of a run whose trace is on, or a trace file.")
    return path


def read_events(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The events of a trace file as they were written, also of one that a crash cut off in the middle of an event."""
    broken = 0
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if broken:
                raise ConfigError(f"{path} is not a trace of ours: line {broken} is not an event.")
            text = line.strip().removeprefix("[").rstrip(",")
            if text in ("", "]"):
                continue
            try:
                event = json.loads(text)
            except json.JSONDecodeError:
                broken = number  # the last line may be: a crash cut it off
                continue
            yield event


def read_items(path: Path) -> Iterator[Item]:
    """Spans, counters and ends of arrows with their arguments, in seconds of the trace's own clock. Other events are skipped."""
    names: dict[tuple[Any, Any], str] = {}
    try:
        for event in read_events(path):
            try:
                item = _item(event, names)
            except (AttributeError, KeyError, TypeError, ValueError):
                continue
            if item is not None:
                args = event.get("args")
                yield item, args if isinstance(args, dict) else {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give another run or file.") from error


def _item(event: dict[str, Any], names: dict[tuple[Any, Any], str]) -> Span | Moment | None:
    what, place = event["ph"], (event.get("pid", 0), event.get("tid", 0))
    if what == "X":
        start = event["ts"] / _MICRO
        return Span(names.get(place, "?"), str(event["name"]), start, start + max(0.0, event["dur"] / _MICRO))
    if what == "C":
        value, *_ = event["args"].values()
        return Moment("C", str(event["name"]), event["ts"] / _MICRO, float(value), "")
    if what in ("s", "f"):
        return Moment(what, str(event["cat"]), event["ts"] / _MICRO, float(event["id"]), names.get(place, "?"))
    if what == "M" and event["name"] == "thread_name":
        names[place] = str(event["args"]["name"])
    return None


def extent(path: Path) -> tuple[float, float] | None:
    """When a trace begins and ends, from both ends of the file: spans are written when they end. None without a span."""
    starts: list[float] = []
    ends: list[float] = []
    with path.open("rb") as file:
        length = file.seek(0, 2)
        for place in {0, max(0, length - _EDGE)}:
            file.seek(place)
            for line in file.read(_EDGE).splitlines():
                try:
                    item = _item(json.loads(line.removeprefix(b"[").rstrip(b",")), {})
                except (AttributeError, KeyError, TypeError, ValueError):  # cut in two by the edge
                    continue
                if isinstance(item, Span):
                    starts.append(item.start)
                    ends.append(item.end)
    return (min(starts), max(ends)) if starts else None


def is_closed(path: Path) -> bool:
    """Whether the writer ended the file with its bracket; if not, the run is still running, or it was killed."""
    with path.open("rb") as file:
        file.seek(max(0, os.path.getsize(path) - 8))
        return file.read().rstrip().endswith(b"]")


def busy_seconds(spans: Iterable[Span], start: float, end: float) -> float:
    """Seconds between `start` and `end` that at least one of the spans covers."""
    total, reached = 0.0, start
    for span in sorted(spans, key=lambda span: span.start):
        left, right = max(span.start, reached), min(span.end, end)
        if right > left:
            total += right - left
            reached = right
    return total
