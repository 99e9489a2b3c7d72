"""How old the batches were when they were trained, and how many waited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lzero_async.telemetry.quantities import label
from lzero_async.tools.report.charts import Band, Bar, Line, Mark, bars, plot
from lzero_async.tools.report.curves import flat
from lzero_async.tools.report.inputs import Material
from lzero_async.tools.report.markup import Html, html, is_number, note, number, percent, section
from lzero_async.tools.report.trace_digest import BINS, Digest
from lzero_async.tools.report.working import joined

MOST_BARS: Final = 40


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
    if not is_number(found.get("staleness_mean")) or not found.get("train_count"):
        return "No batch was trained." if found.get("train_count") == 0 else ""
    name = f"{run.name}: " if len(runs) > 1 else ""
    queue = found.get("queue_capacity")
    bound = (
        f"queue of {number(queue)}"
        if is_number(queue)
        else f"{label('off_policy_degree')} {number(found.get('off_policy_degree'))}"
    )
    kept = "" if is_number(queue) else _kept(run)
    lag = f"{number(found['mean_lag'])} on average and " if is_number(found.get("mean_lag")) else ""
    return (
        f"{name}Staleness was {number(found['staleness_mean'])} on average and {number(found.get('staleness_max'))} at most, "
        f"the lag {lag}{number(found.get('max_lag'))} at most ({bound}{kept})."
    )


def _kept(run: Material) -> str:
    bound, seen = _bound(run), run.statistics.get("staleness_max")
    if bound is None or not is_number(seen):
        return ""
    return ", kept" if seen <= bound else ", exceeded"


def _bound(run: Material) -> int | None:
    """The staleness that no batch may exceed; None where there is no such bound. Of degrees that changed it is the highest."""
    degree = run.statistics.get("off_policy_degree")
    policies = [value for name, value in flat(run.options).items() if name.rpartition(".")[2] == "staleness_policy"]
    allowed = run.statistics.get("staleness_policy", "allow" if "allow" in policies else None) == "allow"
    if not is_number(degree) or run.statistics.get("queue_capacity") is not None or allowed:
        return None
    if not run.statistics.get("degree_changes"):
        return int(degree)
    level = run.digest.levels.get("degree") if run.digest is not None else None
    return None if level is None else int(max(value for value in level.highest if value is not None))


def _staleness(run: Material, runs: Sequence[Material]) -> Html | None:
    counts = {int(key): int(value) for key, value in (run.statistics.get("staleness_counts") or {}).items()
              if str(key).isdigit() and is_number(value)}  # fmt: skip
    total = sum(counts.values())
    if not total:
        return None
    bound, last = _bound(run), max(counts)
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
        if run.statistics.get("degree_changes"):
            if "degree" in run.digest.levels and len(runs) == 1:
                lines.append(Line("the degree", _levels(run.digest, "degree")[0], 7, "dashed"))
        elif (bound := _lag_bound(run)) is not None:
            bounds.add(bound)
    if not lines:
        return None
    marks = [Mark(f"bound: {number(limit)}", float(limit)) for limit in sorted(bounds)] if len(bounds) == 1 else []
    seen = max((y for line in lines for _, y in line.points), default=0.0)
    until = max(run.digest.seconds for run in runs if run.digest is not None)
    marks = [mark for mark in marks if mark.value <= 6 * max(1.0, seen)]  # one far away would flatten the curve
    return plot("batches that wait (lag)", "collected batches that are not trained yet, over time", lines, bands=bands,
                marks=marks, x_name="time of the run", time=True, from_zero=True, until=until)  # fmt: skip


def _lag_bound(run: Material) -> float | None:
    """What the lag may reach; summaries without it are older than this number."""
    bound, queue, degree = (run.statistics.get(name) for name in ("lag_bound", "queue_capacity", "off_policy_degree"))
    if is_number(bound):
        return bound
    if is_number(queue):
        return queue + 1  # the one that is trained has left the queue
    return max(1, degree) if is_number(degree) else None


def _levels(seen: Digest, name: str) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Mean and highest value of a counter over time."""
    level, share = seen.levels[name], max(2, joined(sum(seen.trains)) // 2)
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
