"""The bars of whole-episode PPO: `python -m benchmarks.episode_ppo`. Learning has a command of its own, `learn_episode_ppo`.

    python -m benchmarks.episode_ppo --only "waiting environments"
    python -m benchmarks.episode_ppo --seconds 5 --output /tmp/episode_ppo.json     a quick look, which renews nothing

--seconds is how long a run of the first three groups is to last (without a barrier, where environments wait). The timeline is
drawn to docs/step-barriers.png, or beside --output.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import episode_computing, episode_many, episode_timeline, episode_waiting
from benchmarks._episode_runs import lengths
from benchmarks.harness import main_guard, run_bars

ROOT = Path(__file__).resolve().parents[1]
GROUPS = {
    "waiting environments": episode_waiting.bars,
    "100 waiting environments": episode_waiting.many_bars,
    "CPU-bound environments": episode_computing.bars,
    "many short episodes": episode_many.bars,
    "timeline": episode_timeline.bars,
}
OUTPUT = Path(__file__).parent / "results" / "episode_ppo.json"
PAGE = ROOT / "docs" / "measured-episode-ppo.md"


def run() -> int:
    """Measure, write the table, draw the timeline."""
    output = _own_options()
    if output != OUTPUT:
        episode_timeline.place.picture = output.with_suffix(".png")
    return run_bars("Whole-episode PPO", GROUPS, OUTPUT, PAGE)


def _own_options() -> Path:
    """Take --seconds from the command line, and look at --output; the rest is `run_bars`'s."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--seconds", type=float)
    own, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    if own.seconds is not None:
        lengths.measured = own.seconds
    parser.add_argument("--output", type=Path, default=OUTPUT)
    return parser.parse_known_args(rest)[0].output


if __name__ == "__main__":
    main_guard(run)
