"""How long the roles of a PriorZero run at degree 2 take until they are ready, beside another revision.

    make bench-warm REV=d6cf054                     five starts and five restarts of each, about 10 minutes

One program of each revision builds the run again and again, in turn with the other's, so that both see the same machine. A start
is everything from the request to the answer of the last role that it is ready, its models loaded. A restart is that of a killed
collector, until it can take its next collect. The first start, which fills every cache and makes the template, is
reported apart. Printed are the medians and the ratio "seconds here / seconds there".
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.against import ROOT, work_tree

RESULTS = Path(__file__).parent / "results" / "warm_start.json"
BARS = {"start": 0.4, "restart": 0.25}
PROGRAM = """
import contextlib, os, signal, sys, tempfile, time
from pathlib import Path

from zoo.jericho.priorzero.options import build_options
from zoo.jericho.priorzero.trainer import PriorZero
try:
    from zoo.jericho.priorzero.games.files import find_game
except ImportError:
    from zoo.jericho.priorzero.game_files import find_game

settings = ["policy_config.off_policy_degree=2", "run_config.plain=True"]
options = build_options(assignments=settings)
game = find_game(options.env_config.env_id, None)
agent, answers = None, sys.stdout
with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
    for number, order in enumerate(sys.stdin):
        if order.strip() == "start":
            if agent is not None:
                agent.close()
            place = Path(folder) / str(number)
            place.mkdir()
            begin = time.perf_counter()
            agent = PriorZero(options, game, place)
        else:
            collector = agent.collectors[0]
            os.kill(collector.pid, signal.SIGKILL)
            begin = time.perf_counter()
            collector.restart()
            collector.call("ready")
        print(time.perf_counter() - begin, file=answers, flush=True)
    agent.close()
"""


class Measured:
    """A program with the library and zoo of one checkout, which does what it is told and says how long it took."""

    def __init__(self, checkout: Path, said: Path) -> None:
        with said.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                cwd=checkout,
                env={**os.environ, "PYTHONPATH": str(checkout)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._said = said

    def seconds(self, what: str) -> float:
        """How long a start or a restart takes."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"it failed:\n{self._said.read_text()[-2000:]}")
        return float(answer)

    def close(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> int:
    """Measure, print and keep the seconds; 1 if a ratio is above its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rev", required=True, help="the revision to compare with")
    parser.add_argument("--times", type=int, default=5, help="starts and restarts of each (default: 5)")
    options = parser.parse_args()
    with work_tree(options.rev) as other, tempfile.TemporaryDirectory() as folder:
        here, there = (Measured(place, Path(folder) / name) for place, name in ((ROOT, "here"), (other, "there")))
        found: dict[str, list[tuple[float, float]]] = {"first start": [], "start": [], "restart": []}
        plan = [
            ("start", "first start"),
            *[("start", "start")] * options.times,
            *[("restart", "restart")] * options.times,
        ]
        for what, row in plan:
            theirs, mine = there.seconds(what), here.seconds(what)
            found[row].append((mine, theirs))
            print(f"{row}: {mine:.2f} s here, {theirs:.2f} s there", file=sys.stderr, flush=True)
        here.close()
        there.close()
    print(f"{'seconds':<15}{'here':>9}{options.rev:>12}{'ratio':>9}{'bar':>10}")
    ratios = {}
    for row, pairs in found.items():
        mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios[row] = mine / theirs
        bar = f"<= {BARS[row]}" if row in BARS else "-"
        print(f"{row:<15}{mine:>9.2f}{theirs:>12.2f}{ratios[row]:>9.3f}{bar:>10}")
    kept = {options.rev: {row: {"ratio": ratios[row], "pairs": pairs} for row, pairs in found.items()}}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    return int(any(ratios[row] > bar for row, bar in BARS.items()))


if __name__ == "__main__":
    raise SystemExit(main())
