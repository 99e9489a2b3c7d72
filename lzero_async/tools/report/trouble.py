"""What went wrong: failures, restarts, drops and warnings, with their times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lzero_async.telemetry.quantities import TROUBLES, label
from lzero_async.tools.report.formatting import is_number, moment
from lzero_async.tools.report.inputs import Material
from lzero_async.tools.report.markup import Html, html, note, section, table

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
