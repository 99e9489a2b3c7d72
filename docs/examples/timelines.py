"""Runs whose timelines show one pattern each, in virtual time: `python docs/examples/timelines.py --out FOLDER` writes traces."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # not needed where lzero_async is installed

from lzero_async import AsyncTrainingCoordinator, Recovery
from lzero_async.testing import VirtualClock

PATTERNS = {  # seconds of a collect of each collector, of a train, of an evaluation; the coordinator's arguments
    "in-turn": ([2.0], 1.5, 3.0, {"off_policy_degree": 0}),
    "healthy": ([2.0], 1.9, 0.0, {"off_policy_degree": 2}),
    "starved": ([4.0], 0.8, 0.0, {"off_policy_degree": 2}),
    "held-back": ([1.0, 1.0], 2.0, 0.0, {"off_policy_degree": 2}),
    "evaluation-blocks": ([1.5], 1.5, 9.0, {"off_policy_degree": 2}),
    "straggler": ([1.0, 1.0, 9.0], 0.6, 0.0, {"off_policy_degree": 4}),
    "dead-worker": (
        [2.0, 2.0],
        0.9,
        0.0,
        {"off_policy_degree": 4, "recovery": Recovery(on_failure="restart", max_restarts=1)},
    ),
}
DIES_AT = 12.0  # seconds, the dead worker


def make(pattern: str, trace: Path, trains: int = 24) -> None:
    """Run one of the patterns for so many trains and write its trace."""
    collect_times, train_time, eval_time, settings = PATTERNS[pattern]
    with VirtualClock() as clock:

        def collect(context):
            clock.sleep(collect_times[context.worker])
            if pattern == "dead-worker" and context.worker == 1 and clock.now() > DIES_AT:
                raise RuntimeError("the simulator does not answer any more")
            return context.ticket

        def train(batch):
            clock.sleep(train_time)

        def evaluate(context):
            clock.sleep(eval_time)

        def get_weights():
            clock.sleep(0.05)
            return {}

        with AsyncTrainingCoordinator(
            num_collectors=len(collect_times), get_weights=get_weights, clock=clock, trace=trace, **settings
        ) as coordinator:
            coordinator.run(
                collect, train, evaluate if eval_time else None, eval_every=5 if eval_time else 0,
                max_train=trains, print_statistics=False,
            )  # fmt: skip


if __name__ == "__main__":
    logging.disable(logging.ERROR)  # the dead worker's own words
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/patterns"), metavar="FOLDER", help="where the traces go")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for name in PATTERNS:
        make(name, folder / f"{name}.json")
    print(f"{len(PATTERNS)} traces are in {folder}: {', '.join(PATTERNS)}")
