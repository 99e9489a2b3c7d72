"""Old batches searched again in the background: which is next, what the buffer takes over, and a run that does it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lzero_async import Parcel, Stopped
from lzero_async.errors import ConfigError
from lzero_async.workers.calls import CallStop
from tests.zoo.priorzero.test_engine import write_encoder, write_model
from tests.zoo.priorzero.test_learner import SLOTS, episode, new_learner
from tests.zoo.priorzero.test_run import arguments
from zoo.jericho.priorzero.learn.reanalyze import Fresh, ReanalyzeRole
from zoo.jericho.priorzero.options import build_options
from zoo.jericho.priorzero.play.open_game import Choice, OpenGame, _in_slots
from zoo.jericho.priorzero.priorzero_entry import main
from zoo.jericho.priorzero.roles.reanalysis import Reanalysis


def made(batch: int, version: int) -> Parcel:
    return Parcel(None, {"batch": batch, "version": version, "steps": 10, "seconds": 0.5})


def test_the_batch_with_the_oldest_targets_is_next_and_none_is_given_out_twice() -> None:
    work, stop = Reanalysis(3), CallStop()
    for batch, version in enumerate((0, 1, 2, 3)):
        work.add(batch, version, Parcel(batch))
        work.published(batch + 1)
    first, second = work.next(stop), work.next(stop)
    assert [(job.batch, job.version) for job in (first, second)] == [(1, 1), (2, 2)]  # 0 was forgotten
    work.finish(first, made(1, 4))
    third = work.next(stop)
    assert third.batch == 3
    work.finish(second, None)  # it failed, so it is still the oldest
    assert work.next(stop).batch == 2
    assert [fresh.meta["batch"] for fresh in work.take()] == [1] and work.take() == []
    assert (work.batches, work.steps, work.seconds) == (1, 10, 0.5)


def test_whoever_waits_for_a_batch_is_woken_by_a_train_and_by_the_stop() -> None:
    work, stop = Reanalysis(3), CallStop()
    work.add(0, 5, Parcel(0))
    work.published(5)  # its targets are of the newest weights
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(work.next, stop)
        work.add(1, 5, Parcel(1))  # trained, but its weights are not there to search with yet
        with pytest.raises(TimeoutError):
            waiting.result(0.05)
        work.published(6)
        assert waiting.result(30).batch in (0, 1)
        work.finish(work.next(stop), None)
        taken = [work.next(stop)]
        waiting = pool.submit(work.next, stop)
        stop.set("max_train")
        with pytest.raises(Stopped) as raised:
            waiting.result(30)
        assert raised.value.origin is stop and len(taken) == 1


def fresh_for(batch: int, version: int, lengths: list[int]) -> Fresh:
    rng = np.random.default_rng(version)
    visits = [rng.random((length, SLOTS)).astype(np.float32) for length in lengths]
    return Fresh(batch, version, visits, [rng.random(length).astype(np.float32) for length in lengths])


def test_new_targets_replace_the_old_ones_of_their_batch_only() -> None:
    learner = new_learner(batch_size=64, replay_buffer_size=80)  # too large to train on: only storing is looked at
    played = [episode(12, 1, ended=True), episode(4, 2)]
    learner.train(played, 0, batch=7)
    learner.train([episode(6, 3)], 1, batch=8)
    others = [np.array(segment.child_visit_segment) for segment in learner.buffer.game_segment_buffer[4:]]
    new = fresh_for(7, 5, [12, 4])
    assert learner.replace(new) == 4  # 12 steps and two of nothing are three segments of five
    for (_, number, start), segment in zip(learner._sources[:4], learner.buffer.game_segment_buffer[:4], strict=True):
        searched = new.visits[number][start : start + len(segment.child_visit_segment)]
        np.testing.assert_array_equal(segment.child_visit_segment[: len(searched)], searched)
        np.testing.assert_array_equal(
            segment.root_value_segment[: len(searched)], new.values[number][start:][: len(searched)]
        )
    last = learner.buffer.game_segment_buffer[2]
    np.testing.assert_allclose(np.asarray(last.child_visit_segment[2:], float), 1 / SLOTS)  # after the game's end
    for segment, before in zip(learner.buffer.game_segment_buffer[4:], others, strict=True):
        np.testing.assert_array_equal(segment.child_visit_segment, before)
    assert learner.replace(fresh_for(7, 4, [12, 4])) == 0  # older than what is there
    assert learner.replace(fresh_for(99, 9, [1])) == 0


@pytest.mark.parametrize("field", ["visits", "values"])
def test_new_targets_that_are_not_finite_are_not_taken(field: str, caplog: pytest.LogCaptureFixture) -> None:
    learner = new_learner(batch_size=64, replay_buffer_size=80)
    learner.train([episode(12, 1)], 0, batch=7)
    bad = fresh_for(7, 5, [12])
    getattr(bad, field)[0][3] = np.nan
    assert learner.replace(bad) == 0
    assert "batch 7, searched again by version 5, is not taken: targets" in caplog.text
    assert all(np.isfinite(segment.root_value_segment).all() for segment in learner.buffer.game_segment_buffer)
    assert learner.replace(fresh_for(7, 5, [12])) == 3


def test_ages_are_told_by_source() -> None:
    learner = new_learner()
    learner.train([episode(12, 1)], 0, batch=0)
    assert learner.train([episode(12, 2)], 4, batch=1).ages["reanalysed_share"] == 0.0
    for batch in (0, 1):
        learner.replace(fresh_for(batch, 6, [12]))
    ages = learner.train([episode(12, 3)], 8, batch=2).ages
    assert 0 < ages["reanalysed_share"] < 1
    assert (ages["reanalysed"], ages["collected"]) == (2.0, 0.0)
    assert ages["targets"] == pytest.approx(2.0 * ages["reanalysed_share"])


def test_a_saved_buffer_knows_its_targets() -> None:
    learner, other = new_learner(), new_learner()
    learner.train([episode(12, 1)], 0, batch=3)
    learner.replace(fresh_for(3, 2, [12]))
    state = learner.buffer_state()
    other.load_buffer_state(state)
    assert other._targets == learner._targets == [2, 2, 2] and other._sources == learner._sources
    assert other.replace(fresh_for(3, 3, [12])) == 3
    del state["targets"], state["sources"]  # as an older version saved it
    other.load_buffer_state(state)
    assert other._targets == [0, 0, 0] and other.replace(fresh_for(3, 3, [12])) == 0


def test_the_prior_of_every_step_is_kept_in_its_slot() -> None:
    rows = _in_slots([np.asarray([-1.0, -2.0]), np.asarray([-3.0])], 3)
    assert rows is not None
    np.testing.assert_array_equal(rows, [[-1.0, -2.0, -np.inf], [-3.0, -np.inf, -np.inf]])
    assert _in_slots([np.asarray([-1.0]), None], 3) is None
    game = OpenGame(0, 0, np.random.default_rng(0), 0)
    game.prior = np.asarray([-0.5])
    game.choose(Choice(0, 1.0, np.ones(3) / 3))
    assert game.priors == [game.prior]


def test_it_needs_a_run_that_overlaps() -> None:
    with pytest.raises(ConfigError, match="reanalyze_workers is 1, but at off_policy_degree 0"):
        build_options(changes={"policy_config.reanalyze_workers": 1})
    with pytest.raises(ConfigError, match="reanalyze_share"):
        build_options(changes={"policy_config.reanalyze_share": 0.0})


@pytest.mark.slow
def test_a_reanalyzer_that_fails_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LZERO_ASYNC_CACHE", str(tmp_path / "cache"))
    made: list[Any] = []
    make, research, take = ReanalyzeRole.__init__, ReanalyzeRole.research, Reanalysis.take

    def making(self: ReanalyzeRole, *args: Any) -> None:
        make(self, *args)
        made.append(self)

    def failing(self: ReanalyzeRole, *args: Any, **options: Any) -> Parcel:
        if self is made[0]:
            raise RuntimeError("it stays so")
        return research(self, *args, **options)

    def patient(self: Reanalysis) -> list[Parcel]:
        with self._changed:
            if len(self._jobs) >= 3:
                assert self._changed.wait_for(lambda: self._fresh, 100)
        return take(self)

    monkeypatch.setattr(ReanalyzeRole, "__init__", making)
    monkeypatch.setattr(ReanalyzeRole, "research", failing)
    monkeypatch.setattr(Reanalysis, "take", patient)
    words = ["--off_policy_degree", "2", "--max_iter", "4", "--backend", "thread"]
    settings = ["policy_config.reanalyze_workers=1", "policy_config.reanalyze_share=1", "run_config.eval_every=0",
                "policy_config.restart_backoff=0.01", "run_config.final_eval_modes=[]"]  # fmt: skip
    sets = [word for setting in settings for word in ("--set", setting)]
    write_encoder(tmp_path / "encoder")
    assert main(arguments(write_model(tmp_path / "llm"), tmp_path / "run", *words, *sets)) == 0
    assert len(made) == 2


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["thread", pytest.param("process", marks=pytest.mark.soak)])
def test_a_run_trains_on_targets_that_were_searched_again(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LZERO_ASYNC_CACHE", str(tmp_path / "cache"))
    take = Reanalysis.take

    def patient(self: Reanalysis) -> list[Parcel]:
        """From the third train on there is something."""
        with self._changed:
            if len(self._jobs) >= 2:
                assert self._changed.wait_for(lambda: self._fresh, 100)
        return take(self)

    monkeypatch.setattr(Reanalysis, "take", patient)
    folder = tmp_path / "run"
    words = ["--off_policy_degree", "2", "--max_iter", "6", "--backend", backend]
    settings = ["policy_config.reanalyze_workers=1", "policy_config.reanalyze_share=1", "run_config.eval_every=0",
                "run_config.final_eval_modes=[]"]  # fmt: skip
    sets = [word for setting in settings for word in ("--set", setting)]
    write_encoder(tmp_path / "encoder")
    assert main(arguments(write_model(tmp_path / "llm"), folder, *words, *sets)) == 0
    rows: list[dict[str, Any]] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 6 and [row["train"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert all(row["reanalyze/segments"] > 0 for row in rows[2:])
    assert rows[-1]["reanalyze/batches"] >= 4
    assert rows[-1]["age/reanalysed_share"] > 0 and rows[-1]["age/reanalysed"] >= 0
    assert all(row["learner/staleness"] <= 2 for row in rows)
