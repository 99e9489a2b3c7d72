"""The prompt's layout and the cache of priors, on an engine that counts and answers by rule."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.games.session import GameState
from zoo.jericho.priorzero.llm import ScoreRequest, prompt_key
from zoo.jericho.priorzero.llm.prior import LLMPrior, PriorRequest, action_log_probs
from zoo.jericho.priorzero.llm.prompts import Turn, build_prompt, window_start
from zoo.jericho.priorzero.sqlite_cache import SharedStore


def state(room="Kitchen", actions=("go north", "open sack"), **changes):
    values = {
        "response": "You arrive.",
        "look": f"{room}. A table stands here.",
        "inventory": "You are empty-handed.",
        "location": room,
        "valid_actions": actions,
        "reward": 0.0,
        "score": 35,
        "moves": 7,
        "done": False,
        "won": False,
        "died": False,
    }
    return GameState(**(values | changes))


def turns(count):
    return tuple(Turn(f"Room {i}.", f"step {i}", float(i % 3)) for i in range(count))


def text(prompt):
    return "\n".join(message["content"] for message in prompt)


class RuleEngine:
    """Scores a candidate by its length and the prompt's hash; a token is a word."""

    def __init__(self, context_length=1_000_000, model="rules"):
        self.weights_version, self.weights_digest = 0, "first"
        self.model = model
        self.context_length = context_length
        self.calls: list[list[ScoreRequest]] = []
        self.generated: list[list] = []
        self.counted = 0
        self.during_score = lambda: None

    def count_tokens(self, prompt):
        self.counted += 1
        return len(text(prompt).split())

    def score(self, requests, reduction="mean"):
        self.calls.append(list(requests))
        self.during_score()
        return [
            np.array([-len(c) - len(text(r.prompt)) % 7 if c.strip() else -np.inf for c in r.candidates], np.float32)
            for r in requests
        ]

    def generate(self, prompts, max_new_tokens, temperature=0.0, keys=None):
        self.generated.append(list(prompts))
        self.keys = keys
        return [" I want light.\ntake lamp" for _ in prompts]

    def health(self):
        return {"ok": True, "engine": "rule", "model": self.model, "weights_version": self.weights_version}

    def asked(self):
        return sum(map(len, self.calls))


def ask(room="Kitchen", actions=("go north", "open sack"), history=(), episode=None):
    return PriorRequest(state(room, actions), actions, history, episode)


# -- prompts ----------------------------------------------------------------


def test_the_prompt_is_role_history_observation_actions():
    prompt = build_prompt(state(response="A door opens."), turns(2), history_length=4, game_title="Zork I")
    assert [message["role"] for message in prompt] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert "Zork I" in prompt[0]["content"]
    assert [message["content"] for message in prompt[1:5]] == ["Room 0.", "step 0", "Reward: 0\nRoom 1.", "step 1"]
    last = prompt[-1]["content"]
    assert last.startswith(
        "Reward: 1\nA door opens.\nKitchen. A table stands here.\nYou are empty-handed.\nValid actions: go north, open sack\n"
    )


def test_without_history_the_prompt_depends_on_the_state_alone():
    one = build_prompt(state(), turns(5), history_length=0)
    other = build_prompt(state(response="Other words.", reward=5.0, score=90, moves=99), (), history_length=0)
    assert one == other
    assert "35" not in text(one) and "score" not in text(one).lower()


def test_reasoning_is_asked_for_and_then_begins_the_answer():
    asked = build_prompt(state(), (), history_length=0, use_cot=True)
    answered = build_prompt(state(), (), history_length=0, use_cot=True, reasoning=" It is dark. ")
    assert answered[:-1] == asked and answered[-1] == {"role": "assistant", "content": "It is dark.\n"}


def test_empty_actions_are_not_listed():
    assert "Valid actions: look\n" in text(build_prompt(state(), (), history_length=0, actions=("", "look", " ")))


@given(st.integers(0, 60), st.integers(0, 12))
def test_the_window_is_never_too_long_and_never_half_empty(count, length):
    shown = count - window_start(count, length)
    assert 0 <= shown <= length
    if count > length > 1:
        assert shown > length - max(1, length // 2)


def test_most_steps_keep_the_beginning_of_the_prompt():
    kept = 0
    for count in range(8, 40):
        before = prompt_key(build_prompt(state(), turns(count), history_length=8))
        after = prompt_key(build_prompt(state(), turns(count + 1), history_length=8))
        kept += after[: len(before) - 1] == before[:-1]
    assert kept == 24  # three of four steps


def test_a_negative_history_is_refused():
    with pytest.raises(ConfigError, match="history_length is -1"):
        build_prompt(state(), (), history_length=-1)


# -- the cache --------------------------------------------------------------


def test_only_what_is_new_goes_to_the_engine_in_one_batch():
    engine = RuleEngine()
    prior = LLMPrior(engine)
    first = prior([ask("A"), ask("B"), ask("A")])
    assert [len(call) for call in engine.calls] == [2]
    np.testing.assert_array_equal(first[0], first[2])
    again = prior([ask("B"), ask("C"), ask("A")])
    assert [len(call) for call in engine.calls] == [2, 1]
    np.testing.assert_array_equal(again[2], first[0])
    stats = prior.statistics()
    assert (stats["requests"], stats["hits"], stats["engine_requests"], stats["cache_entries"]) == (6, 3, 3, 3)
    assert stats["hit_rate"] == 0.5 and stats["engine_seconds"] > 0


def test_answers_are_the_callers_own():
    prior = LLMPrior(RuleEngine())
    (first,) = prior([ask()])
    first[:] = 0
    assert prior([ask()])[0][0] != 0


def test_what_changes_the_answer_changes_the_key():
    engine = RuleEngine()
    prior = LLMPrior(engine)
    prior([ask(actions=("a", "b"))])
    prior([ask(actions=("b", "a"))])
    prior([ask(actions=("a, b",))])
    prior([ask(actions=("a", "b"))])
    assert engine.asked() == 3
    engine.weights_digest = "second"
    prior([ask(actions=("a", "b"))])
    assert engine.asked() == 4
    engine.weights_digest = "first"
    prior([ask(actions=("a", "b"))])
    assert engine.asked() == 4


def test_an_answer_while_the_weights_change_is_not_kept():
    engine = RuleEngine()
    prior = LLMPrior(engine)
    engine.during_score = lambda: setattr(engine, "weights_digest", "second")
    prior([ask()])
    engine.weights_digest = "first"
    assert prior.statistics()["cache_entries"] == 0
    prior([ask()])
    assert engine.asked() == 2


def test_the_cache_is_bounded_and_forgets_the_oldest():
    engine = RuleEngine()
    prior = LLMPrior(engine, cache_size=2)
    prior([ask("A")]), prior([ask("B")]), prior([ask("A")]), prior([ask("C")])
    assert engine.asked() == 3 and prior.statistics()["cache_entries"] == 2
    prior([ask("A")])
    assert engine.asked() == 3
    prior([ask("B")])
    assert engine.asked() == 4
    uncached = LLMPrior(engine, cache_size=0)
    uncached([ask("A")]), uncached([ask("A")])
    assert engine.asked() == 6
    prior.clear()
    assert prior.statistics()["cache_entries"] == 0


def test_episodes_name_their_kv_cache_only_with_history():
    engine = RuleEngine()
    LLMPrior(engine)([ask(episode=4)])
    LLMPrior(engine, history_length=3)([ask(episode=4, history=turns(2))])
    assert [call[0].key for call in engine.calls] == [None, 4]


def test_threads_may_share_a_prior():
    prior = LLMPrior(RuleEngine(), cache_size=5)
    failed = []

    def work(offset):
        for i in range(200):
            (answer,) = prior([ask(f"Room {(i + offset) % 9}")])
            if not np.isclose(np.exp(answer).sum(), 1):
                failed.append(answer)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and prior.statistics()["requests"] == 800


# -- answers that processes share --------------------------------------------


@pytest.fixture
def open_store(tmp_path):
    """Opens the same file as another process would: a connection of its own."""
    opened = []

    def open_one():
        opened.append(SharedStore(tmp_path / "answers.sqlite"))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def test_what_one_prior_asked_no_other_asks_again(open_store):
    first_engine, second_engine = RuleEngine(), RuleEngine()
    first = LLMPrior(first_engine, store=open_store())
    second = LLMPrior(second_engine, store=open_store())
    items = [ask("A"), ask("B", ("", "look")), ask("C", ())]
    computed = first(items)
    found = second([*items, ask("A")])
    assert first_engine.asked() == 3 and not second_engine.calls
    assert [one.tobytes() for one in found[:3]] == [one.tobytes() for one in computed]
    assert all(one.dtype == np.float32 and one.flags.writeable for one in found)
    stats = second.statistics()
    assert (stats["requests"], stats["hits"], stats["store_hits"], stats["engine_requests"]) == (4, 4, 3, 0)
    second([ask("A"), ask("D")])
    stats = second.statistics()
    assert (stats["requests"], stats["hits"], stats["store_hits"], stats["engine_requests"]) == (6, 5, 3, 1)
    first([ask("D")])
    assert first_engine.asked() == 3 and first.statistics()["store_hits"] == 1


def test_other_settings_do_not_share(open_store):
    engine = RuleEngine()
    for options in (
        {},
        {"reduction": "sum"},
        {"use_cot": True},
        {"use_cot": True, "cot_tokens": 5},
        {"game_title": "Zork I"},
    ):
        LLMPrior(engine, store=open_store(), **options)([ask()])
    assert engine.asked() == 5


def test_another_temperature_needs_no_other_answer(open_store):
    engine = RuleEngine()
    plain, flat = (LLMPrior(engine, store=open_store(), temperature=temperature) for temperature in (1.0, 4.0))
    (one,), (other,) = plain([ask()]), flat([ask()])
    assert engine.asked() == 1
    np.testing.assert_allclose(other - other.max(), (one - one.max()) / 4, atol=1e-5)


def test_other_models_and_weights_do_not_share(open_store, tmp_path, monkeypatch):
    for folder in ("one/model", "two/model"):
        (tmp_path / folder).mkdir(parents=True)
    for working_folder, model, asked in [
        ("one", "model", 1),
        ("two", "model", 1),
        ("two", "../one/model", 0),
        ("one", str(tmp_path / "two" / "model"), 0),
        ("one", "hub/name", 1),
        ("two", "hub/name", 0),
    ]:
        monkeypatch.chdir(tmp_path / working_folder)
        engine = RuleEngine(model=model)
        LLMPrior(engine, store=open_store())([ask()])
        assert engine.asked() == asked, (working_folder, model)
    engine = RuleEngine(model="hub/name")
    engine.weights_digest = "second"
    LLMPrior(engine, store=open_store())([ask()])
    assert engine.asked() == 1


def test_a_model_without_a_name_does_not_share(open_store, caplog):
    for _ in range(2):
        engine = RuleEngine(model="")
        LLMPrior(engine, store=open_store())([ask()])
        assert engine.asked() == 1
    assert "no name" in caplog.text


def test_an_answer_while_the_weights_change_is_not_shared(open_store):
    engine, other = RuleEngine(), RuleEngine()
    engine.during_score = lambda: setattr(engine, "weights_digest", "second")
    LLMPrior(engine, store=open_store())([ask()])
    LLMPrior(other, store=open_store())([ask()])
    assert other.asked() == 1


def test_all_misses_are_looked_for_at_once(open_store, monkeypatch):
    store, looked = open_store(), []
    get_many = store.get_many
    monkeypatch.setattr(store, "get_many", lambda keys: looked.append(len(keys)) or get_many(keys))
    prior = LLMPrior(RuleEngine(), store=store)
    prior([ask("A"), ask("B"), ask("A")]), prior([ask("B"), ask("C")]), prior([ask("A")])
    assert looked == [2, 1]


def test_a_row_of_the_wrong_length_is_asked_again(open_store):
    store = open_store()
    LLMPrior(RuleEngine(), store=store)([ask()])
    store._run("UPDATE answers SET value = ?", (b"odd",))
    engine = RuleEngine()
    (answer,) = LLMPrior(engine, store=store)([ask()])
    assert engine.asked() == 1 and len(answer) == 2


def test_a_store_that_fails_only_costs_the_sharing(tmp_path, caplog):
    (tmp_path / "file").write_text("not a folder")
    engine = RuleEngine()
    prior = LLMPrior(engine, store=SharedStore(tmp_path / "file" / "answers.sqlite"))
    prior([ask()]), prior([ask()])
    assert engine.asked() == 1 and prior.recall(ask()) is not None
    assert len(caplog.records) == 1


def test_recall_gives_what_is_known_and_counts_only_that(open_store):
    engine = RuleEngine()
    prior, other = LLMPrior(engine, store=open_store()), LLMPrior(RuleEngine(), store=open_store())
    before = prior.statistics()
    assert prior.recall(ask()) is None and prior.statistics() == before
    (answer,) = prior([ask()])
    for one, store_hits in ((prior, 0), (other, 1), (other, 1)):
        known = one.recall(ask())
        assert known.tobytes() == answer.tobytes()
        known[:] = 0
        assert one.statistics()["store_hits"] == store_hits
    stats = prior.statistics()
    assert (stats["requests"], stats["hits"], stats["engine_requests"]) == (2, 1, 1)
    stats = other.statistics()
    assert (stats["requests"], stats["hits"], stats["engine_requests"]) == (2, 2, 0)
    engine.weights_digest = "second"
    assert prior.recall(ask()) is None
    assert engine.asked() == 1


def test_recall_without_a_store_and_of_shortened_prompts():
    prior = LLMPrior(RuleEngine(context_length=110), history_length=32)
    item = ask(history=turns(32), episode=1)
    assert prior.recall(item) is None and prior.statistics()["shortened_prompts"] == 0
    (answer,) = prior([item])
    assert prior.recall(item).tobytes() == answer.tobytes() and prior.statistics()["shortened_prompts"] == 2


# -- prompts that are too long ----------------------------------------------


def test_the_oldest_history_goes_first_and_the_observation_never():
    engine = RuleEngine(context_length=110)
    prior = LLMPrior(engine, history_length=32)
    prior([ask(history=turns(32), episode=1)])
    (request,) = engine.calls[0]
    shown = text(request.prompt)
    assert engine.count_tokens(request.prompt) <= 110
    assert "step 31" in shown and "step 0\n" not in shown
    assert "A table stands here." in shown and "Valid actions: go north, open sack" in shown
    assert prior.statistics()["shortened_prompts"] == 1


def test_a_long_observation_keeps_its_text_at_the_cost_of_all_history():
    engine = RuleEngine(context_length=60)
    LLMPrior(engine, history_length=4)([PriorRequest(state(look="word " * 80), ("look",), turns(4))])
    (request,) = engine.calls[0]
    assert text(request.prompt).count("word") == 80 and "Room" not in text(request.prompt)


def test_short_prompts_are_not_counted():
    engine = RuleEngine(context_length=2_000)
    LLMPrior(engine, history_length=4)([ask(history=turns(4))])
    assert engine.counted == 0


# -- distributions ----------------------------------------------------------


@example([("a", 1.7014118346046923e38), ("b", 0.0)], 0.5)
@given(
    st.lists(st.tuples(st.sampled_from(["", " ", "a", "b", "c", "dd"]), st.floats(width=32)), max_size=8),
    st.floats(0.05, 20),
)
def test_always_a_distribution(pairs, temperature):
    actions, scores = [pair[0] for pair in pairs], np.array([pair[1] for pair in pairs], np.float32)
    scores = np.clip(scores, -1e6, np.inf)
    log_probs = action_log_probs(actions, scores, temperature)
    assert log_probs.dtype == np.float32 and len(log_probs) == len(actions) and not np.isnan(log_probs).any()
    if actions:
        assert np.exp(log_probs.astype(np.float64)).sum() == pytest.approx(1, abs=1e-4)


def test_the_numbers_of_the_softmax():
    np.testing.assert_allclose(np.exp(action_log_probs(["a", "b"], np.log([0.2, 0.8]), 1.0)), [0.2, 0.8], atol=1e-6)
    np.testing.assert_allclose(
        np.exp(action_log_probs(["a", "b"], [0.0, -2.0], 2.0)), [0.7310586, 0.2689414], atol=1e-6
    )
    shared = np.exp(action_log_probs(["a", "b", "a "], np.log([0.5, 0.5, 0.5]), 1.0))
    np.testing.assert_allclose(shared, [0.25, 0.5, 0.25], atol=1e-6)
    assert action_log_probs(["", "a"], [-math.inf, -3.0], 1.0).tolist() == [-math.inf, 0.0]
    np.testing.assert_allclose(np.exp(action_log_probs(["", " "], [-math.inf, -math.inf], 1.0)), [0.5, 0.5])


def test_no_actions_and_empty_actions_through_the_prior():
    prior = LLMPrior(RuleEngine())
    none, blank, mixed = prior([ask(actions=()), ask(actions=("", "  ")), ask(actions=("", "look"))])
    assert none.shape == (0,)
    np.testing.assert_allclose(np.exp(blank), [0.5, 0.5])
    assert mixed.tolist() == [-math.inf, 0.0]
    assert prior.statistics()["without_score"] == 1


def test_a_high_temperature_flattens():
    def spread(temperature):
        return np.ptp(LLMPrior(RuleEngine(), temperature=temperature)([ask(actions=("go", "examine the table"))])[0])

    assert spread(10.0) == pytest.approx(spread(1.0) / 10, rel=1e-4)


def test_reasoning_comes_before_the_scores_and_once_per_state():
    engine = RuleEngine()
    prior = LLMPrior(engine, use_cot=True)
    prior([ask("A"), ask("B")]), prior([ask("A")])
    assert [len(prompts) for prompts in engine.generated] == [2] and engine.asked() == 2
    assert engine.calls[0][0].prompt[-1] == {"role": "assistant", "content": "I want light.\n"}


def test_reasoning_and_scores_of_an_episode_have_its_key():
    engine = RuleEngine()
    prior = LLMPrior(engine, use_cot=True, history_length=2)
    prior([ask("A", history=turns(1), episode="one"), ask("B", history=turns(1), episode="two")])
    assert engine.keys == ["one", "two"] == [request.key for request in engine.calls[0]]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"temperature": 0}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"reduction": "max"}, "mean, sum"),
        ({"history_length": -1}, "history_length"),
        ({"cache_size": -1}, "cache_size"),
        ({"cot_tokens": 0}, "cot_tokens"),
    ],
)
def test_bad_settings_are_refused(options, word):
    with pytest.raises(ConfigError, match=word):
        LLMPrior(RuleEngine(), **options)
