"""Whole runs of `zoo.mbpo` with tiny networks: the three trainers end, count, record, resume and say what they did."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lzero_async import Parcel
from lzero_async.runs import checkpoint
from lzero_async.runs.folder_lock import LOCK, holder
from lzero_async.runs.summary import is_finished, read_results
from lzero_async.tools.traces import read_events
from tests.commands import Command
from tests.zoo.mbpo.patient import patient
from zoo.mbpo import train_isaac_async
from zoo.mbpo.async_trainer import PRIORITIES, AsyncTrainer
from zoo.mbpo.learn.roles import AgentRole
from zoo.mbpo.options import build_options
from zoo.mbpo.saving import KIND
from zoo.mbpo.train import main, make_trainer
from zoo.mbpo.trainer import COUNTERS, Trainer

REPOSITORY = Path(__file__).resolve().parents[3]
ENTRY = REPOSITORY / "zoo" / "mbpo" / "train.py"
LINE = re.compile(
    r"^\[AsyncMBPO\] step=(\d+) real_data=(\d+) model_data=(\d+) agent_updates=(\d+) dynamics_updates=(\d+)$", re.M
)
BATCH_STEPS = 16
SMALL = {
    "num_envs": 2, "random_steps": BATCH_STEPS, "env_args": "max_episode_steps=20", "hidden_size": 16, "batch_size": 8,
    "ensemble_size": 2, "num_elites": 1, "dynamics_hidden_size": 8, "dynamics_batch_size": 8, "eval_every": 3,
    "eval_episodes": 2, "updates_per_step": 0.5, "dynamics_updates_per_step": 0.15, "rollouts_per_step": 0.75,
    "rollout_length": 2, "log_interval": 10, "restart_backoff": 0.01, "device": "cpu", "max_steps": 6 * BATCH_STEPS,
}  # fmt: skip
TRAINERS: dict[str, dict[str, Any]] = {
    "sync": {"num_steps_per_env": 8},
    "batch": {"num_steps_per_env": 8, "batch_queue_size": 3, "backend": "thread"},
    "continuous": {
        "num_collectors": 2, "max_queue_size": 4 * BATCH_STEPS, "collection_batch_size": BATCH_STEPS, "when_full": "wait",
        "backend": "thread",
    },
}  # fmt: skip
FOREVER = 120.0  # seconds; only a broken run waits that long


def arguments(folder: Path, trainer: str, **more: Any) -> list[str]:
    options = {**SMALL, **TRAINERS[trainer], "trainer": trainer, "exp_name": folder, **more}
    return [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]


def make(folder: Path, trainer: str, **more: Any) -> Trainer:
    folder.mkdir(parents=True, exist_ok=True)
    changes = {**SMALL, **TRAINERS[trainer], "trainer": trainer, "exp_name": str(folder), **more}
    return make_trainer(build_options(changes), folder)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_times(folder: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if "second" not in name and not name.endswith("/seconds")}
        for row in rows_of(folder)
    ]


def results_of(folder: Path) -> dict[str, Any]:
    return read_results(folder)


def state_of(folder: Path) -> dict[str, Any]:
    return checkpoint.load(folder / "ckpt" / "last.safetensors", KIND, arrays=False)


def assert_account_closes(folder: Path) -> dict[str, Any]:
    """Every collect ended in one way; the gate's state."""
    gate = state_of(folder)["coordinator"]["gate"]
    ended = gate["trained"] + gate["failed"] + gate["dropped"] + gate["abandoned"]
    assert gate["admitted"] == ended + len(gate["waiting"]) + len(gate["tickets"])
    assert gate["version"] == gate["trained"] + gate["replayed"]
    return gate


def assert_every_train_is_recorded_once(folder: Path) -> list[dict[str, Any]]:
    rows, gate = rows_of(folder), assert_account_closes(folder)
    assert [row["train"] for row in rows] == list(range(1, gate["version"] + 1))
    batches = [(row["batch/worker"], row["batch/number"]) for row in rows if not row["replay"]]
    assert len(set(batches)) == len(batches) == gate["trained"]
    fed = np.cumsum([0 if row["replay"] else row["batch/steps"] for row in rows])
    assert [row["data/real_data"] for row in rows] == fed.tolist()
    return rows


class Run:
    """A run that was made through `main`."""

    def __init__(self, folder: Path, code: int, said: str) -> None:
        self.folder, self.code, self.said = folder, code, said
        self.results = results_of(folder)

    @property
    def lines(self) -> list[tuple[int, ...]]:
        return [tuple(map(int, found)) for found in LINE.findall(self.said)]


def run_main(folder: Path, capture: pytest.CaptureFixture[str], trainer: str, **more: Any) -> Run:
    capture.readouterr()
    code = main(arguments(folder, trainer, **more))
    said = capture.readouterr()
    return Run(folder, code, said.err + said.out)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """One run of each trainer as a user makes it: a program, with processes where the trainer has them. The continuous one is
    patient, so that every role has done something when it ends."""
    base = tmp_path_factory.mktemp("straight")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment["HOME"] = str(base)
    programs = {}
    for trainer in TRAINERS:
        more = {"backend": None, "wandb": "offline" if trainer == "batch" and find_spec("wandb") else "off"}
        program = ["-m", "tests.zoo.mbpo.patient"] if trainer == "continuous" else [str(ENTRY)]
        command = [sys.executable, *program, *arguments(base / trainer, trainer, **more)]
        start = Command if trainer == "continuous" else subprocess.Popen  # one is started cold
        programs[trainer] = start(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY
        )
    found = {}
    for trainer, program in programs.items():
        said, errors = program.communicate(timeout=FOREVER)
        assert program.returncode == 0, errors
        found[trainer] = Run(base / trainer, 0, errors + said)
    return found


# -- what a run writes and says ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_run_writes_what_it_says(straight: dict[str, Run], trainer: str) -> None:
    run = straight[trainer]
    results, folder = run.results, run.folder
    assert (results["trainer"], results["ended_by"], results["env"]) == (trainer, "max_env_steps", "Pendulum-v1")
    assert results["final_evaluation"]["episodes"] == 2
    assert {path.name for path in (folder / "ckpt").iterdir()} == {"last.safetensors", "best.safetensors"}
    assert list((folder / "log").glob("events.*"))
    assert json.loads((folder / "options.json").read_text())["trainer"] == trainer
    assert {"collect", "train"} <= {event["name"] for event in read_events(folder / "trace.json")}
    for place in (
        "last.safetensors",
        "best.safetensors",
        "summary.json",
        "metrics.jsonl",
        "log",
        "trace.json",
        "run.log",
    ):
        assert place in run.said
    for name in ("queue", "buffer", "cpu", "gpu"):
        assert re.search(rf"^{name} .*%", run.said, re.M)
    assert set(results["utilisation"]) == {"queue", "buffer", "cpu", "gpu", "cpu_seconds"}
    assert set(results["busy"]) >= {"collectors", "learner"}
    assert all(0 <= share <= 1 for share in results["busy"].values())
    assert results["effective_samples_per_second"] > 0
    assert results["collectors"]["episodes"] > 0


@pytest.mark.parametrize("trainer", TRAINERS)
def test_the_log_line_counts_what_was_done(straight: dict[str, Run], trainer: str) -> None:
    run = straight[trainer]
    assert len(run.lines) > 2
    for step, real, _model, updates, _dynamics in run.lines:
        assert step == updates
        assert real % BATCH_STEPS == 0
    last = dict(zip(COUNTERS, run.lines[-1][1:], strict=True))
    assert last == run.results["counters"]
    rows = assert_every_train_is_recorded_once(run.folder)
    assert {name: rows[-1][f"data/{name}"] for name in COUNTERS} == last
    assert last["real_data"] == SMALL["max_steps"]
    assert last["agent_updates"] == len(rows) * BATCH_STEPS * SMALL["updates_per_step"]
    if trainer != "continuous":
        assert (last["model_data"], last["dynamics_updates"]) == (144, 14)  # 0.75 * 96 rollouts of 2 steps; 0.15 * 96
        assert [line[0] for line in run.lines] == [16, 24, 32, 40, 48]
    else:
        assert 0 < last["dynamics_updates"] <= 0.15 * BATCH_STEPS * len(rows)
        assert 0 < last["model_data"] <= 2 * 0.75 * BATCH_STEPS * len(rows)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_staleness_is_told_apart_by_source(straight: dict[str, Run], trainer: str) -> None:
    results, rows = straight[trainer].results, rows_of(straight[trainer].folder)
    assert results["ages"].keys() >= {"real_age_mean", "real_age_max"}
    assert 0 <= results["ages"]["real_age_mean"] <= results["ages"]["real_age_max"] <= rows[-1]["train"]
    assert results["ages"].keys() >= {"model_age_mean", "model_age_max"}
    assert 0 <= rows[-1]["learner/model_age_max"] == results["ages"]["model_age_max"] <= len(rows)
    if trainer == "sync":
        assert results["statistics"]["staleness_max"] == 0
        assert all(row["learner/staleness"] == 0 for row in rows)
    assert results["statistics"]["staleness_max"] <= results["statistics"]["off_policy_degree"]


@pytest.mark.parametrize("trainer", ["batch", "continuous"])
def test_roles_are_processes_of_their_own(straight: dict[str, Run], trainer: str) -> None:
    places: dict[str, set[int]] = {}
    for event in read_events(straight[trainer].folder / "trace.json"):
        if event["ph"] == "X":
            places.setdefault(event["name"], set()).add(event["pid"])
    assert len(places["collect"]) == (2 if trainer == "continuous" else 1)
    assert len(places["train"]) == 1
    assert not places["collect"] & places["train"]
    if trainer == "continuous":
        assert len(places["fit"] | places["roll"] | places["train"]) == 3


def test_a_second_run_does_not_touch_the_first(straight: dict[str, Run], tmp_path: Path) -> None:
    first = tmp_path / "run"
    shutil.copytree(straight["sync"].folder, first)
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*") if path.is_file()}
    assert main(arguments(first, "sync", max_steps=BATCH_STEPS)) == 0
    assert before == {path: path.stat().st_mtime_ns for path in first.rglob("*") if path.is_file()}
    assert is_finished(tmp_path / "run-2")


# -- the same seed, the same numbers -----------------------------------------------------------------------------------


def test_the_synchronous_trainer_gives_the_same_numbers_again(straight: dict[str, Run], tmp_path: Path) -> None:
    assert main(arguments(tmp_path / "again", "sync", torch_threads=1)) == 0
    assert main(arguments(tmp_path / "third", "sync", torch_threads=1)) == 0
    assert main(arguments(tmp_path / "other", "sync", torch_threads=1, seed=1)) == 0
    assert without_times(tmp_path / "again") == without_times(tmp_path / "third")
    assert without_times(tmp_path / "again") != without_times(tmp_path / "other")
    names = ("mean_return", "min_return", "max_return")
    returns = [
        [[row[name] for name in names] for row in results_of(tmp_path / folder)["evaluations"]]
        for folder in ("again", "third", "other")
    ]
    assert returns[0] == returns[1] != returns[2]


# -- resuming ----------------------------------------------------------------------------------------------------------


def test_a_resumed_run_goes_on_counting(
    straight: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    first = run_main(folder, capsys, "sync", max_steps=3 * BATCH_STEPS)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"train": 4, "made after the checkpoint": 1}\n{"train": 5, "half')
    assert main(["--resume", str(folder), "--max_steps", str(6 * BATCH_STEPS)]) == 0
    said = capsys.readouterr().out
    assert f"resumed from {folder / 'ckpt' / 'last.safetensors'} at 48 real steps" in said
    rows, expected = assert_every_train_is_recorded_once(folder), rows_of(straight["sync"].folder)
    names = [f"data/{name}" for name in (*COUNTERS, "collected")]
    assert [[row[name] for name in names] for row in rows] == [[row[name] for name in names] for row in expected]
    results = results_of(folder)
    assert results["counters"] == straight["sync"].results["counters"]
    assert results["evaluations"][: len(first.results["evaluations"]) - 1] == first.results["evaluations"][:-1]
    assert results["collectors"]["steps"] == 6 * BATCH_STEPS
    assert all(0 <= share <= 1 for share in results["busy"].values())


def test_a_run_that_is_over_can_be_resumed_and_is_over(
    straight: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for trainer in ("sync", "continuous"):
        folder = tmp_path / trainer
        shutil.copytree(straight[trainer].folder, folder)
        assert main(["--resume", str(folder), *(["--backend", "thread"] if trainer != "sync" else [])]) == 0
        assert results_of(folder)["counters"] == straight[trainer].results["counters"]
        assert results_of(folder)["busy"] == pytest.approx(straight[trainer].results["busy"])
        assert_every_train_is_recorded_once(folder)


def test_a_run_goes_on_with_another_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(AsyncTrainer, "_learn", patient(AsyncTrainer._learn))
    folder, before, trains = tmp_path / "run", dict.fromkeys(COUNTERS, 0), 0
    for turn, trainer in enumerate(["batch", "continuous", "sync", "continuous", "batch"]):
        words = arguments(folder, trainer, max_steps=4 * BATCH_STEPS * (turn + 1))
        assert main([*words, "--resume"] if turn else words) == 0, capsys.readouterr().err
        results = results_of(folder)
        rows, counters = assert_every_train_is_recorded_once(folder), results["counters"]
        assert all(counters[name] > before[name] for name in COUNTERS)
        assert 4 * BATCH_STEPS * (turn + 1) <= counters["real_data"] < 4 * BATCH_STEPS * (turn + 2)
        assert results["trainer"] == trainer == json.loads((folder / "options.json").read_text())["trainer"]
        assert {row["learner/updates"] for row in rows[trains:]} == {8}
        assert counters["agent_updates"] == sum(row["learner/updates"] for row in rows)
        before, trains = counters, len(rows)


def test_resuming_takes_the_options_of_the_run_and_what_is_given(straight: dict[str, Run], tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(straight["sync"].folder, folder)
    changed = ["--max_steps", str(7 * BATCH_STEPS), "--real_buffer_size", "40", "--learning_rate", "0.5"]
    assert main(["--resume", str(folder), *changed]) == 0
    options = json.loads((folder / "options.json").read_text())
    assert (options["hidden_size"], options["learning_rate"]) == (16, 0.5)
    state = checkpoint.load(folder / "ckpt" / "last.safetensors", KIND)
    assert len(state["learner"]["real"]["table"]) == state["learner"]["real"]["capacity"] == 40
    assert state["learner"]["real"]["total_added"] == 7 * BATCH_STEPS


def test_resuming_from_a_file_leaves_other_runs_alone(straight: dict[str, Run], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious.txt").write_text("mine")
    folder = straight["sync"].folder
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != LOCK}
    last = str(folder / "ckpt" / "last.safetensors")
    assert main(["--resume", last, "--exp_name", str(tmp_path / "other"), "--max_steps", "112"]) == 0
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["precious.txt"]
    assert is_finished(tmp_path / "other-2")
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    assert {*before, folder / LOCK} == {path for path in folder.rglob("*") if path.is_file()}
    assert holder(folder) is None


def test_a_checkpoint_of_another_run_is_refused_and_the_name_stays_free(
    straight: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = straight["sync"].folder / "ckpt" / "last.safetensors"
    for changes, words in (
        (["--hidden_size", "32"], "hidden_size was 16"),
        (["--env", "MountainCarContinuous-v0"], "env was 'Pendulum-v1'"),
        (["--env_args", "g=3"], "env_args was"),
    ):
        assert main(["--resume", str(last), "--exp_name", str(tmp_path / "x"), *changes]) == 2
        assert words in capsys.readouterr().err
    best = last.with_name("best.safetensors")
    assert main(["--resume", str(best), "--exp_name", str(tmp_path / "x")]) == 2
    assert "last.safetensors" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_checkpoint_whose_arrays_do_not_fit_is_one_sentence(
    straight: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for trainer in ("sync", "continuous"):
        state = checkpoint.load(straight[trainer].folder / "ckpt" / "last.safetensors", KIND)
        state["learner"]["agent"]["actor"].popitem()
        bad = tmp_path / "bad.safetensors"
        checkpoint.save(bad, state, KIND)
        more = ["--backend", "thread"] if trainer != "sync" else []
        assert main(["--resume", str(bad), "--exp_name", str(tmp_path / trainer), *more]) == 2
        said = capsys.readouterr().err
        assert f"The checkpoint {bad} does not fit this program" in said
        assert "Traceback" not in said


def test_a_batch_that_was_lost_is_collected_again(tmp_path: Path) -> None:
    """A collect that was counted but not committed when the checkpoint was made does not cost training data."""
    trainer = make(tmp_path, "batch", max_steps=4 * BATCH_STEPS, eval_every=0)
    try:
        trainer.collectors.steps = 3 * BATCH_STEPS
        assert trainer._max_collect() == 4
    finally:
        trainer.close()


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainer", ["sync", "batch", "continuous"])
def test_a_target_ends_the_run_and_saves_its_weights(
    trainer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_main(tmp_path / "run", capsys, trainer, target_return=-1e6, eval_every=1, max_steps=100_000)
    assert (run.code, run.results["ended_by"]) == (0, "target_score")
    assert run.results["counters"]["real_data"] < 100_000
    best = checkpoint.load(run.folder / "ckpt" / "best.safetensors", KIND, arrays=False)
    assert best["best"] == run.results["best"]
    assert "weights" in best and "learner" not in best


def test_seconds_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_main(tmp_path / "run", capsys, "sync", max_steps=0, max_seconds=0.2, eval_every=0)
    assert (run.code, run.results["ended_by"], run.results["final_evaluation"]) == (0, "max_seconds", None)
    assert run.results["counters"]["real_data"] > 0


@pytest.mark.parametrize("trainer", ["sync", "batch", "continuous"])
def test_ctrl_c_saves_a_checkpoint_and_the_run_goes_on_from_it(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = Trainer._trained

    def interrupt(agent: Trainer) -> None:
        trained(agent)
        if agent.coordinator.train_count == 3:
            os.kill(os.getpid(), signal.SIGINT)
            while not agent.coordinator.stop_signal.wait(1.0):  # another thread looks at the signal
                pass

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_trained", interrupt)
        run = run_main(tmp_path / "run", capsys, trainer, max_steps=10 * BATCH_STEPS)
    assert (run.code, run.results["ended_by"], run.results["final_evaluation"]) == (130, "SIGINT", None)
    assert f"go on with: --resume {run.folder}" in run.said
    assert_every_train_is_recorded_once(run.folder)
    assert run.results["counters"]["real_data"] < 10 * BATCH_STEPS
    assert main(["--resume", str(run.folder)]) == 0
    assert_every_train_is_recorded_once(run.folder)
    assert results_of(run.folder)["counters"]["real_data"] == 10 * BATCH_STEPS


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_final_evaluation_that_does_not_come_about_keeps_the_report(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(trainer: Trainer) -> None:
        raise error("no")

    monkeypatch.setattr(Trainer, "final_evaluation", broken)
    words = arguments(tmp_path / "run", "sync")
    if error is KeyboardInterrupt:
        assert main(words) == 130
        assert f"go on with: --resume {tmp_path / 'run'}" in capsys.readouterr().out
    else:
        with pytest.raises(RuntimeError, match="no"):
            main(words)
    results = results_of(tmp_path / "run")
    assert results["ended_by"].startswith("max_env_steps; the final evaluation")
    assert results["counters"]["real_data"] == SMALL["max_steps"]


# -- queues ------------------------------------------------------------------------------------------------------------


def test_collectors_that_wait_lose_nothing_and_keep_the_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_main(
        tmp_path / "run", capsys, "continuous", off_policy_degree=2, max_queue_size=None, max_steps=12 * BATCH_STEPS
    )
    statistics = run.results["statistics"]
    assert (statistics["dropped"], statistics["off_policy_degree"], statistics["queue_capacity"]) == (0, 2, None)
    assert statistics["staleness_max"] <= 2
    assert statistics["max_lag"] <= 2
    rows = assert_every_train_is_recorded_once(run.folder)
    assert all(row["learner/staleness"] <= 2 for row in rows if not row["replay"])


class Held:
    """The agent's train in a thread of this process, held back until a condition of the trainer holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, until: Callable[[AsyncTrainer], bool]) -> None:
        self.trainer: AsyncTrainer | None = None
        train = AgentRole.train

        def held(role: AgentRole, *words: Any) -> dict[str, Any]:
            assert self.trainer is not None
            stop = self.trainer.coordinator.stop_signal
            while not until(self.trainer) and not stop.is_set():
                stop.wait(0.002)
            return train(role, *words)

        monkeypatch.setattr(AgentRole, "train", held)


def test_a_slow_learner_drops_the_oldest_batches_and_every_one_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, lambda trainer: trainer.coordinator.get_statistics()["dropped"] >= seen["dropped"] + 2)
    seen = {"dropped": 0}
    trainer = held.trainer = make(
        tmp_path, "continuous", when_full="drop_oldest", max_queue_size=2 * BATCH_STEPS, eval_every=0, num_envs=2
    )
    trained = trainer._trained

    def look() -> None:
        seen["dropped"] = trainer.coordinator.get_statistics()["dropped"]
        trained()

    trainer._trained = look  # type: ignore[method-assign]
    try:
        assert trainer.run().reason == "stop_fn"
        trainer.save()
        statistics = {**trainer.results(), "coordinator": trainer.coordinator.get_statistics()}
        use = trainer.utilisation()
    finally:
        trainer.close()
    assert statistics["coordinator"]["dropped"] >= 2 * 6
    assert statistics["coordinator"]["queue_capacity"] == 2
    assert 0 <= statistics["counters"]["real_data"] - SMALL["max_steps"] < BATCH_STEPS
    assert statistics["collectors"]["steps"] > SMALL["max_steps"] + 2 * 5 * BATCH_STEPS
    rows = assert_every_train_is_recorded_once(tmp_path)
    assert all(row["learner/staleness"] >= 0 for row in rows if not row["replay"])
    assert use["queue"] >= 0.4  # of two places, one is taken when a train starts


def test_the_batch_of_the_highest_reward_is_trained_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    held = Held(monkeypatch, lambda trainer: trainer.coordinator.collect_train_lag >= 5 or released.is_set())
    trainer = held.trainer = make(
        tmp_path, "continuous", when_full="drop_oldest", queue_order="reward", num_collectors=1, eval_every=0,
        max_queue_size=8 * BATCH_STEPS, max_train_ahead=0, max_steps=5 * BATCH_STEPS,
    )  # fmt: skip
    rewards: list[float] = []
    collect, train = trainer.collectors.collect, trainer.train

    def five(context: Any) -> Any:
        if trainer.coordinator.collect_count >= 5:
            while not context.stop.wait(0.01):
                pass
        return collect(context)

    def note(batch: Any) -> Any:
        report = train(batch)
        rewards.append(batch.data.meta["reward_mean"])
        released.set()
        return report

    trainer.collectors.collect, trainer.train = five, note  # type: ignore[method-assign]
    try:
        assert trainer.run().reason == "stop_fn"
    finally:
        trainer.close()
    assert len(rewards) == 5
    assert rewards[1:] == sorted(rewards[1:], reverse=True)
    assert len(set(rewards)) == 5


@pytest.mark.parametrize("sampling", ["recent", "priority"])
@pytest.mark.parametrize("trainer", ["sync", "continuous"])
def test_other_ways_of_sampling(
    trainer: str, sampling: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_main(tmp_path / "run", capsys, trainer, sampling=sampling)
    assert run.code == 0
    assert main(["--resume", str(run.folder), "--max_steps", str(8 * BATCH_STEPS)]) == 0
    rows = assert_every_train_is_recorded_once(run.folder)
    assert all(row["learner/critic_loss"] == row["learner/critic_loss"] for row in rows)


def test_what_queues_are_ordered_by() -> None:
    batch = Parcel(None, {"version": 7, "reward_mean": -0.5})
    assert {name: priority(batch) for name, priority in PRIORITIES.items()} == {"newest": 7.0, "reward": -0.5}


@pytest.mark.parametrize("order", ["newest", "reward"])
def test_a_queue_in_another_order_accounts_for_everything(
    order: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_main(tmp_path / "run", capsys, "continuous", when_full="drop_oldest", queue_order=order)
    assert run.code == 0
    assert_every_train_is_recorded_once(run.folder)


def test_what_adapts_follows_a_learner_that_cannot_keep_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are dropped before every train: a longer queue, fewer collectors and larger batches are what to do."""
    monkeypatch.setattr("zoo.mbpo.tuning.os", SimpleNamespace(cpu_count=lambda: 2))
    seen = {"dropped": 0}
    held = Held(
        monkeypatch,
        lambda trainer: (
            trainer.coordinator.get_statistics()["dropped"] > seen["dropped"]
            and trainer.coordinator.collect_train_lag > trainer.coordinator.get_statistics()["queue_capacity"]
        ),
    )
    trainer = held.trainer = make(
        tmp_path, "continuous", when_full="drop_oldest", adaptive_queue=True, adaptive_collectors=True,
        adaptive_batch=True, eval_every=0, max_steps=0, num_envs=4, num_collectors=2,
    )  # fmt: skip
    trained = trainer._trained

    def look() -> None:
        seen["dropped"] = trainer.coordinator.get_statistics()["dropped"]
        trained()
        if {change["what"] for change in trainer.tuning.changes()} == {"queue", "collectors", "batch"}:
            trainer.coordinator.stop("all have changed")

    trainer._trained = look  # type: ignore[method-assign]
    try:
        assert trainer.run().reason == "all have changed"
        first = {change["what"]: change for change in reversed(trainer.results()["tuning"])}
        values = trainer.tuning.values()
        assert first["queue"]["value"] > 4
        assert first["batch"]["value"] == 2 * BATCH_STEPS
        assert first["collectors"]["value"] == 1
        assert all(change["reason"] for change in first.values())
        assert trainer.coordinator.get_statistics()["queue_capacity"] == values["queue"]
        assert trainer.coordinator.get_statistics()["active_collectors"] == values["collectors"]
        assert trainer.collectors.collection_batch_size == values["batch"]
        trainer.save()
        assert_account_closes(tmp_path)
    finally:
        trainer.close()
    again = make(
        tmp_path, "continuous", when_full="drop_oldest", adaptive_queue=True, adaptive_collectors=True,
        adaptive_batch=True, eval_every=0, max_steps=16, num_envs=4, num_collectors=2,
    )  # fmt: skip
    try:
        again.resume(again.last_checkpoint, checkpoint.load(again.last_checkpoint, KIND, arrays=False))
        again.run()
        assert again.coordinator.get_statistics()["queue_capacity"] == values["queue"]
        assert again.collectors.collection_batch_size == values["batch"]
    finally:
        again.close()


def test_larger_batches_leave_the_queue_as_many_transitions_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {"dropped": 0}
    held = Held(monkeypatch, lambda trainer: trainer.coordinator.get_statistics()["dropped"] > seen["dropped"])
    more = {"when_full": "drop_oldest", "adaptive_batch": True, "eval_every": 0}
    trainer = held.trainer = make(tmp_path, "continuous", max_steps=0, **more)
    trained = trainer._trained

    def look() -> None:
        seen["dropped"] = trainer.coordinator.get_statistics()["dropped"]
        trained()
        if trainer.tuning.changes():
            trainer.coordinator.stop("it has changed")

    trainer._trained = look  # type: ignore[method-assign]
    try:
        assert trainer.coordinator.get_statistics()["queue_capacity"] == 4
        assert trainer.run().reason == "it has changed"
        assert trainer.collectors.collection_batch_size == 2 * BATCH_STEPS
        assert trainer.coordinator.get_statistics()["queue_capacity"] == 2
        trainer.save()
    finally:
        trainer.close()
    again = make(tmp_path, "continuous", max_steps=1, **more)
    try:
        again.resume(again.last_checkpoint, checkpoint.load(again.last_checkpoint, KIND, arrays=False))
        again.tuning.apply(again)
        assert again.collectors.collection_batch_size == 2 * BATCH_STEPS
        assert again.coordinator.get_statistics()["queue_capacity"] == 2
    finally:
        again.close()


def test_without_a_batch_the_agent_goes_on_with_what_it_has(tmp_path: Path) -> None:
    trainer = make(tmp_path, "continuous", num_collectors=1, max_train_ahead=3, max_steps=2 * BATCH_STEPS, eval_every=0)
    collect = trainer.collectors.collect

    def late(context: Any) -> Any:
        coordinator = trainer.coordinator
        while (
            coordinator.collect_count and coordinator.get_statistics()["replay_count"] < 3 and not context.stop.is_set()
        ):
            context.stop.wait(0.005)
        return collect(context)

    trainer.collectors.collect = late  # type: ignore[method-assign]
    try:
        trainer.run()
        trainer.save()
    finally:
        trainer.close()
    rows = assert_every_train_is_recorded_once(tmp_path)
    assert [row["replay"] for row in rows] == [False, True, True, True, False]
    assert rows[-1]["data/agent_updates"] == 5 * BATCH_STEPS * 0.5


# -- other places ------------------------------------------------------------------------------------------------------


def test_wandb_offline_writes_files(straight: dict[str, Run]) -> None:
    pytest.importorskip("wandb")
    assert len(list(straight["batch"].folder.glob("wandb/offline-run-*/*.wandb"))) == 1


@pytest.mark.parametrize(
    ("trainer", "backend"),
    [("batch", "thread"), ("continuous", "thread"), ("batch", "process"), ("continuous", "process")],
)
def test_tensor_environments(trainer: str, backend: str, tmp_path: Path) -> None:
    light = {"eval_every": 0, "num_collectors": 1} if (trainer, backend) == ("continuous", "process") else {}
    words = arguments(tmp_path / "run", trainer, backend=backend, env_args=None, env="tensor-pendulum", **light)
    assert train_isaac_async.main([*words, "--headless"]) == 0
    results = results_of(tmp_path / "run")
    assert (results["env"], results["counters"]["real_data"]) == ("tensor-pendulum", SMALL["max_steps"])
    assert (results["final_evaluation"] is None) == bool(light)
    assert_every_train_is_recorded_once(tmp_path / "run")


def test_a_run_on_tensor_environments_is_resumed_by_its_own_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = arguments(tmp_path / "run", "sync", env_args=None, env=None)
    assert train_isaac_async.main(words) == 0  # tensor-pendulum is its default
    assert main(["--resume", str(tmp_path / "run")]) == 2
    assert "tensor-pendulum" in capsys.readouterr().err
    assert train_isaac_async.main(["--resume", str(tmp_path / "run"), "--max_steps", "128"]) == 0
    assert results_of(tmp_path / "run")["counters"]["real_data"] == 128


# -- disks -------------------------------------------------------------------------------------------------------------


def test_a_disk_that_refuses_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(folder: Path, application: str) -> None:
        raise OSError(28, "No space left on device", str(folder / "run.log"))

    monkeypatch.setattr("zoo.mbpo.train.logging_to", full)
    assert main(arguments(tmp_path / "full", "sync")) == 2
    said = capsys.readouterr().err
    assert "No space left on device" in said and "Traceback" not in said


@pytest.mark.parametrize("trainer", ["sync", "batch"])
def test_a_disk_that_fills_up_ends_the_run_with_a_sentence_and_a_whole_checkpoint(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lzero_async.telemetry.sinks import Records

    write = Records.train

    def full(records: Records, row: dict[str, Any]) -> None:
        if row["train"] == 2:
            raise OSError(28, "No space left on device", str(tmp_path / "run" / "metrics.jsonl"))
        write(records, row)

    with monkeypatch.context() as patch:
        patch.setattr(Records, "train", full)
        assert main(arguments(tmp_path / "run", trainer)) == 2
    said = capsys.readouterr().err
    assert "No space left on device" in said and "metrics.jsonl" in said and "Traceback" not in said
    assert f"--resume {tmp_path / 'run'}" in said
    state = state_of(tmp_path / "run")
    assert state["coordinator"]["gate"]["trained"] == 2  # made and counted, though its numbers were not written
    assert state["counters"]["agent_updates"] == 16
    assert main(["--resume", str(tmp_path / "run")]) == 0
    assert results_of(tmp_path / "run")["counters"]["agent_updates"] == 48
    assert [row["train"] for row in rows_of(tmp_path / "run")] == [1, 3, 4, 5, 6]


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lzero_async.runs.checkpoint.tensor_file import write

    written: list[Any] = []

    def full(file: Any, *words: Any) -> None:
        if len(written) == 3:  # the first, that of the second train, the best weights
            file.write(b"half")
            raise OSError(28, "No space left on device")
        written.append(file)
        write(file, *words)

    monkeypatch.setattr("lzero_async.runs.checkpoint.write", full)
    assert main(arguments(tmp_path / "run", "sync", checkpoint_every=2)) == 2
    said = capsys.readouterr().err
    assert "last.safetensors cannot be written" in said and "Traceback" not in said
    assert state_of(tmp_path / "run")["coordinator"]["gate"]["trained"] == 2
    assert not list((tmp_path / "run" / "ckpt").glob(".*"))
