"""The two tables: what each run achieved, and how much of the machine and of its roles it used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from lzero_async.telemetry.terminal.progress import table
from lzero_async.telemetry.utilisation import compare
from lzero_async.tools.compare.measured import Run

ROLES_TARGET: Final = 0.9  # the busier of collectors and learner should work at least this share of the time
NOISE: Final = 0.15  # of the cores, by other programs
PAIR: Final = ("collectors", "learner")


class Row(NamedTuple):
    """A number of both runs; `ratio` is asynchronous to synchronous where that says something."""

    name: str
    sync: float | None
    asynchronous: float | None
    ratio: float | None
    digits: int


class UseRow(NamedTuple):
    """A share of both runs beside its target; `verdict` is about the asynchronous run."""

    name: str
    sync: float | None
    asynchronous: float | None
    target: str
    verdict: str


def rows_of(sync: Run | None, asynchronous: Run | None) -> list[Row]:
    """The table of rates and counts; None for a run that is missing."""

    def row(name: str, value: str, digits: int, *, per_second: bool = False, ratio: bool = False) -> Row:
        found = []
        for run in (sync, asynchronous):
            number = None if run is None else float(getattr(run, value))
            found.append(number / run.seconds if per_second and run is not None and number is not None else number)
        left, right = found
        shown = right / left if ratio and left and right is not None else None
        return Row(name, left, right, shown, digits)

    return [
        row("environment steps/s collected", "collected", 1, per_second=True, ratio=True),
        row("effective samples/s trained", "trained", 1, per_second=True, ratio=True),
        row("updates/s", "updates", 2, per_second=True, ratio=True),
        row("trains/s", "trains", 2, per_second=True, ratio=True),
        row("environment steps collected", "collected", 0),
        row("samples trained", "trained", 0),
        row("trains", "trains", 0),
        row("staleness, mean", "staleness_mean", 2),
        row("staleness, most", "staleness_max", 0),
        row("batches dropped", "dropped", 0),
        row("collects failed", "failed", 0),
        row("restarts", "restarts", 0),
        row("seconds", "seconds", 1),
    ]


def use_of(sync: Run | None, asynchronous: Run | None) -> list[UseRow]:
    """Collectors, learner and whatever other roles there are, then queue, buffer, CPU and GPU, those that there are."""
    left = {} if sync is None else sync.busy
    right = {} if asynchronous is None else asynchronous.busy
    best = max((right.get(name, 0.0) for name in PAIR), default=0.0)
    verdict = "-" if not right else "ok" if best >= ROLES_TARGET else "below"
    target = f"one > {100 * ROLES_TARGET:.0f} %"
    rows = [UseRow(name, left.get(name), right.get(name), target, verdict) for name in PAIR]
    others = [name for name in {**left, **right} if name not in PAIR]
    rows += [UseRow(name, left.get(name), right.get(name), "", "") for name in others]
    machine: list[Mapping[str, float | None]] = [{} if run is None else run.utilisation for run in (sync, asynchronous)]
    for one, two in zip(compare(machine[0]), compare(machine[1]), strict=True):
        rows.append(UseRow(one.name, one.value, two.value, two.target, two.verdict))
    return [row for row in rows if row.sync is not None or row.asynchronous is not None]


def others_of(run: Run | None, cores: int) -> float | None:
    """The share of the cores that other programs used during a run; None where that is not known."""
    if run is None:
        return None
    share, own = run.utilisation.get("cpu"), run.utilisation.get("cpu_seconds")
    return None if share is None or own is None else max(0.0, share - own / (cores * run.seconds))


def format_others(sync: Run | None, asynchronous: Run | None, cores: int) -> str:
    """A warning where other programs used so much of the machine that the runs say little; else nothing."""
    shares = {"synchronous": others_of(sync, cores), "asynchronous": others_of(asynchronous, cores)}
    known = {name: share for name, share in shares.items() if share is not None}
    if max(known.values(), default=0.0) < NOISE:
        return ""
    told = " and ".join(f"{100 * share:.0f} % of the cores during the {name} run" for name, share in known.items())
    return f"Take care: other programs used {told}. Run it again on a quiet machine."


def format_rows(rows: list[Row]) -> str:
    """The first table as text."""
    cells = [["", "sync", "async", "ratio"]]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        cells.append([row.name, *(_number(value, row.digits) for value in (row.sync, row.asynchronous)), ratio])
    return table(cells)


def format_use(rows: list[UseRow]) -> str:
    """The second table as text."""
    cells = [["use of", "sync", "async", "target", "async is"]]
    for row in rows:
        cells.append([row.name, _percent(row.sync), _percent(row.asynchronous), row.target, row.verdict])
    return table(cells)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
