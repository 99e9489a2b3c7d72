"""The mixing of priors at the root: properties that hold for every input, and the rules with their numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.play.root_policy import (
    INVALID_LOGIT,
    LOWEST_LOG_PROB,
    MODES,
    WEIGHTINGS,
    mix_root_policies,
    mix_root_policy,
    normalised_entropy,
    root_logits,
    root_probabilities,
)

ANY = st.floats(width=32)  # NaN and infinities included
WEIGHT = st.floats(0, 1)


@st.composite
def roots(draw):
    slots = draw(st.integers(1, 8))
    llm = draw(st.none() | st.lists(ANY, max_size=10))
    wm = draw(st.lists(ANY, min_size=slots, max_size=slots))
    mask = draw(st.lists(st.integers(0, 1), min_size=slots, max_size=slots))
    options = {
        "mode": draw(st.sampled_from(MODES)),
        "weighting": draw(st.sampled_from(WEIGHTINGS)),
        "llm_weight": draw(WEIGHT),
    }
    return llm, np.array(wm, np.float32), np.array(mask, np.int8), options


@given(roots())
def test_always_a_distribution_with_exact_zeros_for_invalid_slots(root):
    llm, wm, mask, options = root
    probs = root_probabilities(llm, wm, mask, **options)
    assert probs.dtype == np.float32 and probs.shape == wm.shape
    assert np.isfinite(probs).all() and (probs >= 0).all()
    assert (probs[mask == 0] == 0).all()
    assert probs.sum() == pytest.approx(1 if mask.any() else 0, abs=1e-5)


@given(roots())
def test_logits_are_finite_and_agree_with_the_probabilities(root):
    llm, wm, mask, options = root
    probs, logits = root_probabilities(llm, wm, mask, **options), mix_root_policy(llm, wm, mask, **options)
    assert logits.dtype == np.float32 and np.isfinite(logits).all()
    assert (logits[mask == 0] == INVALID_LOGIT).all()
    assert (logits[mask == 1] >= LOWEST_LOG_PROB).all() and (logits <= 0).all()
    if mask.any():
        back = np.exp(logits.astype(np.float64) - logits.max())
        np.testing.assert_allclose(back / back.sum(), probs, atol=1e-5)
        assert (back[mask == 0] == 0).all()


@given(roots(), st.randoms(use_true_random=False))
def test_the_order_of_slots_means_nothing(root, random):
    llm, wm, mask, options = root
    llm = (list(llm or []) + [-math.inf] * len(wm))[: len(wm)]
    order = random.sample(range(len(wm)), len(wm))
    straight = root_probabilities(llm, wm, mask, **options)
    np.testing.assert_allclose(
        root_probabilities(np.array(llm)[order], wm[order], mask[order], **options), straight[order], atol=1e-6
    )


@given(roots())
def test_what_stands_in_invalid_slots_means_nothing(root):
    llm, wm, mask, options = root
    other = np.where(mask == 1, wm, np.float32(7))
    np.testing.assert_array_equal(
        root_probabilities(llm, wm, mask, **options), root_probabilities(llm, other, mask, **options)
    )


@given(st.lists(roots(), min_size=0, max_size=4), st.sampled_from(MODES))
def test_a_batch_is_its_rows(batch, mode):
    slots = 8
    llm = [row[0] for row in batch]
    wm, mask = np.zeros((len(batch), slots), np.float32), np.zeros((len(batch), slots), np.int8)
    for i, row in enumerate(batch):
        wm[i, : len(row[1])], mask[i, : len(row[2])] = row[1], row[2]
    mixed = mix_root_policies(llm, wm, mask, mode=mode, llm_weight=0.3)
    assert mixed.shape == (len(batch), slots) and mixed.dtype == np.float32
    for i in range(len(batch)):
        np.testing.assert_array_equal(mixed[i], mix_root_policy(llm[i], wm[i], mask[i], mode=mode, llm_weight=0.3))


LLM = np.log([0.7, 0.2, 0.1])
WM = np.log([0.1, 0.3, 0.6, 5.0])
MASK = np.array([1, 1, 1, 0])


def test_modes_and_fixed_weight():
    def probs(**options):
        return root_probabilities(LLM, WM, MASK, **options)

    np.testing.assert_allclose(probs(mode="llm_logits"), [0.7, 0.2, 0.1, 0], atol=1e-6)
    np.testing.assert_allclose(probs(mode="wm_logits"), [0.1, 0.3, 0.6, 0], atol=1e-6)
    np.testing.assert_allclose(probs(llm_weight=0.25), [0.25, 0.275, 0.475, 0], atol=1e-6)
    np.testing.assert_allclose(probs(llm_weight=0), probs(mode="wm_logits"))
    np.testing.assert_allclose(probs(llm_weight=1), probs(mode="llm_logits"))


def test_adaptive_weight_follows_the_world_models_entropy():
    options = {"weighting": "adaptive", "llm_weight": 0.8, "min_llm_weight": 0.2}
    certain, clueless = [0, 1e4, 0, 0], [3, 3, 3, 9]
    np.testing.assert_allclose(
        root_probabilities(LLM, certain, MASK, **options), [0.2 * 0.7, 0.2 * 0.2 + 0.8, 0.2 * 0.1, 0], atol=1e-6
    )
    np.testing.assert_allclose(
        root_probabilities(LLM, clueless, MASK, **options)[:3], 0.8 * np.exp(LLM) + 0.2 / 3, atol=1e-6
    )


@given(st.floats(0, 20), st.floats(0, 20))
def test_the_less_certain_the_world_model_the_more_weight_for_the_llm(a, b):
    sharp, flat = max(a, b), min(a, b)
    llm = [-math.inf, 0.0, -math.inf]  # all on slot 1, where the world model has least

    def share(scale):
        wm = root_probabilities(None, [scale, 0, scale / 2], [1, 1, 1], mode="wm_logits")
        mixed = root_probabilities(llm, [scale, 0, scale / 2], [1, 1, 1], weighting="adaptive", llm_weight=0.9)
        return (mixed[1] - wm[1]) / (1 - wm[1])

    assert share(flat) >= share(sharp) - 1e-4


def test_entropy_is_normalised_by_the_valid_slots():
    mask = np.array([1, 1, 0, 0])
    assert normalised_entropy(np.array([0.5, 0.5, 0, 0]), mask) == pytest.approx(1)
    assert normalised_entropy(np.array([1.0, 0, 0, 0]), mask) == 0
    assert normalised_entropy(np.array([1.0, 0, 0, 0]), np.array([1, 0, 0, 0])) == 0


def test_a_side_that_says_nothing_leaves_the_other_alone():
    nothing = [math.nan, -math.inf, math.nan]
    np.testing.assert_allclose(root_probabilities(nothing, WM, MASK), [0.1, 0.3, 0.6, 0], atol=1e-6)
    np.testing.assert_allclose(root_probabilities(None, WM, MASK), [0.1, 0.3, 0.6, 0], atol=1e-6)
    np.testing.assert_allclose(root_probabilities(LLM, [math.nan] * 4, MASK), [0.7, 0.2, 0.1, 0], atol=1e-6)
    for mode in MODES:
        np.testing.assert_allclose(
            root_probabilities(nothing, [math.nan] * 4, MASK, mode=mode), [1 / 3] * 3 + [0], atol=1e-6
        )


def test_infinite_logits_are_certainty():
    np.testing.assert_allclose(
        root_probabilities(None, [math.inf, 0, math.inf, math.inf], MASK, mode="wm_logits"), [0.5, 0, 0.5, 0]
    )


def test_more_actions_than_slots_and_fewer():
    np.testing.assert_allclose(
        root_probabilities(np.log([0.5, 0.25, 0.25]), [0, 0], [1, 1], mode="llm_logits"), [2 / 3, 1 / 3], atol=1e-6
    )
    np.testing.assert_allclose(root_probabilities([0.0], [0, 0, 0], [1, 1, 1], mode="llm_logits"), [1, 0, 0])


def test_no_valid_action():
    assert (root_probabilities(LLM, WM, [0] * 4) == 0).all()
    assert (mix_root_policy(LLM, WM, [0] * 4) == INVALID_LOGIT).all()


def test_a_valid_action_without_probability_can_still_be_tried():
    logits = root_logits([1.0, 0.0, 0.0], [1, 1, 0])
    np.testing.assert_allclose(logits, [0, LOWEST_LOG_PROB, INVALID_LOGIT])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"mode": "llm"}, "llm_plus_wm_logits"),
        ({"weighting": "auto"}, "adaptive"),
        ({"llm_weight": 1.5}, "1.5"),
        ({"llm_weight": math.nan}, "nan"),
        ({"weighting": "adaptive", "llm_weight": 0.2, "min_llm_weight": 0.4}, "ordered"),
        ({"wm_logits": [0.0]}, "shape"),
        ({"llm_log_probs": [[0.0]]}, "one-dimensional"),
    ],
)
def test_bad_input_is_refused(changes, word):
    arguments = {"llm_log_probs": LLM, "wm_logits": WM, "action_mask": MASK} | changes
    with pytest.raises(ConfigError, match=word):
        root_probabilities(**arguments)


def test_a_batch_of_unequal_parts_is_refused():
    with pytest.raises(ConfigError, match="2 priors"):
        mix_root_policies([None, None], np.zeros((1, 3)), np.ones((1, 3)))
