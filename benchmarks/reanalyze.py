"""Reanalysis in the background, on against off: `python -m benchmarks.reanalyze` (about 10 minutes).

Whole runs of PriorZero whose language model answers after 150 ms, so that the collector waits and leaves a core to spare; with
and without one reanalyzer, in turn. Rates are ratios of neighbouring runs. Writes benchmarks/results/reanalyze.json and the
table of docs/measured-reanalyze.md.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar, main_guard, run_bars
from benchmarks.llm_latency import measure

ROOT = Path(__file__).resolve().parent.parent
ROUNDS, TRAINS, SHARE = 4, 40, 0.5
ON = ("policy_config.reanalyze_workers=1", f"policy_config.reanalyze_share={SHARE}")


def one_run(more: tuple[str, ...]) -> dict[str, Any]:
    """What a run made per second, the cores that it used, and how old its samples' targets were."""
    with tempfile.TemporaryDirectory() as place:
        results = measure(1, TRAINS, Path(place), more)
        lines = (Path(place) / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines][TRAINS // 2 :]  # once there is something to be old
    found = results["statistics"]
    return {
        "trains": found["train_count"] / found["wall_time"],
        "steps": results["env_steps"] / found["wall_time"],
        "cores": results["utilisation"]["cpu_seconds"] / found["wall_time"],
        "targets": statistics.mean(row["age/targets"] for row in rows),
        "share": statistics.mean(row["age/reanalysed_share"] for row in rows),
        "batches": rows[-1].get("reanalyze/batches", 0),
    }


def rates() -> list[Bar]:
    """Runs in turn: off, on, off, on, ..."""
    pairs = [(one_run(()), one_run(ON)) for _ in range(ROUNDS)]
    columns: dict[str, tuple[float | None, bool, list[float]]] = {
        "trains/s, on / off": (0.9, True, [on["trains"] / off["trains"] for off, on in pairs]),
        "environment steps/s, on / off": (0.9, True, [on["steps"] / off["steps"] for off, on in pairs]),
        "cores used of 2, off": (None, False, [off["cores"] for off, _ in pairs]),
        "cores used of 2, on": (None, False, [on["cores"] for _, on in pairs]),
        "age of the samples' targets in versions, off": (None, False, [off["targets"] for off, _ in pairs]),
        "age of the samples' targets in versions, on": (None, False, [on["targets"] for _, on in pairs]),
        "share of the samples that were searched again": (None, True, [on["share"] for _, on in pairs]),
        "batches searched again / trained": (None, True, [on["batches"] / TRAINS for _, on in pairs]),
    }
    return [
        Bar(name, limit, at_least, partial(next, iter(values)), ROUNDS)
        for name, (limit, at_least, values) in columns.items()
    ]


def main() -> int:
    """Measure, print, write."""
    page = ROOT / "docs" / "measured-reanalyze.md"
    return run_bars(
        "Reanalysis in the background", {"rates": rates}, ROOT / "benchmarks" / "results" / "reanalyze.json", page
    )


if __name__ == "__main__":
    main_guard(main)
