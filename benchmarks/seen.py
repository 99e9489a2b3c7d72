"""The bars of looking at a run: what it costs, and the report of a long run. Renews docs/measured-seen.md.

    python -m benchmarks.seen                       everything, about 10 minutes
    python -m benchmarks.seen --only "the report"

What the advice is worth is measured by `python -m benchmarks.advice`.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import live_view, report_size, telemetry
from benchmarks.harness import main_guard, run_bars

HERE = Path(__file__).parent
GROUPS = {"telemetry": telemetry.bars, "live view": live_view.bars, "the report": report_size.bars}

if __name__ == "__main__":
    page = HERE.parent / "docs" / "measured-seen.md"
    main_guard(lambda: run_bars("looking at a run", GROUPS, HERE / "results" / "seen.json", page))
