"""The text encoder runs once per distinct text; players keep games apart; the progress line says what it should."""

from __future__ import annotations

import io
import logging
import math
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Pipe, wait
from types import SimpleNamespace

import numpy as np
import pytest

from lzero_async.errors import ConfigError
from lzero_async.telemetry.terminal.progress import Progress, duration, table
from zoo.jericho.priorzero.games.process import GameProcessError
from zoo.jericho.priorzero.play.episode_scheduler import AllEnvironmentsFailed, Thinker
from zoo.jericho.priorzero.play.episodes import Player, Style, _choose, observation_parts
from zoo.jericho.priorzero.play.open_game import Choice, Episode, OpenGame
from zoo.jericho.priorzero.play.text_encoder import TextEncoder


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


RANDOM = Style(mode="random")


def player(*lengths: int, **options) -> Player:
    return Player([CountingEnv(length) for length in lengths], NumberEncoder(), None, None, **options)


def test_games_of_different_lengths_are_played_to_their_ends_and_kept_apart() -> None:
    told: list[int] = []
    played = player(3, 5).play(5, np.random.default_rng(0), RANDOM, on_step=told.append)
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
    assert {_choose(visits, style, rng, mask, 2) for _ in range(50)} == {(2, 1.0)}
    assert {_choose(visits, style, rng, mask, 3) for _ in range(50)} == {(0, 0.5), (2, 0.5)}
    never = Style(temperature=0.5, stuck_steps=0, stuck_epsilon=1.0)
    assert {_choose(visits, never, rng, mask, 99) for _ in range(50)} == {(2, 1.0)}


@pytest.mark.parametrize("temperature", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_a_move_is_as_likely_as_it_says(temperature: float, epsilon: float) -> None:
    visits, mask = np.array([0.2, 0.0, 0.5, 0.3], np.float32), np.array([1, 0, 1, 1], np.int8)
    style, rng = Style(temperature=temperature, epsilon=epsilon), np.random.default_rng(0)
    drawn = [_choose(visits, style, rng, mask) for _ in range(4000)]
    said = dict(drawn)
    for slot, likely in said.items():
        assert sum(one == slot for one, _ in drawn) / len(drawn) == pytest.approx(likely, abs=0.03)
    assert sum(said.values()) == pytest.approx(1, abs=0.01)


def test_steps_without_reward_are_counted_from_the_last_reward() -> None:
    env = CountingEnv(9)
    env.seed(1)
    game = OpenGame(0, 1, np.random.default_rng(0), 0)
    game.begin(env.reset())
    counted = []
    for reward in (0.0, 0.0, 5.0, 0.0, -5.0):
        outcome = SimpleNamespace(obs=env._obs(), reward=reward, done=False, info={})
        game.choose(Choice(0, 1.0, np.ones(3)))
        game.record(outcome)
        counted.append(game.unrewarded)
    assert counted == [1, 2, 0, 1, 2]


def test_the_full_observation_adds_what_the_game_said() -> None:
    obs = CountingEnv(1)
    obs.seed(1)
    parts = observation_parts(obs.reset(), "full")
    assert len(parts) == 4
    assert observation_parts(obs.reset(), "state") == parts[:3]


class GatedEnv(CountingEnv):
    """Its answers wait in `shut` until somebody opens; the length of an episode depends on its seed alone."""

    def __init__(self, gate: Callable[[], None] = lambda: None) -> None:
        super().__init__(0)
        self.shut, self.slow = False, True
        self.gate = gate  # called just before the player waits
        self.reader, self.writer = Pipe(duplex=False)

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self.length = 2 + seed % 5

    def begin_step(self, action: int) -> None:
        super().begin_step(action)
        self.shut = True
        if not self.slow:
            self.open()

    def waitable(self):
        return self.reader if self.shut else None

    @property
    def deadline(self) -> float:
        self.gate()
        return math.inf

    def open(self) -> None:
        self.shut = False
        self.writer.send_bytes(b"!")

    def end_step(self) -> SimpleNamespace:
        assert not self.shut
        self.reader.recv_bytes()
        return super().end_step()

    def close(self) -> None:
        self.reader.close()
        self.writer.close()


class Conductor:
    """Opens one shut environment after the other, in an order drawn by its seed; the next when an answer was fetched."""

    def __init__(self, seed: int, count: int, until_fetched: bool = True) -> None:
        self.dice, self.order, self.until_fetched = random.Random(seed), list[int](), until_fetched
        self.envs = [GatedEnv(self.open_one) for _ in range(count)]

    def open_one(self) -> None:
        shut = [env for env in self.envs if env.shut]
        if shut and not (self.until_fetched and any(env.reader.poll() for env in self.envs)):
            chosen = self.dice.choice(shut)
            self.order.append(self.envs.index(chosen))
            chosen.open()


@pytest.fixture
def make_player() -> Iterator[Callable[..., Player]]:
    made: list[Player] = []

    def make(envs: list, prior=None, encoder=None, search=None, **options) -> Player:
        made.append(Player(envs, encoder or NumberEncoder(), search, prior, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def outcome(played: list[Episode]) -> list[tuple]:
    return [(episode.observations.tolist(), episode.actions.tolist(), episode.rewards.tolist()) for episode in played]


def patient(rounds: int = 150) -> Callable[[], bool]:
    """Stops a play that would wait for ever, so that its test fails instead."""
    left = iter(range(rounds))
    return lambda: next(left, None) is None


def test_episodes_are_the_same_in_lockstep_and_in_any_order_of_readiness(make_player) -> None:
    orders, outcomes = set(), []
    for asynchronous, seed, max_batch in ((False, 0, 0), (True, 0, 0), (True, 1, 0), (True, 2, 2)):
        conductor = Conductor(seed, 3, until_fetched=asynchronous)
        one = make_player(conductor.envs, asynchronous=asynchronous, max_batch=max_batch, max_wait_ms=0)
        outcomes.append(outcome(one.play(7, np.random.default_rng(5), RANDOM)))
        orders.add(tuple(conductor.order))
    assert len(orders) == 4 and len(outcomes[0]) == 7
    assert all(other == outcomes[0] for other in outcomes)


def test_a_slow_game_does_not_hold_back_the_others(make_player) -> None:
    slow, quick = GatedEnv(), CountingEnv(3)
    quick.close = lambda: None
    told: list[int] = []

    def stepped(count: int) -> None:
        told.append(count)
        if slow.slow and quick.episodes == 5 and quick.steps == 3:  # all other episodes are played
            slow.slow = False
            slow.open()

    one = make_player([slow, quick], asynchronous=True)
    played = one.play(6, np.random.default_rng(0), RANDOM, on_step=stepped, should_stop=patient())
    assert [len(episode) for episode in played][1:] == [3] * 5
    assert len(played[0]) == slow.length
    assert sum(told) == 15 + slow.length


class SizesEncoder(NumberEncoder):
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, observations):
        self.sizes.append(len(observations))
        return super().__call__(observations)


def test_ready_games_wait_for_company_up_to_the_window(make_player) -> None:
    def sizes(**options) -> list[int]:
        encoder = SizesEncoder()
        envs = Conductor(0, 3).envs
        for env in envs:
            env.seed = lambda seed, env=env: vars(env).update(number=seed, length=4)
        make_player(envs, None, encoder, asynchronous=True, **options).play(3, np.random.default_rng(0), RANDOM)
        return encoder.sizes

    assert sizes(max_wait_ms=60_000) == [3] * 5  # one becomes ready after the other, and each waits for all
    assert sizes(max_wait_ms=60_000, max_batch=2)[0] == 2
    assert max(sizes(max_wait_ms=60_000, max_batch=2)[:-1]) == 2
    alone = sizes(max_wait_ms=0)
    assert alone[0] == 3 and set(alone[1:-1]) == {1}  # nobody waits


class FakePrior:
    """Uniform priors; knows what it has answered; waits for `go` before each answer."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.known: set[str] = set()
        self.entered, self.go = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def __call__(self, requests):
        self.batches.append([request.state.look for request in requests])
        self.entered.set()
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        self.known |= set(self.batches[-1])
        return [np.log(np.full(3, 1 / 3, np.float32)) for _ in requests]

    def recall(self, request):
        return np.log(np.full(3, 1 / 3, np.float32)) if request.state.look in self.known else None


class MaskFree(CountingEnv):
    """Every slot may be taken."""

    def begin_step(self, action: int) -> None:
        self.steps += 1

    def _obs(self) -> dict:
        return {**super()._obs(), "action_mask": np.ones(3, np.int8)}

    def close(self) -> None:
        pass


LLM = Style(mode="llm")


def test_games_whose_prior_is_known_go_on_while_others_think(make_player) -> None:
    prior = FakePrior()
    envs = [MaskFree(3), MaskFree(3)]
    for env, name in zip(envs, (1, 2), strict=True):
        env.seed = lambda seed, env=env, name=name: vars(env).update(number=name)
    prior.known = {f"2/{step}" for step in range(3)}

    def stepped(count: int) -> None:
        if envs[1].steps == 3:
            prior.go.set()

    one = make_player(envs, prior, asynchronous=True)
    played = one.play(2, np.random.default_rng(0), LLM, on_step=stepped, should_stop=patient())
    assert [len(episode) for episode in played] == [3, 3]
    assert prior.batches == [["1/0"], ["1/1"], ["1/2"]]


class NoisySearch:
    """Finds nothing but noise, from the generators that it is given."""

    max_window = 2

    def run(self, roots, policy, *, num_simulations, noise_weight, rngs):
        logits = policy(np.zeros((len(roots), 3), np.float32))
        rows = [
            rng.dirichlet([0.3] * 3) * root.mask + np.exp(row)
            for root, rng, row in zip(roots, rngs, logits, strict=True)
        ]
        return [SimpleNamespace(visits=(row / row.sum()), value=1.0, predicted_value=2.0) for row in rows]


def test_searched_games_draw_the_same_in_any_company(make_player) -> None:
    style = Style(mode="prior", epsilon=0.3, noise_weight=0.25)
    outcomes = []
    for asynchronous, seed in ((False, 0), (True, 1), (True, 2)):
        prior = FakePrior()
        prior.go.set()
        envs = Conductor(seed, 3, until_fetched=asynchronous).envs
        one = make_player(envs, prior, None, NoisySearch(), asynchronous=asynchronous, max_wait_ms=0)
        outcomes.append(outcome(one.play(7, np.random.default_rng(5), style)))
    assert len(outcomes[0]) == 7 and outcomes[0] == outcomes[1] == outcomes[2]


def test_without_recall_every_prior_is_asked_for_and_in_lockstep_in_one_batch(make_player) -> None:
    for asynchronous in (False, True):
        prior = FakePrior()
        prior.go.set()
        one = make_player([MaskFree(2), MaskFree(2)], prior.__call__, asynchronous=asynchronous)
        assert [len(episode) for episode in one.play(2, np.random.default_rng(0), LLM)] == [2, 2]
        assert sum(map(len, prior.batches)) == 4
        if not asynchronous:
            assert [len(batch) for batch in prior.batches] == [2, 2]


def test_what_is_asked_while_the_prior_is_busy_becomes_one_batch() -> None:
    prior = FakePrior()
    thinker = Thinker(prior)
    names = [SimpleNamespace(state=SimpleNamespace(look=name)) for name in "abc"]
    thinker.ask([("a", names[0])])
    assert prior.entered.wait(60)
    thinker.ask([("b", names[1])])
    thinker.ask([("c", names[2])])
    assert thinker.take() == []
    prior.go.set()
    answered: list[str] = []
    while len(answered) < 3:
        assert wait([thinker.pipe], 60)
        answered += [key for key, _ in thinker.take()]
    assert prior.batches == [["a"], ["b", "c"]] and answered == ["a", "b", "c"]
    thinker.close()


def test_a_thread_that_was_refused_does_not_leave_the_prior_busy_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    prior = FakePrior()
    prior.go.set()
    thinker = Thinker(prior)
    question = ("a", SimpleNamespace(state=SimpleNamespace(look="a")))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            thinker.ask([question])
    thinker.forget()
    thinker.ask([question])
    assert wait([thinker.pipe], 60)
    assert [key for key, _ in thinker.take()] == ["a"]
    thinker.close()


def test_an_error_of_the_prior_comes_out_of_play_with_its_own_traceback(make_player) -> None:
    prior = FakePrior()
    prior.go.set()
    prior.error = ZeroDivisionError("no such model")
    one = make_player([MaskFree(2)], prior, asynchronous=True)
    with pytest.raises(ZeroDivisionError, match="no such model") as caught:
        one.play(1, np.random.default_rng(0), LLM, should_stop=patient())
    assert "raise self.error" in "".join(traceback.format_tb(caught.value.__traceback__))
    prior.error = None
    assert len(one.play(1, np.random.default_rng(0), LLM)) == 1


def test_a_prior_with_too_few_answers_is_an_error_and_no_hang(make_player) -> None:
    one = make_player([MaskFree(2)], lambda requests: [], asynchronous=True)
    with pytest.raises(ValueError, match="shorter"):
        one.play(1, np.random.default_rng(0), LLM, should_stop=patient())


def test_a_stop_does_not_wait_for_games_that_think(make_player, caplog) -> None:
    prior = FakePrior()
    one = make_player([MaskFree(2)], prior, asynchronous=True)
    assert one.play(1, np.random.default_rng(0), LLM, should_stop=prior.entered.is_set) == []
    first = prior.batches[0]
    prior.error = RuntimeError("too late")  # for what nobody waits for any more
    prior.go.set()
    second = one.play(1, np.random.default_rng(1), RANDOM)
    one._thinker._executor.submit(lambda: None).result(60)  # the thread is done with the first question
    assert len(second) == 1 and prior.batches == [first]
    assert "nobody waited" in caplog.text
    prior.error = None
    assert len(one.play(1, np.random.default_rng(0), LLM)) == 1


class HungEnv(GatedEnv):
    """Never answers: its deadline passes."""

    deadline = math.inf

    def begin_step(self, action: int) -> None:
        super().begin_step(action)
        self.deadline = time.monotonic() + 0.01

    def waitable(self):
        return self.reader if self.shut and time.monotonic() < self.deadline else None

    def end_step(self) -> SimpleNamespace:
        info = {"abnormal": True, "failure": "it hung", "hung": True}
        return SimpleNamespace(obs=self._obs(), reward=0.0, done=True, info=info)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_game_that_hangs_costs_its_episode(make_player, asynchronous: bool) -> None:
    quick = CountingEnv(3)
    quick.close = lambda: None
    told: list[str] = []
    one = make_player([HungEnv(), quick], asynchronous=asynchronous, on_trouble=told.append)
    played = one.play(2, np.random.default_rng(0), RANDOM)
    # It hangs twice, if it gets the second try as well; what it had played is not learned from.
    assert {len(episode) for episode in played} == {3} and len(played) + one.troubles["left_out_episodes"] == 2
    assert one.troubles["env_timeouts"] == one.troubles["bad_episodes"] >= 1
    assert sorted(told) == sorted(one.troubles.elements())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_all_games_are_begun_before_the_first_is_waited_for(make_player, asynchronous: bool) -> None:
    calls: list[str] = []

    class Starting(GatedEnv):
        def begin_reset(self) -> None:
            calls.append("begin")
            self.shut = True

        def end_reset(self) -> dict:
            calls.append("end")
            self.reader.recv_bytes()
            return self.reset()

    conductor = Conductor(0, 0, until_fetched=asynchronous)
    conductor.envs += [Starting(conductor.open_one) for _ in range(3)]
    played = make_player(conductor.envs, asynchronous=asynchronous).play(3, np.random.default_rng(0), RANDOM)
    assert len(played) == 3 and calls == ["begin"] * 3 + ["end"] * 3


class FailingEnv(CountingEnv):
    """Its episodes end as `ends` says, over and over: well, abnormally, or not even begun."""

    def __init__(self, *ends: str) -> None:
        super().__init__(1)
        self.ends, self.count = ends, 0

    def reset(self) -> dict:
        self.end = self.ends[self.count % len(self.ends)]
        self.count += 1
        if self.end == "reset":
            raise GameProcessError(f"no start {self.count}")
        return super().reset()

    def end_step(self) -> SimpleNamespace:
        timestep = super().end_step()
        timestep.info |= {"abnormal": True, "failure": f"crash {self.count}"} if self.end == "crash" else {}
        return timestep

    def __repr__(self) -> str:
        return "FailingEnv"

    def close(self) -> None:
        pass


BOTH = pytest.mark.parametrize("asynchronous", [False, True])


@BOTH
@pytest.mark.parametrize(("end", "why"), [("crash", "crash 3"), ("reset", "no start 3")])
def test_an_environment_that_always_fails_is_left_out(make_player, caplog, asynchronous, end, why) -> None:
    bad, good = FailingEnv(end), FailingEnv("well")
    one = make_player([bad, good], asynchronous=asynchronous)
    with caplog.at_level(logging.WARNING):
        played = one.play(8, np.random.default_rng(0), RANDOM)
    assert not any(episode.info.get("abnormal") for episode in played)
    assert len(played) + one.troubles["left_out_episodes"] == 8 and one.troubles["bad_episodes"] == 3
    assert one.isolated == 1 and bad.count == 3 and good.count == len(played)
    (message,) = [record.getMessage() for record in caplog.records if "not used any more" in record.getMessage()]
    assert "environment 1 of 2 (FailingEnv)" in message and why in message
    assert len(one.play(2, np.random.default_rng(1), RANDOM)) == 2 and bad.count == 3  # nor by the next call


@BOTH
def test_an_episode_that_fails_is_played_once_more_with_another_seed(make_player, asynchronous) -> None:
    seeds: list[int] = []

    class Seeded(FailingEnv):
        def seed(self, seed: int) -> None:
            seeds.append(seed)
            super().seed(seed)

    for end in ("crash", "reset"):
        played = make_player([Seeded(end, "well")], asynchronous=asynchronous).play(1, np.random.default_rng(0), RANDOM)
        assert [len(episode) for episode in played] == [1] and not played[0].info.get("abnormal")
    assert seeds[0] == seeds[2] != seeds[1] == seeds[3]  # another one, and the same when it is played again


@BOTH
def test_a_normal_episode_clears_an_environment_s_record(make_player, asynchronous: bool) -> None:
    env = FailingEnv("crash", "reset", "well", "reset", "crash", "well")
    one = make_player([env], asynchronous=asynchronous)
    assert len(one.play(12, np.random.default_rng(0), RANDOM)) == 6
    assert one.isolated == 0 and one.troubles["left_out_episodes"] == 6 and one.troubles["bad_episodes"] == 12


@BOTH
def test_when_no_episode_can_be_played_play_says_so(make_player, asynchronous: bool) -> None:
    one = make_player([FailingEnv("crash", "crash", "well")], asynchronous=asynchronous)
    with pytest.raises(AllEnvironmentsFailed, match=r"none of 1 episodes could be played.*crash 2"):
        one.play(1, np.random.default_rng(0), RANDOM)
    assert one.isolated == 0


@BOTH
def test_when_no_environment_is_left_play_says_so(make_player, asynchronous: bool) -> None:
    envs = [FailingEnv("crash"), FailingEnv("reset")]
    one = make_player(envs, asynchronous=asynchronous, max_abnormal=2)
    with pytest.raises(AllEnvironmentsFailed, match=r"none of the 2 environments can.*(crash|no start) 2"):
        one.play(9, np.random.default_rng(0), RANDOM)
    assert one.isolated == 2
    with pytest.raises(AllEnvironmentsFailed):
        one.play(1, np.random.default_rng(0), RANDOM)


@pytest.mark.parametrize(
    "options", [{"max_batch": -1}, {"max_wait_ms": -1.0}, {"max_wait_ms": math.inf}, {"max_abnormal": 0}]
)
def test_options_out_of_range_are_refused(options: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        player(1, **options)


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
