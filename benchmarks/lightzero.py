"""How fast LightZero's configs are at degree 2 beside LightZero's own serial entry: the ratio of updates per second.

    python -m benchmarks.lightzero                                  5 pairs of everything, one run at a time
    python -m benchmarks.lightzero --only balanced --pairs 3
    python -m benchmarks.lightzero --only shipped --updates 200     another number of updates for every config
    python -m benchmarks.lightzero --only_report                    print what is there

Pairs run in alternating order, each run in a process of its own, with one torch thread per role (OMP_NUM_THREADS=1, --threads 1)
and the same seed and values of the config. Imports and the start of roles are not timed. Times of the serial entry come from its
own collector, evaluator and learner, whose methods note the clock in its process; ours come from the run's trace. That our roles
make their first steps cold counts against us.

balanced: sizes at which collecting (C) and training (T: sampling, pushing and updating) take equally long in the serial entry; a
first serial run finds update_per_collect, and every pair measures C and T again. Timed is from the start of the collect that fed
the first update to the end of the last train: the pipeline starts empty, so its filling counts against us, as does the first
evaluation, which runs beside our first collect and before the serial entry's (there are no others). `limit` is
(C + T) / max(C, T) of the serial run of the same pair. The learning rate is almost 0: cartpole's episodes, and with them C, would
get longer by learning. Environments live in the collector (manager 'base'): LightZero's eight subprocesses would compete with two
roles for two cores.

shipped: the config as it is, but for env.stop_value, so that no run ends early. Timed is the whole loop, evaluations included:
from the end of the learner's before_run hook to the last update, ours from the start of the first stage to the end of the last
train.

Finished pairs are kept in benchmarks/results/lightzero.json and not repeated; a failed run is printed, kept in "failed" and makes
the exit code 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results" / "lightzero.json"
SECONDS = 20.0  # of a balanced serial run, at least
ROUNDS = 24  # in it, at least: filling the pipeline costs ours one
CALIBRATION = 4, 40  # update_per_collect and updates of the run that finds the balance
FEWEST = 4  # rounds of collect and train: in fewer there is little to overlap
TIMEOUT = 1800.0  # seconds after which a run has failed
NO_STOP = "env.stop_value=1e9"
STILL = (NO_STOP, "policy.eval_freq=1000000000", "policy.learning_rate=1e-9")
FEWER = ("policy.n_episode=4", "policy.collector_env_num=4", "env.collector_env_num=4")
BALANCED = {
    "tictactoe_sampled_alphazero_sp_mode": (*STILL, *FEWER, "policy.mcts.num_simulations=10", "policy.batch_size=16"),
    # Not cartpole: its episodes are never seeded, and their lengths, and with them C, differ from run to run.
    "pendulum_cont_disc_muzero": (*STILL, *FEWER, "policy.num_simulations=6", "policy.batch_size=32"),
    "pendulum_cont_disc_unizero": (
        *STILL, *FEWER, "policy.num_simulations=2", "policy.batch_size=32", "policy.model.world_model_cfg.num_layers=1",
        "policy.model.world_model_cfg.embed_dim=64", "policy.model.world_model_cfg.env_num=4",
        "policy.model.world_model_cfg.collector_env_num=4",
    ),
}  # fmt: skip
SHIPPED = {  # updates: at least three trains each
    "cartpole_muzero": 300,
    "cartpole_unizero": 150,
    "tictactoe_sampled_alphazero_sp_mode": 200,
    "tictactoe_muzero_bot_mode": 150,
}


class Failed(Exception):
    """A run did not end well."""


class TimeUp(BaseException):
    """The serial entry has had its seconds."""


# -- one run, in a process of its own ----------------------------------------------------------------------------------


def play(config: str, degree: int | str, **order: Any) -> dict[str, Any]:
    """Run a config at a degree, or with degree 'serial' LightZero's own entry, in a new process. `order` may have `settings`
    (words of --set), `seed`, `updates`, `seconds`, `manager` and more `options`. Returns `spans` ([name, start, end, batch], in
    seconds), `updates` ([total, end] after each serial update or our train), and `rows` of evaluations ([env_steps, seconds,
    updates, score])."""
    with tempfile.TemporaryDirectory(prefix="lightzero-") as place:
        folder = Path(place)
        words = json.dumps({"config": config, "degree": degree, **order})
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "benchmarks.lightzero", "--child", words]
        with (folder / "output").open("w+") as output:
            try:
                code: int | str = subprocess.run(
                    command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=TIMEOUT,
                    check=False,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                code = f"none in {TIMEOUT:g} s"
        if code or not (folder / "result.json").is_file():
            text = (folder / "output").read_text(errors="replace")
            cause = re.search(r"^[\w.]*(Error|Exception)\b.*", text, re.MULTILINE)  # the first: ends bring others
            said = cause.group() if cause else "no error in its output"
            raise Failed(f"{config} at degree {degree} ended with code {code}: {said}\n{text[-1500:]}")
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return found


def child(order: dict[str, Any]) -> None:
    """What the new process does; LightZero writes below the working directory, whatever exp_name is."""
    import torch

    from lzero_async.lightzero import running
    from lzero_async.lightzero.configs import Call, find_config, run_config

    torch.set_num_threads(1)
    calls: list[Call] = []
    run_config(find_config(order["config"]), [], calls.append)
    call = calls[0]
    if order.get("manager"):
        call.create.env_manager.type = order["manager"]
    limits = {"max_train_iter": order["updates"]} if order.get("updates") else {"max_env_step": int(1e10)}
    options = {"exp_name": "run", "seed": order.get("seed", 0), **limits}
    if order["degree"] == "serial":
        main, _ = running._settle(call, running.Wishes(options, order.get("settings", ())))  # as ours, word for word
        result = in_series(call, main, options, order.get("seconds") or float("inf"))
    else:
        more = {
            "off_policy_degree": order["degree"],
            "threads": 1,
            "report": False,
            "max_seconds": order.get("seconds", 0),
        }
        wishes = running.Wishes({**options, **more, **order.get("options", {})}, order.get("settings", ()))
        if code := running.start(call, wishes)[0]:
            raise SystemExit(code)
        result = ours(Path("run"))
    Path("result.json").write_text(json.dumps(result))


def in_series(call: Any, main: Any, options: dict[str, Any], seconds: float) -> dict[str, Any]:
    """LightZero's own entry, its methods noting the clock; broken off after `seconds`."""
    import lzero.entry
    import lzero.worker
    from ding.worker import BaseLearner

    began: list[float] = []
    spans: list[list[Any]] = []
    updates: list[list[float]] = []
    rows: list[list[float]] = []

    def noted(kind: type, method: str, note: Callable[..., None]) -> None:
        inner = getattr(kind, method)

        def outer(self: Any, *given: Any, **named: Any) -> Any:
            start = time.monotonic()
            found = inner(self, *given, **named)
            note(self, start, time.monotonic(), found, given)
            if began and time.monotonic() - began[0] > seconds:
                raise TimeUp
            return found

        setattr(kind, method, outer)

    def hooked(learner: Any, start: float, end: float, found: Any, given: Any) -> None:
        if given[0] == "before_run":
            began.append(end)

    def updated(learner: Any, start: float, end: float, found: Any, given: Any) -> None:
        updates.append([learner.train_iter, end])

    def evaluated(evaluator: Any, start: float, end: float, found: Any, given: Any) -> None:
        spans.append(["eval", start, end, -1])
        returns = [float(one) for one in found[1]["eval_episode_return"]]
        rows.append([float(given[2]), end - began[0], float(given[1]), statistics.fmean(returns)])

    noted(BaseLearner, "call_hook", hooked)
    noted(BaseLearner, "train", updated)
    for kind in (lzero.worker.MuZeroCollector, lzero.worker.AlphaZeroCollector):
        noted(kind, "collect", lambda self, start, end, *_: spans.append(["collect", start, end, -1]))
    for kind in (lzero.worker.MuZeroEvaluator, lzero.worker.AlphaZeroEvaluator):
        noted(kind, "eval", evaluated)
    limits = {"max_train_iter": int(options.get("max_train_iter", 1e10)), "max_env_step": int(1e10)}
    try:
        getattr(lzero.entry, call.entry)([main, call.create], seed=options["seed"], **limits)
    except TimeUp:
        pass
    return {"began": began[0], "spans": spans, "updates": updates, "rows": rows, "staleness_max": 0}


def ours(folder: Path) -> dict[str, Any]:
    """The same of a run of ours, from its trace, metrics and summary."""
    from benchmarks._runs import read

    summary = json.loads((folder / "summary.json").read_text())
    run = read(folder)
    stages = [span for span in run.spans if span.name in ("collect", "train", "eval")]
    ended = {span.batch: span.end for span in stages if span.name == "train"}
    return {
        "began": min(span.start for span in stages),
        "spans": [[span.name, span.start, span.end, span.batch] for span in stages],
        "updates": [[row["learner/updates"], ended[row["batch/id"]], row["batch/id"]] for row in run.rows],
        "rows": [[row["steps"], row["seconds"], row["updates"], row["score"]] for row in summary["evaluations"]],
        "staleness_max": summary["statistics"]["staleness_max"],
    }


# -- what is made of it ------------------------------------------------------------------------------------------------


def speed(found: dict[str, Any], *, whole: bool) -> dict[str, float]:
    """Updates per second of the whole loop, or from the start of the collect that fed the first update, and the seconds of
    collects and evaluations in that time; `train` is what remains, which means something for a serial run only."""
    made = [row for row in found["updates"] if row[0]]
    if not made:
        raise Failed("a run made no update; raise --updates")
    collects = [span for span in found["spans"] if span[0] == "collect"]
    if whole:
        start = found["began"]
    elif len(made[0]) == 3:  # ours: the collect is known by its batch
        start = next(span[1] for span in collects if span[3] == made[0][2])
    else:
        start = max(span[1] for span in collects if span[2] <= made[0][1])
    end, total = made[-1][1], made[-1][0]
    within = {
        name: sum(max(0.0, min(end, span[2]) - max(start, span[1])) for span in found["spans"] if span[0] == name)
        for name in ("collect", "eval")
    }
    rounds = sum(start <= span[1] < end for span in collects)
    rest = end - start - sum(within.values())
    return {
        "updates": total, "seconds": end - start, "rate": total / (end - start), "rounds": rounds, **within, "train": rest,
        "staleness_max": found["staleness_max"],
    }  # fmt: skip


def balance(config: str) -> dict[str, Any]:
    """update_per_collect at which the serial entry trains as long as it collects, and the updates of SECONDS."""
    each, updates = CALIBRATION
    settings = (*BALANCED[config], f"policy.update_per_collect={each}")
    found = play(config, "serial", settings=settings, updates=updates, manager="base")
    collects = [span for span in found["spans"] if span[0] == "collect"]
    first = found["updates"][0][1]
    later = [(one, two) for one, two in itertools.pairwise(collects) if one[1] > first]  # warm rounds only
    collect = statistics.median(one[2] - one[1] for one, _ in later)
    ends = [row[1] for row in found["updates"]]
    update = statistics.median(two - one for one, two in itertools.pairwise(ends))  # most lie in one round
    beside = statistics.median(two[1] - one[2] for one, two in later) - each * update  # storing, logging: once a round
    per_collect = max(1, round((collect - beside) / update))
    rounds = max(ROUNDS, round(SECONDS / (collect + beside + per_collect * update)))
    return {
        "collect": collect, "update": update, "beside": beside, "update_per_collect": per_collect,
        "updates": rounds * per_collect,
    }  # fmt: skip


def pair(kind: str, config: str, number: int, kept: dict[str, Any], given: int | None) -> dict[str, Any]:
    """Both runs of a pair, and what they say."""
    order: dict[str, Any] = {"seed": number, "settings": (NO_STOP,), "updates": given or SHIPPED.get(config)}
    if kind == "balanced":
        found = kept["calibration"]
        more = f"policy.update_per_collect={found['update_per_collect']}"
        order |= {"settings": (*BALANCED[config], more), "updates": given or found["updates"], "manager": "base"}
    degrees: tuple[int | str, ...] = ("serial", 2) if number % 2 else (2, "serial")
    runs = {degree: speed(play(config, degree, **order), whole=kind == "shipped") for degree in degrees}
    serial, mine = runs["serial"], runs[2]
    limit = (serial["collect"] + serial["train"]) / max(serial["collect"], serial["train"])
    ratio = mine["rate"] / serial["rate"]
    return {"ratio": ratio, "limit": limit, "share": ratio / limit, "serial": serial, "ours": mine}


def report(kept: dict[str, Any]) -> None:
    """The table, and the median of each kind."""
    head = f"{'kind':<10}{'config':<37}{'pairs':>6}{'C s':>8}{'T s':>8}{'T / C':>7}{'ratio':>8}{'min to max':>15}"
    print(f"{head}{'limit':>7}{'of limit':>9}{'min to max':>15}")
    for kind in ("balanced", "shipped"):
        medians = []
        for config, one in kept.get(kind, {}).items():
            if not (pairs := one["pairs"]):
                continue
            parts = {name: [row[name] for row in pairs] for name in ("ratio", "limit", "share")}
            middle = {name: statistics.median(values) for name, values in parts.items()}
            spread = {name: f"{min(values):.2f} to {max(values):.2f}" for name, values in parts.items()}
            collect, train = (
                statistics.median(row["serial"][part] / row["serial"]["rounds"] for row in pairs)
                for part in ("collect", "train")
            )
            rounds = statistics.median(row["serial"]["rounds"] for row in pairs)
            medians.append(middle["ratio"])
            print(
                f"{kind:<10}{config:<37}{len(pairs):>6}{collect:>8.2f}{train:>8.2f}{train / collect:>7.2f}{middle['ratio']:>8.2f}"
                f"{spread['ratio']:>15}{middle['limit']:>7.2f}{middle['share']:>9.2f}{spread['share']:>15}"
                + f"  ONLY {rounds:g} ROUNDS" * (rounds < FEWEST)
                + "  NOT BALANCED" * (kind == "balanced" and not 1 / 1.2 <= train / collect <= 1.2)
            )
        if medians:
            print(f"{kind:<10}{'median of the configs':<67}{statistics.median(medians):>17.2f}")
    for failure in kept.get("failed", []):
        print(f"FAILED: {failure['kind']} {failure['config']}, pair {failure['pair']}: {failure['error'][:200]}")


def main() -> int:
    """Measure what is not there yet, keep it after each pair, print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs for each config (default: %(default)s)")
    parser.add_argument("--only", choices=("balanced", "shipped"), help="measure only this")
    parser.add_argument("--configs", nargs="+", help="measure only these configs")
    parser.add_argument("--updates", type=int, help="updates of each run, instead of those chosen")
    parser.add_argument("--results", type=Path, default=RESULTS, help="JSON file (default: %(default)s)")
    parser.add_argument("--only_report", "--only-report", action="store_true", help="print what is there")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(json.loads(options.child))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the run in progress ends, too
    kept: dict[str, Any] = json.loads(options.results.read_text()) if options.results.is_file() else {}
    failed = False

    def keep() -> None:
        options.results.parent.mkdir(parents=True, exist_ok=True)
        options.results.write_text(json.dumps(kept, indent=1) + "\n")

    for kind, configs in {"balanced": BALANCED, "shipped": SHIPPED}.items():
        for config in configs:
            if options.only_report or options.only not in (None, kind) or config not in (options.configs or configs):
                continue
            one = kept.setdefault(kind, {}).setdefault(config, {"pairs": []})
            earlier = [row for row in kept.get("failed", []) if (row["kind"], row["config"]) != (kind, config)]
            kept["failed"] = earlier
            try:
                if kind == "balanced" and "calibration" not in one:
                    one["calibration"] = balance(config)
                    print(f"{config}: {json.dumps(one['calibration'])}", flush=True)
                    keep()
                while len(one["pairs"]) < options.pairs:
                    one["pairs"].append(pair(kind, config, len(one["pairs"]), one, options.updates))
                    row = one["pairs"][-1]
                    print(f"{kind} {config}: ratio {row['ratio']:.2f}, limit {row['limit']:.2f}", flush=True)
                    keep()
            except Failed as error:
                failed = True
                print(f"FAILED: {error}", flush=True)
                kept["failed"].append(
                    {"kind": kind, "config": config, "pair": len(one["pairs"]), "error": str(error)[:1500]}
                )
                keep()
    report(kept)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
