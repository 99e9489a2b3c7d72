"""The key numbers, those of one run as tiles, those of several side by side; and what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from lzero_async.telemetry.quantities import TROUBLES, label
from lzero_async.tools.report.bottleneck import find_bottleneck
from lzero_async.tools.report.inputs import Material
from lzero_async.tools.report.markup import (
    TIMES,
    Html,
    duration,
    html,
    is_number,
    moment,
    note,
    number,
    percent,
    plural,
    ratio,
    section,
    size,
    table,
)

MOST_EVENTS: Final = 200


def trouble(runs: Sequence[Material]) -> Html:
    """Counts in a sentence, and the events of all runs as a table."""
    said = [_counts(run, runs) for run in runs]
    rows, several = [], len(runs) > 1
    for run in runs:
        for event in run.summary["events"][-MOST_EVENTS:]:
            at = moment(float(event["seconds"])) if is_number(event.get("seconds")) else ""
            name = [run.name] if several else []
            rows.append([at, *name, str(event.get("level", "")).lower(), str(event.get("text", ""))])
    head = ["time", *(["run"] if several else []), "level", "what"]
    told = table("warnings and failures", head, rows, numbers=False, tall=True) if rows else note("No warnings.")
    words = html("ul", [html("li", line) for line in said]) if several else html("p", said[0])
    return section("trouble", "Failures, restarts and warnings", words, told)


def _counts(run: Material, runs: Sequence[Material]) -> str:
    name = f"{run.name}: " if len(runs) > 1 else ""
    found = []
    for key in (*TROUBLES, "degree_changes"):
        count = run.statistics.get(key)
        if is_number(count) and count:
            found.append(f"{label(key)} {int(count):,}")
    note_ = " (a collect that the end of the run cuts off is abandoned)" if run.statistics.get("abandoned") else ""
    return f"{name}{', '.join(found)}{note_}." if found else f"{name}No failures, no restarts, nothing dropped."


ROLES: Final = (
    ("collectors active", "collector", "active"),
    ("collectors waiting", "collector", "waiting"),
    ("learner active", "learner", "active"),
    ("learner waiting", "learner", "waiting"),
)
NAMED: Final = {
    "collectors": "collecting",
    "turns": "taking turns",
    "others": "other programs",
}  # bottlenecks of other names


class Tile(NamedTuple):
    """A key number, what it is, and a few words about it; `place` is the part of the page that tells more."""

    name: str
    value: str
    more: str = ""
    place: str = ""


def tiles(run: Material) -> Html:
    """The key numbers of one run."""
    cells = []
    for tile in (*_outcome(run), *_working(run)):
        value = html("a", tile.value, href=f"#{tile.place}") if tile.place else tile.value
        small = html("small", tile.more) if tile.more else None
        cells.append(html("div", html("dt", tile.name), html("dd", value, small)))
    return html("dl", cells, class_="tiles", id="numbers", aria_label="key numbers")


def _outcome(run: Material) -> list[Tile]:
    summary = run.summary
    found, score = [], summary["score"]
    if is_number(score.get("best")):
        of = f"of {number(score['highest'])} possible" if is_number(score.get("highest")) else ""
        last = f"last {number(score['last'])}" if is_number(score.get("last")) else ""
        words = ", ".join(filter(None, (of, last)))
        found.append(Tile(f"best {score.get('name') or 'score'}", number(score["best"]), words))
    found.append(
        Tile("time", duration(run.seconds), f"ended by {summary['ended_by']}" if run.finished else "not finished")
    )
    for name, value in list(summary["counts"].items())[:2]:
        rate = summary["rates"].get(f"{name}/s")
        more = f"{number(rate)} per second" if is_number(rate) else ""
        found.append(Tile(name, number(value), "at the last summary" if run.behind else more))
    found += [Tile(name, number(value)) for name, value in summary["measures"].items() if is_number(value)]
    return found


def _working(run: Material) -> list[Tile]:
    statistics, cpu, cores = run.statistics, run.summary["utilisation"].get("cpu"), run.summary["machine"].get("cores")
    collected = f"{number(statistics.get('collect_count'))} {label('collect_count')}"
    found = [Tile(label("train_count"), number(statistics.get("train_count")), collected)]
    held = find_bottleneck(run.summary).kind
    if held not in ("unknown", "none"):
        found.append(Tile("bottleneck", NAMED.get(held, held), "where the time went", "time"))
    if is_number(statistics.get("staleness_mean")):
        bound = statistics.get("off_policy_degree")
        limit = f"max {number(statistics.get('staleness_max'))}"
        limit += f", {label('off_policy_degree')} {number(bound)}" if is_number(bound) else ""
        found.append(Tile(label("staleness_mean"), number(statistics["staleness_mean"]), limit))
    if is_number(cpu):
        found.append(Tile("CPU in use", percent(cpu), f"of {plural(cores, 'core')}" if is_number(cores) else ""))
    # A time-out is a bad episode or a restart.
    counted = (
        "failed", "train_failures", "refused_threads", "missing_descriptors", "restarts", "bad_episodes", "bad_batches",
        "bad_updates",
    )  # fmt: skip
    problems = sum(int(statistics.get(name) or 0) for name in counted)
    dropped = f"{number(statistics.get('dropped') or 0)} {label('dropped')}"
    found.append(Tile("failures, restarts", number(problems) if problems else "none", dropped, "trouble"))
    return found


def share_of(run: Material, role: str, state: str) -> float | None:
    """The share of their time that roles of this name were in this state, all of them together."""
    mine = [row for row in run.summary["roles"]
            if str(row.get("role", "")).split(" ")[0] == role and is_number(row.get("active"))]  # fmt: skip
    whole = sum(float(row.get(name) or 0.0) for row in mine for name in ("active", "waiting", "idle"))
    return sum(float(row.get(state) or 0.0) for row in mine) / whole if whole > 0 else None


def comparison(runs: Sequence[Material]) -> Html:
    """A table with a column for each run, and ratios against the first."""
    rows = []
    for name, text, values in _measures(runs):
        if all(value is None for value in values):
            continue
        cells = [
            [text(value), html("small", ratio(value, values[0])) if place and text is not percent else None]
            for place, value in enumerate(values)
        ]
        rows.append([name, *cells])
    return section(
        "comparison", "Side by side",
        table("the runs side by side", ["", *(run.name for run in runs)], rows),
        note(f"{TIMES} is the ratio to {runs[0].name}."),
    )  # fmt: skip


def _measures(runs: Sequence[Material]) -> list[tuple[str, Callable[[Any], str], list[Any]]]:
    """Name, format and the value of each run; None where a run does not know."""

    def of(*path: str) -> list[Any]:
        return [_at(run.summary, path) for run in runs]

    def counted(key: str, text: Callable[[Any], str] = number) -> tuple[str, Callable[[Any], str], list[Any]]:
        return label(key), text, of("statistics", key)

    counts = dict.fromkeys(name for run in runs for name in run.summary["counts"])
    rates = dict.fromkeys(name for run in runs for name in run.summary["rates"])
    measures = dict.fromkeys(name for run in runs for name in run.summary["measures"])
    score = next((str(run.summary["score"]["name"]) for run in runs if run.summary["score"].get("name")), "score")
    return [
        ("ended by", lambda value: "not finished" if value is None else str(value), of("ended_by")),
        (f"best {score}", number, of("score", "best")),
        (f"last {score}", number, of("score", "last")),
        ("time", duration, [run.seconds for run in runs]),
        *((name, number, of("counts", name)) for name in counts),
        *((name, number, of("rates", name)) for name in rates),
        *((name, number, of("measures", name)) for name in measures),
        counted("train_count"),
        *((name, percent, [share_of(run, role, state) for run in runs]) for name, role, state in ROLES),
        counted("overlap_efficiency", percent),
        *(counted(key) for key in ("staleness_mean", "staleness_max", "mean_lag", "max_lag")),
        ("CPU in use", percent, of("utilisation", "cpu")),
        ("CPU time of the run", duration, of("utilisation", "cpu_seconds")),
        ("a batch", size, of("batch_bytes")),
        *(counted(key) for key in TROUBLES),
    ]


def _at(values: Any, path: Sequence[str]) -> Any:
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    return values
