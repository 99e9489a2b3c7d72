"""Training in environments that go wrong: does it go on, are the weights finite, and is every bad episode counted?

    python -m benchmarks.poisoned --app mbpo --seconds 300

Every fault (NaN, inf, wrong shape, crash by state, crash at random, hang) strikes 1 % of the episodes (--probability), and
the step time-out is 1 s. The environments write down what they do; the run says what it counted.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks._poisoned_env import FAULTS, FOLDER, injected
from lzero_async.runs.summary import read_results

ROOT: Final = Path(__file__).resolve().parent.parent
CLEAN: Final = 5.0  # seconds at the end of a run without faults, where every fault is to be counted
OUTPUT: Final = ROOT / "benchmarks" / "results" / "poisoned.json"


class Outcome(NamedTuple):
    """What a run says of itself."""

    counted: dict[str, int]  # bad episodes, by the faults as the application names them
    trained: int  # updates, or whatever the application counts
    last_progress: float  # seconds of the run after which something was still learned
    unsound: str  # what of the last checkpoint is not finite; '' if all is well
    players: int  # roles that may hang at the very end, when nobody counts any more


class App(NamedTuple):
    """One application: its command for a run in a folder, what its faults are called there, and how to read the outcome."""

    command: Callable[[Path, float, float], list[str]]  # of folder, seconds and probability
    names: Mapping[str, str]
    outcome: Callable[[Path], Outcome]


def mbpo(trainer: str, players: int) -> App:
    """MBPO; `players` are its collectors and its evaluator."""

    def command(folder: Path, seconds: float, probability: float) -> list[str]:
        words = (
            f"--trainer {trainer} --env benchmarks._poisoned_env:PoisonedPendulum-v0 --num_envs 8 --max_steps 0 "
            f"--env_args probability={probability} --max_seconds {seconds} --step_timeout 1 --eval_every 5 "
            "--eval_episodes 5 --checkpoint_every 20 "
            "--random_steps 200 --updates_per_step 0.2 --dynamics_updates_per_step 0.05 --rollouts_per_step 0.2 "
            "--device cpu --torch_threads 1 --log_interval 1000000"
        )
        if trainer == "continuous":
            words += " --num_collectors 2 --when_full wait"
        return [sys.executable, "-m", "zoo.mbpo.train", "--exp_name", str(folder), *words.split()]

    def outcome(folder: Path) -> Outcome:
        from lzero_async.runs.run_dir import LAST_CHECKPOINT
        from zoo.mbpo.saving import KIND, checkpoint, unsound

        results = read_results(folder)
        return Outcome(
            counted=results["troubles"]["bad_episodes_by_kind"],
            trained=results["counters"]["agent_updates"],
            # The last evaluation is made when the run is over.
            last_progress=max((row["seconds_at"] for row in results["evaluations"][:-1]), default=0.0),
            unsound=unsound(checkpoint.load(folder / LAST_CHECKPOINT, KIND)),
            players=players,
        )

    kinds = {"nan": "not_finite", "inf": "not_finite", "shape": "shape", "hang": "timeout"}
    return App(command, {**kinds, "crash": "crash", "crash_by_state": "crash"}, outcome)


def episode_ppo(collector: str) -> App:
    """Whole-episode PPO. The run goes on for CLEAN seconds without faults, so that all of them are counted. A worker has one
    environment: of two that hang at once in one process, the second would be counted only when it hangs again."""

    def command(folder: Path, seconds: float, probability: float) -> list[str]:
        words = (
            f"--collector {collector} --env benchmarks._poisoned_pendulum:make --env_arg probability={probability} "
            f"--env_arg seconds={seconds} --max_seconds {seconds + CLEAN} --step_timeout 1 --n_envs 4 "
            "--num_workers 4 --episodes_per_update 20 --total_episodes 0 --eval_every 5 --eval_episodes 1 --device cpu "
            "--report false --trace false"
        )
        return [sys.executable, "-m", "zoo.episode_ppo.train", "--exp_name", str(folder), *words.split()]

    def outcome(folder: Path) -> Outcome:
        from lzero_async.runs import checkpoint
        from lzero_async.runs.run_dir import LAST_CHECKPOINT
        from lzero_async.runs.soundness import first_bad
        from zoo.episode_ppo.learn.saving import KIND

        results = read_results(folder)
        pool, evaluations = results["environments"], results["evaluation_failures"]
        counted = {name: pool[name] + evaluations[name] for name in ("failed", "bad_data", "env_timeouts")}
        counted["crash"] = counted.pop("failed") - counted["bad_data"] - counted["env_timeouts"]
        return Outcome(
            counted=counted,
            trained=results["counters"]["updates"],
            last_progress=max((row["seconds_at"] for row in results["evaluations"][:-1]), default=0.0),
            unsound=first_bad(checkpoint.load(folder / LAST_CHECKPOINT, KIND)["learner"]),
            players=0,
        )

    kinds = {"nan": "bad_data", "inf": "bad_data", "shape": "bad_data", "hang": "env_timeouts"}
    return App(command, {**kinds, "crash": "crash", "crash_by_state": "crash"}, outcome)


def priorzero() -> App:
    """PriorZero on the game that comes along; a game whose collect the end of the run cuts off is not counted any more."""

    def command(folder: Path, seconds: float, probability: float) -> list[str]:
        from benchmarks._poisoned_game import arguments

        return [sys.executable, "-m", "benchmarks._poisoned_game", str(probability), *arguments(str(folder), seconds)]

    def outcome(folder: Path) -> Outcome:
        from lzero_async.runs import checkpoint
        from lzero_async.runs.run_dir import LAST_CHECKPOINT
        from lzero_async.runs.soundness import first_bad
        from zoo.jericho.priorzero.learn.saving import CHECKPOINT

        results = read_results(folder)
        return Outcome(
            counted={"bad episode": results["troubles"]["bad_episodes"]},
            trained=results["updates"],
            last_progress=max((row["seconds"] for row in results["evaluations"]), default=0.0),
            unsound=first_bad(checkpoint.load(folder / LAST_CHECKPOINT, CHECKPOINT)["learner"]),
            players=5,
        )

    return App(command, dict.fromkeys(FAULTS, "bad episode"), outcome)


APPS: Final = {
    "mbpo": mbpo("continuous", 3), "mbpo-batch": mbpo("batch", 2), "mbpo-sync": mbpo("sync", 1),
    "episode_ppo": episode_ppo("async"), "episode_ppo-sync": episode_ppo("sync"),
    "priorzero": priorzero(),
}  # fmt: skip


def measure(app: App, seconds: float, folder: Path, probability: float = 0.01) -> dict[str, Any]:
    """One run, and what is said about it by both sides; `failures` says in words what is not as it should be."""
    poison = folder / "poison"
    poison.mkdir(parents=True)
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, FOLDER: str(poison), "PYTHONPATH": paths}
    begun = time.monotonic()
    command = app.command(folder / "run", seconds, probability)
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
    if done.returncode:
        return {"failures": [f"the run ended with code {done.returncode}: {done.stderr[-2000:]}"]}
    found, struck = app.outcome(folder / "run"), injected(poison)
    wanted: dict[str, int] = {}
    for fault, count in struck.items():
        wanted[app.names[fault]] = wanted.get(app.names[fault], 0) + count
    failures = []
    for name in sorted({*wanted, *found.counted}):
        missing = wanted.get(name, 0) - found.counted.get(name, 0)
        most = found.players if name == app.names["hang"] else 0  # those that the end of the run cut off
        if not 0 <= missing <= most:
            failures.append(f"{name}: {wanted.get(name, 0)} struck, {found.counted.get(name, 0)} were counted")
    if found.unsound:
        failures.append(f"the last checkpoint is not finite: {found.unsound}")
    if not found.trained or found.last_progress < 0.5 * seconds:
        failures.append(
            f"training did not go on: {found.trained} updates, the last news after {found.last_progress:.0f} s"
        )
    return {
        "seconds": seconds,
        "probability": probability,
        "whole_seconds": round(time.monotonic() - begun, 1),
        "struck": dict(sorted(struck.items())),
        "struck_in_all": sum(struck.values()),
        "counted": dict(sorted(found.counted.items())),
        "counted_in_all": sum(found.counted.values()),
        "trained": found.trained,
        "failures": failures,
    }


def main() -> int:
    """Measure one application; 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--app", choices=sorted(APPS), required=True)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--probability", type=float, default=0.01, help="of each fault in an episode (default: 0.01)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON file to write (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        row = measure(APPS[options.app], options.seconds, Path(folder), options.probability)
    print(json.dumps(row, indent=1))
    known = json.loads(options.output.read_text())["apps"] if options.output.is_file() else {}
    machine = {"python": platform.python_version(), "cores": os.cpu_count(), "system": platform.system()}
    result = {
        "title": "Poisoned environments", "made": time.strftime("%Y-%m-%d"), "machine": machine,
        "apps": {**known, options.app: row},
    }  # fmt: skip
    options.output.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    return 1 if row["failures"] else 0


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


if __name__ == "__main__":
    sys.exit(main())
