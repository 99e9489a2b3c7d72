"""Is advice right? `python -m benchmarks.advice`: one real run of each configuration is advised on, and what it predicts of other
settings is compared with real runs of those.

    python -m benchmarks.advice --only "waiting, one collector"
    python -m benchmarks.advice --share 0.5 --output /tmp/advice.json     shorter runs: a quick look, which renews nothing

Throughput is in batches per second after the first tenth of the trains, the median of several runs of each setting in turn. All
runs of a configuration make as many trains, since collects change as a run goes on: caches fill, and the agent plays other moves.
The runs are left in runs/advice_bench.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from benchmarks._runs import ENTRY, ROOT
from benchmarks.harness import Bar, main_guard, run_bars
from benchmarks.llm_latency import LATENCY, latency_server
from lzero_async.tools.advise.arguments import parse
from lzero_async.tools.advise.choose import advise
from lzero_async.tools.advise.command import advised_of
from lzero_async.tools.advise.measured import read_run
from lzero_async.tools.advise.model import Setting

OUTPUT = Path(__file__).parent / "results" / "advice.json"
PAGE = ROOT / "docs" / "advise.md"
FOLDER = ROOT / "runs" / "advice_bench"
MBPO = ROOT / "zoo" / "mbpo" / "train.py"
WAITING, COMPUTING, RECOMMENDED = 0.15, 0.25, 0.95
DEGREES = (0, 1, 2, 4, 8)
share = 1.0  # of every run's length
rounds = 3  # runs of every setting

# A collect waits 25 times 10 ms, about as long as its 50 updates take.
MBPO_WORK = (
    "--num_envs", "8", "--num_steps_per_env", "25", "--step_seconds", "0.01", "--updates_per_step", "0.25",
    "--torch_threads", "1", "--device", "cpu", "--eval_every", "0", "--checkpoint_every", "0",
    "--report", "false",
)  # fmt: skip
PRIORZERO = (
    "run_config.max_env_step=0", "run_config.eval_every=0", "run_config.final_eval_modes=[]", "run_config.checkpoint_every=0",
    "run_config.report=False", "env_config.env_asynchrony=off",
)  # fmt: skip
# One game per collector whose language model answers after 150 ms; a train takes about a quarter of a collect.
LLM_WORK = (
    "env_config.max_steps=12", "env_config.collector_env_num=1", "policy_config.n_episode=1", "policy_config.num_simulations=5",
    "policy_config.batch_size=16", "policy_config.update_per_collect=6", "llm_config.history_length=12",
)  # fmt: skip
# Two short games; a collect and a train compute for about as long.
WORLD_MODEL_WORK = (
    "llm_config.root_policy=wm_logits", "run_config.eval_modes=['world_model']", "env_config.collector_env_num=2",
    "env_config.max_steps=30", "policy_config.n_episode=2", "policy_config.num_simulations=15",
    "policy_config.update_per_collect=24",
)  # fmt: skip


@dataclass(frozen=True)
class Configuration:
    """What is run: at which setting the run that is advised on, and the settings that are measured."""

    play: Callable[[Path, Setting, int], None]
    trains: int
    advised: Setting
    measured: tuple[Setting, ...]
    limit: float


def run(folder: Path, words: Sequence[str]) -> None:
    """Run a program to its end in an empty `folder`; its output goes to a log file beside it."""
    log = folder.with_name(folder.name + ".log")
    with log.open("w") as out:
        command = [sys.executable, *words, "--exp_name", str(folder)]
        done = subprocess.run(
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT, check=False
        )
    if done.returncode:
        raise SystemExit(f"a run ended with code {done.returncode}; its log is {log}")


def play_mbpo(folder: Path, setting: Setting, trains: int) -> None:
    """The batch trainer, or the synchronous one; one process each, whatever the degree."""
    queue = (
        ("--trainer", "batch", "--batch_queue_size", str(setting.degree)) if setting.degree else ("--trainer", "sync")
    )
    run(folder, [str(MBPO), *MBPO_WORK, *queue, "--max_steps", str(200 * trains)])


def play_priorzero(folder: Path, setting: Setting, trains: int, work: Sequence[str], more: Sequence[str] = ()) -> None:
    """PriorZero; every run starts from the same valid actions, found by a run before the first: they cost more than all else."""
    warm = folder.with_name("warm-actions.sqlite")
    own = folder.with_name(folder.name + "-actions.sqlite")
    if not warm.is_file():
        _priorzero(folder.with_name("warm"), Setting(0, 1), trains, work, more, warm)
    shutil.copy(warm, own)
    _priorzero(folder, setting, trains, work, more, own)


def _priorzero(
    folder: Path, setting: Setting, trains: int, work: Sequence[str], more: Sequence[str], actions: Path
) -> None:
    settings = [*PRIORZERO, *work, f"run_config.max_iter={trains}", f"env_config.valid_action_store={actions}"]
    words = [word for one in settings for word in ("--set", one)]
    how = ["--off_policy_degree", str(setting.degree), "--num_collectors", str(setting.collectors)]
    run(folder, [str(ENTRY), *more, *how, *words])


def play_llm(folder: Path, setting: Setting, trains: int) -> None:
    """With a language model that is waited for."""
    from zoo.jericho.priorzero.llm.smollm2 import model_folder

    model = model_folder("")
    with latency_server(model, LATENCY) as url:
        play_priorzero(folder, setting, trains, LLM_WORK, ("--llm", model, "--llm_engine", "vllm", "--llm_url", url))


def play_world_model(folder: Path, setting: Setting, trains: int) -> None:
    """Without a language model: everything computes."""
    play_priorzero(folder, setting, trains, WORLD_MODEL_WORK)


CONFIGURATIONS = {
    "waiting, one collector": Configuration(
        play_mbpo, 100, Setting(2, 1), tuple(Setting(degree, 1) for degree in DEGREES), WAITING
    ),
    "waiting, several collectors": Configuration(
        play_llm, 40, Setting(4, 2),
        (Setting(0, 1), Setting(2, 2), Setting(4, 2), Setting(8, 2), Setting(8, 4)), WAITING,
    ),
    "computing": Configuration(
        play_world_model, 30, Setting(2, 1), tuple(Setting(degree, 1) for degree in DEGREES), COMPUTING
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """Batches per second by setting, predicted and measured, and the setting that was recommended."""

    predicted: dict[Setting, float]
    measured: dict[Setting, float]
    recommended: Setting

    def ratio(self, setting: Setting) -> float:
        """Predicted over measured."""
        return self.predicted[setting] / self.measured[setting]


@lru_cache(maxsize=len(CONFIGURATIONS))
def found(name: str) -> Found:
    """Run the one that is advised on, ask for advice, run the others."""
    one = CONFIGURATIONS[name]
    place = FOLDER / name.replace(",", "").replace(" ", "-")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    trains = round(share * one.trains)
    one.play(place / "advised", one.advised, trains)
    most = max(setting.collectors for setting in one.measured)
    request = parse([str(place / "advised"), "--degrees", ",".join(map(str, DEGREES)), "--collectors", str(most)])
    advised = advised_of(request)
    advice = advise(advised, request)
    predicted = {row.setting: row.batches for row in advice.rows}
    print(f"  {name}: check {advised.check}, recommended {tuple(advice.chosen.setting)}. {advice.reason}", flush=True)
    rates = measure(one, place, trains, sorted({*one.measured, advice.chosen.setting}))
    for setting, several in rates.items():
        seen = ", ".join(f"{rate:.3f}" for rate in several)
        print(f"  {tuple(setting)}: predicted {predicted[setting]:.3f}, measured {seen}", flush=True)
    rows = [[*setting, predicted[setting], several] for setting, several in rates.items()]
    (place / "found.json").write_text(json.dumps(rows, indent=1) + "\n")
    measured = {setting: statistics.median(several) for setting, several in rates.items()}
    return Found(predicted, measured, advice.chosen.setting)


def measure(one: Configuration, place: Path, trains: int, settings: Sequence[Setting]) -> dict[Setting, list[float]]:
    """Batches per second of every setting, in several rounds, so that a slow moment of the machine meets all of them."""
    rates: dict[Setting, list[float]] = {setting: [] for setting in settings}
    for number in range(rounds):
        for setting, several in rates.items():
            folder = place / f"degree-{setting.degree}-collectors-{setting.collectors}-{number}"
            one.play(folder, setting, trains)
            several.append(read_run(folder).batches)
    return rates


def bars(name: str) -> list[Bar]:
    """The largest error and the recommended setting with their limits, and every ratio."""
    one = CONFIGURATIONS[name]

    def error() -> float:
        return max(abs(found(name).ratio(setting) - 1) for setting in found(name).measured)

    def recommended() -> float:
        rates = found(name).measured
        return rates[found(name).recommended] / max(rates.values())

    return [
        Bar("largest error of the predicted batches/s", one.limit, False, error, 1),
        Bar("recommended setting, measured batches/s / the best", RECOMMENDED, True, recommended, 1),
        *(
            Bar(
                f"degree {setting.degree}, {setting.collectors} collector(s): predicted / measured", None, True,
                lambda setting=setting: found(name).ratio(setting), 1,
            )
            for setting in one.measured
        ),
        Bar("best measured batches/s / that of degree 0", None, True,
            lambda: max(found(name).measured.values()) / found(name).measured[Setting(0, 1)], 1),
    ]  # fmt: skip


GROUPS = {name: lambda name=name: bars(name) for name in CONFIGURATIONS}


def main() -> int:
    """Measure and write the table. `--share` makes every run shorter, `--rounds` says how many each setting gets."""
    global share, rounds
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=rounds)
    own, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    share, rounds = own.share, own.rounds
    return run_bars("Advice", GROUPS, OUTPUT, PAGE)


if __name__ == "__main__":
    main_guard(main)
