"""A trace read event by event, so that a long one needs no memory: once for its extent, once for what is to be shown."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from lzero_async.core.trace import iter_trace
from lzero_async.errors import ConfigError
from lzero_async.runs.run_files import Span
from lzero_async.tools.timeline.stretch import End, Stretch

TRACE: Final = "trace.json"
CYCLES: Final = 4  # collects and trains of each role that a stretch is to show at least


class Moment(NamedTuple):
    """A counter's change (`what` is C), or an arrow's end (s or f); `at` in seconds of the trace's own clock."""

    what: str
    name: str
    at: float
    value: float
    role: str


@dataclass
class Survey:
    """What a trace holds in all; times are seconds since its first span."""

    path: Path
    closed: bool  # False: the run goes on, or it was killed
    origin: float = 0.0  # of the trace's own clock
    seconds: float = 0.0
    roles: dict[str, None] = field(default_factory=dict)
    names: Counter[str] = field(default_factory=Counter)
    collectors: int = 0
    first_batch: int = -1
    last_batch: int = -1
    batch: dict[str, Span] = field(default_factory=dict)  # what was done with the batch that was asked for


def find_trace(given: Path) -> Path:
    """The trace file that a run's folder holds, or the file itself; ConfigError where there is none."""
    path = given / TRACE if given.is_dir() else given
    if not path.is_file():
        raise ConfigError(f"There is no trace at {path}; give the folder of a run whose trace is on, or a trace file.")
    return path


def survey(path: Path, batch: int | None = None) -> Survey:
    """Read a trace for its extent and for what happened to `batch`; ConfigError if nothing in it can be shown."""
    found = Survey(path, _is_closed(path))
    first, last = float("inf"), float("-inf")
    with_collects = set()
    for item, args in _items(path):
        if isinstance(item, Moment):
            continue
        first, last = min(first, item.start), max(last, item.end)
        found.roles[item.role] = None
        found.names[item.name] += 1
        number = args.get("batch", -1)
        if item.name == "collect":
            with_collects.add(item.role)
            if isinstance(number, int):
                found.first_batch = number if found.first_batch < 0 else min(found.first_batch, number)
                found.last_batch = max(found.last_batch, number)
        if batch is not None and number == batch:
            found.batch[item.name] = item
    if not found.names:
        raise ConfigError(f"{path} has no spans yet; wait until the run has done something, or give another run.")
    found.origin, found.seconds, found.collectors = first, last - first, len(with_collects)
    found.batch = {name: _moved(span, first) for name, span in found.batch.items()}
    return found


def read(found: Survey, stretches: Sequence[Stretch], batch: int | None = None) -> None:
    """Fill the stretches from the trace; the spans of `batch` are labelled with its number."""
    for stretch in stretches:
        for role in found.roles:
            stretch.meet(role)
    for item, args in _items(found.path):
        for stretch in stretches:
            if isinstance(item, Span):
                number = args.get("batch", -1)
                label = f"b{batch}" if batch is not None and number == batch else _label(item.name, args)
                stretch.add(_moved(item, found.origin), label, number)
            elif item.what == "C":
                stretch.count(item.name, item.at - found.origin, item.value)
            else:
                end = End(item.role, item.at - found.origin)
                stretch.arrow_end(item.name, int(item.value), end, head=item.what == "f")


def usual_length(found: Survey) -> float:
    """Seconds that show some collects of a collector and some trains, at most half of the run."""
    collects, trains = found.names["collect"], found.names["train"]
    cycles = [found.seconds * found.collectors / collects] if collects else []
    cycles += [found.seconds / trains] if trains else []
    return min(CYCLES * max(cycles, default=found.seconds), found.seconds / 2)


def _items(path: Path) -> Iterator[tuple[Span | Moment, dict[str, Any]]]:
    """The spans, counters and ends of arrows of a trace, in seconds of its own clock; what is something else is skipped."""
    names: dict[tuple[Any, Any], str] = {}
    try:
        for event in iter_trace(path):
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
        start = event["ts"] / 1e6
        return Span(names.get(place, "?"), str(event["name"]), start, start + max(0.0, event["dur"] / 1e6))
    if what == "C":
        value, *_ = event["args"].values()
        return Moment("C", str(event["name"]), event["ts"] / 1e6, float(value), "")
    if what in ("s", "f"):
        return Moment(what, str(event["cat"]), event["ts"] / 1e6, float(event["id"]), names.get(place, "?"))
    if what == "M" and event["name"] == "thread_name":
        names[place] = str(event["args"]["name"])
    return None


def _label(name: str, args: dict[str, Any]) -> str:
    if name == "train" and "staleness" in args:
        return f"s{args['staleness']}"
    return f"v{args['version']}" if name in ("collect", "eval") and "version" in args else ""


def _moved(span: Span, origin: float) -> Span:
    return span._replace(start=span.start - origin, end=span.end - origin)


def _is_closed(path: Path) -> bool:
    """Whether the writer ended the file with its bracket."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.path.getsize(path) - 8))
            return file.read().rstrip().endswith(b"]")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); give another run or file.") from error
