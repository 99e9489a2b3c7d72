"""Advice as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lzero_async.telemetry.terminal.progress import table
from lzero_async.tools.advise.choose import Advice
from lzero_async.tools.advise.model import EVAL, Row, percent
from lzero_async.tools.advise.subject import Advised


def as_text(advised: Advised, advice: Advice) -> str:
    """What is printed."""
    return "\n".join([*_head(advised), "", _table(advised, advice), "", *_foot(advised, advice)])


def _head(advised: Advised) -> Iterator[str]:
    cores = f"{advised.model.cores:g} core(s)"
    yield f"Advice: {advised.title}, {cores}"
    yield f"Stages alone on the machine: {'; '.join(_stages(advised))}."
    if advised.check is not None:
        simulated, measured = advised.check
        yield (
            f"Check: of this run itself the simulation says {simulated:.3g} batches/s, measured were {measured:.3g} "
            f"({percent(simulated / measured - 1, sign='+')})."
        )
    for note in advised.notes:
        yield f"Note: {note}"


def _stages(advised: Advised) -> Iterator[str]:
    for name, stage in advised.stages.items():
        place = "in the background" if advised.async_eval else "in the learner's turn"
        when = f" after every {advised.eval_every} train(s), {place}" if name == EVAL else ""
        yield f"{name} {_seconds(stage.total)}{when}, of which it computes {_seconds(stage.cpu)}"


def _table(advised: Advised, advice: Advice) -> str:
    first = advice.rows[0]
    columns = [advised.facts.degree, *([] if advised.facts.one_collector else ["collectors"]), "batches/s"]
    columns += [f"{advised.unit}/s"] if first.samples is not None else []
    columns += ["learner idle", "collectors idle", "staleness", "worst"]
    columns += ["dropped"] if any(row.dropped for row in advice.rows) else []
    columns += ["memory"] if first.memory is not None else []
    return table(
        [[*columns, ""], *([*_cells(advised, advice, row), _mark(advised, advice, row)] for row in advice.rows)]
    )


def _cells(advised: Advised, advice: Advice, row: Row) -> list[str]:
    cells = [str(row.setting.degree), *([] if advised.facts.one_collector else [str(row.setting.collectors)])]
    cells.append(f"{row.batches:.3g}")
    cells += [f"{row.samples:.1f}"] if row.samples is not None else []
    cells += [percent(row.learner_idle), percent(row.collector_idle), f"{row.staleness:.2f}", str(row.worst_staleness)]
    cells += [percent(row.dropped)] if any(one.dropped for one in advice.rows) else []
    cells += [_bytes(row.memory)] if row.memory is not None else []
    return cells


def _mark(advised: Advised, advice: Advice, row: Row) -> str:
    marks = ["this run"] if row.setting == advised.own else []
    return ", ".join(["recommended", *marks] if row is advice.chosen else marks)


def _foot(advised: Advised, advice: Advice) -> Iterator[str]:
    yield f"Recommended: {advised.facts.typed(*advice.chosen.setting)}"
    yield advice.reason
    if advised.facts.one_collector:
        yield f"The number of collectors is not tried: {advised.facts.one_collector}."
    if advice.sizes:
        yield ""
        yield "With other numbers of environments, steps of each and the work of a step as they were:"
        yield ""
        yield _sizes(advised, advice)


def _sizes(advised: Advised, advice: Advice) -> str:
    unit = f"{advised.unit}/s"
    rows = [["environments", "batches/s", unit, "staleness", "recommended"]]
    for number, row in advice.sizes.items():
        samples = "-" if row.samples is None else f"{row.samples:,.0f}"
        flags = advised.facts.typed(*row.setting, number)
        rows.append([str(number), f"{row.batches:.3g}", samples, f"{row.staleness:.1f}", flags])
    return table(rows)


def as_json(advised: Advised, advice: Advice) -> dict[str, Any]:
    """All numbers; seconds, bytes, shares from 0 to 1."""
    stages = {
        name: {"seconds": stage.total, "cpu_seconds": stage.cpu, "share": stage.share}
        for name, stage in advised.stages.items()
    }
    check = advised.check
    return {
        "title": advised.title,
        "cores": advised.model.cores,
        "stages": stages,
        "eval_every": advised.eval_every,
        "async_eval": advised.async_eval,
        "own": None if advised.own is None else advised.own._asdict(),
        "check": None if check is None else {"simulated": check[0], "measured": check[1]},
        "rows": [_row(row) for row in advice.rows],
        "recommended": {**advice.chosen.setting._asdict(), "flags": advised.facts.typed(*advice.chosen.setting)},
        "sizes": [
            {"environments": number, **_row(row), "flags": advised.facts.typed(*row.setting, number)}
            for number, row in advice.sizes.items()
        ],
        "reason": advice.reason,
        "notes": [*advised.notes, *([advised.facts.one_collector] if advised.facts.one_collector else [])],
        "sample": advised.unit,
        "degree": advised.facts.degree,
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        **row.setting._asdict(),
        "batches_per_second": row.batches,
        "samples_per_second": row.samples,
        "learner_idle": row.learner_idle,
        "collectors_idle": row.collector_idle,
        "staleness_mean": row.staleness,
        "staleness_worst": row.worst_staleness,
        "cores_used": row.cores_used,
        "dropped": row.dropped,
        "old_data": row.old_data,
        "memory_bytes": row.memory,
    }


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def _bytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
