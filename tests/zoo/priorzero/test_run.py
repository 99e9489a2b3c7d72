"""Whole runs on the shipped game, with a tiny random language model: they end, resume exactly, and say what they did."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from lzero_async import Parcel
from lzero_async.errors import ConfigError
from lzero_async.runs import checkpoint
from lzero_async.runs.summary import is_finished, read_results
from lzero_async.tools.traces import read_events
from tests.commands import Command
from tests.zoo.priorzero.test_engine import write_encoder, write_model
from zoo.jericho.priorzero.games.files import SHIPPED_GAME, find_game
from zoo.jericho.priorzero.learn.saving import CHECKPOINT
from zoo.jericho.priorzero.options import build_options
from zoo.jericho.priorzero.priorzero_entry import main
from zoo.jericho.priorzero.trainer import PriorZero

pytestmark = pytest.mark.slow
ENTRY = Path(__file__).resolve().parents[3] / "zoo" / "jericho" / "priorzero" / "priorzero_entry.py"
SMALL = (
    "env_config.max_steps=10", "env_config.collector_env_num=2", "env_config.evaluator_env_num=2",
    "policy_config.n_episode=2", "policy_config.update_per_collect=3", "policy_config.batch_size=8",
    "policy_config.num_simulations=4", "policy_config.embed_dim=16", "policy_config.dropout=0.1",
    "policy_config.num_unroll_steps=5", "run_config.eval_every=3", "run_config.eval_episodes=1",
    "run_config.final_eval_modes=['world_model']", "run_config.max_env_step=0",
)  # fmt: skip
THREADS = ("--set", "policy_config.backend=thread")  # where it does not matter that roles are processes


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models")
    write_encoder(folder / "encoder")
    return write_model(folder / "llm")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    patch = pytest.MonkeyPatch()
    patch.setenv("LZERO_ASYNC_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


def small(llm: str, *more: str) -> list[str]:
    """Settings of a small run with a tiny text encoder, which lies beside the tiny language model."""
    return [*SMALL, f"llm_config.llm={llm}", f"encoder_config.encoder_model={Path(llm).parent / 'encoder'}", *more]


def arguments(llm: str, folder: Path, *more: str) -> list[str]:
    settings = [word for setting in small(llm) for word in ("--set", setting)]
    return ["--exp_name", str(folder), *settings, *more]


def metrics(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    # times, a process number, and a ticket's number: a collect that was broken off has had one
    other = ("learner/updates_per_second", "collector/steps_per_second", "batch/source", "batch/id")
    return [{key: value for key, value in row.items() if key not in other} for row in rows]


@pytest.fixture(scope="module")
def straight(llm: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "straight"
    assert main(arguments(llm, folder, "--max_iter", "6")) == 0
    return folder


def test_a_run_writes_what_it_says(straight: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = read_results(straight)
    assert results["game"] == find_game(SHIPPED_GAME).label
    assert results["substitute_for"] == ""
    assert results["ended_by"] == "max_iter"
    assert results["updates"] == 18 == metrics(straight)[-1]["learner/updates"]
    assert [row["mode"] for row in results["evaluations"]] == ["prior", "prior", "world_model"]
    # What `python -m lzero_async compare` reads.
    assert results["collected_steps"] == results["env_steps"] > 0
    assert set(results["utilisation"]) == {"queue", "buffer", "cpu", "gpu", "cpu_seconds"}
    assert 0 < results["utilisation"]["buffer"] <= 1 and results["utilisation"]["cpu_seconds"] > 0
    assert results["reuse"]["prior_hit_rate"] > 0
    assert results["reuse"]["encoder_hit_rate"] > 0
    assert {path.name for path in (straight / "ckpt").iterdir()} == {"last.safetensors", "best.safetensors"}
    assert list((straight / "log").glob("events.*"))


def test_the_score_of_a_run_is_that_of_the_mode_it_is_evaluated_in() -> None:
    rows = [("prior", 3.0), ("prior", 7.0), ("prior", 5.0), ("world_model", 9.0), ("llm", 1.0)]
    run = SimpleNamespace(max_env_steps=100, max_iter=0, max_seconds=0)
    options = SimpleNamespace(run_config=run, policy_config=SimpleNamespace(replay_buffer_size=10))
    application = SimpleNamespace(
        options=options, history=[{"mode": mode, "mean": mean} for mode, mean in rows],
        env_steps=40, steps_played=50, updates=0, elapsed=1.0, _stored=0, _recent=[],
        coordinator=SimpleNamespace(train_count=0), queue=SimpleNamespace(mean=None), game=SimpleNamespace(max_score=10),
        _measures=dict,
    )  # fmt: skip
    seen = PriorZero._progressed(application)
    assert (seen.last_score, seen.best_score) == (5.0, 7.0)
    assert seen.counts[:2] == (("steps_trained", 40, 100, 0.0), ("steps_played", 50, None, 0.0))
    application.history = []
    assert PriorZero._progressed(application).last_score is None


def test_a_second_run_does_not_touch_the_first(straight: Path, llm: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in straight.rglob("*") if path.is_file()}
    assert main(arguments(llm, straight, "--max_iter", "1")) == 0
    assert before == {path: path.stat().st_mtime_ns for path in straight.rglob("*") if path.is_file()}
    assert is_finished(straight.with_name("straight-2"))


def test_kill_9_and_resume_give_the_same_numbers(straight: Path, llm: str, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    command = [
        sys.executable,
        str(ENTRY),
        *arguments(llm, folder, "--max_iter", "6", "--set", "run_config.checkpoint_every=3"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert process.stderr is not None
    for line in process.stderr:  # the progress line after the fourth train: the checkpoint of the third is there
        if " trains 4/" in line:
            process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stderr.close()
    assert main(arguments(llm, folder, "--max_iter", "6", "--resume")) == 0
    assert metrics(folder) == metrics(straight)
    scores = [read_results(path)["evaluations"] for path in (folder, straight)]
    for row in (*scores[0], *scores[1]):
        row.pop("seconds")
    assert scores[0] == scores[1]


def test_ctrl_c_saves_a_checkpoint_and_resuming_gives_the_same_numbers(
    straight: Path, llm: str, tmp_path: Path
) -> None:
    folder = tmp_path / "stopped"
    command = [sys.executable, str(ENTRY), *arguments(llm, folder, "--max_iter", "6")]
    process = Command(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ, start_new_session=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if " trains 2/" in line:
            os.kill(process.pid, signal.SIGINT)
            break
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "ended by: SIGINT" in output
    assert read_results(folder)["final_evaluation"] is None
    assert main(["--resume", str(folder)]) == 0  # with the options of that run
    assert metrics(folder) == metrics(straight)


def test_resuming_takes_the_options_of_the_run_and_what_is_given(straight: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(straight, copy)
    with (copy / "metrics.jsonl").open("a") as file:
        file.write('{"train": 7, "half')  # killed while it wrote
    assert main(["--resume", str(copy), "--max_iter", "7", "--set", "policy_config.learning_rate=0.5"]) == 0
    assert [row["train"] for row in metrics(copy)] == [1, 2, 3, 4, 5, 6, 7]
    options = json.loads((copy / "options.json").read_text())
    assert options["policy_config"]["embed_dim"] == 16
    state = checkpoint.load(copy / "ckpt" / "last.safetensors", CHECKPOINT)
    groups = state["learner"]["policy"]["optimizer_world_model"]["param_groups"]
    assert {group["lr"] for group in groups} == {0.5}


def test_resuming_from_a_file_leaves_other_runs_alone(straight: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "precious.txt").write_text("mine")
    last = straight / "ckpt" / "last.safetensors"
    kept = [path for path in straight.rglob("*") if path.is_file() and path.name != ".lock"]
    before = {path: path.stat().st_mtime_ns for path in kept}
    assert main(["--resume", str(last), "--exp_name", str(other), "--max_iter", "7"]) == 0
    assert [path.name for path in other.iterdir()] == ["precious.txt"]
    assert is_finished(tmp_path / "other-2")
    assert before == {path: path.stat().st_mtime_ns for path in kept}
    assert {path.name for path in straight.rglob("*") if path.is_file()} <= {path.name for path in kept} | {".lock"}


def test_a_disk_that_refuses_is_one_sentence(
    llm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(folder: Path, application: str) -> None:
        raise OSError(28, "No space left on device", str(folder / "run.log"))

    monkeypatch.setattr("zoo.jericho.priorzero.priorzero_entry.logging_to", full)
    assert main(arguments(llm, tmp_path / "full", "--max_iter", "1")) == 2
    assert "No space left on device" in capsys.readouterr().err


def test_a_checkpoint_holds_the_batches_that_its_gate_counts(llm: str, tmp_path: Path) -> None:
    """A collector may commit while a checkpoint is made; gate and batches must be of one moment."""
    from zoo.jericho.priorzero.play.batch import Collected
    from zoo.jericho.priorzero.trainer import PriorZero

    settings = small(llm, "run_config.max_iter=1", "policy_config.off_policy_degree=3", "policy_config.backend=thread")
    agent = PriorZero(build_options(assignments=settings), find_game(SHIPPED_GAME), tmp_path)
    whole = agent.coordinator.state_dict
    try:
        agent.coordinator.run_collect(lambda: Parcel(Collected([], 0.0)))

        def committing(**words: bool) -> dict:
            state = whole(**words)
            agent.coordinator.run_collect(lambda: Parcel(Collected([], 0.0)))
            return state

        agent.coordinator.state_dict = committing  # type: ignore[method-assign]
        state = checkpoint.load(agent.save(), CHECKPOINT)
    finally:
        agent.close()
    assert len(state["waiting"]) == len(state["coordinator"]["gate"]["waiting"]) == 1


def test_a_checkpoint_of_another_run_is_refused(
    straight: Path, llm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = straight / "ckpt" / "last.safetensors"
    other = arguments(llm, tmp_path / "x", "--max_iter", "9", "--resume", str(last))
    assert main([*other, "--set", "policy_config.embed_dim=32"]) == 2
    assert "embed_dim was 16" in capsys.readouterr().err
    best = [*arguments(llm, tmp_path / "y", "--max_iter", "9", "--resume", str(last.with_name("best.safetensors")))]
    assert main(best) == 2
    assert "last.safetensors" in capsys.readouterr().err


@pytest.mark.parametrize(
    "extra",
    [
        ["--off_policy_degree", "1", "--set", "policy_config.adaptive_degree=True"],
        pytest.param(
            ["--off_policy_degree", "-1", "--set", "policy_config.replay_buffer_size=2000"], marks=pytest.mark.soak
        ),
        pytest.param(["--off_policy_degree", "2", "--async_eval"], marks=pytest.mark.soak),
    ],
)
def test_later_degrees_only_change_a_number(llm: str, tmp_path: Path, extra: list[str]) -> None:
    folder = tmp_path / "async"
    assert main(arguments(llm, folder, "--max_iter", "5", *extra, *THREADS)) == 0
    results = read_results(folder)
    assert results["statistics"]["train_count"] == 5
    assert results["statistics"]["restarts"] == 0
    assert results["statistics"]["staleness_max"] <= results["statistics"]["off_policy_degree"]


def test_at_degree_0_processes_give_the_numbers_of_one_process(straight: Path, llm: str, tmp_path: Path) -> None:
    folder = tmp_path / "apart"
    assert main(arguments(llm, folder, "--max_iter", "6", "--set", "policy_config.backend=process")) == 0
    assert metrics(folder) == metrics(straight)


def test_roles_are_processes_and_every_batch_says_where_it_comes_from(llm: str, tmp_path: Path) -> None:
    folder = tmp_path / "apart"
    settings = ["--off_policy_degree", "3", "--num_collectors", "2", "--set", "run_config.trace=True", "--async_eval"]
    assert main(arguments(llm, folder, "--max_iter", "6", *settings)) == 0
    statistics = read_results(folder)["statistics"]
    assert (statistics["train_count"], statistics["restarts"]) == (6, 0)
    assert statistics["staleness_max"] <= 3
    places = {}
    for event in read_events(folder / "trace.json"):
        if event["ph"] == "X" and event["name"] in ("collect", "train", "eval"):
            places.setdefault(event["name"], set()).add(event["pid"])
    assert len(places["collect"] - {os.getpid()}) == 2
    assert len(places["train"] - {os.getpid()}) == 1
    assert not places["collect"] & places["train"]
    rows = metrics(folder)
    assert [row["train"] for row in rows] == [1, 2, 3, 4, 5, 6]
    streams = [tuple(row["batch/stream"]) for row in rows]
    assert len(set(streams)) == 6
    assert all(
        stream[:2] == (0, 1) and stream[2] == row["batch/worker"] for stream, row in zip(streams, rows, strict=True)
    )
    assert all(0 <= row["train"] - 1 - row["batch/version"] <= 3 for row in rows)
    assert all(row["train"] - 1 - row["batch/version"] <= row["learner/staleness"] for row in rows)
    sources = {json.loads(line)["batch/source"] for line in (folder / "metrics.jsonl").read_text().splitlines()}
    assert sources <= {f"collector {pid}" for pid in places["collect"]}


@pytest.mark.parametrize(
    "limit", [["--max_iter", "1"], pytest.param(["--set", "run_config.max_env_step=5"], marks=pytest.mark.soak)]
)
def test_a_background_evaluation_that_is_due_at_the_end_is_finished(llm: str, tmp_path: Path, limit: list[str]) -> None:
    settings = ["--async_eval", "--set", "run_config.eval_every=1", "--set", "run_config.eval_episodes=3", *THREADS]
    assert main(arguments(llm, tmp_path / "x", *settings, *limit)) == 0
    results = read_results(tmp_path / "x")
    assert [(row["mode"], row["episodes"]) for row in results["evaluations"]] == [("prior", 3), ("world_model", 3)]


def test_a_background_evaluation_ends_the_run_and_saves_its_weights(llm: str, tmp_path: Path) -> None:
    settings = ["--async_eval", "--off_policy_degree", "2", "--max_iter", "1000", *THREADS]
    for setting in ("eval_every=1", "target_score=0.001", "eval_episodes=4"):
        settings += ["--set", f"run_config.{setting}"]
    folder = tmp_path / "x"
    assert main(arguments(llm, folder, *settings)) == 0
    results = read_results(folder)
    assert results["ended_by"] == "target_score"
    assert results["best"]["score"] > 0
    means: dict[int, list[float]] = {}
    for row in results["evaluations"]:
        if row["mode"] == "prior":
            means.setdefault(row["version"], []).append(row["mean"])
    confirmed = means[results["best"]["version"]]
    assert len(confirmed) == 2 and sum(confirmed) / 2 == results["best"]["score"] >= 0.001
    best = checkpoint.load(folder / "ckpt" / "best.safetensors", CHECKPOINT)
    assert best["best"] == results["best"]
    assert "weights" in best


def test_ctrl_c_gives_a_background_evaluation_up(llm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zoo.jericho.priorzero.roles.players import EvaluatorRole

    played = EvaluatorRole._play

    def interrupted_in_the_middle(
        role: EvaluatorRole, mode: str, version: int, repeat: int, should_stop: Callable[[], bool]
    ) -> dict:
        os.kill(os.getpid(), signal.SIGINT)
        while not should_stop():
            pass
        return played(role, mode, version, repeat, should_stop)

    monkeypatch.setattr(EvaluatorRole, "_play", interrupted_in_the_middle)
    settings = ["--async_eval", "--set", "run_config.eval_every=1", "--max_iter", "1000"]
    settings += ["--set", "policy_config.backend=inline"]  # here, where it can be interrupted
    assert main(arguments(llm, tmp_path / "x", *settings)) == 130
    results = read_results(tmp_path / "x")
    assert results["evaluations"] == []
    assert (tmp_path / "x" / "ckpt" / "last.safetensors").is_file()


def test_ctrl_c_in_the_final_evaluation_keeps_the_report(
    llm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(agent: object) -> list[dict]:
        raise KeyboardInterrupt

    monkeypatch.setattr("zoo.jericho.priorzero.trainer.PriorZero.final_evaluation", interrupted)
    assert main(arguments(llm, tmp_path / "x", "--max_iter", "1")) == 130
    assert f"go on with: --resume {tmp_path / 'x'}" in capsys.readouterr().out
    assert read_results(tmp_path / "x")["updates"] == 3


def test_a_start_that_failed_does_not_take_the_name(
    llm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = f"llm_config.llm={tmp_path / 'no_model'}"
    assert main(arguments(llm, tmp_path / "x", "--max_iter", "1", "--set", absent)) == 2
    assert main(arguments(llm, tmp_path / "x", "--max_iter", "1")) == 0
    capsys.readouterr()
    assert main(arguments(llm, tmp_path / "x", "--max_iter", "1")) == 0
    assert f"folder: {tmp_path / 'x-2'} ({tmp_path / 'x'} holds another run" in capsys.readouterr().out


def test_an_absent_zork_is_replaced_loudly_and_only_in_a_quick_test(
    llm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LZERO_ASYNC_GAMES", raising=False)
    assert main(arguments(llm, tmp_path / "a", "--env_id", "zork1.z5", "--max_iter", "1")) == 2
    capsys.readouterr()
    assert main(arguments(llm, tmp_path / "b", "--env_id", "zork1.z5", "--max_iter", "1", "--quick_test")) == 0
    assert "zork1.z5 was not found" in capsys.readouterr().out
    assert read_results(tmp_path / "b")["substitute_for"] == "zork1.z5"
    assert "zork1.z5 was not found" in (tmp_path / "b" / "run.log").read_text()


def test_without_a_language_model_none_is_loaded(llm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a language model was asked for")

    monkeypatch.setattr("zoo.jericho.priorzero.llm.make_engine", refuse)
    settings = ("llm_config.llm=", "llm_config.root_policy=wm_logits", "run_config.eval_modes=['world_model']")
    more = [word for setting in settings for word in ("--set", setting)]
    assert main(arguments(llm, tmp_path / "plain", "--max_iter", "2", *more)) == 0


def test_a_game_that_dies_costs_its_episode_and_not_the_run(llm: str, tmp_path: Path) -> None:
    from zoo.jericho.priorzero.trainer import PriorZero

    settings = small(llm, "run_config.max_iter=3", "run_config.eval_every=0")
    options = build_options(assignments=settings)
    agent = PriorZero(options, find_game(SHIPPED_GAME), tmp_path)
    killed: list[int] = []

    def kill_one(event: object) -> None:
        process = agent.collectors[0]._home.role.player.envs[0]._process
        if not killed and process is not None:
            killed.append(process.pid)
            os.kill(process.pid, signal.SIGKILL)

    agent._on_event = agent.collectors[0]._on_event = kill_one  # type: ignore[method-assign]
    try:
        result = agent.run()
        assert killed
        assert result.statistics["train_count"] == 3
        assert agent.reuse.totals()["game_abnormal_ends"] == 1
        assert agent.reuse.totals()["game_process_starts"] == 3
    finally:
        agent.close()


def test_a_damaged_state_is_refused(straight: Path, llm: str, tmp_path: Path) -> None:
    from zoo.jericho.priorzero.trainer import PriorZero

    state = checkpoint.load(straight / "ckpt" / "last.safetensors", CHECKPOINT)
    state["learner"]["policy"]["model"].popitem()
    checkpoint.save(tmp_path / "bad.safetensors", state, CHECKPOINT)
    agent = PriorZero(
        build_options(assignments=small(llm, "run_config.max_iter=1")),
        find_game(SHIPPED_GAME),
        tmp_path,
    )
    try:
        with pytest.raises(ConfigError, match="does not fit"):
            agent.resume(tmp_path / "bad.safetensors", checkpoint.load(tmp_path / "bad.safetensors", CHECKPOINT))
    finally:
        agent.close()


def test_ctrl_c_in_the_first_collect_ends_in_order(llm: str, tmp_path: Path) -> None:
    folder = tmp_path / "early"
    command = [sys.executable, str(ENTRY), *arguments(llm, folder, "--max_iter", "6")]
    process = Command(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ, start_new_session=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "trains 0/" in line:
            os.kill(process.pid, signal.SIGINT)
            break
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert f"go on with: --resume {folder}" in output
    assert read_results(folder)["ended_by"] == "SIGINT"


def small_agent(llm: str, folder: Path, *more: str) -> object:
    from zoo.jericho.priorzero.trainer import PriorZero

    return PriorZero(
        build_options(assignments=small(llm, "run_config.max_iter=3", *more)),
        find_game(SHIPPED_GAME),
        folder,
    )


def test_an_evaluation_that_fails_is_asked_again(llm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zoo.jericho.priorzero.roles.players import EvaluatorRole

    played, failed = EvaluatorRole._play, list[int]()

    def fails_once(role: EvaluatorRole, mode: str, version: int, *others: object) -> dict:
        if not failed:
            failed.append(version)
            raise RuntimeError("the engine is gone")
        return played(role, mode, version, *others)

    monkeypatch.setattr(EvaluatorRole, "_play", fails_once)
    agent = small_agent(llm, tmp_path, "policy_config.restart_backoff=0.01")
    try:
        result = agent.run()
        assert (result.statistics["restarts"], [row["version"] for row in agent.history]) == (1, [3])
    finally:
        agent.close()


def test_a_role_that_cannot_be_built_again_is_tried_again(llm: str, tmp_path: Path) -> None:
    """What it is built from could be used before: a server that starts again, say."""
    agent = small_agent(llm, tmp_path, "policy_config.restart_backoff=0.01", "run_config.eval_every=0")
    worker, tries = agent.collectors[0], list[str]()
    call = worker.call

    def refused(method: str, *args: object, **words: object) -> object:
        if method == "collect" and len(tries) < 2:
            tries.append(method)
            raise RuntimeError("lost") if len(tries) == 1 else ConfigError("the engine does not work")
        return call(method, *args, **words)

    worker.call = refused
    try:
        result = agent.run()
        assert (result.statistics["restarts"], result.statistics["train_count"]) == (2, 3)
    finally:
        agent.close()


def test_a_train_that_a_failure_left_behind_is_counted_before_the_checkpoint(
    llm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zoo.jericho.priorzero.roles.learner import LearnerRole
    from zoo.jericho.priorzero.roles.players import CollectorRole

    training, trained = threading.Event(), LearnerRole.train
    collect = CollectorRole.collect

    def slow(role: LearnerRole, batch: int, version: int, *others: object) -> dict:
        if version or batch:  # the second train: outlast the patience that a failure elsewhere leaves it
            training.set()
            agent.coordinator.stop_signal.wait(60.0)
            threading.Event().wait(1.0)
        return trained(role, batch, version, *others)

    def fails_during_a_train(role: CollectorRole, order: object, weights: Parcel, stop: object) -> Parcel:
        if order.number >= 2:
            assert training.wait(60.0)
            raise RuntimeError("for good")
        return collect(role, order, weights, stop)

    monkeypatch.setattr(LearnerRole, "train", slow)
    monkeypatch.setattr(CollectorRole, "collect", fails_during_a_train)
    more = ("policy_config.backend=thread", "policy_config.off_policy_degree=2", "policy_config.max_restarts=0")
    agent = small_agent(llm, tmp_path, *more, "run_config.eval_every=0")
    try:
        with pytest.raises(RuntimeError, match="for good"):
            agent.run()
    finally:
        agent.close()
    state = checkpoint.load(tmp_path / "ckpt" / "last.safetensors", CHECKPOINT)
    gate = state["coordinator"]["gate"]
    assert state["learner"]["updates"] == 3 * gate["trained"] == 6
    assert gate["waiting"] == []
