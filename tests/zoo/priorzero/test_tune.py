"""What the language model learns from and by: losses, examples, trained weights, and that learner and engine say the same."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lzero_async.errors import BadData, ConfigError
from tests.zoo.priorzero.test_engine import ACTIONS, WORDS, write_model
from zoo.jericho.priorzero.llm import ScoreRequest, make_engine
from zoo.jericho.priorzero.llm.model_loading import load_model
from zoo.jericho.priorzero.llm.prior import action_log_probs
from zoo.jericho.priorzero.llm.prompt_table import PromptTable, ScoredPrompt
from zoo.jericho.priorzero.llm.trained import (
    Trainable,
    load_trained,
    lora_layers,
    make_trainable,
    switch_adapter,
    trained_digest,
    trained_weights,
)
from zoo.jericho.priorzero.options import build_options
from zoo.jericho.priorzero.play.batch import Collected, pack_batch, prior_quality, unpack_batch
from zoo.jericho.priorzero.play.open_game import Episode
from zoo.jericho.priorzero.tune import losses
from zoo.jericho.priorzero.tune.examples import can_teach, gather, is_held_out
from zoo.jericho.priorzero.tune.learner import LLMLearner

SLOTS = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.set_num_threads(1)
    return write_model(tmp_path_factory.mktemp("tune") / "llm")


def how(**changes: Any) -> Any:
    return build_options(
        changes={f"llm_train_config.{name}": value for name, value in {"llm_train": "distill", **changes}.items()}
    ).llm_train_config


def learner(folder: str, **changes: Any) -> LLMLearner:
    options = how(**{"lora_rank": 4, "llm_learning_rate": 1e-2, "llm_warmup_updates": 0, **changes})
    return LLMLearner(folder, options, seed=3, device="cpu", temperature=1.5, reduction="mean", discount=0.9)


# -- losses -----------------------------------------------------------------------------------------------------------


def rows(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(-40, 0)), min_size=1, max_size=8),
    st.floats(0.2, 8), st.integers(0, 3),
)  # fmt: skip
def test_the_policy_is_the_priors_with_equal_actions_sharing_and_padding_left_out(
    scored: list[tuple[str, float]], temperature: float, padding: int
) -> None:
    texts = [text for text, _ in scored]
    known = dict(scored)
    scores = np.asarray([known[text] for text in texts], np.float32)  # equal texts have equal scores
    expected = action_log_probs(texts, scores, temperature)
    width = len(texts) + padding
    padded = torch.zeros(1, width, dtype=torch.float64)
    padded[0, : len(texts)] = torch.from_numpy(scores).double()
    present = torch.zeros(1, width, dtype=torch.bool)
    present[0, : len(texts)] = True
    copies = torch.ones(1, width)
    copies[0, : len(texts)] = torch.tensor([float(texts.count(text)) for text in texts])
    found = losses.log_policy(padded, present, copies, temperature)
    np.testing.assert_allclose(found[0, : len(texts)].numpy(), expected, atol=1e-4)
    assert torch.isneginf(found[0, len(texts) :]).all()
    pi = found[0, : len(texts)].exp().numpy()
    assert float(losses.entropy(found, present)) == pytest.approx(
        -(pi * found[0, : len(texts)].numpy()).sum(), abs=1e-6
    )
    assert float(losses.kl_to_reference(found, found, present)) == pytest.approx(0, abs=1e-9)


def test_distillation_is_least_where_the_policy_is_the_visits_and_padding_has_no_gradient() -> None:
    present = torch.tensor([[True, True, True, False]])
    visits = rows([0.5, 0.3, 0.2, 0.0])
    scores = torch.cat([visits[:, :3].log(), rows([0.0])], 1).requires_grad_()
    log_pi = losses.log_policy(scores, present, torch.ones(1, 4), 1.0)
    (loss,) = losses.distillation(log_pi, present, visits)
    assert float(loss.detach()) == pytest.approx(-(visits[0, :3] * visits[0, :3].log()).sum().item())
    loss.backward()
    assert scores.grad is not None and scores.grad.abs().max() < 1e-12
    other = losses.log_policy(rows([0.0, 0.0, 0.0, 0.0]), present, torch.ones(1, 4), 1.0)
    assert float(losses.distillation(other, present, visits)) > float(loss.detach())


def test_visits_of_what_the_model_cannot_say_are_left_out() -> None:
    present = torch.tensor([[True, False, True]])
    log_pi = losses.log_policy(rows([1.0, 0.0, 2.0]), present, torch.ones(1, 3), 1.0)
    found = losses.distillation(log_pi, present, rows([0.2, 0.6, 0.2]))
    assert float(found) == pytest.approx(-0.5 * float(log_pi[0, 0] + log_pi[0, 2]))


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "moves"),
    [(0.0, 1.0, True), (0.5, 1.0, False), (-0.5, 1.0, True), (-0.5, -1.0, False), (0.5, -1.0, True), (0.0, -1.0, True)],
)
def test_the_policy_gradient_stops_where_the_ratio_has_moved_enough(
    log_ratio: float, advantage: float, moves: bool
) -> None:
    value = torch.tensor([log_ratio], requires_grad=True)
    loss = losses.policy_gradient(value, torch.tensor([advantage]), torch.tensor([0.5]), 0.2)
    loss.sum().backward()
    assert value.grad is not None
    assert float(value.grad) == pytest.approx(-0.5 * advantage * math.exp(log_ratio) if moves else 0.0)


def test_the_correction_is_how_much_likelier_the_model_was_and_bounded() -> None:
    found = losses.truncated_correction(torch.tensor([0.5, 0.9, 0.1]).log(), torch.tensor([0.25, 0.1, 0.4]), 3.0)
    assert found.tolist() == pytest.approx([2.0, 3.0, 0.25])


@settings(max_examples=200)
@given(
    st.lists(st.tuples(st.floats(-5, 5, width=32), st.floats(-5, 5, width=32)), min_size=1, max_size=12),
    st.booleans(), st.floats(0.5, 1.0), st.integers(1, 6),
)  # fmt: skip
def test_advantages_are_n_step_returns_minus_values(
    steps: list[tuple[float, float]], ended: bool, discount: float, n: int
) -> None:
    rewards, values = (np.asarray(column, np.float32) for column in zip(*steps, strict=True))
    found, known = losses.advantages(rewards, values, ended, discount, n)
    for start in range(len(steps)):
        total, weight, place = 0.0, 1.0, start
        while place < len(steps) and place < start + n and (ended or place < len(steps) - 1):
            total += weight * float(rewards[place])
            weight, place = weight * discount, place + 1
        if place < len(steps):
            total += weight * float(values[place])
        if known[start]:
            assert found[start] == pytest.approx(total - float(values[start]), abs=1e-4)
    assert known.all() == (ended or False) or (not ended and list(known) == [True] * (len(steps) - 1) + [False])


@given(st.lists(st.floats(-1e3, 1e3, width=32), max_size=20))
def test_normalised_advantages_have_no_mean_and_unit_spread(values: list[float]) -> None:
    found = losses.normalised(np.asarray(values, np.float32))
    assert len(found) == len(values) and np.isfinite(found).all()
    if len(values) and np.std(np.asarray(values, np.float32)) > 1:
        assert float(found.mean()) == pytest.approx(0, abs=1e-3) and float(found.std()) == pytest.approx(1, abs=1e-2)


# -- what travels -----------------------------------------------------------------------------------------------------

TOKENS = st.lists(st.integers(0, 60_000), max_size=5)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 60_000), min_size=1, max_size=6), st.lists(TOKENS, max_size=4)), max_size=5
    )
)
def test_a_table_gives_back_its_prompts(prompts: list[tuple[list[int], list[list[int]]]]) -> None:
    made = [
        ScoredPrompt(tokens, candidates, np.arange(len(candidates), dtype=np.float32)) for tokens, candidates in prompts
    ]
    table = PromptTable.of(PromptTable.build(made).plain())
    assert len(table) == len(made)
    for one, other in zip(made, table.rows(), strict=True):
        assert (list(one.tokens), [list(c) for c in one.candidates]) == (other.tokens, other.candidates)
        assert one.scores.tolist() == other.scores.tolist()


def ids(engine: Any, number: int) -> tuple[list[int], list[tuple[int, ...]]]:
    prompt = [{"role": "user", "content": " ".join(np.random.default_rng(number).choice(WORDS, 12))}]
    return engine.request_ids(ScoreRequest(prompt, ACTIONS[: 3 + number % 5]))


def batch(folder: str, *, prompts: int = 4, steps: int = 9, favourite: int = 1, rewards: float = 0.0) -> Collected:
    """A collect whose search always likes one candidate best."""
    engine = make_engine("transformers", folder, device="cpu")
    scored = []
    for number in range(prompts):
        tokens, candidates = ids(engine, number)
        request = ScoreRequest(
            [{"role": "user", "content": " ".join(np.random.default_rng(number).choice(WORDS, 12))}],
            ACTIONS[: len(candidates)],
        )
        scored.append(ScoredPrompt(tokens, candidates, engine.score([request])[0]))
    table = PromptTable.build(scored)
    rng = np.random.default_rng(1)
    numbers = rng.integers(0, prompts, steps)
    visits, masks, priors = (
        np.zeros((steps + extra, SLOTS), kind) for extra, kind in ((0, np.float32), (1, np.int8), (0, np.float32))
    )
    priors[:] = -np.inf
    for step, number in enumerate(numbers):
        count = int(table.counts[number])
        visits[step, :count] = 0.1 / (count - 1)
        visits[step, favourite] = 0.9
        masks[step, :count] = 1
        priors[step, :count] = action_log_probs(ACTIONS[:count], table.row(number).scores, 1.5)
    masks[-1, 0] = 1
    actions = np.where(rng.random(steps) < 0.5, favourite, 0)
    gains = np.where(actions == favourite, rewards, -rewards).astype(np.float32)
    episode = Episode(
        np.zeros((steps + 1, 2), np.float32), actions, gains, masks, visits, np.zeros(steps, np.float32),
        np.zeros(steps, np.float32), True, priors, np.full(steps, 0.5, np.float32), numbers, {"score": 1.0},
    )  # fmt: skip
    return Collected([episode], 1.0, {"llm_version": 0}, table)


def test_a_batch_is_saved_with_what_the_language_model_was_asked(folder: str) -> None:
    made = batch(folder)
    back = unpack_batch(pack_batch(made))
    assert back.prompts is not None and made.prompts is not None
    for name, value in made.prompts.plain().items():
        assert back.prompts.plain()[name].tolist() == value.tolist()
    assert back.episodes[0].prompts.tolist() == made.episodes[0].prompts.tolist()
    assert back.episodes[0].taken.tolist() == made.episodes[0].taken.tolist()


def test_equal_prompts_are_one_example_with_the_visits_of_all_their_steps(folder: str) -> None:
    made = batch(folder, prompts=3, steps=20)
    examples = gather([made, made], 0.9, 3)
    episode = made.episodes[0]
    assert len(examples) == len(set(episode.prompts.tolist()))
    assert sum(len(one.steps) for one in examples) == 40
    for one in examples:
        mine = [
            step for step, number in enumerate(episode.prompts) if made.prompts.row(number).tokens == one.row.tokens
        ]
        expected = episode.visits[mine].sum(0)[: len(one.copies)] * 2
        np.testing.assert_allclose(one.visits, expected, rtol=1e-5)
        assert one.target.sum() == pytest.approx(1)
    values = [step.advantage for one in examples for step in one.steps if math.isfinite(step.advantage)]
    assert np.mean(values) == pytest.approx(0, abs=1e-4)


def test_a_prompt_without_a_choice_teaches_nothing() -> None:
    table = [ScoredPrompt([1, 2], [[3]], np.zeros(1)), ScoredPrompt([1], [[3], [3], []], np.zeros(3)),
             ScoredPrompt([1], [[3], [4]], np.zeros(2))]  # fmt: skip
    visits = np.full((3, SLOTS), 0.1, np.float32)
    episode = Episode(
        np.zeros((4, 1)), np.zeros(3, int), np.zeros(3, np.float32), np.ones((4, SLOTS)), visits, np.zeros(3),
        np.zeros(3), True, None, np.ones(3, np.float32), np.arange(3),
    )  # fmt: skip
    examples = gather([Collected([episode], 1.0, {}, PromptTable.build(table))], 0.9, 3)
    assert [can_teach(one) for one in examples] == [False, False, True]


def test_the_quality_of_a_prior_is_what_numpy_says_of_it() -> None:
    visits = np.zeros((2, SLOTS), np.float32)
    visits[0, :3], visits[1, :2] = (0.5, 0.25, 0.25), (1.0, 0.0)
    priors = np.full((2, SLOTS), -np.inf, np.float32)
    priors[0, :3], priors[1, :2] = np.log((0.2, 0.4, 0.4)), np.log((0.9, 0.1))
    episode = Episode(
        np.zeros((3, 1)),
        np.zeros(2, int),
        np.zeros(2),
        np.ones((3, SLOTS)),
        visits,
        np.zeros(2),
        np.zeros(2),
        True,
        priors,
    )
    found = prior_quality([episode])
    first = 0.5 * math.log(0.5 / 0.2) + 0.5 * math.log(0.25 / 0.4)
    assert found["kl"] == pytest.approx((first + math.log(1 / 0.9)) / 2, abs=1e-5)
    assert found["top1"] == 0.5
    entropies = [-sum(p * math.log(p) for p in row) for row in ((0.2, 0.4, 0.4), (0.9, 0.1))]
    assert found["entropy"] == pytest.approx(np.mean(entropies), abs=1e-5)
    assert prior_quality([replace(episode, priors=None)]) == {}


# -- trained weights --------------------------------------------------------------------------------------------------


def test_lora_begins_as_if_it_were_not_there_and_can_be_switched_off(folder: str) -> None:
    tokens = torch.arange(12)[None] % 200
    plain = load_model(folder, torch.float32)
    expected = plain(tokens).logits
    model = make_trainable(load_model(folder, torch.float32), Trainable(rank=4))
    assert torch.equal(model(tokens).logits, expected)
    weights = {name: torch.randn_like(value) for name, value in trained_weights(model).items()}
    load_trained(model, weights)
    assert (model(tokens).logits - expected).abs().max() > 0.01
    switch_adapter(model, False)
    assert torch.equal(model(tokens).logits, expected)
    assert len(lora_layers(model)) == 3 * 7  # of each block: query, key, value, output, and three of the MLP


def test_the_dice_are_as_they_were_after_a_model_was_made_trainable(folder: str) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    make_trainable(load_model(folder, torch.float32), Trainable(rank=4))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("other", [Trainable(rank=2), Trainable("full")])
def test_weights_that_do_not_fit_change_nothing(folder: str, other: Trainable) -> None:
    model = make_trainable(load_model(folder, torch.float32), Trainable(rank=4))
    wrong = trained_weights(make_trainable(load_model(folder, torch.float32), other))
    before = trained_digest("", trained_weights(model))
    with pytest.raises(ConfigError, match="do not fit"):
        load_trained(model, wrong)
    assert trained_digest("", trained_weights(model)) == before


def test_a_digest_tells_every_bit_every_name_and_the_model_below_apart() -> None:
    weights = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)}
    found = {
        trained_digest("x", weights), trained_digest("y", weights), trained_digest("x", {"a": weights["a"]}),
        trained_digest("x", {"a": weights["a"], "c": weights["b"]}),
        trained_digest("x", {**weights, "a": torch.tensor([1.0, np.nextafter(np.float32(2), np.float32(3))])}),
        trained_digest("x", {**weights, "a": weights["a"].double()}),
        trained_digest("x", {**weights, "a": weights["a"][None]}),
    }  # fmt: skip
    assert len(found) == 7
    assert trained_digest("x", weights) == trained_digest("x", dict(reversed(weights.items())))


# -- the learner ------------------------------------------------------------------------------------------------------


def request(number: int) -> ScoreRequest:
    count = 3 + number % 5
    prompt = [{"role": "user", "content": " ".join(np.random.default_rng(number).choice(WORDS, 12))}]
    return ScoreRequest(prompt, ACTIONS[:count])


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_engine_and_learner_give_the_same_scores_after_every_load(folder: str, method: str, reduction: str) -> None:
    made = learner(folder, llm_method=method, llm_learning_rate=3e-3)
    made._reduction = reduction
    engine = make_engine(
        "transformers", folder, device="cpu", deterministic=True, trainable=Trainable(method, rank=4, seed=9)
    )
    first = [engine.score([request(number)], reduction)[0] for number in range(4)]
    data = batch(folder)
    examples = gather([data], 0.9, 3)
    for _ in range(3):
        made.train([data])
        engine.load_trained(made.weights(), made.version, made.digest())
        assert (engine.weights_version, engine.weights_digest) == (made.version, made.digest())
        with torch.no_grad():
            scores, present = made.scores(examples)
        for row, mask, one in zip(scores, present, examples, strict=True):
            number = next(n for n in range(4) if ids(engine, n)[0] == one.row.tokens)
            np.testing.assert_allclose(row[mask].numpy(), engine.score([request(number)], reduction)[0], atol=1e-3)
    moved = max(np.abs(engine.score([request(n)], reduction)[0] - first[n]).max() for n in range(4))
    assert moved > 0.05
    engine.load_trained(None, 0, "")
    for number in range(4):
        np.testing.assert_array_equal(engine.score([request(number)], reduction)[0], first[number])


def test_new_weights_never_meet_old_keys_and_values(folder: str) -> None:
    made = learner(folder)
    made.train([batch(folder)])
    kept = make_engine("transformers", folder, device="cpu", trainable=Trainable(rank=4))
    fresh = make_engine("transformers", folder, device="cpu", trainable=Trainable(rank=4))
    keyed = replace(request(1), key="an episode")
    kept.score([keyed])
    for engine in (kept, fresh):
        engine.load_trained(made.weights(), 1, made.digest())
    np.testing.assert_array_equal(kept.score([keyed])[0], fresh.score([keyed])[0])


def test_an_engine_without_room_for_trained_weights_refuses_them(folder: str) -> None:
    engine = make_engine("transformers", folder, device="cpu")
    with pytest.raises(ConfigError, match="trainable"):
        engine.load_trained({}, 1, "other")


def test_distillation_teaches_what_the_search_likes(folder: str) -> None:
    made, data = learner(folder, llm_updates=8), batch(folder, favourite=2)
    first = made.train([data])
    for _ in range(6):
        last = made.train([data])
    assert last["distill_loss"] < first["distill_loss"] - 0.3
    assert last["top1_after"] == 1.0 > first["top1_before"]
    assert (made.version, made.updates) == (7, 56)


def test_a_power_makes_the_visits_sharper(folder: str) -> None:
    made = learner(folder, distill_power=2.0)
    examples = gather([batch(folder)], 0.9, 3)
    with torch.no_grad():
        _, found = made._loss(examples)
        expected = []
        for one in examples:
            scores, present = made.scores([one])
            log_pi = losses.log_policy(scores, present, torch.from_numpy(one.copies)[None], 1.5)[0].numpy()
            sharper = one.target**2 / (one.target**2).sum()
            expected.append(-(sharper * log_pi).sum())
    assert found["distill_loss"] == pytest.approx(np.mean(expected), rel=1e-4)


def test_what_is_met_often_is_trained_on_more_often_as_the_square_root(folder: str) -> None:
    made = learner(folder, llm_updates=2000, llm_batch_size=1)
    examples = gather([batch(folder, prompts=4, steps=60)], 0.9, 3)
    drawn = [one for update in made._draw(examples, np.random.default_rng(0)) for one in update]
    weights = np.sqrt([len(one.steps) for one in examples])
    counts = np.asarray([sum(one is other for other in drawn) for one in examples])
    np.testing.assert_allclose(counts / counts.sum(), weights / weights.sum(), atol=0.04)
    made._how = replace(made._how, llm_updates=3, llm_batch_size=99)  # distinct within an update, all of them at most
    for update in made._draw(examples, np.random.default_rng(0)):
        assert len(update) == len(examples) == len({id(one) for one in update})


def test_the_policy_gradient_makes_what_was_rewarded_likelier(folder: str) -> None:
    data = batch(folder, favourite=2, rewards=1.0, steps=40)
    made = learner(folder, llm_train="rft", llm_updates=6, rft_steps=1)
    examples = gather([data], 0.9, 1)

    def likely() -> float:
        with torch.no_grad():
            scores, present = made.scores(examples)
        return float(torch.softmax(scores.masked_fill(~present, -math.inf), -1)[:, 2].mean())

    before = likely()
    found = made.train([data])
    assert likely() > before + 0.01
    assert found["clipped"] >= 0 and found["correction"] > 0 and "distill_loss" not in found


@pytest.mark.parametrize("ratio", ["ppo", "gspo"])
def test_at_first_every_ratio_is_one(folder: str, ratio: str) -> None:
    made = learner(folder, llm_train="both", rft_ratio=ratio)
    _, found = made._loss(gather([batch(folder)], 0.9, 3))
    assert found["ratio"] == pytest.approx(1.0, abs=1e-4) and found["clipped"] == 0


@pytest.mark.parametrize("method", ["lora", "full"])
def test_the_divergence_is_from_the_untrained_model_and_holds_it_back(folder: str, method: str) -> None:
    data = batch(folder, favourite=2)
    free = learner(folder, llm_method=method, llm_updates=12, llm_learning_rate=3e-3)
    held = learner(folder, llm_method=method, llm_updates=12, llm_learning_rate=3e-3, llm_kl_weight=100.0)
    examples = gather([data], 0.9, 3)
    _, before = held._loss(examples)
    assert before["kl_to_reference"] == pytest.approx(0, abs=1e-6)
    free.train([data]), held.train([data])
    distances = []
    for made in (free, held):
        made._how = replace(made._how, llm_kl_weight=1.0)
        made._reference = held._reference
        distances.append(made._loss(examples)[1]["kl_to_reference"])
    assert 0 <= distances[1] < 0.5 * distances[0]


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_train_is_repeated_bit_by_bit_from_what_was_handed_over(folder: str, method: str) -> None:
    data = batch(folder)
    one = learner(folder, llm_method=method, llm_train="both", llm_kl_weight=0.1)
    one.train([data])
    state = one.state()
    one.train([data, data])
    other = learner(folder, llm_method=method, llm_train="both", llm_kl_weight=0.1)
    other.load_state(state)
    other.train([data, data])
    assert other.digest() == one.digest() != trained_digest(one._base, state["trained"])
    other.load_state(None)
    assert other.version == 0 and other.digest() == learner(folder, llm_method=method).digest()


def test_a_state_stays_as_it_was_handed_over_when_somebody_trains_on_from_it(folder: str) -> None:
    data, made = batch(folder), learner(folder)
    made.train([data])
    state, expected = made.state(), copy.deepcopy(made.state())
    other = learner(folder)
    for one in (other, made):
        one.load_state(state)
        one.train([data])
    for number, moments in expected["optimizer"].items():
        assert all(torch.equal(state["optimizer"][number][name], value) for name, value in moments.items())
    assert all(torch.equal(state["trained"][name], value) for name, value in expected["trained"].items())
    assert made.digest() == other.digest()


def test_weights_of_another_model_are_refused_though_they_have_its_shape(folder: str, tmp_path: Path) -> None:
    made = learner(folder)
    made.train([batch(folder)])
    other = write_model(tmp_path / "other", seed=7)
    with pytest.raises(ConfigError, match="not the one that was trained"):
        learner(other).load_state(made.state())
    engine = make_engine("transformers", other, device="cpu", trainable=Trainable(rank=4))
    with pytest.raises(ConfigError, match="not those of this model"):
        engine.load_trained(made.weights(), 1, made.digest())
    assert engine.weights_version == 0


def test_an_episode_that_is_not_finite_teaches_nothing(folder: str) -> None:
    good, bad = batch(folder), batch(folder)
    bad.episodes[0].rewards[1] = float("nan")
    assert gather([bad], 0.9, 3) == []
    one, other = (gather(batches, 0.9, 3) for batches in ([good], [good, bad]))
    assert [len(example.steps) for example in one] == [len(example.steps) for example in other]


def test_passes_add_up_to_the_same_update_whatever_their_size(folder: str) -> None:
    data, found = batch(folder), []
    for tokens in (1, 60, 100_000):
        made = learner(folder, llm_tokens_per_pass=tokens, llm_updates=2)
        made.train([data])
        found.append(torch.cat([value.detach().flatten() for value in made.weights().values()]))
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], atol=1e-3, rtol=0)


def test_updates_that_are_not_finite_are_left_out_and_too_many_of_them_end_it(folder: str) -> None:
    made, data = learner(folder, llm_updates=4), batch(folder)
    before = made.digest()
    made._loss = lambda part: (torch.tensor(float("nan"), requires_grad=True), {})  # type: ignore[method-assign]
    found = made.train([data])
    assert (found["updates"], found["left_out"], made.updates) == (0, 4, 0) and made.digest() == before
    with pytest.raises(BadData, match="llm_learning_rate"):
        made.train([data, data]), made.train([data]), made.train([data])


def test_a_state_that_is_not_finite_is_not_taken(folder: str) -> None:
    made = learner(folder)
    state = made.state()
    next(iter(state["trained"].values()))[0] = float("nan")
    with pytest.raises(BadData, match="not finite"):
        made.load_state(state)


def test_what_is_held_out_is_never_trained_on_and_always_the_same(folder: str) -> None:
    data = batch(folder, prompts=12, steps=60)
    made = learner(folder, llm_holdout=0.5, llm_updates=8)
    trained: set[Any] = set()
    update = made._update
    made._update = lambda examples: trained.update(one.row.key for one in examples) or update(examples)  # type: ignore[func-returns-value,method-assign]
    found = made.train([data]), made.train([data])
    held = {one.row.key for one in gather([data], 0.9, 3) if is_held_out(one, 0.5)}
    assert 2 < len(held) < 10 and trained and not trained & held
    assert {row["held_out"] for row in found} == {min(8.0, len(held))} and 0 <= found[0]["top1_held_out"] <= 1


def test_a_train_without_anything_to_learn_from_is_a_version_all_the_same(folder: str) -> None:
    made = learner(folder)
    assert made.train([Collected([], 0.0)]) == {"examples": 0.0, "updates": 0.0, "left_out": 0.0}
    assert made.version == 1 and made.updates == 0


def test_the_learning_rate_rises_and_falls(folder: str) -> None:
    made = learner(folder, llm_warmup_updates=4, llm_lr_schedule="cosine", llm_decay_updates=10)
    rates = []
    for made.updates in range(20):
        rates.append(made._rate())
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0] and rates[4] == 1.0
    assert rates[4:15] == sorted(rates[4:15], reverse=True) and rates[14:] == [pytest.approx(0.1)] * 6


def test_the_models_own_weights_stay_as_they_were(folder: str) -> None:
    made = learner(folder)
    plain = load_model(folder, torch.float32).state_dict()
    made.train([batch(folder)])
    own = {name.replace(".base_layer", ""): value for name, value in made.model.state_dict().items()}
    assert all(torch.equal(own[name], value) for name, value in plain.items())


def test_the_folder_of_the_model_is_not_written_to(folder: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(folder).iterdir()}
    learner(folder).train([batch(folder)])
    assert before == {path: path.stat().st_mtime_ns for path in Path(folder).iterdir()}
