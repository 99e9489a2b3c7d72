"""Numbers that are not finite, or of a wrong shape, never reach PriorZero's learner, and what is refused is counted."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from lzero_async import Parcel
from lzero_async.errors import BadData, ConfigError
from lzero_async.runs import checkpoint
from lzero_async.runs.soundness import first_bad
from tests.zoo.priorzero.test_data_parallel import collected, parts
from tests.zoo.priorzero.test_env import FakeProcess
from tests.zoo.priorzero.test_learner import episode, new_learner
from tests.zoo.priorzero.test_play import LLM, RANDOM, CountingEnv, GatedEnv, MaskFree, NumberEncoder
from zoo.jericho.priorzero.games import jericho_env
from zoo.jericho.priorzero.games.files import SHIPPED_GAME, find_game
from zoo.jericho.priorzero.games.jericho_env import JerichoEnv
from zoo.jericho.priorzero.games.process import GameHung
from zoo.jericho.priorzero.learn.careful import MOST_BAD_UPDATES
from zoo.jericho.priorzero.learn.saving import CHECKPOINT
from zoo.jericho.priorzero.play.batch import Collected
from zoo.jericho.priorzero.play.episodes import Player, Style
from zoo.jericho.priorzero.play.search import RootOutput
from zoo.jericho.priorzero.roles.learner import LearnerRole

NAN, INF = float("nan"), float("inf")

# -- where it arises: the game -----------------------------------------------------------------------------------------

NONSENSE = {
    "NaN": {"reward": NAN},
    "inf": {"reward": -INF},
    "an array": {"reward": np.ones(2)},
    "no number": {"score": None},
    "no text": {"look": None},
    "bytes": {"response": b"hello"},
    "no actions": {"valid_actions": None},
    "actions of a wrong kind": {"valid_actions": ("go", 3)},
}


@pytest.mark.parametrize("bad", NONSENSE.values(), ids=NONSENSE.keys())
def test_a_state_that_no_game_can_be_in_ends_the_episode(monkeypatch: pytest.MonkeyPatch, bad: dict[str, Any]) -> None:
    class Liar(FakeProcess):
        said: ClassVar[dict[str, Any]] = {}

        def end_step(self) -> Any:
            return dataclasses.replace(self.end_reset(), **self.said)

    monkeypatch.setattr(jericho_env, "GameProcess", Liar)
    env = JerichoEnv({"max_action_num": 3})
    env.reset()
    assert not env.step("look").done
    Liar.said = bad
    end = env.step("look")
    assert end.done and end.info["abnormal"] and not end.info["hung"] and end.reward == 0.0
    assert next(iter(bad)) in end.info["failure"] and env.game.label in end.info["failure"]
    assert env.statistics()["abnormal_ends"] == 1 and env.statistics()["timeouts"] == 0
    Liar.said = {}
    env.reset()
    assert not env.step("look").done and env.statistics()["process_starts"] == 2


def test_a_hang_at_the_beginning_of_a_game_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hung(FakeProcess):
        def end_reset(self) -> Any:
            raise GameHung("it did not answer")

    monkeypatch.setattr(jericho_env, "GameProcess", Hung)
    env = JerichoEnv({})
    with pytest.raises(GameHung):
        env.reset()
    assert env.statistics()["timeouts"] == 3  # every try


# -- where it arises: an episode ---------------------------------------------------------------------------------------


class Poisoned(CountingEnv):
    """Its second step of the first episode is bad."""

    def __init__(self, poison: Any) -> None:
        super().__init__(4)
        self.poison = poison

    def end_step(self) -> SimpleNamespace:
        timestep = super().end_step()
        if self.steps == 2 and self.episodes == 1:
            self.poison(timestep)
        return timestep

    def __repr__(self) -> str:
        return "Poisoned"

    def close(self) -> None:
        pass


def _crash(timestep: Any) -> None:
    raise RuntimeError("the game fell over")


POISONS = {
    "NaN reward": lambda timestep: setattr(timestep, "reward", NAN),
    "inf reward": lambda timestep: setattr(timestep, "reward", INF),
    "reward of a wrong shape": lambda timestep: setattr(timestep, "reward", np.ones(2)),
    "mask of a wrong shape": lambda timestep: timestep.obs.update(action_mask=np.ones(2, np.int8)),
    "mask without an action": lambda timestep: timestep.obs.update(action_mask=np.zeros(3, np.int8)),
    "exception": _crash,
}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS.keys())
def test_a_bad_step_fails_its_episode_alone(caplog: pytest.LogCaptureFixture, poison: Any, asynchronous: bool) -> None:
    envs = [Poisoned(poison), Poisoned(lambda _: None)]
    player = Player(envs, NumberEncoder(), None, None, asynchronous=asynchronous)
    with caplog.at_level(logging.WARNING):
        played = player.play(3, np.random.default_rng(0), RANDOM)
    assert [len(one) for one in played] == [4, 4, 4] and all(np.isfinite(one.rewards).all() for one in played)
    assert player.troubles == {"bad_episodes": 1}
    (said,) = [record.getMessage() for record in caplog.records if "failed" in record.getMessage()]
    assert "Poisoned" in said and "once more" in said


class BadEncoder(NumberEncoder):
    """Has no finite vector for the second observation of the first game that it sees."""

    first: float | None = None

    def __call__(self, observations: Any) -> np.ndarray:
        rows = super().__call__(observations)
        self.first = rows[0, 0] if self.first is None else self.first
        rows[(rows[:, 0] == self.first) & (rows[:, 1] == 1)] = INF
        return rows


def test_a_vector_that_is_not_finite_fails_its_episode() -> None:
    player = Player([Poisoned(lambda _: None)] * 1, BadEncoder(), None, None)
    played = player.play(2, np.random.default_rng(0), RANDOM)
    assert len(played) == 2 and all(np.isfinite(one.observations).all() for one in played)
    assert player.troubles == {"bad_episodes": 1} and player.isolated == 0


def test_the_text_encoder_never_keeps_a_vector_that_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    from zoo.jericho.priorzero.play.text_encoder import TextEncoder

    kept: dict[bytes, bytes] = {}
    store = SimpleNamespace(get_many=lambda keys: {key: kept[key] for key in keys if key in kept}, put_many=kept.update)
    encoder, bad = TextEncoder(store=store), ["poison"]
    real = encoder._encode
    spoil = lambda texts: [row * (NAN if text in bad else 1) for text, row in zip(texts, real(texts), strict=True)]  # noqa: E731
    monkeypatch.setattr(encoder, "_encode", spoil)
    rows = encoder([("a room", "a lamp"), ("a room", "poison")])
    assert np.isfinite(rows[0]).all() and not np.isfinite(rows[1]).all()
    assert len(kept) == 2 and set(encoder._vectors) == {"a room", "a lamp"}
    kept[encoder._key("poison")] = np.full(encoder.width, NAN, np.float32).tobytes()
    bad.clear()
    assert np.isfinite(encoder([("a room", "poison")])).all()


class FakeSearch:
    """Finds what it is told to, once; then the first action."""

    max_window = 1

    def __init__(self, *found: RootOutput) -> None:
        self.found = list(found)

    def run(self, roots: Any, *args: Any, **options: Any) -> list[RootOutput]:
        good = RootOutput(np.array([1, 0, 0], np.float32), 0.0, 0.0, np.zeros(3, np.float32))
        return [self.found.pop() if self.found else good for _ in roots]


@pytest.mark.parametrize(
    ("visits", "value", "predicted"),
    [
        ([NAN, NAN, NAN], 0.0, 0.0),
        ([0, 0, 0], 0.0, 0.0),
        ([0, 1, 0], 0.0, 0.0),  # which is not valid
        ([1, 0], 0.0, 0.0),
        ([1, 0, 0], NAN, 0.0),
        ([1, 0, 0], 0.0, -INF),
    ],
)
def test_a_search_without_a_sound_result_fails_its_episode(visits: list, value: float, predicted: float) -> None:
    bad = RootOutput(np.array(visits, np.float32), value, predicted, np.zeros(3, np.float32))
    player = Player([Poisoned(lambda _: None)], NumberEncoder(), FakeSearch(bad), None)
    (played,) = player.play(1, np.random.default_rng(0), Style(mode="world_model", temperature=0))
    assert len(played) == 4 and player.troubles == {"bad_episodes": 1} and player.isolated == 0


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "answer", [np.full(3, np.nan, np.float32), np.full(3, np.inf, np.float32), np.zeros(2, np.float32), None]
)
def test_a_prior_that_is_none_is_replaced_by_an_even_one(answer: Any, asynchronous: bool) -> None:
    told: list[str] = []
    player = Player(
        [MaskFree(2)], NumberEncoder(), None, lambda requests: [answer for _ in requests], asynchronous=asynchronous,
        on_trouble=told.append,
    )  # fmt: skip
    try:
        (played,) = player.play(1, np.random.default_rng(0), LLM)
    finally:
        player.close()
    assert played.priors is not None
    np.testing.assert_allclose(np.exp(played.priors), 1 / 3, rtol=1e-5)
    assert told == ["refused_priors"] * 2


# -- at the learner's door ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learner() -> Any:
    return new_learner(update_per_collect=1, dropout=0.0, learning_rate=1e-3)


def spoiled(name: str, value: float) -> Any:
    found = episode(6)
    array = getattr(found, name)
    array[(2,) * array.ndim] = value
    return found


BAD_EPISODES = {
    **{f"{value} in {name}": spoiled(name, value) for value in (NAN, INF)
       for name in ("observations", "rewards", "visits", "root_values", "predicted_values")},
    "an action that is no slot": spoiled("actions", 99),
    "a reward too few": dataclasses.replace(episode(6), rewards=episode(5).rewards),
    "wide observations": dataclasses.replace(episode(6), observations=np.zeros((7, 99), np.float32)),
    "no step": episode(0),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD_EPISODES.values(), ids=BAD_EPISODES.keys())
def test_an_episode_that_cannot_be_learned_from_is_not_stored(learner: Any, bad: Any) -> None:
    number = learner._last_batch + 1
    result = learner.train([bad, episode(6)], 0, batch=number)
    assert result.refused == 1 and not learner.unsound()
    assert {source[1] for source in learner._sources if source[0] == number} == {1}  # the other one is stored


def _nan_gradients(learner: Any, count: int) -> None:
    """The gradients of one parameter are NaN in the next updates."""
    parameter = next(one for one in learner.model.parameters() if one.requires_grad)
    left = [count]

    def spoil(gradient: torch.Tensor) -> torch.Tensor | None:
        left[0] -= 1
        if not left[0]:
            handle.remove()
        return gradient * NAN

    handle = parameter.register_hook(spoil)


def _nan_loss(learner: Any, count: int) -> None:
    """The loss is NaN in the next updates, and so is what the forward pass leaves in the batch normalisation."""
    world_model = learner.model.world_model
    norm = next(one for one in learner.model.modules() if isinstance(one, torch.nn.modules.batchnorm._BatchNorm))
    real, left = learner._update._compute_loss, [count]

    def spoil(*args: Any, **kwargs: Any) -> Any:
        losses = real(*args, **kwargs)
        if left[0]:
            left[0] -= 1
            losses.loss_total = losses.loss_total * NAN
            norm.running_mean.fill_(NAN)
        return losses

    assert world_model.compute_loss == learner._update._checked_loss
    learner._update._compute_loss = spoil


def _nan_sample(learner: Any, count: int) -> None:
    """The sampled targets are NaN."""
    real, left = learner.buffer.sample, [count]

    def spoil(*args: Any) -> Any:
        data = real(*args)
        if left[0]:
            left[0] -= 1
            data[1][1][0, 0] = NAN
        return data

    learner.buffer.sample = spoil


@pytest.mark.parametrize("spoil", [_nan_gradients, _nan_loss, _nan_sample])
def test_an_update_that_is_not_finite_leaves_nothing_behind(learner: Any, spoil: Any) -> None:
    learner.train([episode(12)], 0)
    before, made = learner.state_dict(), learner.updates
    spoil(learner, 1)
    result = learner.train([episode(12, 1)], 1)
    assert (result.updates, result.left_out, result.losses) == (0, 1, {})
    assert learner.updates == made
    after = learner.state_dict()["policy"]
    assert _same(before["policy"], after), "something of the bad update stayed"
    assert learner.train([episode(12, 2)], 2).updates == 1
    assert not _same(before["policy"], learner.state_dict()["policy"]) and not learner.unsound()


def _same(one: Any, other: Any) -> bool:
    """Bit by bit, whatever the nest."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


def test_too_many_bad_updates_in_a_row_are_one_sentence() -> None:
    learner = new_learner(update_per_collect=4, dropout=0.0)
    learner.train([episode(12)], 0)
    _nan_gradients(learner, 100)
    for train in range(MOST_BAD_UPDATES // 4):
        assert learner.train([episode(12)], train).left_out == 4
    with pytest.raises(
        BadData, match=f"^{MOST_BAD_UPDATES} updates in a row were not finite, .*learning_rate"
    ) as caught:
        learner.train([episode(12)], 9)
    assert "\n" not in str(caught.value) and not learner.unsound()


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> LearnerRole:
    return LearnerRole(parts(1), "cpu", lambda event: None)


def test_a_step_that_makes_weights_infinite_is_undone(role: LearnerRole, tmp_path: Path) -> None:
    role.train(0, 0, collected(0))
    before = role.learner.state_dict()["policy"]

    def overflow(optimizer: Any, args: Any, kwargs: Any) -> None:
        handle.remove()
        with torch.no_grad():
            optimizer.param_groups[0]["params"][0].fill_(INF)

    handle = role.learner.policy._optimizer_world_model.register_step_post_hook(overflow)
    done = role.train(1, 1, collected(1))
    assert done["updates"] == 0 and done["bad_updates"] == 2 and done["losses"] == {}
    assert _same(before, role.learner.state_dict()["policy"])
    assert role.train(2, 2, collected(2))["updates"] == 2 and not first_bad(role.weights().open())


def test_weights_that_are_not_finite_go_nowhere(role: LearnerRole, tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    role.save(str(path), {}, [])
    good = path.read_bytes()
    parameter = next(role.learner.model.parameters())
    before = parameter.detach().clone()
    with torch.no_grad():
        parameter.view(-1)[0] = NAN
    with pytest.raises(BadData, match=r"not handed out.*nan"):
        role.weights()
    with pytest.raises(BadData, match="not written"):
        role.save(str(path), {}, [])
    assert path.read_bytes() == good
    state = checkpoint.load(path, CHECKPOINT)
    name = next(iter(state["learner"]["policy"]["model"]))
    torch.as_tensor(state["learner"]["policy"]["model"][name]).view(-1)[0] = INF
    checkpoint.save(tmp_path / "bad.safetensors", state, CHECKPOINT)
    with pytest.raises(ConfigError, match=r"bad\.safetensors cannot be resumed: .*inf") as caught:
        role.load(str(tmp_path / "bad.safetensors"))
    assert "\n" not in str(caught.value)
    with torch.no_grad():
        parameter.copy_(before)
    role.load(str(path))


def test_an_update_that_is_not_finite_stops_a_run_that_wants_it() -> None:
    role = LearnerRole(parts(1, on_bad_update="stop"), "cpu", lambda event: None)
    role.train(0, 0, collected(0))
    before = role.learner.state_dict()["policy"]
    _nan_gradients(role.learner, 1)
    with pytest.raises(BadData, match=r"^an update was not finite"):
        role.train(1, 1, Parcel(Collected([episode(8)], 1.0)))
    assert _same(before, role.learner.state_dict()["policy"])


# -- ends --------------------------------------------------------------------------------------------------------------


def test_games_that_hang_are_ended_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All are told to end before one is waited for, so that hung ones cost their grace once and not each."""
    envs = [JerichoEnv({"valid_action_store": str(tmp_path / "store")}) for _ in range(3)]
    for env in envs:
        env.begin_reset()
    for env in envs:
        env.end_reset()
    processes = [env._process for env in envs]
    for process in processes:
        os.kill(process.pid, signal.SIGSTOP)
    seen: list[list[bool]] = []
    real = subprocess.Popen.wait

    def waiting(popen: Any, timeout: float | None = None) -> int:
        seen.append([process._connection.closed for process in processes])
        return real(popen, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", waiting)
    Player(envs, None, None, None).close()
    assert seen[0] == [True] * 3 and all(process._process.poll() is not None for process in processes)


def test_a_story_file_that_is_gone_ends_the_run_in_one_sentence(tmp_path: Path) -> None:
    story = tmp_path / "copy.z5"
    story.write_bytes(find_game(SHIPPED_GAME).path.read_bytes())
    game = dataclasses.replace(find_game(SHIPPED_GAME), path=story)
    story.unlink()
    env = JerichoEnv({"game": game, "valid_action_store": ""})
    player = Player([env], None, None, None)
    with pytest.raises(ConfigError, match=r"cannot be started \(FileNotFoundError.*--env_id") as caught:
        player.play(1, np.random.default_rng(0), RANDOM)
    assert "\n" not in str(caught.value) and env.statistics()["process_starts"] == 1
    player.close()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_stop_does_not_wait_for_a_game_that_hangs(asynchronous: bool) -> None:
    hung, looks = GatedEnv(), iter([False, False])
    player = Player([hung], NumberEncoder(), None, None, asynchronous=asynchronous)
    assert player.play(1, np.random.default_rng(0), RANDOM, should_stop=lambda: next(looks, True)) == []
    assert hung.shut and not player.troubles  # its answer never came, and its time was not up
    player.close()
