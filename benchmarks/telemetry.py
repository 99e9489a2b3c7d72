"""What looking at a run costs: CPU seconds of everything that only watches, beside those of the whole run.

Real runs of the applications with everything on: the live view on a terminal, the trace, TensorBoard, metrics.jsonl, Weights &
Biases offline, a Prometheus endpoint that is asked every five seconds, the summary, and the report at the end. Each piece of code
that watches is timed with the clock of its thread's CPU time; the processes that Weights & Biases starts are counted whole.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar
from benchmarks.live_view import terminal

SECONDS = 90
SCRAPE_EVERY = 5.0
RUNS = {
    "PriorZero, degree 0": ("priorzero", ["--set", f"run_config.max_seconds={SECONDS}"]),
    "PriorZero, degree 2": ("priorzero", ["--off_policy_degree", "2", "--set", f"run_config.max_seconds={SECONDS}"]),
    "MBPO, continuous": (
        "mbpo",
        ["--trainer", "continuous", "--num_envs", "16", "--num_collectors", "2", "--max_steps", "0",
         "--max_seconds", str(SECONDS)],
    ),
    "whole-episode PPO": ("episode_ppo", ["--n_envs", "16", "--total_episodes", "0", "--max_seconds", str(SECONDS)]),
}  # fmt: skip
LIMIT = 0.02


def bars() -> list[Bar]:
    """The share of each run; the bar is that of the main job."""
    found = []
    for name, (program, words) in RUNS.items():
        measured = functools.lru_cache(functools.partial(run_apart, program, tuple(words)))
        limit = LIMIT if program == "priorzero" else None
        found.append(Bar(f"{name}: all telemetry / CPU", limit, False, _share(measured, None), 1))
        for part in ("live view", "trace", "scalars", "summary and view", "metrics endpoint", "W&B", "report"):
            found.append(Bar(f"{name}: {part} / CPU", None, False, _share(measured, part), 1))
    return found


def _share(measured: Callable[[], dict[str, float]], part: str | None) -> Callable[[], float]:
    def share() -> float:
        found = measured()
        seconds = found.get(part, 0.0) if part else sum(v for name, v in found.items() if name not in ("run", "inside"))
        return seconds / found["run"]

    return share


def run_apart(program: str, words: tuple[str, ...]) -> dict[str, float]:
    """CPU seconds by part, and of the run, made in a process of its own; the folder is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.telemetry", program, folder, *words]
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        shutil.rmtree(folder, ignore_errors=True)
        Path(folder).mkdir(exist_ok=True)
    print(f"  {program}: " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in found.items()), file=sys.stderr)
    return found


class Meter:
    """CPU seconds of the calling threads inside some functions; what one of them calls belongs to the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inside = threading.local()
        self._lock = threading.Lock()

    def time(self, part: str, owner: Any, *names: str) -> None:
        """From now on time these functions of `owner`."""
        for name in names:
            setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            if getattr(self._inside, "yes", False):
                return function(*arguments, **named)
            self._inside.yes = True
            start = time.thread_time()
            try:
                return function(*arguments, **named)
            finally:
                self._inside.yes = False
                with self._lock:
                    self.seconds[part] += time.thread_time() - start

        return timed


def watch_everything(meter: Meter) -> None:
    """Time all code that only watches."""
    from lzero_async.core import activity, trace
    from lzero_async.runs import application
    from lzero_async.telemetry import prometheus_server as metrics_server
    from lzero_async.telemetry import scalars as async_scalars
    from lzero_async.telemetry import sinks as records
    from lzero_async.telemetry.recent_warnings import KeptWarnings
    from lzero_async.telemetry.terminal import live
    from lzero_async.tools.report import command

    meter.time(
        "trace", trace.TraceWriter, "span", "collect", "train", "published", "counters", "instant", "locate", "close"
    )
    meter.time("trace", activity.Activity, "enter", "leave")
    meter.time("live view", live._Painter, "paint")
    meter.time("live view", live.LiveProgress, "show", "note", "watch", "clear")
    meter.time("scalars", async_scalars.AsyncScalars, "record")
    meter.time("scalars", records.Records, "scalars", "histogram", "train", "flush")
    meter.time("summary and view", application.Application, "view", "write_summary")
    meter.time("summary and view", KeptWarnings, "emit")
    meter.time("metrics endpoint", metrics_server._Server, "handle_request")
    meter.time("report", command, "write_report")


@contextmanager
def watched() -> Iterator[None]:
    """stderr is a terminal that somebody reads."""
    before, kind = sys.stderr, os.environ.get("TERM")
    with terminal() as stream:
        sys.stderr, os.environ["TERM"] = stream, "xterm-256color"
        try:
            yield
        finally:
            sys.stderr, os.environ["TERM"] = before, kind or "dumb"


def measured(program: str, folder: Path, words: list[str]) -> dict[str, float]:
    """Run an application with everything on in this process; CPU seconds by part."""
    import psutil

    meter = Meter()
    watch_everything(meter)
    port = free_port()
    over = threading.Event()
    helpers: dict[tuple[int, float], float] = {}
    asker = threading.Thread(target=_ask, args=(port, over, helpers, psutil), daemon=True)
    main = {"priorzero": _priorzero, "mbpo": _mbpo, "episode_ppo": _episode_ppo}[program]
    with watched():
        asker.start()
        code = main([*words, "--exp_name", str(folder / "run"), "--wandb", "offline", "--metrics_port", str(port)])
        over.set()
        asker.join()
    assert code == 0, f"the run ended with {code}"
    summary = json.loads((folder / "run" / "summary.json").read_text())
    return {
        "run": summary["utilisation"]["cpu_seconds"],
        **{name: round(seconds, 4) for name, seconds in meter.seconds.items()},
        "W&B": sum(helpers.values()),
    }


def _ask(port: int, over: threading.Event, helpers: dict[tuple[int, float], float], psutil: Any) -> None:
    """A Prometheus server's part; and a look at the processes of Weights & Biases, which end before the run does."""
    while not over.wait(SCRAPE_EVERY):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read()
        except OSError:  # not yet, or no more
            pass
        for process in psutil.Process().children(recursive=True):
            try:
                if "wandb" in process.name() or "gpu_stats" in process.name():
                    times = process.cpu_times()
                    helpers[process.pid, process.create_time()] = times.user + times.system
            except psutil.Error:  # it ended meanwhile
                continue


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _priorzero(words: list[str]) -> int:
    from zoo.jericho.priorzero.priorzero_entry import main

    return main(words)


def _mbpo(words: list[str]) -> int:
    from zoo.mbpo.train import main

    return main(words)


def _episode_ppo(words: list[str]) -> int:
    from zoo.episode_ppo.train import main

    return main(words)


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])))
