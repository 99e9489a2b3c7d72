"""A trace read event by event, so that a long one needs no memory: once for its extent, once for what is to be shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lzero_async.errors import ConfigError
from lzero_async.tools.timeline.stretch import End, Stretch
from lzero_async.tools.traces import Moment, Span, is_closed, read_items

CYCLES: Final = 4  # collects and trains of each role that a stretch is to show at least


@dataclass
class Survey:
    """What a trace holds in all; times are seconds since its first span."""

    path: Path
    closed: bool = True  # False: the run goes on, or it was killed
    origin: float = 0.0  # of the trace's own clock
    seconds: float = 0.0
    roles: dict[str, None] = field(default_factory=dict)
    names: Counter[str] = field(default_factory=Counter)
    collectors: int = 0
    first_batch: int = -1
    last_batch: int = -1
    batch: dict[str, Span] = field(default_factory=dict)  # what was done with the batch that was asked for


def survey(path: Path, batch: int | None = None) -> Survey:
    """Read a trace for its extent and for what happened to `batch`; ConfigError if nothing in it can be shown."""
    found = Survey(path)
    first, last = float("inf"), float("-inf")
    with_collects = set()
    for item, args in read_items(path):
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
        if batch is not None and batch in args.get("batches", (number,)):
            found.batch[item.name] = item
    if not found.names:
        raise ConfigError(f"{path} has no spans yet; wait until the run has done something, or give another run.")
    found.origin, found.seconds, found.collectors = first, last - first, len(with_collects)
    found.closed = is_closed(path)
    found.batch = {name: span.since(first) for name, span in found.batch.items()}
    return found


def read(found: Survey, stretches: Sequence[Stretch], batch: int | None = None) -> None:
    """Fill the stretches from the trace; the spans of `batch` are labelled with its number."""
    for stretch in stretches:
        for role in found.roles:
            stretch.meet(role)
    for item, args in read_items(found.path):
        for stretch in stretches:
            if isinstance(item, Span):
                number = args.get("batch", -1)
                is_it = batch is not None and batch in args.get("batches", (number,))
                label = f"b{batch}" if is_it else _label(item.name, args)
                stretch.add(item.since(found.origin), label, number)
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


def _label(name: str, args: dict[str, Any]) -> str:
    if name == "train" and "staleness" in args:
        return f"s{args['staleness']}"
    return f"v{args['version']}" if name in ("collect", "eval") and "version" in args else ""
