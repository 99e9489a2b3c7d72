"""A learner that was saved and loaded goes on as if nothing had happened, buffer, schedules and random numbers included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lzero_async.lightzero.learner import BEST, LearnerRole
from lzero_async.lightzero.parts import COLLECTOR, LEARNER, Parts, Plan, digest_of, load_file
from lzero_async.lightzero.players import CollectOrder, CollectorRole
from lzero_async.lightzero.silence import quiet
from lzero_async.workers.calls import CallStop
from lzero_async.workers.parcels import Parcel
from tests.lightzero.small import captured, shrink

CONFIGS = {
    "cartpole_muzero": {},
    "tictactoe_efficientzero_bot_mode": {"use_priority": True, "piecewise_decay_lr_scheduler": True},
    "cartpole_unizero": {},
    "pendulum_cont_sampled_muzero": {"num_simulations": 2},
    "tictactoe_sampled_alphazero_sp_mode": {},
    "pendulum_cont_disc_unizero": {"num_simulations": 2, "reanalyze_ratio": 0.25},  # its learner searches, too
}


def plan_for(name: str, folder: Path, **more: Any) -> Plan:
    from lzero_async.lightzero.options import build_options
    from lzero_async.lightzero.running import compile_plan

    call = shrink(captured(name), env_manager="base", target_update_freq=3, **more)
    folder.mkdir(parents=True, exist_ok=True)
    return compile_plan(call, call.main, build_options({}), folder)


def collects(plan: Plan, number: int) -> list[Parcel]:
    role = CollectorRole(Parts(plan, (COLLECTOR,)), lambda event: None)
    weights = Parcel(Parts(plan, (LEARNER,)).weights())
    found = [role.collect(CollectOrder(0, n, 0, 0, 0), weights, CallStop()) for n in range(number)]
    role.close()
    return found


def train(role: LearnerRole, batches: list[Parcel]) -> list[str]:
    digests = []
    for batch in batches:
        role.train(batch, 1_000, batch.meta["temperature"], batch.meta["epsilon"])
        digests.append(role.digest())
    return digests


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_loaded_learner_makes_the_same_updates_bit_by_bit(name: str, tmp_path: Path) -> None:
    with quiet():
        plan = plan_for(name, tmp_path / "run", **CONFIGS[name])
        batches = collects(plan, 4)
        first = LearnerRole(Parts(plan, (LEARNER,)), lambda event: None)
        train(first, batches[:2])
        path = str(tmp_path / "run" / "ckpt" / "x.safetensors")
        first.save(path, {"some": "state"}, batches[2:])
        expected = train(first, batches[2:])
        other = Parts(Plan(**{**vars(plan), "config": {**plan.config, "seed": 99}}), (LEARNER,))
        second = LearnerRole(other, lambda event: None)
        assert second.digest() != first.digest()
        assert second.load(path) == 2
        waiting = [second.waiting(place) for place in range(2)]
    assert [one.meta for one in waiting] == [one.meta for one in batches[2:]]
    with quiet():
        found = train(second, waiting)
    assert len(set(expected)) == 2 and found == expected
    assert second.updates == first.updates >= 15
    best = first.weights()
    with quiet():
        first.save_weights(str(tmp_path / "best.safetensors"), {}, best)
        train(first, batches[:1])  # the best weights are not the newest
        other.policy.learn_mode.load_state_dict(load_file(str(tmp_path / BEST), "cpu"))
    assert other.digest() == digest_of(best.open()) != first.digest()


def test_updates_that_are_not_possible_yet_are_none_and_said(tmp_path: Path) -> None:
    with quiet():
        plan = plan_for("cartpole_muzero", tmp_path / "run", batch_size=1_000)
        role = LearnerRole(Parts(plan, (LEARNER,)), lambda event: None)
        (batch,) = collects(plan, 1)
        done = role.train(batch, batch.meta["steps"], 0.25, 0.0)
    assert done["updates"] == 0 and "a batch of 1,000 needs more" in done["missing"]
    assert done["buffer"] == batch.meta["steps"]


def test_what_lightzero_records_reaches_the_owner_with_its_tags(tmp_path: Path) -> None:
    events: list[Any] = []
    with quiet():
        plan = plan_for("cartpole_muzero", tmp_path / "run")
        role = LearnerRole(Parts(plan, (LEARNER,)), events.append)
        train(role, collects(plan, 1))
    tags = {tag for kind, rows in events for tag, _, _ in rows if kind == "scalars"}
    assert {"Buffer/num_of_transitions", "Buffer/memory_usage/game_segment_buffer", "learner_iter/cur_lr_avg"} <= tags


def test_a_train_that_breaks_off_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lzero_async.errors import ConfigError

    with quiet():
        plan = plan_for("cartpole_muzero", tmp_path / "run")
        role = LearnerRole(Parts(plan, (LEARNER,)), lambda event: None)
        (batch,) = collects(plan, 1)
    monkeypatch.setattr(role.parts.buffer, "sample", lambda *args: 1 / 0)
    with quiet(), pytest.raises(ZeroDivisionError):
        role.train(batch, 10, 0.25, 0.0)
    with pytest.raises(ConfigError, match="broke off a train"):
        role.save(str(tmp_path / "x"), {}, [])


def test_weights_that_are_not_finite_are_not_handed_out(tmp_path: Path) -> None:
    import torch

    from lzero_async.errors import BadData

    with quiet():
        role = LearnerRole(Parts(plan_for("cartpole_muzero", tmp_path / "run"), (LEARNER,)), lambda event: None)
    with torch.no_grad():
        next(role.parts.policy._collect_model.parameters()).view(-1)[0] = float("nan")
    with pytest.raises(BadData, match="not finite"):
        role.weights()


def test_the_collectors_episodes_are_new_in_every_life(tmp_path: Path) -> None:
    with quiet():
        plan = plan_for("pendulum_cont_sampled_muzero", tmp_path / "run", num_simulations=2)
        weights = Parcel(Parts(plan, (LEARNER,)).weights())
        starts = []
        for worker, number in ((0, 0), (0, 0), (0, 5), (1, 0)):
            role = CollectorRole(Parts(plan, (COLLECTOR,), worker), lambda event: None)
            batch = role.collect(CollectOrder(3, number, 0, 0, 0), weights, CallStop())
            starts.append(np.asarray(batch.open().data[0].obs_segment[0]).tobytes())
            assert (
                batch.meta["began_with"] == 3 and batch.meta["steps"] > 0 and batch.open().data[0].action_space is None
            )
            role.close()
    assert starts[0] == starts[1] and len(set(starts)) == 3


def test_a_collect_ends_when_the_run_does_and_the_next_one_begins_anew(tmp_path: Path) -> None:
    from lzero_async.errors import Stopped

    with quiet():
        plan = plan_for("cartpole_muzero", tmp_path / "run")
        role = CollectorRole(Parts(plan, (COLLECTOR,)), lambda event: None)
        weights, stop = Parcel(Parts(plan, (LEARNER,)).weights()), CallStop()
        stop.set("stop")
        with pytest.raises(Stopped):
            role.collect(CollectOrder(0, 0, 0, 0, 0), weights, stop)
        again = role.collect(CollectOrder(0, 1, 0, 0, 0), weights, CallStop())
    assert again.meta["steps"] == again.open().length(plan.config["policy"]["game_segment_length"])
    role.close()


def test_only_the_roles_parts_are_built(tmp_path: Path) -> None:
    with quiet():
        plan = plan_for("cartpole_muzero", tmp_path / "run")
        parts = Parts(plan, (COLLECTOR,))
    assert parts.evaluator is None and not hasattr(parts, "buffer")
    parts.collector.close()
