"""The learning roles of `zoo.mbpo` by themselves, in this process: what they owe for the data that came, and what one that
starts from others' state has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lzero_async import Parcel, make_backend
from tests.zoo.mbpo.test_numerics import linear_world, numbered
from zoo.mbpo.learn import model_roles as learning
from zoo.mbpo.learn.dynamics import held_out
from zoo.mbpo.learn.model_roles import DynamicsRole, RolloutRole
from zoo.mbpo.learn.roles import AgentRole, LearnerRole
from zoo.mbpo.options import build_options
from zoo.mbpo.roles import make_role

TINY = {
    "hidden_size": 8, "hidden_layers": 1, "batch_size": 32, "ensemble_size": 2, "num_elites": 1, "dynamics_hidden_size": 4,
    "dynamics_layers": 1, "dynamics_batch_size": 8, "rollout_length": 1, "device": "cpu", "torch_threads": 1,
}  # fmt: skip
LARGE = 2_048  # transitions of a batch of the largest preset
LONG = 600.0  # seconds, longer than any test


def make(role: Callable[..., Any], sizes: tuple[int, int] = (2, 1), **changes: Any) -> Any:
    """A role of the continuous trainer."""
    return role(build_options({**TINY, "trainer": "continuous", **changes}), sizes, lambda event: None)


def batch(count: int, seed: int = 0, version: int = 0) -> Parcel:
    return Parcel(linear_world(count, seed), {"version": version, "steps": count})


@pytest.fixture(autouse=True)
def _as_many_threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


# -- dynamics: what is owed ----------------------------------------------------------------------------------------------


def test_dynamics_make_all_the_updates_that_one_large_batch_owes() -> None:
    role = make(DynamicsRole, dynamics_updates_per_step=0.5)
    report = role.fit([LARGE], [batch(LARGE)])
    assert (report["dynamics_updates"], report["dynamics_updates_forgotten"]) == (LARGE // 2, 0)
    assert LARGE // 2 > learning.MAX_FIT_UPDATES
    assert report["seconds"] < LONG


def test_dynamics_that_are_behind_forget_what_is_owed_beyond_one_train() -> None:
    role = make(DynamicsRole, dynamics_updates_per_step=0.25)
    report = role.fit([LARGE] * 3, [batch(LARGE)])
    made, forgotten = report["dynamics_updates"], report["dynamics_updates_forgotten"]
    assert LARGE // 4 <= made <= LARGE // 4 + 1
    assert made + forgotten == 3 * LARGE // 4


def test_dynamics_that_are_behind_with_small_batches_forget_what_is_beyond_the_usual_pass() -> None:
    role = make(DynamicsRole, dynamics_updates_per_step=0.5)
    assert role.fit([16] * 10, [batch(16)])["dynamics_updates"] == 80  # ten trains at once are no reason to forget
    report = role.fit([16] * 100, [])
    assert report["dynamics_updates"] == 80 + learning.MAX_FIT_UPDATES
    assert report["dynamics_updates_forgotten"] == 800 - learning.MAX_FIT_UPDATES


def test_dynamics_that_keep_up_never_forget_a_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MAX_FIT_UPDATES", 10)
    role = make(DynamicsRole, dynamics_updates_per_step=0.7)
    made = [role.fit([101], [batch(101)])["dynamics_updates"] for _ in range(5)]
    assert made == [int(0.7 * 101 * passes) for passes in range(1, 6)]
    assert role.fit([0], [])["dynamics_updates_forgotten"] == 0


def test_dynamics_wait_for_a_row_to_train_on_and_make_what_they_owe_then() -> None:
    role = make(DynamicsRole, dynamics_updates_per_step=3.0)
    first = role.fit([1], [batch(1)])
    assert (first["dynamics_updates"], first["weights"]) == (0, None)
    second = role.fit([1], [batch(1, seed=1)])
    assert (second["dynamics_updates"], second["dynamics_version"]) == (6, 1)


# -- rollouts: what is owed ----------------------------------------------------------------------------------------------


class Rolled:
    """A role of rollouts with all that it needs, and the numbers of rollouts that were begun at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        self.role = make(RolloutRole, **changes)
        self.policy = (0, make(AgentRole).weights())
        self.dynamics = (1, make(DynamicsRole, dynamics_updates_per_step=0.01).fit([200], [batch(200)])["weights"])
        self.begun: list[int] = []
        rollout = learning.rollout

        def noted(dynamics: Any, act: Any, starts: Any, length: int) -> Any:
            self.begun.append(len(starts))
            return rollout(dynamics, act, starts, length)

        monkeypatch.setattr(learning, "rollout", noted)

    def roll(self, steps: list[int], batches: list[Parcel]) -> Parcel:
        self.begun.clear()
        return self.role.roll(steps, batches, self.policy, self.dynamics)


def test_rollouts_begin_all_that_one_large_batch_owes_in_parts_of_the_usual_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rolled = Rolled(monkeypatch, rollouts_per_step=0.7, rollout_batch_size=100)
    rows = rolled.roll([LARGE], [batch(LARGE)])
    owed = int(0.7 * LARGE)
    assert rolled.begun == [100] * (owed // 100) + [owed % 100]
    assert rows.meta["steps"] + rows.meta["model_dropped"] == owed
    assert rows.open().count == rows.meta["steps"] > owed // 2
    assert rows.meta["rollouts_forgotten"] == 0


def test_rollouts_that_are_behind_forget_what_is_owed_beyond_one_train(monkeypatch: pytest.MonkeyPatch) -> None:
    rolled = Rolled(monkeypatch, rollouts_per_step=0.5, rollout_batch_size=100)
    rows = rolled.roll([LARGE] * 3, [batch(LARGE)])
    assert LARGE // 2 <= sum(rolled.begun) <= LARGE // 2 + 1
    assert sum(rolled.begun) + rows.meta["rollouts_forgotten"] == 3 * LARGE // 2
    before = rows.meta["rollouts_forgotten"]
    rows = rolled.roll([16] * 10, [])
    assert (rolled.begun, rows.meta["rollouts_forgotten"]) == ([80], before)
    rows = rolled.roll([16] * 30, [])
    assert (rolled.begun, rows.meta["rollouts_forgotten"]) == ([100], before + 140)


def test_rollouts_tell_the_seconds_that_they_worked(monkeypatch: pytest.MonkeyPatch) -> None:
    rolled = Rolled(monkeypatch, rollouts_per_step=0.5, rollout_batch_size=10)
    monkeypatch.setattr(learning, "time", SimpleNamespace(monotonic=iter([1_000.0, 1_003.0]).__next__))
    assert rolled.roll([64], [batch(64)]).meta["seconds"] == 3.0


# -- agent: what is owed -------------------------------------------------------------------------------------------------


def test_replays_owe_nothing_while_there_is_no_batch_to_draw() -> None:
    role = make(AgentRole, updates_per_step=0.5)

    def updates(parcel: Parcel | None, steps: int) -> int:
        return int(role.train(0, 0, parcel, steps, [], 0)["updates"])

    assert updates(batch(16), 16) == 0  # 16 rows of the 32 that an update draws: 8 are owed
    assert [updates(None, 16) for _ in range(4)] == [0] * 4
    assert updates(batch(16, seed=1), 16) == 16
    assert [updates(None, steps) for steps in (16, 10, 0, 4)] == [8, 5, 0, 2]
    assert updates(batch(6, seed=2), 6) == 3


# -- all in one ----------------------------------------------------------------------------------------------------------


def test_a_learner_whose_first_batch_is_one_row_owes_its_fits_until_there_are_two() -> None:
    role = make(LearnerRole, dynamics_updates_per_step=3.0, rollouts_per_step=2.0, updates_per_step=1.0, batch_size=4)
    first = role.train(0, 0, batch(1))
    assert (first["dynamics_updates"], first["updates"], first["model_data"]) == (0, 0, 0)
    second = role.train(0, 1, batch(1, seed=1))
    assert (second["dynamics_updates"], second["updates"]) == (6, 0)
    third = role.train(0, 2, batch(2, seed=2))
    assert (third["dynamics_updates"], third["updates"]) == (12, 4)


# -- roles that start from others' state -----------------------------------------------------------------------------------


def numbers_and_serials(buffer: Any) -> dict[float, int]:
    """The serial number of each transition, by the number that it says itself."""
    numbers = buffer.take(torch.arange(buffer.count)).obs[:, 0]
    return dict(zip(np.asarray(numbers).tolist(), buffer.serials().tolist(), strict=True))


def hand_over(agent: AgentRole, role: Any) -> None:
    rows = agent.real_rows()
    role.restore(rows) if isinstance(role, RolloutRole) else role.restore(None, 0, 0, rows)


@pytest.mark.parametrize("kind", [DynamicsRole, RolloutRole])
@pytest.mark.parametrize("added", [0, 48, 64, 112])
def test_a_role_that_is_restored_numbers_transitions_as_the_agent_does(kind: Any, added: int) -> None:
    """Also when the agent's buffer of 64 is full and has lost its first ones; by these numbers rows are held out."""
    sizes, options = (3, 1), {"real_buffer_size": 64}
    agent, role = make(AgentRole, sizes, **options), make(kind, sizes, **options)
    for first in range(0, added, 16):
        agent.train(0, 0, Parcel(numbered(first, 16)), 16, [], 0)
    hand_over(agent, role)
    assert role._real.total_added == added
    for first in range(added, added + 32, 16):
        agent.learner.take(numbered(first, 16), 0)
        role._real.add(numbered(first, 16), 0)
    own, known = numbers_and_serials(role._real), numbers_and_serials(agent.learner.real)
    assert own == known
    assert own == {float(serial): serial for serial in range(max(0, added - 32), added + 32)}
    held = [held_out(buffer.serials(), 0.1).nonzero().shape[0] for buffer in (role._real, agent.learner.real)]
    assert held[0] == held[1] > 0


@pytest.mark.parametrize("backend", ["inline", "thread"])
def test_the_weights_that_a_loaded_role_gives_out_stay_as_they_are(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    saved = make(LearnerRole, dynamics_updates_per_step=0.5)
    saved.train(0, 0, batch(64))
    saved.save(str(path), {}, [])
    options = build_options({**TINY, "trainer": "continuous", "dynamics_updates_per_step": 0.5})
    home = make_backend(backend)
    try:
        worker = home.start("dynamics", partial(make_role, "DynamicsRole", options, (2, 1)))
        weights = worker.call("load", str(path))["weights"]
        given = {name: value.clone() for name, value in weights.open().items()}
        later = worker.call("fit", [64], [batch(64, seed=1)])["weights"].open()
        assert all(torch.equal(value, given[name]) for name, value in weights.open().items())
        assert all(torch.equal(value, given[name]) for name, value in saved.learner.dynamics.weights().items())
        assert any(not torch.equal(value, given[name]) for name, value in later.items())
    finally:
        home.close()


def test_a_loaded_role_without_fits_gives_out_no_weights(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    saved = make(LearnerRole, dynamics_updates_per_step=0.0)
    saved.train(0, 0, batch(64))
    saved.save(str(path), {}, [])
    nothing = {"dynamics_updates": 0, "dynamics_version": 0, "dynamics_bad_updates": 0}
    assert make(DynamicsRole).load(str(path)) == {**nothing, "weights": None}
