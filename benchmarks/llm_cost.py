"""What does training the language model cost? World-model trains per second at degree 2 with its learner and without, and whether
--llm_share holds.

    python -m benchmarks.llm_cost                     three runs of 6 minutes, one at a time
    python -m benchmarks.llm_cost --seconds 120 --pairs 3

off: the language model is frozen. on: it is trained in every second train. share: the same with --llm_share 0.25. Runs of one
pair have the same seed and follow each other in alternating order; rates are of the whole run but its first three trains, when
nothing is cached. The results are kept in benchmarks/results/llm_cost.json; pairs that are there are not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENTRY = ROOT / "zoo" / "jericho" / "priorzero" / "priorzero_entry.py"
RESULTS = ROOT / "benchmarks" / "results" / "llm_cost.json"
COMMON = (
    "--off_policy_degree", "2", "--prior_temperature", "1", "--repeatable_prior", "false", "--eval_every", "0",
    "--final_eval_modes", "[]", "--max_env_steps", "0", "--checkpoint_every", "0", "--plain", "--report", "false",
)  # fmt: skip
ON = ("--llm_train", "distill", "--llm_every", "2", "--llm_updates", "6")
WAYS = {"off": (), "on": ON, "share": (*ON, "--llm_share", "0.25")}
FIRST = 3  # trains that do not count


def play(way: str, seed: int, seconds: float) -> dict[str, float]:
    """One run, and its rates."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        words = [*COMMON, *WAYS[way], "--seed", str(seed), "--max_seconds", f"{seconds:g}", "--exp_name", str(folder)]
        subprocess.run(
            [sys.executable, str(ENTRY), *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        summary = json.loads((folder / "summary.json").read_text())
        events = json.loads((folder / "trace.json").read_text())
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    events = events["traceEvents"] if isinstance(events, dict) else events
    ends = sorted((one["ts"] + one["dur"]) / 1e6 for one in events if one.get("ph") == "X" and one["name"] == "train")
    passed, told = ends[-1] - ends[FIRST - 1], summary["results"]["llm"] or {}
    return {
        "trains_per_second": (len(ends) - FIRST) / passed,
        "steps_per_second": (rows[-1]["collector/env_steps"] - rows[FIRST - 1]["collector/env_steps"]) / passed,
        "llm_trains": told.get("version", 0), "skipped": told.get("skipped", 0), "trains": len(ends),
        "llm_cores": told.get("cpu_seconds", 0.0) / summary["seconds"], "staleness_max": summary["statistics"]["staleness_max"],
    }  # fmt: skip


def main() -> int:
    """Measure what is not there yet, print all; 1 if the share does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1, help="runs of each way (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=360.0, help="of each run (default: %(default)s)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    kept: list[dict[str, Any]] = json.loads(options.results.read_text()) if options.results.is_file() else []
    while len(kept) < options.pairs:
        order = list(WAYS) if len(kept) % 2 == 0 else list(WAYS)[::-1]
        number = len(kept)
        kept.append({way: play(way, number, options.seconds) for way in order})
        options.results.write_text(json.dumps(kept, indent=1) + "\n")
    print(
        f"{'way':<8}{'trains/s':>10}{'of off':>8}{'steps/s':>9}{'of off':>8}{'LLM trains':>12}{'left out':>10}{'LLM cores':>11}"
    )
    for way in WAYS:
        middle = {name: statistics.median(row[way][name] for row in kept) for name in kept[0][way]}
        ratios = [
            statistics.median(row[way][name] / row["off"][name] for row in kept)
            for name in ("trains_per_second", "steps_per_second")
        ]
        print(
            f"{way:<8}{middle['trains_per_second']:>10.3f}{ratios[0]:>8.2f}{middle['steps_per_second']:>9.1f}{ratios[1]:>8.2f}"
            f"{middle['llm_trains']:>12.0f}{middle['skipped']:>10.0f}{middle['llm_cores']:>11.2f}"
        )
    most = max(row["share"]["llm_cores"] for row in kept)
    print(f"with --llm_share 0.25 the learner used {most:.3f} of a core")
    return int(most > 0.25)


if __name__ == "__main__":
    sys.exit(main())
