"""The comparison put together: as text, and as numbers for JSON."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from textwrap import fill
from typing import Any, Final

from lzero_async.runs.run_files import Run
from lzero_async.telemetry.terminal.progress import table
from lzero_async.tools.compare.apps import App, different
from lzero_async.tools.compare.limit import Limit, format_limit, limit_of
from lzero_async.tools.compare.measured import Measured
from lzero_async.tools.compare.models import Model, Pair, model_of
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
from lzero_async.tools.compare.recommend import ENVIRONMENTS, Choice, predict, recommend
from lzero_async.tools.timeline import text as timeline
from lzero_async.tools.timeline.kinds import legend

TEXT_WIDTH: Final = 120


@dataclass(frozen=True)
class Comparison:
    """Everything that is shown; a run that is missing is None, and so is what needs both."""

    app: App
    sync: Run | None
    asynchronous: Run | None
    of_sync: Measured | None
    of_async: Measured | None
    cores: int
    rows: list[Row]
    use: list[UseRow]
    limit: Limit | None = None
    model: Model | None = None
    choices: tuple[Choice, ...] = ()
    different: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # options in which the runs' work differs
    check: Choice | None = None  # what the simulation says about the run that was measured


def compare_runs(app: App, sync: Run | None, asynchronous: Run | None) -> Comparison:
    """Measure both runs, or the one there is."""
    of_sync = None if sync is None else app.measured(sync)
    of_async = None if asynchronous is None else app.measured(asynchronous)
    cores = os.cpu_count() or 1
    half = Comparison(
        app, sync, asynchronous, of_sync, of_async, cores, rows_of(of_sync, of_async), use_of(of_sync, of_async)
    )
    if sync is None or asynchronous is None or of_sync is None or of_async is None:
        return half
    model = model_of(Pair(app, sync, asynchronous, of_sync, of_async, cores))
    return Comparison(
        app, sync, asynchronous, of_sync, of_async, cores, half.rows, half.use,
        limit=limit_of(of_sync, of_async, model.stages, model.own, cores),
        model=model,
        different=different(app, sync, asynchronous),
        choices=tuple(recommend(model.times, envs, model.plans) for envs in ENVIRONMENTS),
        check=predict(model.times, of_async.envs, model.measured),
    )  # fmt: skip


def as_text(found: Comparison) -> str:
    """All of it, for a screen of 100 columns or more."""
    parts = [
        f"{found.app.name}: synchronous and asynchronous (a sample is {found.app.sample})\n\n{format_rows(found.rows)}"
        + _differences(found),
        f"Use of roles and machine, whole run\n\n{format_use(found.use)}{_warning(found)}",
        _timelines(found),
    ]
    if found.limit is not None and found.model is not None and found.of_sync is not None:
        batch = found.of_sync.trained / found.of_sync.trains
        parts.append(
            f"Speed-up and its limit\n\n{format_limit(found.limit, batch, found.cores, fill(found.model.note, TEXT_WIDTH))}"
        )
        parts.append(_sizes(found, found.model))
    return "\n\n\n".join(parts)


def _warning(found: Comparison) -> str:
    warning = format_others(found.of_sync, found.of_async, found.cores)
    return f"\n\n{warning}" if warning else ""


def _differences(found: Comparison) -> str:
    """A warning where the runs did not do the same work."""
    if not found.different:
        return ""
    named = ", ".join(f"{name} was {one!r} and {other!r}" for name, (one, other) in found.different.items())
    return "\n\n" + fill(f"Take care: the runs did not do the same work: {named}.", TEXT_WIDTH)


def _timelines(found: Comparison) -> str:
    seconds = timeline.window(found.sync, found.asynchronous)
    shown = {name: timeline.part_of(run, seconds) for name, run in _runs(found).items()}
    kinds = set().union(*(stretch.kinds for stretch in shown.values()))
    parts = [fill(f"What the roles did: {legend(kinds)}", TEXT_WIDTH)]
    parts[0] += f"\n{found.app.rows}" if found.app.rows else ""
    for name, stretch in shown.items():
        whole = _runs(found)[name].seconds
        parts.append("\n".join([f"{name}, {seconds:.2f} of {whole:.1f} s", *timeline.draw(stretch)]))
    return "\n\n".join(parts)


def _runs(found: Comparison) -> dict[str, Run]:
    """The runs there are."""
    pair = {"synchronous": found.sync, "asynchronous": found.asynchronous}
    return {name: run for name, run in pair.items() if run is not None}


def _sizes(found: Comparison, model: Model) -> str:
    assert found.of_async is not None and found.check is not None
    own, check = found.of_async, found.check
    cells = [["environments", "samples/s", "staleness", "by"]]
    for choice in found.choices:
        by = "simulated*" if choice.cores_bind else "simulated"
        cells.append([str(choice.envs), f"{choice.rate:,.0f}", f"{choice.staleness:.1f}", by])
    cells.append([str(own.envs), f"{own.effective:,.0f}", f"{own.staleness_mean:.1f}", "measured"])
    cells.append([str(own.envs), f"{check.rate:,.0f}", f"{check.staleness:.1f}", "simulated"])
    flags = [model.flags(choice) for choice in (*found.choices, check, check)]
    lines = [
        "Recommended sizes",
        "",
        _with_flags(cells, flags),
        "",
        "The smallest collectors, queue and batch whose simulated rate is within 2 % of the best. Only the line 'measured' was",
        "run; the line below it is what the simulation says about that run, without its start.",
        fill(f"Assumed: {model.assumption}.", TEXT_WIDTH),
    ]
    if any(choice.cores_bind for choice in found.choices):
        lines.append(f"* limited by the {found.cores} cores of this machine; more cores allow more.")
    return "\n".join(lines)


def _with_flags(cells: list[list[str]], flags: list[str]) -> str:
    """A table with one more column, of text."""
    heading, _, *lines = table(cells).splitlines()
    shown = [f"{line}  {words}" for line, words in zip(lines, flags, strict=True)]
    return "\n".join([f"{heading}  options", "-" * max(map(len, shown)), *shown])


def as_json(found: Comparison, commands: dict[str, str]) -> dict[str, Any]:
    """The same as plain numbers; `commands` made the runs."""
    value: dict[str, Any] = {
        "app": found.app.name,
        "sample": found.app.sample,
        "commands": commands,
        "cores": found.cores,
        "different": found.different,
        "table": [row._asdict() for row in found.rows],
        "utilisation": [row._asdict() for row in found.use],
    }
    for name, run, measured in (("sync", found.sync, found.of_sync), ("async", found.asynchronous, found.of_async)):
        if run is not None and measured is not None:
            others = others_of(measured, found.cores)
            value[name] = {"folder": str(run.folder), **asdict(measured), "cores_used_by_others": others}
    seconds = timeline.window(found.sync, found.asynchronous)
    runs = {"sync": found.sync, "async": found.asynchronous}
    value["timeline"] = {
        name: timeline.draw(timeline.part_of(run, seconds)) for name, run in runs.items() if run is not None
    }
    if found.limit is not None and found.model is not None and found.check is not None:
        limit = found.limit
        derived = {name: getattr(limit, name) for name in ("in_turn", "overlap", "limit", "bound", "share")}
        value["limit"] = {**asdict(limit), **derived, "note": found.model.note}
        value["recommended"] = [_choice(found.model, choice) for choice in found.choices]
        value["simulation_of_the_measured_run"] = _choice(found.model, found.check)
        value["assumed"] = found.model.assumption
    return value


def _choice(model: Model, choice: Choice) -> dict[str, Any]:
    plan = choice.plan._asdict()
    return {**choice._asdict(), "plan": plan, "by": "simulated", "flags": model.flags(choice)}
