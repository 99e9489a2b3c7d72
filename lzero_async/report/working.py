"""How a run worked: throughput over time, where the time of each role went, staleness and lag."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from lzero_async.report.bottleneck import find_bottleneck
from lzero_async.report.charts import Band, Bar, Line, Mark, bars, keys, plot
from lzero_async.report.markup import Html, html, note, section
from lzero_async.report.material import Material
from lzero_async.report.trace_digest import BINS, Digest
from lzero_async.report.words import duration, is_number, number, percent, plural, size

PER_BIN: Final = 4  # batches that a bin of the throughput should hold at least
MOST_COLLECTORS: Final = 8  # rows of their own; the others are one row
MOST_BARS: Final = 40
STATES: Final = ("active", "waiting", "idle")


def throughput(runs: Sequence[Material]) -> Html:
    """Batches and trains per second over the time of the run."""
    traced = [(place, run, run.digest) for place, run in enumerate(runs) if run.digest is not None]
    if not traced:
        return section("throughput", "Throughput", note("Without a trace nothing is known over time."))
    if len(runs) == 1:
        _, _, seen = traced[0]
        lines = [
            Line("batches collected", rate_of(seen.collects, seen), 2),
            Line("batches trained", rate_of(seen.trains, seen), 1, "dashed"),
        ]
        return section("throughput", "Throughput", _rates("batches per second", lines, seen.seconds))
    collected = [Line(run.name, rate_of(seen.collects, seen), place) for place, run, seen in traced]
    trained = [Line(run.name, rate_of(seen.trains, seen), place) for place, run, seen in traced]
    until = max(seen.seconds for *_, seen in traced)
    charts = (
        _rates("batches collected per second", collected, until),
        _rates("batches trained per second", trained, until),
    )
    return section("throughput", "Throughput", html("div", charts, class_="pair"))


def rate_of(counts: Sequence[int], seen: Digest) -> list[tuple[float, float]]:
    """Counts per second, in bins that are wide enough to hold some; each point is the middle of its bin."""
    share = _joined(sum(counts))
    width = share * seen.width
    return [
        ((first + share / 2) * seen.width, sum(counts[first : first + share]) / width)
        for first in range(0, BINS, share)
    ]


def _joined(batches: int) -> int:
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
        "Active: inside its own work. Waiting: for the gate, that is for the other side or for the bound. Idle: neither, for "
        "example while a checkpoint is written, or while it pauses after a failure."
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
    for name in (*STATES, "cpu_seconds", "memory_bytes", "restarts"):
        values = [float(row[name]) for row in extra if is_number(row.get(name))]
        together[name] = sum(values) if values else None
    place = rows.index(extra[0])
    return [*rows[:place], together, *(row for row in rows[place:] if row not in extra)]


def _role(row: dict[str, Any]) -> Html:
    times = {state: float(row[state]) if is_number(row.get(state)) else 0.0 for state in STATES}
    whole, name = sum(times.values()), str(row.get("role", "?"))
    more = [f"{duration(row['cpu_seconds'])} CPU"] if is_number(row.get("cpu_seconds")) else []
    more += [size(row["memory_bytes"])] if is_number(row.get("memory_bytes")) else []
    more += [plural(int(row["restarts"]), "restart")] if is_number(row.get("restarts")) and row["restarts"] else []
    if whole <= 0:
        bar: Html = html("div", "works for others; its time is in theirs", class_="soft")
    else:
        shares = {state: seconds / whole for state, seconds in times.items()}
        said = ", ".join(f"{state} {percent(share)} ({duration(times[state])})" for state, share in shares.items())
        pieces = [
            html("i", percent(share) if share >= 0.08 else "", style=f"width:{100 * share:.2f}%", class_=f"k-{state}")
            for state, share in shares.items()
        ]
        bar = html("div", pieces, class_="share", role="img", aria_label=f"{name}: {said}", title=f"{name}: {said}")
    return html(
        "div", html("span", name, class_="name"), bar, html("span", " · ".join(more), class_="more"), class_="role"
    )


def staleness_and_lag(runs: Sequence[Material]) -> Html:
    """How old the batches were, and how many waited."""
    charts = [chart for run in runs if (chart := _staleness(run, runs)) is not None]
    lag = _lag(runs)
    said = [_in_words(run, runs) for run in runs]
    return section(
        "staleness", "Staleness and lag",
        html("p", said[0]) if len(runs) == 1 else html("ul", [html("li", words) for words in said]),
        html("div", charts, lag, class_="pair") if charts or lag is not None else note("Neither is known of this run."),
    )  # fmt: skip


def _in_words(run: Material, runs: Sequence[Material]) -> str:
    found = run.statistics
    if not is_number(found.get("staleness_mean")):
        return ""
    name = f"{run.name}: " if len(runs) > 1 else ""
    queue = found.get("queue_capacity")
    bound = (
        f"queue of {number(queue)}"
        if is_number(queue)
        else f"off_policy_degree {number(found.get('off_policy_degree'))}"
    )
    kept = "" if is_number(queue) else _kept(found)
    return (
        f"{name}Staleness was {number(found['staleness_mean'])} on average and {number(found.get('staleness_max'))} at most, "
        f"the lag {number(found.get('mean_lag'))} on average and {number(found.get('max_lag'))} at most ({bound}{kept})."
    )


def _kept(statistics: dict[str, Any]) -> str:
    bound, seen = statistics.get("off_policy_degree"), statistics.get("staleness_max")
    if not is_number(bound) or not is_number(seen) or statistics.get("degree_changes"):
        return ""
    return ", kept" if seen <= bound else ", exceeded"


def _staleness(run: Material, runs: Sequence[Material]) -> Html | None:
    counts = {int(key): int(value) for key, value in (run.statistics.get("staleness_counts") or {}).items()
              if str(key).isdigit() and is_number(value)}  # fmt: skip
    total = sum(counts.values())
    if not total:
        return None
    degree, queue = run.statistics.get("off_policy_degree"), run.statistics.get("queue_capacity")
    bound = int(degree) if is_number(degree) and queue is None else None
    last = max(counts)
    every = range(min(last, MOST_BARS) + 1) if last <= MOST_BARS else sorted(counts)
    entries = [
        Bar(str(key), counts.get(key, 0), f"{percent(counts.get(key, 0) / total)}", bound is not None and key > bound)
        for key in every
    ]
    behind = None if bound is None else sum(1 for key in every if key <= bound)
    if bound is not None and bound > last:  # the bound is further right than any batch
        entries += [Bar(str(key), 0, "") for key in range(last + 1, min(bound, MOST_BARS) + 1)]
        behind = len(entries) if bound <= MOST_BARS else None
    about = ", ".join(f"{number(count)} batches with staleness {key}" for key, count in sorted(counts.items())[:12])
    caption = "share of the batches by staleness" + (f": {run.name}" if len(runs) > 1 else "")
    return bars(
        caption, about, entries, x_name="trains between a batch's weights and its own train",
        bound=behind, bound_name="" if bound is None else f"bound: degree {bound}",
    )  # fmt: skip


def _lag(runs: Sequence[Material]) -> Html | None:
    lines: list[Line] = []
    bands: list[Band] = []
    bounds: set[float] = set()
    for place, run in enumerate(runs):
        if run.digest is None or "lag" not in run.digest.levels:
            continue
        mean, highest = _levels(run.digest, "lag")
        lines.append(Line("mean" if len(runs) == 1 else run.name, mean, place))
        if len(runs) == 1:
            bands.append(Band("up to the highest", [(x, 0.0, y) for x, y in highest], place))
        queue, degree = run.statistics.get("queue_capacity"), run.statistics.get("off_policy_degree")
        if is_number(queue):
            bounds.add(queue + 1)  # the one that is trained has left the queue
        elif is_number(degree):
            bounds.add(degree)
    if not lines:
        return None
    marks = [Mark(f"bound: {number(limit)}", float(limit)) for limit in sorted(bounds)] if len(bounds) == 1 else []
    seen = max((y for line in lines for _, y in line.points), default=0.0)
    until = max(run.digest.seconds for run in runs if run.digest is not None)
    marks = [mark for mark in marks if mark.value <= 6 * max(1.0, seen)]  # one far away would flatten the curve
    return plot("batches that wait (lag)", "collected batches that are not trained yet, over time", lines, bands=bands,
                marks=marks, x_name="time of the run", time=True, from_zero=True, until=until)  # fmt: skip


def _levels(seen: Digest, name: str) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Mean and highest value of a counter over time."""
    level, share = seen.levels[name], max(2, _joined(sum(seen.trains)) // 2)
    means: list[tuple[float, float]] = []
    tops: list[tuple[float, float]] = []
    for first in range(0, BINS, share):
        middle = (first + share / 2) * seen.width
        known = [value for value in level.means[first : first + share] if value is not None]
        high = [value for value in level.highest[first : first + share] if value is not None]
        if known:
            means.append((middle, sum(known) / len(known)))
        if high:
            tops.append((middle, max(high)))
    return means, tops
