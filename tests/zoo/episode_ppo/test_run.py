"""Whole runs of `zoo.episode_ppo` with a tiny network: both collectors end, count, record, resume and say what they did."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lzero_async import Parcel
from lzero_async.runs import checkpoint
from lzero_async.runs.summary import is_finished, read_results
from lzero_async.telemetry.sinks import Records
from lzero_async.telemetry.terminal.progress import Progress
from lzero_async.tools.traces import read_events
from lzero_async.workers.calls import CallStop
from tests.commands import run_command
from tests.zoo.episode_ppo.envs import SPEC, Counting, env_seed, length_of, make_flat, watch
from tests.zoo.episode_ppo.test_numerics import equal
from zoo.episode_ppo.envs.factories import describe
from zoo.episode_ppo.learn.role import LearnerRole
from zoo.episode_ppo.learn.saving import KIND
from zoo.episode_ppo.options import build_options
from zoo.episode_ppo.play import evaluator as evaluating
from zoo.episode_ppo.play.evaluator import SEED_OFFSET, EvaluatorRole
from zoo.episode_ppo.train import main
from zoo.episode_ppo.trainer import COUNTERS, Trainer

REPOSITORY = Path(__file__).resolve().parents[3]
ENTRY = REPOSITORY / "zoo" / "episode_ppo" / "train.py"
COUNT, UPDATES = 6, 6
SMALL: dict[str, Any] = {
    "env": SPEC, "n_envs": 4, "num_workers": 2, "episodes_per_update": COUNT, "total_episodes": COUNT * UPDATES,
    "hidden_size": 8, "hidden_layers": 1, "epochs": 2, "minibatch_size": 16, "eval_every": 2, "eval_episodes": 3,
    "restart_backoff": 0.01, "device": "cpu", "backend": "thread",
}  # fmt: skip
COLLECTORS = ("sync", "async")
FOREVER = 120.0  # seconds; only a broken run waits that long


@pytest.fixture(autouse=True)
def _nothing_seen() -> Iterator[None]:
    watch.clear()
    yield
    watch.clear()


def arguments(folder: Path, collector: str, **more: Any) -> list[str]:
    options = {**SMALL, "collector": collector, "exp_name": folder, **more}
    return [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]


def make(folder: Path, collector: str, *, progress: Progress | None = None, **more: Any) -> Trainer:
    folder.mkdir(parents=True, exist_ok=True)
    options = build_options({**SMALL, "collector": collector, "exp_name": str(folder), **more})
    return Trainer(options, folder, describe(options.env, options.env_args), progress=progress)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def without_times(folder: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if "second" not in name} for row in rows_of(folder)]


def results_of(folder: Path) -> dict[str, Any]:
    return read_results(folder)


def state_of(folder: Path) -> dict[str, Any]:
    return checkpoint.load(folder / "ckpt" / "last.safetensors", KIND)


def numbers_waiting(state: dict[str, Any]) -> list[list[int]]:
    return [sorted(n for part in parts for n in part["meta"]["numbers"]) for parts in state["waiting"]]


def assert_account_closes(folder: Path) -> dict[str, Any]:
    """Every collect and every episode ended in one way; the gate's state. All rounds are of one size."""
    state = state_of(folder)
    gate, pool, counters = state["coordinator"]["gate"], state["pool"], state["counters"]
    ended = gate["trained"] + gate["failed"] + gate["dropped"] + gate["abandoned"]
    assert gate["admitted"] == ended + len(gate["waiting"]) + len(gate["tickets"])
    assert pool["started"] == gate["admitted"] * COUNT
    waiting = numbers_waiting(state)
    assert len(waiting) == len(gate["waiting"])
    known = counters["episodes"] + sum(map(len, waiting)) + gate["dropped"] * COUNT
    # A round may have become whole just as the run was stopped, which nobody wanted any more.
    assert 0 <= pool["complete"] - known <= gate["abandoned"] * COUNT
    assert [row["train"] for row in rows_of(folder)] == list(range(1, gate["version"] + 1))
    assert rows_of(folder)[-1]["data/episodes"] == counters["episodes"]
    return gate


class Run:
    """A run that was made through `main`."""

    def __init__(self, folder: Path, code: int, said: str) -> None:
        self.folder, self.code, self.said = folder, code, said
        self.results = results_of(folder)


def run_main(folder: Path, collector: str, *words: str, **more: Any) -> Run:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = main([*arguments(folder, collector, **more), *words])
    return Run(folder, code, said.getvalue())


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A run of each collector in this process, and one as a user makes it: a program whose roles are processes."""
    base = tmp_path_factory.mktemp("straight")
    words = [word.replace("_", "-") if word.startswith("--") else word for word in arguments(base / "program", "async")]
    program = subprocess.Popen(
        [sys.executable, str(ENTRY), *words, "--backend", "auto"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY,
    )  # fmt: skip
    found = {collector: run_main(base / collector, collector) for collector in COLLECTORS}
    said, _ = program.communicate(timeout=FOREVER)
    assert program.returncode == 0, said
    return {**found, "program": Run(base / "program", 0, said)}


class Learned:
    """What the learner was given, train by train."""

    def __init__(self) -> None:
        self.numbers: list[list[int]] = []
        self.scales: list[float] = []


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> Learned:
    found, train = Learned(), LearnerRole.train

    def note(role: LearnerRole, parcels: list[Parcel], scale: float) -> dict[str, Any]:
        found.numbers.append(sorted(number for parcel in parcels for number in parcel.meta["numbers"]))
        found.scales.append(scale)
        return train(role, parcels, scale)

    monkeypatch.setattr(LearnerRole, "train", note)
    return found


def stop_after(monkeypatch: pytest.MonkeyPatch, updates: int) -> None:
    """Interrupt a run, as Ctrl-C does, after so many updates."""
    trained = Trainer._trained

    def interrupt(trainer: Trainer) -> None:
        trained(trainer)
        if trainer.coordinator.train_count == updates:
            os.kill(os.getpid(), signal.SIGINT)
            while not trainer.coordinator.stop_signal.wait(1.0):  # another thread looks at the signal
                pass

    monkeypatch.setattr(Trainer, "_trained", interrupt)


# -- what a run writes and says ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*COLLECTORS, "program"])
def test_a_run_writes_what_it_says(straight: dict[str, Run], name: str) -> None:
    run = straight[name]
    results, folder, rows = run.results, run.folder, rows_of(run.folder)
    assert (run.code, results["env"], results["ended_by"]) == (0, SPEC, "total_episodes")
    assert results["collector"] == ("sync" if name == "sync" else "async")
    assert {path.name for path in (folder / "ckpt").iterdir()} == {"last.safetensors", "best.safetensors"}
    assert list((folder / "log").glob("events.*"))
    assert json.loads((folder / "options.json").read_text())["num_envs"] == 4
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
    assert results["counters"] == {name: rows[-1][f"data/{name}"] for name in COUNTERS}
    assert results["counters"] == state_of(folder)["counters"]
    assert_account_closes(folder)
    lengths = [length_of(env_seed(0, number)) for number in range(COUNT * UPDATES)]
    environments = results["environments"]
    assert [environments[key] for key in ("started", "complete", "abandoned", "failed", "steps")] == [
        COUNT * UPDATES, COUNT * UPDATES, 0, 0, sum(lengths),
    ]  # fmt: skip
    assert results["counters"]["steps"] == sum(lengths)
    assert environments["mean_length"] == pytest.approx(np.mean(lengths))
    seconds = results["statistics"]["wall_time"]
    assert results["episodes_per_second"] == pytest.approx(COUNT * UPDATES / seconds)
    assert results["effective_samples_per_second"] == pytest.approx(sum(lengths) / seconds)
    assert set(results["utilisation"]) >= {"queue", "buffer", "cpu", "gpu"}
    assert all(0 <= share <= 1 for share in results["busy"].values()) and len(results["busy"]) == 2
    staleness = [row["learner/staleness"] for row in rows]
    assert results["statistics"]["staleness_mean"] == pytest.approx(np.mean(staleness))
    assert results["statistics"]["staleness_max"] == max(staleness)
    assert results["statistics"]["staleness_max"] <= (0 if name == "sync" else 2)


@pytest.mark.parametrize("name", [*COLLECTORS, "program"])
def test_every_train_has_a_row(straight: dict[str, Run], name: str) -> None:
    rows = rows_of(straight[name].folder)
    assert [row["train"] for row in rows] == list(range(1, UPDATES + 1))
    assert [row["data/episodes"] for row in rows] == list(range(COUNT, COUNT * UPDATES + 1, COUNT))
    assert [row["data/steps"] for row in rows] == np.cumsum([row["learner/trained_steps"] for row in rows]).tolist()
    assert [row["data/updates"] for row in rows] == np.cumsum([row["learner/updates"] for row in rows]).tolist()
    for row in rows:
        assert row["learner/trained_episodes"] == COUNT
        assert row["learner/mean_length"] == pytest.approx(row["learner/trained_steps"] / COUNT)
        assert row["learner/mean_length"] <= row["learner/max_length"] <= 12
        assert 0 <= row["learner/mean_return"] <= row["learner/mean_length"]


@pytest.mark.parametrize("name", [*COLLECTORS, "program"])
def test_evaluations_and_the_best_of_them(straight: dict[str, Run], name: str) -> None:
    results = straight[name].results
    rows = results["evaluations"]
    versions = [row["version"] for row in rows]
    if name == "sync":
        assert versions == [2, 4, 6, 6]
    assert versions[-1] == UPDATES and set(versions) <= {2, 4, 6}
    assert {**rows[-1], **results["final_evaluation"], "seconds": rows[-1]["seconds"]} == rows[-1]
    best = max(rows, key=lambda row: row["mean_return"])
    assert results["best"] == {"return": best["mean_return"], "version": best["version"]}
    for row in rows:
        assert row["trained_episodes"] == COUNT * row["version"] <= row["played_episodes"] <= COUNT * UPDATES
        assert row["min_return"] <= row["mean_return"] <= row["max_return"] <= 12
        assert row["episodes"] == 3 and "returns" not in row
    saved = checkpoint.load(straight[name].folder / "ckpt" / "best.safetensors", KIND)
    assert saved["best"] == results["best"] and "learner" not in saved
    assert {value.shape for value in saved["weights"].values()} == {(3, 8), (8,), (8, 2), (2,)}


@pytest.mark.parametrize("name", [*COLLECTORS, "program"])
def test_the_run_says_how_rounds_and_updates_go(straight: dict[str, Run], name: str) -> None:
    said = straight[name].said
    assert len(re.findall(r"^Collected 6 episodes in \d+\.\ds \(\d+\.\d eps/sec\)$", said, re.M)) == UPDATES
    updates = re.findall(r"^Update complete \(\d+\.\ds\): update (\d), (\d+) episodes", said, re.M)
    assert updates == [(str(n), str(n * COUNT)) for n in range(1, UPDATES + 1)]
    assert "episodes: 36 started = 36 in whole rounds + 0 left out + 0 abandoned; 0 tries failed" in said
    assert "trained on 36 episodes" in said and "ended by: total_episodes" in said
    assert "Traceback" not in said


def test_roles_of_the_program_are_processes_of_their_own(straight: dict[str, Run]) -> None:
    names = {path.name for path in straight["program"].folder.glob("*.out")}
    assert names == {"envs-0.out", "envs-1.out", "learner.out", "evaluator.out"}
    assert not list(straight["async"].folder.glob("*.out"))


def test_progress_is_said_as_episodes_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    trainer = make(tmp_path / "run", "async", eval_every=0, progress=Progress(said))
    said.truncate(0)
    said.seek(0)
    try:
        wanted: Any = SimpleNamespace(count=100, begun=0.0, said=0.0, left_out=0)
        for now, done in ((0.4, 5), (1.2, 9), (1.5, 15), (2.4, 30), (2.6, 33), (5.8, 100)):
            monkeypatch.setattr("zoo.episode_ppo.trainer.time", SimpleNamespace(monotonic=lambda now=now: now))
            trainer._arrived(wanted, done)
    finally:
        monkeypatch.undo()
        trainer.close()
    assert said.getvalue().splitlines() == [
        "15/100 episodes (10.0 eps/sec)",
        "33/100 episodes (12.7 eps/sec)",
        "Collected 100 episodes in 5.8s (17.2 eps/sec)",
    ]


def test_a_slow_round_is_told_of_in_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zoo.episode_ppo.trainer.SAY_EVERY", 0.0)
    run = run_main(tmp_path / "run", "async", n_envs=1, num_workers=1, total_episodes=COUNT, eval_every=0)
    assert re.findall(r"^(\d)/6 episodes \(\d+\.\d eps/sec\)$", run.said, re.M) == list("12345")


def test_arguments_reach_the_factory(tmp_path: Path) -> None:
    words = ["--env-arg", "red_agent=B_lineAgent", "--env_arg=longest=3"]
    run = run_main(tmp_path / "run", "async", *words, total_episodes=COUNT)
    assert run.code == 0
    assert len(watch.made) == 1 + 4 + 3  # one to look at, the workers', the evaluator's
    assert {made["red_agent"] for made in watch.made} == {"B_lineAgent"}
    assert rows_of(run.folder)[0]["learner/max_length"] == 3


def test_a_second_run_does_not_touch_the_first(straight: dict[str, Run]) -> None:
    first = straight["sync"].folder
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*") if path.is_file()}
    second = first.with_name("sync-2")
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        assert main(arguments(first, "sync", total_episodes=COUNT)) == 0
    assert before == {path: path.stat().st_mtime_ns for path in first.rglob("*") if path.is_file()}
    assert f"folder: {second} ({first} holds another run" in said.getvalue()
    assert is_finished(second)


def test_environments_that_have_nothing_to_do_are_told_of(tmp_path: Path) -> None:
    run = run_main(tmp_path / "run", "sync", n_envs=COUNT + 2, total_episodes=COUNT, eval_every=0)
    assert (
        f"note: only {COUNT} episodes are open at once, so 2 of {COUNT + 2} environments have nothing to do" in run.said
    )


def test_the_barrier_may_play_while_the_learner_learns(tmp_path: Path, learned: Learned) -> None:
    run = run_main(tmp_path / "run", "sync", off_policy_degree=1)
    assert run.results["statistics"]["staleness_max"] <= 1
    assert learned.numbers == [list(range(n * COUNT, (n + 1) * COUNT)) for n in range(UPDATES)]
    assert_account_closes(run.folder)


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collector", COLLECTORS)
def test_episodes_are_rounded_up_to_whole_updates(collector: str, tmp_path: Path, learned: Learned) -> None:
    run = run_main(tmp_path / "run", collector, total_episodes=3 * COUNT + 1, eval_every=0)
    assert run.results["counters"]["episodes"] == 4 * COUNT
    assert sorted(itertools.chain(*learned.numbers)) == list(range(4 * COUNT))
    assert all(numbers == list(range(numbers[0], numbers[0] + COUNT)) for numbers in learned.numbers)
    assert run.results["final_evaluation"] is None


@pytest.mark.parametrize("collector", COLLECTORS)
def test_a_target_ends_the_run(collector: str, tmp_path: Path) -> None:
    run = run_main(tmp_path / "run", collector, target_return=0, eval_every=1, total_episodes=10**6)
    assert (run.code, run.results["ended_by"]) == (0, "target_score")
    assert run.results["counters"]["episodes"] < 10**6
    assert_account_closes(run.folder)


@pytest.mark.parametrize("collector", COLLECTORS)
def test_seconds_end_the_run(collector: str, tmp_path: Path) -> None:
    run = run_main(tmp_path / "run", collector, total_episodes=0, max_seconds=1.0, eval_every=0)
    assert (run.code, run.results["ended_by"]) == (0, "max_seconds")
    assert_account_closes(run.folder)


# -- staleness ---------------------------------------------------------------------------------------------------------


def hold_first_round(trainer: Trainer, trains: int) -> list[tuple[int, int]]:
    """Hold an episode of the first round until so many trains are over; (batch's version, staleness) of every train."""
    released, seen = threading.Event(), []
    first, train, trained = env_seed(0, 0), trainer.train, trainer._trained

    def hold(env: Counting) -> None:
        if env.seed == first:
            assert released.wait(FOREVER)

    def note(batch: Any) -> Any:
        seen.append((batch.version, batch.staleness))
        return train(batch)

    def release() -> None:
        trained()
        if trainer.coordinator.train_count == trains:
            released.set()

    watch.before_step = hold
    trainer.train, trainer._trained = note, release  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("degree", [2, 3])
def test_with_wait_no_episode_is_older_than_the_bound(degree: int, tmp_path: Path, learned: Learned) -> None:
    trainer = make(tmp_path / "run", "async", off_policy_degree=degree, total_episodes=12 * COUNT, eval_every=0)
    seen = hold_first_round(trainer, degree)  # one more train would make the first round too old
    try:
        assert trainer.run().reason in ("max_train", "max_collect")
        trainer.save()
        assert trainer.coordinator.get_statistics()["staleness_max"] == degree
    finally:
        trainer.close()
    assert [row["learner/staleness"] for row in rows_of(tmp_path / "run")] == [staleness for _, staleness in seen]
    assert max(staleness for _, staleness in seen) == degree
    assert (0, degree) in seen  # the round that was held
    assert sorted(itertools.chain(*learned.numbers)) == list(range(12 * COUNT))
    gate = assert_account_closes(tmp_path / "run")
    assert (gate["trained"], gate["dropped"], gate["abandoned"]) == (12, 0, 0)


def test_with_drop_older_rounds_are_dropped_and_counted(tmp_path: Path, learned: Learned) -> None:
    trainer = make(tmp_path / "run", "async", staleness_policy="drop", total_episodes=12 * COUNT, eval_every=0)
    seen = hold_first_round(trainer, 4)
    try:
        assert trainer.run().reason == "max_train"
        trainer.save()
        statistics = trainer.pool.statistics()
    finally:
        trainer.close()
    assert all(staleness <= 2 for _, staleness in seen)
    assert not set(range(COUNT)) & set(itertools.chain(*learned.numbers))  # the round that was held
    assert len(learned.numbers) == 12
    gate = assert_account_closes(tmp_path / "run")
    assert gate["trained"] == 12 and gate["dropped"] >= 1
    assert statistics.started == statistics.complete + statistics.abandoned


def test_with_allow_older_rounds_are_used_and_reported(tmp_path: Path, learned: Learned) -> None:
    trainer = make(tmp_path / "run", "async", staleness_policy="allow", total_episodes=12 * COUNT, eval_every=0)
    seen = hold_first_round(trainer, 4)
    try:
        trainer.run()
        trainer.save()
    finally:
        trainer.close()
    assert max(staleness for _, staleness in seen) >= 4
    assert sorted(itertools.chain(*learned.numbers)) == list(range(12 * COUNT))
    assert assert_account_closes(tmp_path / "run")["dropped"] == 0


# -- resuming ----------------------------------------------------------------------------------------------------------


def test_a_resumed_synchronous_run_is_the_same_to_the_last_bit(
    straight: dict[str, Run], tmp_path: Path, learned: Learned, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folder = straight["sync"], tmp_path / "run"
    save = Trainer.save

    def save_and_copy(trainer: Trainer) -> Path:
        saved = save(trainer)
        if trainer.coordinator.train_count == 3:
            trainer._records.flush()
            shutil.copytree(trainer.folder, folder)  # as a power cut would leave it
        return saved

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "save", save_and_copy)
        run_main(tmp_path / "first", "sync", checkpoint_every=3)
    assert equal(state_of(tmp_path / "first")["learner"], state_of(whole.folder)["learner"])
    del learned.numbers[3:], learned.scales[3:]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"train": 4, "made after the checkpoint": 1}\n{"train": 5, "half')
    assert main(["--resume", str(folder)]) == 0
    assert without_times(folder) == without_times(whole.folder)
    one, other = state_of(folder), state_of(whole.folder)
    assert equal(one["learner"], other["learner"])
    assert one["counters"] == other["counters"] and one["best"] == other["best"]
    assert learned.numbers == [list(range(n * COUNT, (n + 1) * COUNT)) for n in range(UPDATES)]
    assert learned.scales == pytest.approx([1 - n / UPDATES for n in range(UPDATES)])
    results = results_of(folder)
    for name in ("started", "complete", "abandoned", "failed", "steps", "mean_return", "mean_length"):
        assert results["environments"][name] == whole.results["environments"][name]
    rows = [[row[name] for name in ("version", "mean_return", "trained_steps")] for row in results["evaluations"]]
    assert rows == [
        [row[name] for name in ("version", "mean_return", "trained_steps")] for row in whole.results["evaluations"]
    ]


def test_the_same_seed_gives_the_same_numbers_and_evaluations_change_nothing(
    straight: dict[str, Run], tmp_path: Path
) -> None:
    for name, more in {"again": {"eval_every": 0, "n_envs": 3, "num_workers": 1}, "other": {"seed": 1}}.items():
        run_main(tmp_path / name, "sync", **more)
    assert without_times(tmp_path / "again") == without_times(straight["sync"].folder)
    assert without_times(tmp_path / "other") != without_times(straight["sync"].folder)


def test_rounds_that_wait_in_a_checkpoint_are_trained_first(
    tmp_path: Path, learned: Learned, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Trainer.train

    def held(trainer: Trainer, batch: Any) -> Any:
        coordinator = trainer.coordinator
        while not coordinator.collect_train_lag and not coordinator.stop_signal.is_set():
            coordinator.stop_signal.wait(0.002)
        return train(trainer, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", held)
        stop_after(patch, 3)
        first = run_main(tmp_path / "run", "async", eval_every=0)
    assert first.code == 130
    gate = assert_account_closes(tmp_path / "run")
    state = state_of(tmp_path / "run")
    waiting, started, trained = numbers_waiting(state), state["pool"]["started"], len(learned.numbers)
    assert len(waiting) >= 1 and gate["trained"] == trained
    assert main(["--resume", str(tmp_path / "run")]) == 0
    assert learned.numbers[trained : trained + len(waiting)] == waiting
    new = learned.numbers[trained + len(waiting) :]
    assert sorted(itertools.chain(*new)) == list(range(started, started + len(new) * COUNT))
    assert len(learned.numbers) == UPDATES == results_of(tmp_path / "run")["statistics"]["train_count"]
    assert learned.scales == pytest.approx([1 - n / UPDATES for n in range(UPDATES)])
    assert [row["train"] for row in rows_of(tmp_path / "run")] == list(range(1, UPDATES + 1))


@pytest.mark.parametrize("collector", COLLECTORS)
def test_ctrl_c_saves_a_checkpoint_and_the_run_goes_on_from_it(
    collector: str, tmp_path: Path, learned: Learned, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        run = run_main(tmp_path / "run", collector, total_episodes=10 * COUNT)
    assert (run.code, run.results["ended_by"], run.results["final_evaluation"]) == (130, "SIGINT", None)
    assert f"go on with: --resume {run.folder}" in run.said
    assert run.results["counters"]["episodes"] == len(learned.numbers) * COUNT == 3 * COUNT
    assert_account_closes(run.folder)
    assert main(["--resume", str(run.folder)]) == 0
    assert results_of(run.folder)["counters"]["episodes"] == 10 * COUNT
    trained = list(itertools.chain(*learned.numbers))
    assert len(trained) == len(set(trained)) == 10 * COUNT


@pytest.mark.parametrize("was", ["begun", "not begun"])
def test_a_round_that_ends_while_a_checkpoint_is_made_keeps_its_numbers(
    was: str, tmp_path: Path, learned: Learned
) -> None:
    first, go = {env_seed(0, number) for number in range(3 * COUNT)}, threading.Event()
    trainer = make(tmp_path / "run", "async", eval_every=0)
    trained, state_dict, play = trainer._trained, trainer.pool.state_dict, trainer.pool.play
    rounds = itertools.count()

    def hold(env: Counting) -> None:
        if env.seed not in first:
            assert go.wait(FOREVER)

    def hold_back(*words: Any) -> Any:
        if next(rounds) >= 3 and was == "not begun":
            assert go.wait(FOREVER)
        return play(*words)

    def late() -> dict[str, Any]:
        state, coordinator = state_dict(), trainer.coordinator
        go.set()
        while coordinator.collect_count < 4 and not coordinator.stop_signal.is_set():
            coordinator.stop_signal.wait(0.002)
        return state

    def save_once() -> None:
        trained()
        if trainer.coordinator.train_count == 2:
            trainer.pool.state_dict = late  # type: ignore[method-assign]
            trainer.save()
            shutil.copytree(trainer.folder, tmp_path / "copy")
            trainer.pool.state_dict = state_dict  # type: ignore[method-assign]
            trainer.coordinator.stop("saved")

    watch.before_step = hold
    trainer._trained, trainer.pool.play = save_once, hold_back  # type: ignore[method-assign]
    try:
        trainer.run()
    finally:
        trainer.close()
    del learned.numbers[2:]
    waiting = numbers_waiting(state_of(tmp_path / "copy"))
    assert main(["--resume", str(tmp_path / "copy")]) == 0
    numbers = list(itertools.chain(*learned.numbers))
    assert learned.numbers[2:4] == waiting
    assert max(waiting[-1]) >= 3 * COUNT  # the round that ended late
    assert len(set(numbers)) == len(numbers) == UPDATES * COUNT
    pool = results_of(tmp_path / "copy")["environments"]
    assert pool["complete"] == len(numbers)
    assert pool["started"] == pool["complete"] + pool["abandoned"] > max(numbers)


def test_a_run_goes_on_with_the_other_collector(tmp_path: Path, learned: Learned) -> None:
    for turn, collector in enumerate(["async", "sync", "async"], 1):
        words = ["--resume"] if turn > 1 else []
        run = run_main(tmp_path / "run", collector, *words, total_episodes=turn * 3 * COUNT)
        assert run.results["collector"] == collector
        assert run.results["counters"]["episodes"] == turn * 3 * COUNT
        assert run.results["statistics"]["off_policy_degree"] == (0 if collector == "sync" else 2)
        assert_account_closes(tmp_path / "run")
    assert sorted(itertools.chain(*learned.numbers)) == list(range(9 * COUNT))


def test_a_run_that_dropped_goes_on_with_the_barrier(tmp_path: Path) -> None:
    run_main(tmp_path / "run", "async", staleness_policy="drop", total_episodes=COUNT, eval_every=0)
    assert main(["--resume", str(tmp_path / "run"), "--collector", "sync", "--total_episodes", str(2 * COUNT)]) == 0
    assert results_of(tmp_path / "run")["counters"]["episodes"] == 2 * COUNT


@pytest.mark.parametrize("collector", COLLECTORS)
def test_a_run_goes_on_with_larger_rounds(collector: str, tmp_path: Path, learned: Learned) -> None:
    run_main(tmp_path / "run", collector, total_episodes=4 * COUNT, eval_every=0)
    more = ["--episodes_per_update", str(2 * COUNT), "--total_episodes", str(7 * COUNT)]
    assert main(["--resume", str(tmp_path / "run"), *more]) == 0
    assert list(map(len, learned.numbers)) == [COUNT] * 4 + [2 * COUNT] * 2
    assert sorted(itertools.chain(*learned.numbers)) == list(range(8 * COUNT))
    assert results_of(tmp_path / "run")["counters"]["episodes"] == 8 * COUNT


def test_a_run_that_is_over_can_be_resumed_and_is_over(straight: dict[str, Run], tmp_path: Path) -> None:
    for collector in COLLECTORS:
        shutil.copytree(straight[collector].folder, tmp_path / collector)
        assert main(["--resume", str(tmp_path / collector)]) == 0
        assert results_of(tmp_path / collector)["counters"] == straight[collector].results["counters"]
        assert_account_closes(tmp_path / collector)


def test_a_checkpoint_of_another_run_is_refused_and_the_name_stays_free(
    straight: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = straight["sync"].folder / "ckpt" / "last.safetensors"
    for changes, words in (
        (["--hidden_size", "32"], "hidden_size was 8"),
        (["--env", "CartPole-v1"], f"env was {SPEC!r}"),
        (["--env_arg", "longest=3"], "env_args was {}"),
    ):
        assert main(["--resume", str(last), "--exp_name", str(tmp_path / "x"), *changes]) == 2
        said = capsys.readouterr().err.strip()
        assert words in said and len(said.splitlines()) == 1
    assert main(["--resume", str(last.with_name("best.safetensors")), "--exp_name", str(tmp_path / "x")]) == 2
    assert "holds only the best weights" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_checkpoint_whose_arrays_do_not_fit_is_one_sentence(
    straight: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = state_of(straight["sync"].folder)
    state["learner"]["agent"]["policy"].popitem()
    checkpoint.save(tmp_path / "bad.safetensors", state, KIND)
    assert main(["--resume", str(tmp_path / "bad.safetensors"), "--exp_name", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.count("error: ") == 1
    assert "Traceback" not in said


# -- disks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collector", COLLECTORS)
def test_a_disk_that_fills_up_ends_the_run_with_a_sentence_and_a_whole_checkpoint(
    collector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = Records.train

    def full(records: Records, row: dict[str, Any]) -> None:
        if row["train"] == 2:
            raise OSError(28, "No space left on device", str(tmp_path / "run" / "metrics.jsonl"))
        write(records, row)

    with monkeypatch.context() as patch:
        patch.setattr(Records, "train", full)
        assert main(arguments(tmp_path / "run", collector)) == 2
    said = capsys.readouterr().err
    assert "No space left on device" in said and "metrics.jsonl" in said and "Traceback" not in said
    assert f"--resume {tmp_path / 'run'}" in said
    state = state_of(tmp_path / "run")
    assert state["coordinator"]["gate"]["trained"] == 2  # made and counted, though its numbers were not written
    assert state["counters"]["episodes"] == 2 * COUNT
    assert main(["--resume", str(tmp_path / "run")]) == 0
    assert results_of(tmp_path / "run")["counters"]["episodes"] == UPDATES * COUNT
    assert [row["train"] for row in rows_of(tmp_path / "run")] == [1, 3, 4, 5, 6]


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lzero_async.runs.checkpoint.tensor_file import write

    written: list[Any] = []

    def full(file: Any, *words: Any) -> None:
        if len(written) == 2:  # the first, and that of the second update
            file.write(b"half")
            raise OSError(28, "No space left on device")
        written.append(file)
        write(file, *words)

    monkeypatch.setattr("lzero_async.runs.checkpoint.write", full)
    assert main(arguments(tmp_path / "run", "sync", checkpoint_every=2, eval_every=0)) == 2
    said = capsys.readouterr().err
    assert "last.safetensors cannot be written" in said and "Traceback" not in said
    assert state_of(tmp_path / "run")["coordinator"]["gate"]["trained"] == 2


# -- the evaluator -----------------------------------------------------------------------------------------------------

UNDECIDED = {"layer0.weight": np.zeros((3, 2), np.float32), "layer0.bias": np.array([0.0, 0.1], np.float32)}


@pytest.fixture
def evaluator() -> Iterator[Callable[..., EvaluatorRole]]:
    made: list[EvaluatorRole] = []

    def make_role(num_envs: int, seed: int = 7) -> EvaluatorRole:
        made.append(EvaluatorRole(make_flat, num_envs, seed, lambda event: None))
        return made[-1]

    yield make_role
    for role in made:
        role.close()


def test_evaluations_take_the_most_likely_actions_of_episodes_of_their_own(evaluator: Any) -> None:
    role = evaluator(3)
    row = role.evaluate(4, Parcel(UNDECIDED), 20)
    seeds = [env_seed(SEED_OFFSET + 7, 4 * 20 + number) for number in range(20)]
    assert {seed for _, seed, _ in watch.steps} == set(seeds)
    assert not set(seeds) & {env_seed(7, number) for number in range(10_000)}
    assert sorted(row["returns"]) == sorted(map(length_of, seeds))  # every action was 1
    assert row["mean_return"] == row["mean_length"] == np.mean(row["returns"])
    assert (row["min_return"], row["max_return"]) == (min(row["returns"]), max(row["returns"]))
    assert (row["version"], row["episodes"]) == (4, 20)
    watch.steps.clear()
    role.evaluate(5, Parcel(UNDECIDED), 20)
    assert not {seed for _, seed, _ in watch.steps} & set(seeds)
    turned = {**UNDECIDED, "layer0.bias": -UNDECIDED["layer0.bias"]}
    assert role.evaluate(6, Parcel(turned), 5)["returns"] == [0.0] * 5


def test_evaluations_play_several_episodes_at_once(evaluator: Any) -> None:
    together = threading.Barrier(3)

    def meet(env: Counting) -> None:
        if env.count == 0:
            together.wait(FOREVER)

    watch.before_step = meet
    assert evaluator(3).evaluate(0, Parcel(UNDECIDED), 6)["episodes"] == 6


def test_an_evaluation_is_given_up_with_the_run(evaluator: Any) -> None:
    from lzero_async.errors import Stopped

    stop = CallStop()
    stop.set("SIGINT")
    with pytest.raises(Stopped):
        evaluator(2).evaluate(0, Parcel(UNDECIDED), 4, stop=stop)
    own_end = CallStop()
    own_end.set("max_train")
    assert evaluator(2).evaluate(0, Parcel(UNDECIDED), 4, stop=own_end)["episodes"] == 4


@pytest.mark.parametrize("collector", COLLECTORS)
def test_an_evaluation_whose_episodes_do_not_end_is_one_sentence(
    collector: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(evaluating, "MAX_EVAL_STEPS", 50)
    env = "tests.zoo.episode_ppo.envs:Endless"
    assert main(arguments(tmp_path / "run", collector, env=env, max_episode_steps=60, total_episodes=10**6)) == 2
    said = capsys.readouterr().err
    assert "error: An episode of the evaluation did not end within 50 steps; cut episodes with a smaller" in said
    assert "Traceback" not in said
    assert rows_of(tmp_path / "run")[0]["learner/mean_length"] == 60


def test_episodes_are_cut_in_training_and_in_evaluations(tmp_path: Path) -> None:
    run = run_main(tmp_path / "run", "async", env="tests.zoo.episode_ppo.envs:Endless", max_episode_steps=5)
    assert run.code == 0
    assert {row["learner/mean_length"] for row in rows_of(run.folder)} == {5}
    assert {row["mean_length"] for row in run.results["evaluations"]} == {5}


def test_a_factory_of_the_users_folder_is_found_and_a_module_beside_the_program_is_not(tmp_path: Path) -> None:
    (tmp_path / "my_envs.py").write_text("from tests.zoo.episode_ppo.envs import make\n")
    for spec, code in (("my_envs:make", 0), ("policy:NumpyPolicy", 2)):
        words = arguments(tmp_path / spec[:3], "async", env=spec, total_episodes=COUNT, eval_every=0)
        done = run_command(
            [sys.executable, str(ENTRY), *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=FOREVER
        )  # fmt: skip
        assert done.returncode == code, done.stderr
    assert "error: env is 'policy:NumpyPolicy', but 'policy' cannot be imported" in done.stderr
