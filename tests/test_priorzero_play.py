"""The text encoder runs once per distinct text; players keep games apart; the progress line says what it should."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.play import Player, Style, _choose, _Game, observation_parts
from zoo.jericho.priorzero.progress import Progress, duration, table
from zoo.jericho.priorzero.text_encoder import TextEncoder


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    return TextEncoder()


def test_each_distinct_text_is_encoded_once(encoder: TextEncoder) -> None:
    encoder([("a dark room", "a lamp")])
    before = encoder.encoded
    rows = encoder([("a dark room", "a lamp"), ("a lamp", "a dark room"), ("a dark room", "a rope")])
    assert encoder.encoded == before + 1
    assert rows.shape == (3, 2 * encoder.width)
    width = encoder.width
    np.testing.assert_array_equal(rows[0, :width], rows[1, width:])
    np.testing.assert_array_equal(rows[0, :width], rows[2, :width])
    assert not np.array_equal(rows[0, width:], rows[2, width:])


def test_vectors_do_not_depend_on_their_company(encoder: TextEncoder) -> None:
    texts = ["a short text", "a much longer text about a kitchen, a window and a sack that smells of hot peppers"]
    alone = np.concatenate([TextEncoder()([(text,)]) for text in texts])
    together = TextEncoder()([(text,) for text in texts])
    np.testing.assert_array_equal(alone, together)


def test_like_texts_are_near_and_the_cache_is_bounded() -> None:
    encoder = TextEncoder(cache_size=3)
    rows = encoder([("a wooden door",), ("a door made of wood",), ("the price of gold rose",)])
    near, far = rows[0] @ rows[1], rows[0] @ rows[2]
    assert near > 2 * far
    encoder([(str(number),) for number in range(10)])
    assert len(encoder._vectors) == 3
    assert np.isclose(np.linalg.norm(rows[0]), encoder.width**0.5, rtol=1e-4)


def test_an_encoder_that_is_not_there_is_one_sentence(tmp_path) -> None:
    with pytest.raises(ConfigError, match="cannot be loaded") as caught:
        TextEncoder(str(tmp_path))
    assert "\n" not in str(caught.value)


class CountingEnv:
    """A game of `length` steps whose observation says its seed and step."""

    def __init__(self, length: int) -> None:
        self.length, self.episodes = length, 0

    def seed(self, seed: int) -> None:
        self.number = seed

    def reset(self) -> dict:
        self.episodes += 1
        self.steps = 0
        return self._obs()

    def begin_step(self, action: int) -> None:
        assert action in (0, 2)
        self.steps += 1

    def end_step(self) -> SimpleNamespace:
        done = self.steps == self.length
        info = {"score": 10, "won": done, "died": False} if done else {}
        return SimpleNamespace(obs=self._obs(), reward=float(self.steps), done=done, info=info)

    def _obs(self) -> dict:
        state = SimpleNamespace(look=f"{self.number}/{self.steps}", inventory="", response="")
        mask = np.array([1, 0, 1], np.int8)
        return {"state": state, "valid_actions": ("a", "b", "c"), "action_mask": mask}


class NumberEncoder:
    def __call__(self, observations):
        return np.array([[float(part) for part in parts[0].split("/")] for parts in observations], np.float32)


def player(*lengths: int) -> Player:
    return Player([CountingEnv(length) for length in lengths], NumberEncoder(), None, None)


def test_games_of_different_lengths_are_played_to_their_ends_and_kept_apart() -> None:
    told: list[int] = []
    played = player(3, 5).play(5, np.random.default_rng(0), Style(mode="random"), on_step=told.append)
    assert sorted(map(len, played)) == [3, 3, 3, 5, 5]
    assert sum(told) == sum(map(len, played))
    for episode in played:
        assert len(set(episode.observations[:, 0])) == 1  # one seed throughout
        assert episode.observations[:, 1].tolist() == list(range(len(episode) + 1))
        assert episode.rewards.tolist() == [float(step) for step in range(1, len(episode) + 1)]
        assert episode.ended
    assert len({episode.observations[0, 0] for episode in played}) == 5


def test_equal_seeds_play_equal_episodes() -> None:
    one, other, third = (
        [
            episode.actions.tolist()
            for episode in player(4, 4).play(3, np.random.default_rng(seed), Style(mode="random"))
        ]
        for seed in (1, 1, 2)
    )
    assert one == other != third


def test_a_stop_keeps_the_episodes_that_have_ended() -> None:
    rounds = iter([False, False, True])
    played = player(9, 1).play(4, np.random.default_rng(0), Style(mode="random"), should_stop=lambda: next(rounds))
    assert [len(episode) for episode in played] == [1, 1]  # and not the two steps of the long one


def test_moves_become_random_after_a_long_time_without_reward() -> None:
    visits, mask = np.array([0.0, 0.0, 1.0], np.float32), np.array([1, 0, 1], np.int8)
    style, rng = Style(temperature=0.5, stuck_steps=3, stuck_epsilon=1.0), np.random.default_rng(0)
    assert {_choose(visits, style, rng, mask, 2) for _ in range(50)} == {2}
    assert {_choose(visits, style, rng, mask, 3) for _ in range(50)} == {0, 2}
    never = Style(temperature=0.5, stuck_steps=0, stuck_epsilon=1.0)
    assert {_choose(visits, never, rng, mask, 99) for _ in range(50)} == {2}


def test_steps_without_reward_are_counted_from_the_last_reward() -> None:
    env = CountingEnv(9)
    env.seed(1)
    game = _Game(0, env, env.reset(), 0)
    counted = []
    for reward in (0.0, 0.0, 5.0, 0.0, -5.0):
        outcome = SimpleNamespace(obs=env._obs(), reward=reward, done=False, info={})
        game.record(0, np.ones(3), 0.0, 0.0, outcome)
        counted.append(game.unrewarded)
    assert counted == [1, 2, 0, 1, 2]


def test_the_full_observation_adds_what_the_game_said() -> None:
    obs = CountingEnv(1)
    obs.seed(1)
    parts = observation_parts(obs.reset(), "full")
    assert len(parts) == 4
    assert observation_parts(obs.reset(), "state") == parts[:3]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal_is_one_line_and_in_a_file_lines_now_and_then() -> None:
    moment = [0.0]
    screen, file = Terminal(), io.StringIO()
    for stream in (screen, file):
        progress = Progress(stream, clock=lambda: moment[0])
        for second in range(31):
            moment[0] = float(second)
            progress.show(f"step {second}")
        progress.note("kept")
    assert file.getvalue() == "step 0\nstep 15\nstep 30\nkept\n"
    assert screen.getvalue().count("\n") == 1
    assert screen.getvalue().endswith("\rkept\n")


def test_durations_and_tables() -> None:
    assert [duration(seconds) for seconds in (0, 59.6, 3725)] == ["0:00", "1:00", "1:02:05"]
    assert table([["name", "mean"], ["long name", "1.5"]]).splitlines()[2] == "long name   1.5"
