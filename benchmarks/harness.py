"""Repeat a measurement, keep median and spread, compare it with its bar, print a table and write JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TABLE_HEAD = "| measurement | median | min to max | bar |"


@dataclass(frozen=True)
class Bar:
    """One measured quantity: `limit` is a lower bound when `at_least`, an upper bound otherwise, or None to report only. The
    median decides, or the worst of the repeats when `every` one must keep it."""

    name: str
    limit: float | None
    at_least: bool
    measure: Callable[[], float]
    repeats: int | None = None
    every: bool = False


def run_bars(title: str, groups: dict[str, Callable[[], list[Bar]]], default_output: Path, page: Path) -> int:
    """Measure what the command line asks for; return 1 if a bar was missed. `--only` renews its groups and leaves the others,
    and those that could not be measured, as they were in the default output; `page` gets the table when every group is there."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument(
        "--only", nargs="+", choices=list(groups), default=list(groups), help="measure only these groups"
    )
    parser.add_argument("--repeats", type=int, default=5, help="repeats of each measurement (default: 5)")
    parser.add_argument("--output", type=Path, default=default_output, help="JSON file to write (default: %(default)s)")
    options = parser.parse_args()
    rows = []
    print(f"{'measurement':<74}{'median':>10}{'min':>10}{'max':>10}{'bar':>12}  met", flush=True)
    for group in options.only:
        for bar in groups[group]():
            values = [bar.measure() for _ in range(bar.repeats or options.repeats)]
            row = judge(group, bar, values)
            rows.append(row)
            print(format_row(row), flush=True)
    missed = [row["name"] for row in rows if row["met"] is False]
    print(f"\n{len(rows) - len(missed)} of {len(rows)} without a miss; written to {options.output}")
    if options.output == default_output and default_output.is_file():
        earlier = json.loads(default_output.read_text())["bars"]
        renewed = {row["group"] for row in rows}
        rows += [row for row in earlier if row["group"] in groups and row["group"] not in renewed]
        rows.sort(key=lambda row: list(groups).index(row["group"]))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "system": platform.system()}
    result = {"title": title, "made": time.strftime("%Y-%m-%d"), "machine": machine, "bars": rows}
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    if options.output == default_output and {row["group"] for row in rows} == set(groups):
        text = page.read_text()
        page.write_text(text[: text.index(TABLE_HEAD)] + markdown(rows))
    return 1 if missed else 0


def markdown(rows: list[dict]) -> str:
    """The rows as a Markdown table."""
    lines = [
        f"| {row['group']}: {row['name']} | {row['median']:.3g} | {row['min']:.3g} to {row['max']:.3g} | {row['bar'] or ''} |"
        for row in rows
    ]
    return "\n".join([TABLE_HEAD, "|---|---|---|---|", *lines]) + "\n"


def judge(group: str, bar: Bar, values: list[float]) -> dict:
    """The row of one bar."""
    median = statistics.median(values)
    deciding = median if not bar.every else min(values) if bar.at_least else max(values)
    met = None
    if bar.limit is not None:
        met = deciding >= bar.limit if bar.at_least else deciding <= bar.limit
    limit = None if bar.limit is None else f"{'>=' if bar.at_least else '<='} {bar.limit:g}{', always' * bar.every}"
    return {
        "group": group,
        "name": bar.name,
        "median": median,
        "min": min(values),
        "max": max(values),
        "repeats": len(values),
        "bar": limit,
        "met": met,
    }


def format_row(row: dict) -> str:
    """One line of the table."""
    numbers = "".join(f"{row[key]:>10.4g}" for key in ("median", "min", "max"))
    verdict = {True: "yes", False: "NO", None: ""}[row["met"]]
    return f"{row['group'] + ': ' + row['name']:<74}{numbers}{row['bar'] or '':>12}  {verdict}"


def main_guard(run: Callable[[], int]) -> None:
    """Exit with the result of `run`, quietly on Ctrl+C."""
    try:
        sys.exit(run())
    except KeyboardInterrupt:
        sys.exit(130)
