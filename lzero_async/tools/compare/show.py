"""The comparison put together: as text, and as numbers for JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from textwrap import fill
from typing import Any, Final

from lzero_async.errors import ConfigError
from lzero_async.runs.applications import ApplicationEntry
from lzero_async.tools.advise import show as advice
from lzero_async.tools.advise.arguments import parse
from lzero_async.tools.advise.choose import Advice, advise
from lzero_async.tools.advise.command import advised_of
from lzero_async.tools.advise.subject import Advised
from lzero_async.tools.compare.arguments import option_name
from lzero_async.tools.compare.limit import Limit, format_limit, limit_of
from lzero_async.tools.compare.measured import Run
from lzero_async.tools.compare.numbers import (
    Row,
    UseRow,
    format_others,
    format_rows,
    format_use,
    others_of,
    rows_of,
    use_of,
)
from lzero_async.tools.timeline import text as timeline
from lzero_async.tools.timeline.kinds import legend
from lzero_async.tools.timeline.reading import read, survey
from lzero_async.tools.timeline.stretch import Stretch
from lzero_async.tools.traces import find_trace

TEXT_WIDTH: Final = 120
ROW_WIDTH: Final = 60  # characters of a row, its name and shares left out
CYCLES: Final = 8  # of collect and train, in turn, that the timelines show
ENVIRONMENTS: Final = "64,128,256"


@dataclass(frozen=True)
class Comparison:
    """Everything that is shown; a run that is missing is None, and so is what needs both. `silence`: why there is no advice."""

    app: str
    sync: Run | None
    asynchronous: Run | None
    cores: int
    rows: list[Row]
    use: list[UseRow]
    stretches: Mapping[str, Stretch]
    limit: Limit | None = None
    different: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)  # options in which the runs' work differs
    advice: tuple[Advised, Advice] | None = None
    silence: str = ""

    @property
    def runs(self) -> dict[str, Run]:
        """The runs there are."""
        pair = {"synchronous": self.sync, "asynchronous": self.asynchronous}
        return {name: run for name, run in pair.items() if run is not None}


def compare_runs(app: ApplicationEntry, sync: Run | None, asynchronous: Run | None) -> Comparison:
    """Measure both runs, or the one there is."""
    cores = os.cpu_count() or 1
    pair = {"synchronous": sync, "asynchronous": asynchronous}
    shown = _stretches({name: run for name, run in pair.items() if run is not None})
    half = app.name, sync, asynchronous, cores, rows_of(sync, asynchronous), use_of(sync, asynchronous), shown
    if sync is None or asynchronous is None:
        return Comparison(*half)
    found, silence = None, ""
    try:
        sizes = ["--envs", ENVIRONMENTS] if asynchronous.pipeline.size_flags else []
        request = parse([str(asynchronous.folder), *sizes])
        advised = advised_of(request)
        found = advised, advise(advised, request)
    except ConfigError as error:
        silence = str(error)
    return Comparison(*half, limit_of(sync, asynchronous, cores), _different(app, sync, asynchronous), found, silence)


def _stretches(runs: Mapping[str, Run]) -> dict[str, Stretch]:
    """The same number of seconds from the middle of each run: some trains of the first, at most half of the shorter one."""
    surveys = {name: survey(find_trace(run.folder)) for name, run in runs.items()}
    cycles = [one.seconds / max(1, one.names["train"]) for one in surveys.values()]
    seconds = min(CYCLES * cycles[0], *(one.seconds / 2 for one in surveys.values()))
    found = {}
    for name, one in surveys.items():
        start = timeline.start_of(one.seconds, seconds)
        found[name] = Stretch(start, start + seconds, ROW_WIDTH)
        read(one, [found[name]])
    return found


def _different(app: ApplicationEntry, sync: Run, asynchronous: Run) -> dict[str, tuple[Any, Any]]:
    """Options that make the work of two runs different: both values by name. What only one of them uses is left out."""
    known = app.comparison
    words = [word for way in (known.sync, known.folder, known.seconds, *known.ways.values()) for word in way]
    own = known.async_only.union(*known.sync_only.values(), ["backend"])
    own |= set(map(option_name, words))
    left, right = _flat(sync.options), _flat(asynchronous.options)
    return {
        name: (left.get(name), right.get(name))
        for name in {**left, **right}
        if name.rpartition(".")[2] not in own and left.get(name) != right.get(name)
    }


def _flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in options.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def as_text(found: Comparison) -> str:
    """All of it, for a screen of 100 columns or more."""
    sample = next(iter(found.runs.values())).pipeline.sample
    parts = [
        f"{found.app}: synchronous and asynchronous (a sample is {sample})\n\n{format_rows(found.rows)}{_differences(found)}",
        f"Use of roles and machine, whole run\n\n{format_use(found.use)}{_warning(found)}",
        _timelines(found),
    ]
    if found.limit is not None and found.sync is not None:
        words = format_limit(found.limit, found.sync.trained / found.sync.trains, found.cores)
        parts.append(
            "\n".join(["Speed-up and its limit", "", *(fill(line, TEXT_WIDTH) for line in words.splitlines())])
        )
        parts.append(advice.as_text(*found.advice) if found.advice else f"There is no advice: {found.silence}")
    return "\n\n\n".join(parts)


def _warning(found: Comparison) -> str:
    warning = format_others(found.sync, found.asynchronous, found.cores)
    return f"\n\n{warning}" if warning else ""


def _differences(found: Comparison) -> str:
    """A warning where the runs did not do the same work."""
    if not found.different:
        return ""
    named = ", ".join(f"{name} was {one!r} and {other!r}" for name, (one, other) in found.different.items())
    return "\n\n" + fill(f"Take care: the runs did not do the same work: {named}.", TEXT_WIDTH)


def _timelines(found: Comparison) -> str:
    kinds = set().union(*(stretch.kinds for stretch in found.stretches.values()))
    parts = [fill(f"What the roles did: {legend(kinds)}", TEXT_WIDTH)]
    if any(run.pipeline.rounds for run in found.runs.values()):
        parts[0] += "\na collector's row is a round of episodes; how much the environments work is in the table above"
    for name, stretch in found.stretches.items():
        heading = f"{name}, {stretch.length:.2f} of {found.runs[name].seconds:.1f} s"
        parts.append("\n".join([heading, *timeline.draw(stretch)]))
    return "\n\n".join(parts)


def as_json(found: Comparison, commands: Mapping[str, str]) -> dict[str, Any]:
    """The same as plain numbers; `commands` made the runs."""
    value: dict[str, Any] = {
        "app": found.app,
        "sample": next(iter(found.runs.values())).pipeline.sample,
        "commands": commands,
        "cores": found.cores,
        "different": found.different,
        "table": [row._asdict() for row in found.rows],
        "utilisation": [row._asdict() for row in found.use],
        "timeline": {name: timeline.draw(stretch) for name, stretch in found.stretches.items()},
    }
    for name, run in (("sync", found.sync), ("async", found.asynchronous)):
        if run is not None:
            value[name] = {**asdict(run), "cores_used_by_others": others_of(run, found.cores)}
    if (limit := found.limit) is not None:
        derived = {name: getattr(limit, name) for name in ("in_turn", "overlap", "limit", "bound", "share")}
        value["limit"] = {**asdict(limit), **derived}
        value["advice"] = advice.as_json(*found.advice) if found.advice else None
    return value
