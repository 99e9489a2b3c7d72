"""The batched search computes what LightZero's world model computes, node by node."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lzero_async.lightzero.dice import repeatable, seed_dice
from lzero_async.lightzero.silence import quiet
from zoo.jericho.priorzero.learn.learner import Learner
from zoo.jericho.priorzero.options import build_options, unizero_config
from zoo.jericho.priorzero.play.search import RootInput, TreeSearch

SLOTS, FEATURES = 5, 12


@pytest.fixture(scope="module")
def learner() -> Learner:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    options = build_options(
        changes={
            "env_config.max_action_num": SLOTS,
            "policy_config.embed_dim": 16,
            "policy_config.num_heads": 2,
            "policy_config.num_unroll_steps": 4,
            "policy_config.batch_size": 4,
        }
    )
    with quiet():
        cfg = unizero_config(options, FEATURES)
    learner = Learner(cfg)
    with torch.no_grad():  # the heads start at zero, which would hide every mistake
        for parameter in learner.model.parameters():
            parameter.normal_(std=0.3)
    learner.model.eval()
    return learner


def window(rng: np.random.Generator, steps: int, mask: list[int] | None = None) -> RootInput:
    observations = rng.normal(size=(steps, FEATURES)).astype(np.float32)
    return RootInput(
        observations, rng.integers(SLOTS, size=steps - 1).tolist(), np.asarray(mask or [1] * SLOTS, np.int8)
    )


def reference(learner: Learner, root: RootInput, path: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Reward of the last action, policy and value logits after `path`, from whole sequences through LightZero's blocks."""
    model = learner.model.world_model
    with torch.no_grad():
        latents = model.tokenizer.encode_to_obs_embeddings(torch.from_numpy(root.observations))[:, 0]
        tokens = [latents[0]]
        for latent, action in zip(latents[1:], root.actions, strict=True):
            tokens += [model.act_embedding_table(torch.tensor(action)), latent]
        reward = torch.zeros(1, 1)
        for action in path:
            tokens.append(model.act_embedding_table(torch.tensor(action)))
            hidden = _whole(model, tokens)
            reward = model.head_rewards.head_module(hidden)
            tokens.append(model.head_observations.head_module(hidden)[0])
        hidden = _whole(model, tokens)
        heads = (model.head_policy, model.head_value)
        return reward.numpy()[0], *(head.head_module(hidden).numpy()[0] for head in heads)


def _whole(model: torch.nn.Module, tokens: list[torch.Tensor]) -> torch.Tensor:
    sequence = torch.stack(tokens)[None]
    return model.transformer(sequence + model.pos_emb(torch.arange(len(tokens))))[:, -1]


def test_roots_of_different_lengths_match_whole_sequences(learner: Learner) -> None:
    rng = np.random.default_rng(1)
    roots = [window(rng, steps) for steps in (1, 3, 2)]
    found = TreeSearch(learner.model, learner.cfg, max_window=3).policy_logits(roots)
    for root, logits in zip(roots, found, strict=True):
        np.testing.assert_allclose(logits, reference(learner, root, [])[1], atol=1e-5)


def test_nodes_match_whole_sequences_whatever_their_parent(learner: Learner) -> None:
    rng = np.random.default_rng(2)
    roots = [window(rng, 1), window(rng, 2)]
    search = TreeSearch(learner.model, learner.cfg, max_window=2)
    with torch.inference_mode():
        pool = search._pool(4, 2)
        search._infer_roots(roots, pool)
        search._expand(pool, 1, [0, 0], [0, 1], [3, 1])
        search._expand(pool, 2, [1, 0], [0, 1], [2, 4])  # below node 1 for one game, beside it for the other
        reward, policy, value = search._expand(pool, 3, [2, 2], [0, 1], [0, 2])
    for game, path in enumerate(([3, 2, 0], [4, 2])):
        expected = reference(learner, roots[game], path)
        for got, want in zip((reward, policy, value), expected, strict=True):
            np.testing.assert_allclose(got[game].numpy(), want, atol=1e-5)


def test_a_line_deeper_than_the_training_window_goes_on_from_its_latent(learner: Learner) -> None:
    rng = np.random.default_rng(3)
    search = TreeSearch(learner.model, learner.cfg, max_window=1)
    with torch.inference_mode():
        pool = search._pool(6, 1)
        search._infer_roots([window(rng, 1)], pool)
        for node in range(1, 6):
            search._expand(pool, node, [node - 1], [0], [node % SLOTS])
        assert search.capacity == 8
        assert pool.sizes[:, 0].tolist() == [1, 3, 5, 7, 3, 5]  # restarted when 7 + 2 did not fit
        model, latent = learner.model.world_model, pool.latents[3, 0]
        tokens = [latent, model.act_embedding_table(torch.tensor(4))]
        (expected,) = model.head_observations.head_module(_whole(model, tokens))
        np.testing.assert_allclose(pool.latents[4, 0].numpy(), expected.numpy(), atol=1e-5)


def test_visits_stay_within_the_mask_and_sum_to_one(learner: Learner) -> None:
    rng = np.random.default_rng(4)
    roots = [window(rng, 1, [1, 0, 1, 0, 0]), window(rng, 1, [0, 0, 0, 0, 1])]
    search = TreeSearch(learner.model, learner.cfg, max_window=1)
    found = search.run(roots, lambda logits: logits, num_simulations=12, noise_weight=0.25, rngs=[rng, rng])
    for root, output in zip(roots, found, strict=True):
        assert output.visits[root.mask == 0].sum() == 0
        assert output.visits.sum() == pytest.approx(1)
    assert found[1].visits[4] == 1


def test_noise_is_drawn_from_each_root_s_own_generator(learner: Learner) -> None:
    roots = [window(np.random.default_rng(4), 1, mask) for mask in ([1, 0, 1, 0, 0], [1, 1, 1, 0, 1])]
    search = TreeSearch(learner.model, learner.cfg, max_window=1)
    rngs = [np.random.default_rng(number) for number in (1, 2)]
    search.run(roots, lambda logits: logits, num_simulations=2, noise_weight=0.25, rngs=rngs)
    for number, legal, rng in zip((1, 2), (2, 4), rngs, strict=True):
        expected = np.random.default_rng(number)
        expected.dirichlet([learner.cfg.root_dirichlet_alpha] * legal)
        assert rng.random() == expected.random()


def test_the_root_policy_steers_the_search(learner: Learner) -> None:
    root = window(np.random.default_rng(5), 1)
    search = TreeSearch(learner.model, learner.cfg, max_window=1)
    for favourite in range(SLOTS):
        logits = np.full((1, SLOTS), -20.0, np.float32)
        logits[0, favourite] = 0.0
        (found,) = search.run([root], lambda _, wanted=logits: wanted, num_simulations=10)
        assert found.visits.argmax() == favourite


def test_equal_seeds_give_equal_searches_and_others_do_not(learner: Learner) -> None:
    """Without seed_dice the first child of every node is drawn by the time of day."""
    rng = np.random.default_rng(6)
    roots = [window(rng, 1) for _ in range(4)]
    search = TreeSearch(learner.model, learner.cfg, max_window=1)
    assert repeatable("mz_tree")

    def visits(seed: int) -> list[list[float]]:
        seed_dice(seed)
        return [output.visits.tolist() for output in search.run(roots, lambda logits: logits, num_simulations=20)]

    assert all(visits(7) == visits(7) for _ in range(5))
    assert len({str(visits(seed)) for seed in range(5)}) > 1
