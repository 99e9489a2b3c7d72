"""A language model that has to be waited for: how well a run of PriorZero fills the wait, with one collector and with four.

    python -m benchmarks.llm_latency [--collectors 1 4] [--max_iter N] [--keep FOLDER]

Whole runs of priorzero_entry.py, their roles in processes, against a server on the loopback interface that answers every
question after 150 ms without using the CPU. Prompts show the history of the episode, so that hardly one comes twice and the
prior's cache does not hide the wait. The number is the run's own `overlap_efficiency`: the busier of collecting (per
collector) and training over the time from the first start of a stage to the last end.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar
from lzero_async.runs.summary import read_results

ROOT = Path(__file__).resolve().parents[1]
ENTRY = ROOT / "zoo" / "jericho" / "priorzero" / "priorzero_entry.py"
LATENCY = 0.15  # seconds


@dataclass(frozen=True)
class Case:
    """How many collectors, and how much each train does: about as long as one collect divided by the collectors."""

    degree: int
    updates: int
    trains: int


CASES = {1: Case(degree=2, updates=20, trains=30), 4: Case(degree=8, updates=6, trains=80)}
SETTINGS = (
    "env_config.max_steps=12", "env_config.collector_env_num=1", "env_config.evaluator_env_num=1",
    "policy_config.n_episode=1", "policy_config.num_simulations=5", "policy_config.batch_size=16",
    "llm_config.history_length=12", "run_config.max_env_step=0", "run_config.eval_every=0",
    "run_config.final_eval_modes=[]",
)  # fmt: skip


def bars() -> list[Bar]:
    """One bar for each number of collectors."""
    return [
        Bar(
            f"overlap efficiency, LLM answers after 150 ms, {collectors} collector(s), degree {case.degree}",
            0.95,
            True,
            lambda collectors=collectors: measure(collectors)["statistics"]["overlap_efficiency"],
            repeats=1,
        )
        for collectors, case in CASES.items()
    ]


def measure(collectors: int, trains: int = 0, folder: Path | None = None, more: Sequence[str] = ()) -> dict[str, Any]:
    """The results of one run, with more settings; written into `folder` if one is given."""
    from zoo.jericho.priorzero.llm.smollm2 import model_folder

    case, model = CASES[collectors], model_folder("")
    with contextlib.ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shutil.rmtree(place / "run", ignore_errors=True)
        url = stack.enter_context(latency_server(model, LATENCY))
        command = [sys.executable, str(ENTRY), "--exp_name", str(place / "run"), "--llm", model]
        command += ["--llm_engine", "vllm", "--llm_url", url, "--max_iter", str(trains or case.trains)]
        command += ["--num_collectors", str(collectors), "--off_policy_degree", str(case.degree)]
        settings = [
            *SETTINGS,
            f"policy_config.update_per_collect={case.updates}",
            f"run_config.trace={bool(folder)}",
            *more,
        ]
        command += [word for setting in settings for word in ("--set", setting)]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(
                f"the run ended with code {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
            )
        return read_results(place / "run")


@contextlib.contextmanager
def latency_server(model: str, latency: float, at_once: int = 0) -> Iterator[str]:
    """The address of a server in a process of its own, which ends with this block or with this process."""
    command = [sys.executable, "-m", "benchmarks._latency_server", model, str(latency), str(at_once)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.stdin.close()


def main() -> None:
    """Measure and print what the runs say of themselves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collectors", type=int, nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--max_iter", type=int, default=0, help="trains instead of the case's own number")
    parser.add_argument("--keep", type=Path, help="keep each run, with its trace, in a folder inside this one")
    args = parser.parse_args()
    for collectors in args.collectors:
        results = measure(collectors, args.max_iter, args.keep and args.keep / f"collectors-{collectors}")
        statistics, reuse = results["statistics"], results["reuse"]
        names = ("overlap_efficiency", "wall_time", "train_count", "collect_avg_time", "train_avg_time",
                 "collect_wait_time", "train_wait_time", "abandoned", "restarts")  # fmt: skip
        row = {"collectors": collectors, **{name: statistics[name] for name in names}}
        row |= {"env_steps": results["env_steps"], "prior_hit_rate": reuse["prior_hit_rate"]}
        row |= {"engine_seconds": reuse["prior_engine_seconds"]}
        print({name: round(value, 3) for name, value in row.items()}, flush=True)


if __name__ == "__main__":
    main()
