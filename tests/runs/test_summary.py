"""What every run says of itself in summary.json and to those who watch it: real runs of PPO, and the parts by hand."""

from __future__ import annotations

import gc
import json
import logging
import os
import weakref
from pathlib import Path
from typing import Any

import pytest

from lzero_async.errors import ConfigError
from lzero_async.runs.summary import FORMAT, machine, read_results, read_summary, versions, write_summary
from lzero_async.telemetry.recent_warnings import KEPT, KeptWarnings
from lzero_async.telemetry.view import Count, seconds_remaining
from lzero_async.tools.traces import read_events
from zoo.episode_ppo.envs.factories import describe
from zoo.episode_ppo.options import build_options
from zoo.episode_ppo.train import main
from zoo.episode_ppo.trainer import Trainer

SMALL = {
    "env": "CartPole-v1", "n_envs": 2, "num_workers": 1, "episodes_per_update": 4, "total_episodes": 24, "hidden_size": 8,
    "hidden_layers": 1, "epochs": 1, "eval_every": 2, "eval_episodes": 2, "device": "cpu", "checkpoint_every": 2,
    "report": "false",
}  # fmt: skip


def words(folder: Path, **more: Any) -> list[str]:
    return [word for name, value in {**SMALL, "exp_name": folder, **more}.items() for word in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a process for each role, then the same run a little further."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    assert main(words(folder)) == 0
    (folder / "first.json").write_bytes((folder / "summary.json").read_bytes())
    assert main(["--resume", str(folder), "--total_episodes", "32"]) == 0
    return folder


def test_the_summary_says_what_ran_and_what_came_of_it(folder: Path) -> None:
    found = json.loads((folder / "first.json").read_text())
    results = read_results(folder)
    assert (found["program"], found["title"]) == ("episode_ppo", "Whole-episode PPO: CartPole-v1")
    assert found["ended_by"] == "total_episodes" and found["seconds"] > 0
    assert found["axis"] == "episodes trained" and found["counts"]["episodes trained"] == 24
    assert found["rates"]["episodes trained/s"] == pytest.approx(24 / found["seconds"])
    assert [row["steps"] for row in found["evaluations"]] == [8, 16, 24, 24]
    assert all(row["low"] <= row["score"] <= row["high"] for row in found["evaluations"])
    assert found["score"]["best"] == max(row["score"] for row in found["evaluations"])
    assert found["statistics"]["train_count"] == 6 and sum(found["statistics"]["staleness_counts"].values()) == 6
    assert results["statistics"]["train_count"] == 8  # the resumed run's, whose statistics go on
    assert found["batch_bytes"] > 1000


def test_the_summary_has_every_role_with_its_seconds_and_its_processor_time(folder: Path) -> None:
    roles = {row["role"]: row for row in json.loads((folder / "first.json").read_text())["roles"]}
    assert list(roles) == ["collector 0", "collector 1", "learner", "evaluator", "envs 0"]
    seconds = json.loads((folder / "first.json").read_text())["seconds"]
    for name in ("collector 0", "learner"):
        assert sum(roles[name][part] for part in ("active", "waiting", "idle")) == pytest.approx(seconds, rel=0.5)
    assert 0 <= roles["learner"]["cpu_seconds"] < 60 and roles["learner"]["memory_bytes"] > 10**7
    assert roles["envs 0"]["active"] is None and roles["envs 0"]["cpu_seconds"] is not None


def test_a_resumed_run_keeps_the_earlier_trace_and_counts_on(folder: Path) -> None:
    found = read_summary(folder)
    first = json.loads((folder / "first.json").read_text())
    assert found["counts"]["episodes trained"] == 32
    assert found["rates"]["episodes trained/s"] == pytest.approx(8 / found["seconds"])
    for name in ("steps trained", "steps played"):
        steps = found["counts"][name] - first["counts"][name]
        assert found["rates"][f"{name}/s"] == pytest.approx(steps / found["seconds"])
    assert found["earlier_seconds"] >= first["seconds"] > first["earlier_seconds"] == 0.0
    seconds = [row["seconds"] for row in found["evaluations"]]
    assert len(seconds) == 6 and seconds == sorted(seconds)
    earlier, later = (
        [e["args"]["batch"] for e in read_events(folder / name) if e["name"] == "train" and e["ph"] == "X"]
        for name in ("trace-1.json", "trace.json")
    )
    assert len(earlier) == 6 and len(later) == 2 and not set(earlier) & set(later)


def test_a_run_that_goes_on_is_not_over_from_its_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    assert main(words(folder, total_episodes=8, backend="thread")) == 0
    assert read_summary(folder)["ended_by"] == "total_episodes"
    seen, train = [], Trainer.train
    monkeypatch.setattr(
        Trainer, "train", lambda *args: (seen.append(read_summary(folder)["ended_by"]), train(*args))[1]
    )
    assert main(["--resume", str(folder), "--total_episodes", "16"]) == 0
    assert seen == [None, None] and read_summary(folder)["ended_by"] == "total_episodes"


def test_a_run_that_fails_leaves_a_summary_that_was_not_ended_and_its_warnings(tmp_path: Path) -> None:
    given = {name: value for name, value in SMALL.items() if name != "report"}
    options = build_options({**given, "exp_name": str(tmp_path), "backend": "thread", "eval_every": 0})
    trainer = Trainer(options, tmp_path, describe(options.env, options.env_args))
    try:

        def fail(batch: Any) -> None:
            logging.getLogger("zoo.episode_ppo.trainer").warning("it smells of %s", "smoke")
            raise RuntimeError("fire")

        trainer.train = fail  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="fire"):
            trainer.run()
        assert trainer.view().warnings[-1].endswith("it smells of smoke")
    finally:
        trainer.close()
    found = read_summary(tmp_path)
    assert found["ended_by"] is None
    assert [event["text"] for event in found["events"]] == ["it smells of smoke"]
    assert 0 <= found["events"][0]["seconds"] <= found["seconds"]
    assert all(row["cpu_seconds"] is None for row in found["roles"])  # threads of one process


def test_a_view_shows_the_run_as_it_is(tmp_path: Path) -> None:
    given = {name: value for name, value in SMALL.items() if name != "report"}
    options = build_options({**given, "exp_name": str(tmp_path), "backend": "thread"})
    trainer = Trainer(options, tmp_path, describe(options.env, options.env_args))
    try:
        before = trainer.view()
        assert before.roles == () and before.remaining is None and before.last_score is None
        trainer.run()
        view = trainer.view()
    finally:
        trainer.close()
    assert view.counts[0] == ("episodes_trained", 24, 24, 0)
    assert view.remaining == 0.0 and view.score == "mean return"
    assert view.best_score == max(row["mean_return"] for row in trainer.history)
    assert view.last_score == trainer.history[-1]["mean_return"]
    assert view.fills["queue"] > 0 and view.fills["buffer"] is None
    assert view.rates["episodes_trained"] == pytest.approx(24 / view.elapsed, rel=0.01)


# -- the parts by hand -------------------------------------------------------------------------------------------------


def test_the_time_left_is_until_the_first_limit() -> None:
    assert seconds_remaining([Count("a", 5, 10), Count("b", 30, 40)], 60.0) == pytest.approx(20.0)
    assert seconds_remaining([Count("a", 15, 20, before=10)], 60.0) == pytest.approx(60.0)  # half of this part is done
    assert seconds_remaining([Count("a", 10, 20, before=10)], 60.0) is None
    assert seconds_remaining([Count("a", 5)], 60.0) is None
    assert seconds_remaining([Count("a", 12, 10)], 60.0) == 0.0


def test_a_summary_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        read_summary(tmp_path)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_summary(tmp_path)
    for text, said in (('{"format": 1}', "format 1,"), ('{"format": 0}', "format 0,"), ("{}", "of an older version,")):
        (tmp_path / "summary.json").write_text(text)
        with pytest.raises(ConfigError, match=f"{said} and this version reads {FORMAT}; use the version that wrote it"):
            read_summary(tmp_path)


def test_a_summary_is_written_whole_and_holds_numbers_of_any_kind(tmp_path: Path) -> None:
    import numpy as np

    write_summary(tmp_path, {"score": np.float32(0.5), "where": tmp_path, "big": 10**20})
    assert read_summary(tmp_path) == {"format": FORMAT, "score": 0.5, "where": str(tmp_path), "big": 10**20}
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_machine_and_versions_are_known() -> None:
    assert machine()["cores"] == len(os.sched_getaffinity(0)) and machine()["memory_bytes"] > 10**8
    assert {"python", "lzero-async", "numpy"} <= set(versions())


def test_warnings_are_kept_up_to_a_number_and_shown_with_their_time() -> None:
    kept = KeptWarnings(("lzero_async", "zoo.x"))
    log = logging.getLogger("zoo.x.part")
    try:
        log.info("not this")
        for number in range(KEPT + 3):
            log.warning("number %d\nof many", number)
        kept.handle(log.makeRecord("x", logging.ERROR, "", 1, "odd %d", ("arguments",), None))
    finally:
        kept.stop()
    log.warning("too late")
    assert len(kept.events()) == KEPT
    assert kept.lines(2)[0].endswith(f" number {KEPT + 2} of many") and kept.lines(2)[1].endswith("odd %d")
    assert [event["level"] for event in kept.events()[-2:]] == ["WARNING", "ERROR"]


def test_what_is_kept_of_a_warning_holds_on_to_nothing() -> None:
    class Big:
        pass

    kept = KeptWarnings(("zoo.x",))
    try:
        try:
            big = Big()
            seen = weakref.ref(big)
            raise ValueError("no")
        except ValueError as error:
            logging.getLogger("zoo.x").warning("it failed (%r)", error, exc_info=error)
        del big
        gc.collect()
        assert seen() is None
        assert kept.lines(1)[0].endswith("it failed (ValueError('no'))")
    finally:
        kept.stop()


def test_each_warning_is_kept_once_and_still_reaches_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    kept = KeptWarnings(("zoo.y", "", "zoo.y.part", "zoo.y"))
    logger = logging.getLogger("zoo.y.part")
    root, handlers = logging.getLogger(), logging.getLogger().handlers[:]
    try:
        for handler in handlers:  # pytest's own, which a program does not have
            root.removeHandler(handler)
        logger.warning("look here")
    finally:
        kept.stop()
        for handler in handlers:
            root.addHandler(handler)
    assert len(kept.events()) == 1
    assert "look here" in capsys.readouterr().err


def test_a_failure_of_what_only_watches_is_logged_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {name: value for name, value in SMALL.items() if name != "report"}
    options = build_options({**given, "exp_name": str(tmp_path), "backend": "thread", "eval_every": 0})
    trainer = Trainer(options, tmp_path, describe(options.env, options.env_args))

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr("lzero_async.runs.observer.write_summary", broken)
    monkeypatch.setattr("lzero_async.telemetry.scalars.values", broken)
    try:
        assert trainer.run().statistics["train_count"] == 6
        said = [event["text"] for event in trainer.observer.warnings.events()]
    finally:
        trainer.close()
    assert len([text for text in said if text.startswith("the summary cannot be written")]) == 1
    assert len([text for text in said if text.startswith("the scalars cannot be written")]) == 1


def test_a_board_whose_writer_died_says_so_instead_of_waiting(tmp_path: Path) -> None:
    from lzero_async.telemetry.tensorboard import Board

    board = Board(tmp_path)
    board.scalars({"a": 1.0}, 1)
    worker = board._writer.file_writer.event_writer._worker
    worker.stop()
    worker.join()
    with pytest.raises(OSError, match="has ended after an error"):
        board.scalars({"a": 2.0}, 2)
    board.flush()
    board.close()
