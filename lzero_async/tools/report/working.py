"""How a run worked: throughput over time, and where the time of each role went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from lzero_async.telemetry.quantities import label
from lzero_async.tools.report.bottleneck import find_bottleneck
from lzero_async.tools.report.charts import Line, keys, plot
from lzero_async.tools.report.inputs import Material
from lzero_async.tools.report.markup import (
    Html,
    duration,
    html,
    is_number,
    note,
    number,
    percent,
    plural,
    section,
    size,
)
from lzero_async.tools.report.trace_digest import BINS, Digest

PER_BIN: Final = 4  # batches that a bin of the throughput should hold at least
MOST_COLLECTORS: Final = 8  # rows of their own; the others are one row
QUEUED: Final = 0.05  # share of its time that a role waits for a core before it is worth a word
STATES: Final = ("active", "waiting", "idle")


def throughput(runs: Sequence[Material]) -> Html:
    """Batches and trains per second over the time of the run."""
    traced = [(place, run, run.digest) for place, run in enumerate(runs) if run.digest is not None]
    if not traced:
        return section("throughput", "Throughput", note("Without a trace nothing is known over time."))
    if len(runs) == 1:
        _, _, seen = traced[0]
        lines = [
            Line(label("collect_count"), rate_of(seen.collects, seen), 2),
            Line(label("train_count"), rate_of(seen.trains, seen), 1, "dashed"),
        ]
        return section(
            "throughput",
            "Throughput",
            _rates(f"{label('collect_count')} and {label('train_count')} per second", lines, seen.seconds),
        )
    collected = [Line(run.name, rate_of(seen.collects, seen), place) for place, run, seen in traced]
    trained = [Line(run.name, rate_of(seen.trains, seen), place) for place, run, seen in traced]
    until = max(seen.seconds for *_, seen in traced)
    charts = (
        _rates(f"{label('collect_count')} per second", collected, until),
        _rates(f"{label('train_count')} per second", trained, until),
    )
    return section("throughput", "Throughput", html("div", charts, class_="pair"))


def rate_of(counts: Sequence[int], seen: Digest) -> list[tuple[float, float]]:
    """Counts per second, in bins that are wide enough to hold some; each point is the middle of its bin."""
    share = joined(sum(counts))
    width = share * seen.width
    return [
        ((first + share / 2) * seen.width, sum(counts[first : first + share]) / width)
        for first in range(0, BINS, share)
    ]


def joined(batches: int) -> int:
    """How many bins of the trace to join for a curve of so many batches."""
    wanted = max(6, min(60, batches // PER_BIN))
    return next(share for share in (2, 3, 4, 5, 6, 8, 10, 12, 15, 20) if BINS // share <= wanted or share == 20)


def _rates(caption: str, lines: Sequence[Line], until: float) -> Html:
    about = "; ".join(
        f"{line.name}: {number(sum(y for _, y in line.points) / len(line.points))} on average" for line in lines
    )
    return plot(caption, about, lines, x_name="time of the run", time=True, from_zero=True, until=until)


def where_time_went(runs: Sequence[Material]) -> Html:
    """A bar per role, and what held the run back."""
    parts: list[Any] = []
    for run in runs:
        if len(runs) > 1:
            parts.append(html("h3", run.name))
        parts.append(html("p", find_bottleneck(run.summary).sentence, class_="finding"))
        rows = [_role(row) for row in _folded(run.summary["roles"])]
        parts += rows or [note("What the roles did is not known.")]
    names = keys([(state, f"key box k-{state}") for state in STATES])
    explained = note(
        "Active: inside its own work. Waiting: for the gate, that is for the other side or for the bound, and the learner for an "
        "evaluation in its turn. Idle: neither, for example while a checkpoint is written, or while it pauses after a failure. "
        "Seconds for a core: ready to compute, and no core was free."
    )
    return section("time", "Where the time went", html("figcaption", names), parts, explained)


def _folded(roles: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows to show: collectors beyond the first few as one."""
    rows = list(roles)
    collectors = [row for row in rows if str(row.get("role", "")).startswith("collector ")]
    extra = collectors[MOST_COLLECTORS:]
    if len(extra) < 2:
        return rows
    together: dict[str, Any] = {"role": f"{len(extra)} more"}
    for name in (*STATES, "cpu_seconds", "queued_seconds", "memory_bytes", "restarts"):
        values = [float(row[name]) for row in extra if is_number(row.get(name))]
        together |= {name: sum(values)} if values else {}
    place = rows.index(extra[0])
    return [*rows[:place], together, *(row for row in rows[place:] if row not in extra)]


def _role(row: dict[str, Any]) -> Html:
    times = {state: float(row[state]) if is_number(row.get(state)) else 0.0 for state in STATES}
    whole, name = sum(times.values()), str(row.get("role", "?"))
    more = [f"{duration(row['cpu_seconds'])} CPU"] if is_number(row.get("cpu_seconds")) else []
    more += (
        [f"{duration(row['queued_seconds'])} for a core"] if row.get("queued_seconds", 0) > QUEUED * whole > 0 else []
    )
    more += [size(row["memory_bytes"])] if is_number(row.get("memory_bytes")) else []
    more += [plural(int(row["restarts"]), "restart")] if is_number(row.get("restarts")) and row["restarts"] else []
    if whole <= 0:
        bar: Html = html("div", "its time is not measured by itself", class_="soft")
    else:
        shares = {state: seconds / whole for state, seconds in times.items()}
        said = ", ".join(f"{state} {percent(share)} ({duration(times[state])})" for state, share in shares.items())
        pieces = [
            html("i", percent(share) if share >= 0.08 else "", style=f"width:{100 * share:.2f}%", class_=f"k-{state}")
            for state, share in shares.items()
        ]
        bar = html("div", pieces, class_="share", role="img", aria_label=f"{name}: {said}", title=f"{name}: {said}")
    return html("div", html("span", name, class_="name"), bar, html("span", _row(more), class_="more"), class_="role")


def _row(words: Sequence[str]) -> list[Any]:
    """Words side by side; a line breaks only between them."""
    return [[" · " if place else None, html("span", word)] for place, word in enumerate(words)]
