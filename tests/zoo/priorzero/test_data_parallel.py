"""A learner of several ranks learns what one process learns, survives the loss of a rank, and never waits in vain."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lzero_async import Parcel, make_backend
from lzero_async.errors import ConfigError, Stopped, WorkerDied
from lzero_async.lightzero.silence import quiet
from lzero_async.runs.role_set import thread_limit
from lzero_async.workers.calls import CallStop
from tests.zoo.priorzero.test_learner import FEATURES, SLOTS, episode
from zoo.jericho.priorzero.learn.rank_errors import GroupBroken, RankFailed
from zoo.jericho.priorzero.learn.rank_group import RankGroup
from zoo.jericho.priorzero.options import backend_of, build_options, busy_roles, rank_device, unizero_config
from zoo.jericho.priorzero.play.batch import Collected
from zoo.jericho.priorzero.play.components import Parts
from zoo.jericho.priorzero.roles.learner import LearnerRole
from zoo.jericho.priorzero.roles.learner_group import LOOPBACK, LearnerGroup, on_loopback
from zoo.jericho.priorzero.roles.rank import RankRole

TRAINS = 20


class SmallParts(Parts):
    """UniZero over vectors of a few numbers, without games, text encoder and language model."""

    def unizero(self, device: str) -> Any:
        with quiet():
            return unizero_config(self.options, FEATURES, device)


def parts(ranks: int, **changes: object) -> SmallParts:
    values = {
        "embed_dim": 16, "num_heads": 2, "num_layers": 1, "num_unroll_steps": 5, "td_steps": 1, "batch_size": 8,
        "update_per_collect": 2, "game_segment_length": 5, "replay_buffer_size": 60, "grad_clip_value": 0.5,
        "hang_timeout": 30.0, "learner_ranks": ranks, **changes,
    }  # fmt: skip
    options = build_options(
        changes={"env_config.max_action_num": SLOTS, **{f"policy_config.{key}": value for key, value in values.items()}}
    )
    return SmallParts(options, None, Path(), threads=1)  # type: ignore[arg-type]


def collected(number: int) -> Parcel:
    """A batch of one longer episode and some of one step, so that the shares have unlike numbers of steps, and some of them
    no step that follows another."""
    long = episode(8, 10 * number, ended=bool(number % 2))
    return Parcel(Collected([long, *(episode(1, 10 * number + place) for place in range(1, 4))], 1.0))


def use_dropout(policy: Any, share: float) -> None:
    for model in (policy._model, policy._target_model):
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = share


class Follower(RankRole):
    """A rank that tells its weights, and comes to grief where a test wants it."""

    def weights(self) -> dict[str, torch.Tensor]:
        return dict(self.policy._learn_model._orig_mod.state_dict())

    def use_dropout(self, share: float) -> None:
        use_dropout(self.policy, share)

    def fail(self, update: int, how: str) -> None:
        """Once, in that update, fail in the loss or after the step, be killed, or get a loss that is not finite."""
        owner: Any = self.policy._model.world_model
        name = "compute_loss"
        if how == "not finite":
            owner, name = self._update, "_compute_loss"
        if how == "after the step":
            owner, name = self.policy._target_model, "update"
        real = getattr(owner, name)

        def failing(*args: Any, **kwargs: Any) -> Any:
            if self._update._share.update != update:
                return real(*args, **kwargs)
            setattr(owner, name, real)
            if how == "not finite":
                losses = real(*args, **kwargs)
                losses.intermediate_losses["loss_value"] = losses.intermediate_losses["loss_value"] * float("nan")
                return losses
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ArithmeticError("this rank cannot count")

        setattr(owner, name, failing)


class Leader(LearnerRole):
    """A learner that comes to grief while it samples, once, when a test wants it."""

    def use_dropout(self, share: float) -> None:
        use_dropout(self.learner.policy, share)

    def fail_sampling(self) -> None:
        sample = self.learner.buffer.sample

        def failing(*args: Any) -> Any:
            self.learner.buffer.sample = sample
            raise LookupError("nothing can be sampled")

        self.learner.buffer.sample = failing


class Ranks:
    """A learner of two ranks in processes, as PriorZero starts them; `restarts` counts what was made anew."""

    def __init__(self, folder: Path) -> None:
        self.backend = make_backend("process", hang_timeout=30.0)
        options = {"environment": {**thread_limit(1), **on_loopback()}}
        self.learner = self.backend.start("learner", partial(Leader, parts(2), "cpu"), **options)
        self.rank = self.backend.start("learner rank 1", partial(Follower, parts(2), 1, "cpu"), **options)
        self.restarts = 0
        self.group = LearnerGroup(
            self.learner,
            [self.rank],
            max_restarts=1,
            restart_backoff=0.01,
            given_up=lambda: False,
            on_restart=self._count,
        )
        self.beginning = str(folder / "beginning.safetensors")
        self.learner.call("save", self.beginning, {}, [])

    def _count(self) -> None:
        self.restarts += 1

    def train(self, trains: range) -> list[dict[str, Any]]:
        return [self.group.train(number, number, collected(number), stop=CallStop()) for number in trains]

    def weights(self) -> dict[str, torch.Tensor]:
        """Rank 0's, a copy; the other rank has the same bits."""
        found = {name: torch.as_tensor(value).clone() for name, value in self.learner.call("weights").open().items()}
        assert difference(found, self.rank.call("weights")) == 0
        return found


def difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], without: tuple[str, ...] = ()) -> float:
    """The largest difference of any number in any parameter and buffer, but those whose names end so."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one if not name.endswith(without))


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> None:
    """Looked at when the module's ranks are closed: a rank that was made anew has a new thread."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    before = set(threading.enumerate())  # what earlier tests of this process have left is not the ranks'
    ranks = Ranks(tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.backend.close()
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert not [thread.name for thread in left if thread.name.startswith("lzero")]


@pytest.fixture
def ranks(started: Ranks) -> Ranks:
    """As at the beginning, whatever the test before did."""
    started.learner.call("load", started.beginning)
    started.restarts = 0
    return started


@pytest.fixture(scope="module")
def undisturbed(started: Ranks) -> dict[str, torch.Tensor]:
    """The weights after three trains in which nothing fails."""
    started.learner.call("load", started.beginning)
    started.train(range(3))
    return started.weights()


# -- equality ----------------------------------------------------------------------------------------------------------

# A shift before a batch normalisation changes nothing: the gradient of that bias is rounding noise, which Adam blows up, and
# the running mean follows the bias.
NOISE = ("fc_representation.0.bias", "fc_representation.1.running_mean")


def test_two_ranks_learn_what_one_process_learns(ranks: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    alone = LearnerRole(parts(1), "cpu", lambda event: None)
    alone.load(ranks.beginning)
    begun = {name: value.clone() for name, value in alone.learner.weights().items()}
    expected = [alone.train(number, number, collected(number)) for number in range(TRAINS)]
    found = ranks.train(range(TRAINS))
    one, two = alone.learner.weights(), ranks.weights()
    largest, shift = difference(one, two, NOISE), difference(one, two)
    with capsys.disabled():
        print(f"\nafter {TRAINS} trains: {largest:.1e}; with the bias that does nothing: {shift:.1e}", end=" ")
    assert difference(begun, one) > 0.1  # something was learned
    assert largest < 5e-6
    assert shift < 1e-3
    for before, after in zip(expected, found, strict=True):
        assert after["losses"] == pytest.approx(before["losses"], rel=1e-4, abs=1e-6)
        assert after["report"] == before["report"]
        assert {name: after[name] for name in ("updates", "total_updates", "buffer")} == {
            name: before[name] for name in ("updates", "total_updates", "buffer")
        }
    assert found[-1]["total_updates"] == 2 * TRAINS  # an update of the group is one


def test_a_resumed_learner_goes_on_exactly(ranks: Ranks, tmp_path: Path) -> None:
    path = str(tmp_path / "middle.safetensors")
    for worker in (ranks.learner, ranks.rank):
        worker.call("use_dropout", 0.2)
    try:
        ranks.train(range(3))
        ranks.learner.call("save", path, {}, [])
        ranks.train(range(3, 6))
        straight = ranks.weights()
        ranks.learner.call("load", path)
        ranks.train(range(3, 6))
        assert difference(straight, ranks.weights()) == 0
    finally:
        for worker in (ranks.learner, ranks.rank):
            worker.call("use_dropout", 0.0)


def test_one_rank_knows_nothing_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("roles.rank", "learn.rank_group", "learn.ddp_update", "learn.ddp_norm"):
        monkeypatch.setitem(sys.modules, f"zoo.jericho.priorzero.{name}", None)  # whoever imports it fails
    assert LearnerRole(parts(1), "cpu", lambda event: None).train(0, 0, collected(0))["updates"] == 2


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["in the loss", "after the step"])
def test_what_fails_in_a_rank_is_raised_and_undone(
    ranks: Ranks, undisturbed: dict[str, torch.Tensor], how: str
) -> None:
    ranks.train(range(1))
    before = ranks.weights()
    ranks.rank.call("fail", 3, how)
    with pytest.raises(ArithmeticError, match="cannot count"):
        ranks.train(range(1, 2))
    assert ranks.learner.call("ready") == 2
    assert difference(before, ranks.learner.call("weights").open()) == 0
    ranks.train(range(1, 3))
    assert difference(undisturbed, ranks.weights()) == 0
    assert ranks.restarts == 0


def test_a_loss_that_is_not_finite_in_one_rank_is_left_out_by_all(ranks: Ranks) -> None:
    ranks.train(range(1))
    before = ranks.weights()
    ranks.rank.call("fail", 2, "not finite")
    (done,) = ranks.train(range(1, 2))
    assert (done["updates"], done["bad_updates"]) == (1, 1) and ranks.restarts == 0
    after = ranks.weights()  # of both ranks, the same bits
    assert 0 < difference(before, after) < float("inf")
    assert ranks.learner.call("ready") == 3
    assert ranks.train(range(2, 3))[0]["updates"] == 2


def test_what_fails_in_rank_0_is_raised_and_undone(ranks: Ranks, undisturbed: dict[str, torch.Tensor]) -> None:
    ranks.train(range(1))
    ranks.learner.call("fail_sampling")
    with pytest.raises(LookupError, match="nothing can be sampled"):
        ranks.train(range(1, 2))
    ranks.train(range(1, 3))
    assert difference(undisturbed, ranks.weights()) == 0


def test_ranks_do_not_wait_for_a_train_that_never_began(ranks: Ranks, undisturbed: dict[str, torch.Tensor]) -> None:
    ranks.train(range(1))
    for bad in (Parcel(lambda: 0), Parcel(3)):  # one that cannot be sent, one that cannot be used
        with pytest.raises((AttributeError, pickle.PicklingError)):
            ranks.group.train(1, 1, bad, stop=CallStop())
    ranks.train(range(1, 3))
    assert difference(undisturbed, ranks.weights()) == 0


@pytest.mark.parametrize("when", [pytest.param("between trains", marks=pytest.mark.soak), "in an update"])
def test_a_lost_rank_comes_back_with_the_state_of_rank_0(
    ranks: Ranks, undisturbed: dict[str, torch.Tensor], when: str
) -> None:
    ranks.train(range(1))
    if when == "between trains":
        ranks.rank.kill()
    else:
        ranks.rank.call("fail", 3, "killed")
    ranks.train(range(1, 3))
    assert ranks.restarts == 1
    assert difference(undisturbed, ranks.weights()) == 0


def test_ranks_that_do_not_come_are_waited_for_no_longer_than_that() -> None:
    group = RankGroup(0, 2, "cpu", join_timeout=0.2, timeout=1.0)
    address = group.open(LOOPBACK)
    assert address[0] == LOOPBACK
    with pytest.raises(GroupBroken, match=r"did not all meet .* within 0.2 s"):
        group.join(address, 0)
    assert group.generation == -1
    nobody = RankGroup(1, 2, "cpu", join_timeout=0.2, timeout=1.0)
    with socket.create_server((LOOPBACK, 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(GroupBroken, match="did not all meet"):
        nobody.join((LOOPBACK, port), 0)


def test_a_rank_that_dies_while_all_meet_is_waited_for_no_longer_than_that() -> None:
    group = RankGroup(0, 2, "cpu", join_timeout=0.5, timeout=60.0)
    address = group.open(LOOPBACK)
    other = dist.TCPStore(*address, None, False)
    dist.PrefixStore("generation 0", other).set("rank 1", b"here")  # it came, and was never seen again
    start = time.monotonic()
    with pytest.raises(GroupBroken, match="did not all meet"):
        group.join(address, 0)
    assert time.monotonic() - start < 30.0


# -- the coordinating process ------------------------------------------------------------------------------------------


class FakeWorker:
    """A worker whose calls do what a list says: raise an exception, or return a value; ending it makes it dead."""

    def __init__(self, name: str, *outcomes: Any) -> None:
        self.name, self.alive, self.calls, self._outcomes = name, True, [], list(outcomes)

    def call(self, method: str, *arguments: Any) -> Any:
        self.calls.append((method, *arguments))
        if not self.alive:
            raise WorkerDied(f"{self.name} is dead")
        if method in ("ready", "meet", "dismiss"):
            return None
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, WorkerDied):
            self.alive = False
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def kill(self) -> None:
        self.alive = False

    def restart(self) -> None:
        self.alive = True


def together(learner: FakeWorker, *ranks: FakeWorker, restarts: int = 1, stop: CallStop | None = None) -> Any:
    group = LearnerGroup(
        learner, ranks, max_restarts=restarts, restart_backoff=0.001, given_up=lambda: False, on_restart=lambda: None
    )
    return group.train("batch", stop=stop or CallStop())


GONE, LOST = GroupBroken("the others are gone"), RankFailed("another rank failed")


def test_the_first_cause_of_a_failed_train_is_raised() -> None:
    with pytest.raises(WorkerDied, match="rank 1 was ended"):
        together(FakeWorker("learner", GONE), FakeWorker("rank 1", WorkerDied("rank 1 was ended")), restarts=0)
    with pytest.raises(ArithmeticError):
        together(FakeWorker("learner", LOST), FakeWorker("rank 1", LOST), FakeWorker("rank 2", ArithmeticError("no")))
    with pytest.raises(LookupError):
        together(FakeWorker("learner", LookupError("no")), FakeWorker("rank 1", GONE))


def test_without_its_leader_no_rank_goes_on() -> None:
    rank = FakeWorker("rank 1", GONE)
    with pytest.raises(WorkerDied, match="learner was ended"):
        together(FakeWorker("learner", WorkerDied("learner was ended")), rank)
    assert not rank.alive


def test_a_group_that_breaks_is_made_anew_so_often_and_no_more() -> None:
    learner, rank = FakeWorker("learner", GONE, GONE, {"updates": 1}), FakeWorker("rank 1", GONE, GONE, None)
    assert together(learner, rank, restarts=2) == {"updates": 1}
    assert [call[-1] for call in rank.calls if call[0] == "follow"] == [0, 1, 2]  # a new generation each time
    with pytest.raises(GroupBroken):
        together(FakeWorker("learner", GONE, GONE), FakeWorker("rank 1", GONE, GONE), restarts=1)


def test_a_run_that_is_interrupted_brings_no_rank_back() -> None:
    stop = CallStop()
    stop.set("SIGINT")
    with pytest.raises(Stopped) as caught:
        together(FakeWorker("learner", GONE, {}), FakeWorker("rank 1", GONE, None), stop=stop)
    assert caught.value.origin is stop


def test_a_rank_that_is_lost_after_its_train_costs_nothing() -> None:
    learner, rank = FakeWorker("learner", {"updates": 1}), FakeWorker("rank 1", WorkerDied("rank 1 was ended"))
    assert together(learner, rank) == {"updates": 1}


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learner_ranks": 0}, ["learner_ranks", "0", "at least 1"]),
        ({"learner_ranks": 3}, ["batch_size is 32", "3 learner ranks", "30"]),
        ({"learner_ranks": 64, "batch_size": 32}, ["batch_size is 32", "64"]),
        ({"learner_ranks": 2, "backend": "thread"}, ["process of its own", "'thread'"]),
        ({"learner_ranks": 2, "backend": "inline"}, ["process of its own", "'inline'"]),
        ({"learner_ranks": 2, "learner_device": "cuda:0"}, ["cuda:0", "GPU each"]),
        ({"learner_ranks": 2, "learner_device": "cuda:1,cuda:1"}, ["cuda:1,cuda:1", "GPU each"]),
        ({"learner_ranks": 2, "learner_device": "cuda:0,cpu"}, ["cuda:0,cpu", "CPU all of them"]),
        ({"learner_ranks": 4, "learner_device": "cuda:0,cuda:1"}, ["4 learner ranks", "one device for each"]),
        ({"learner_device": "cuda:0,cuda:1"}, ["one learner", "learner_ranks to 2"]),
        ({"learner_ranks": 2, "learner_device": "tpu,cpu"}, ["policy_config.device", "tpu"]),
    ],
)
def test_bad_options_are_one_sentence(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        build_options(changes={f"policy_config.{name}": value for name, value in changes.items()})
    for word in words:
        assert word in str(caught.value)


def test_ranks_are_processes_and_count_as_busy() -> None:
    options = build_options(changes={"policy_config.learner_ranks": 2})
    assert backend_of(options) == "process"
    assert busy_roles(options) == 2
    assert (
        busy_roles(build_options(changes={"policy_config.learner_ranks": 2, "policy_config.off_policy_degree": 2})) == 3
    )


def test_a_rank_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [rank_device("auto", rank, 2) for rank in range(2)] == ["cuda:0", "cuda:1"]
    assert rank_device("cuda:1", 0, 2) == "cuda:1"
    assert rank_device("auto", 0, 1) == "cuda"
    with pytest.raises(ConfigError, match="learner_ranks is 3, but torch finds 2 GPU"):
        rank_device("cuda", 0, 3)
