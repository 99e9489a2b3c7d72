"""Episodes into segments, updates owed, and a learner that goes on exactly where it was saved."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch

from lzero_async.errors import ConfigError
from lzero_async.lightzero.silence import quiet
from lzero_async.runs import checkpoint
from zoo.jericho.priorzero.learn.learner import Learner
from zoo.jericho.priorzero.learn.saving import CHECKPOINT
from zoo.jericho.priorzero.options import build_options, unizero_config
from zoo.jericho.priorzero.play.open_game import Episode

SLOTS, FEATURES = 4, 6


def new_learner(**changes: object) -> Learner:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    values = {
        "embed_dim": 16,
        "num_heads": 2,
        "num_unroll_steps": 4,
        "td_steps": 1,
        "batch_size": 4,
        "replay_ratio": 0.25,
    }
    values |= {"game_segment_length": 5, "replay_buffer_size": 40, "dropout": 0.1, **changes}
    options = build_options(
        changes={"env_config.max_action_num": SLOTS, **{f"policy_config.{key}": value for key, value in values.items()}}
    )
    with quiet():
        cfg = unizero_config(options, FEATURES)
    return Learner(cfg, options.policy_config.absorbing_steps)


def episode(steps: int, seed: int = 0, *, ended: bool = False) -> Episode:
    rng = np.random.default_rng(seed)
    visits = rng.random((steps, SLOTS)).astype(np.float32)
    return Episode(
        observations=rng.normal(size=(steps + 1, FEATURES)).astype(np.float32),
        actions=rng.integers(SLOTS, size=steps),
        rewards=rng.integers(2, size=steps).astype(np.float32) * 5,
        masks=np.ones((steps + 1, SLOTS), np.int8),
        visits=visits / visits.sum(1, keepdims=True),
        root_values=rng.normal(size=steps).astype(np.float32),
        predicted_values=rng.normal(size=steps).astype(np.float32),
        ended=ended,
    )


def stored_positions(learner: Learner) -> list[tuple[int, int]]:
    return list(learner.buffer.game_segment_game_pos_look_up)


def test_every_step_of_an_episode_is_stored_once_and_in_order() -> None:
    learner, played = new_learner(), episode(12)
    learner.train([played], 0)
    segments = learner.buffer.game_segment_buffer
    assert [min(len(segment), 5) for segment in segments] == [5, 5, 2]
    assert len(stored_positions(learner)) == 12
    np.testing.assert_array_equal(np.concatenate([segment.action_segment[:5] for segment in segments]), played.actions)
    # the padding of a segment is the beginning of what follows it: unroll + td steps
    np.testing.assert_array_equal(segments[0].action_segment, played.actions[:10])
    np.testing.assert_array_equal(segments[0].obs_segment, played.observations[:11])
    np.testing.assert_array_equal(segments[1].reward_segment, played.rewards[5:12])


def test_an_end_by_the_game_is_followed_by_steps_of_nothing() -> None:
    learner, played = new_learner(absorbing_steps=2), episode(4, ended=True)
    learner.train([played], 0)
    first, second = learner.buffer.game_segment_buffer
    assert len(stored_positions(learner)) == 6
    np.testing.assert_array_equal(first.obs_segment[4:], np.stack([played.observations[4]] * 3))
    assert first.reward_segment[4:].tolist() == [0, 0]
    assert second.root_value_segment.tolist() == [0]


def test_eviction_keeps_positions_and_segments_together() -> None:
    learner = new_learner(replay_buffer_size=20)
    for seed in range(6):
        learner.train([episode(12, seed)], seed)
        positions, segments = stored_positions(learner), learner.buffer.game_segment_buffer
        kept = [
            (learner.buffer.base_idx + index, step)
            for index, one in enumerate(segments)
            for step in range(min(len(one), 5))
        ]
        assert positions == kept
        assert len(learner.buffer.game_pos_priorities) == len(positions) <= 20
        assert len(learner._versions) == len(segments)


def test_updates_follow_the_replay_ratio_and_fractions_carry_over() -> None:
    learner = new_learner(replay_ratio=0.15)
    assert [learner.train([episode(10, seed)], seed).updates for seed in range(4)] == [1, 2, 1, 2]
    assert new_learner(update_per_collect=3).train([episode(10)], 0).updates == 3


def test_nothing_is_trained_before_a_batch_is_there_nor_owed_later() -> None:
    learner = new_learner(batch_size=16, replay_ratio=1.0)
    assert learner.train([episode(10)], 0).updates == 0
    assert learner.train([episode(10, 1)], 1).updates == 10


def test_sample_ages_are_counted_in_versions() -> None:
    learner = new_learner(update_per_collect=20)
    learner.train([episode(10)], 3)
    report = learner.train([episode(10, 1)], 7).report
    assert report.sample_age_max == 4
    assert 0 < report.sample_age_mean < 4
    assert report.sample_count == 20 * 4


def test_losses_fall_on_the_same_data() -> None:
    learner = new_learner(update_per_collect=40, learning_rate=3e-3, dropout=0.0)
    first = learner.train([episode(20)], 0).losses
    last = learner.train([episode(20)], 1).losses
    assert all(np.isfinite(list(first.values())))
    assert last["weighted_total_loss"] < first["weighted_total_loss"]


@pytest.mark.parametrize("priority", [False, True])
def test_a_learner_goes_on_exactly_where_it_was_saved(tmp_path: Path, priority: bool) -> None:
    def losses(learner: Learner, start: int, end: int) -> list[dict[str, float]]:
        return [learner.train([episode(9, seed, ended=seed % 2 == 0)], seed).losses for seed in range(start, end)]

    straight = losses(new_learner(use_priority=priority), 0, 8)
    broken = new_learner(use_priority=priority)
    begin = losses(broken, 0, 5)
    path = tmp_path / "one.safetensors"
    saved = {"learner": broken.state_dict(), "buffer": broken.buffer_state(), "random": checkpoint.random_state()}
    checkpoint.save(path, saved, CHECKPOINT)
    resumed = new_learner(use_priority=priority)
    state = checkpoint.load(path, CHECKPOINT)
    resumed.load_state_dict(state["learner"])
    resumed.load_buffer_state(state["buffer"])
    checkpoint.restore_random_state(state["random"])
    assert begin + losses(resumed, 5, 8) == straight


def test_reanalysis_stays_within_the_mask_and_replaces_the_stored_policy() -> None:
    learner, played = new_learner(reanalyze_ratio=1.0, game_segment_length=20), episode(10)
    played.masks[:, 2:] = 0
    before = played.visits.copy()
    result = learner.train([played], 0)
    assert result.updates
    (segment,) = learner.buffer.game_segment_buffer
    changed = np.any(segment.child_visit_segment != before, axis=1)
    assert changed.any()
    assert segment.child_visit_segment[changed][:, 2:].sum() == 0


def test_equal_observations_are_saved_once() -> None:
    learner, played = new_learner(), episode(10)
    played.observations[:] = played.observations[0]
    learner.train([played], 0)
    assert learner.buffer_state()["obs_rows"].shape == (1, FEATURES)


# -- checkpoint files --------------------------------------------------------------------------------------------------


def test_everything_that_goes_in_comes_out(tmp_path: Path) -> None:
    state = {
        "numbers": [1, 2.5, True, None, "text"],
        "tuple": (1, (2, "x")),
        "keys": {1: "one", "two": 2},
        "array": np.arange(6, dtype=np.int8).reshape(2, 3),
        "tensor": torch.ones(2, dtype=torch.float64),
        "empty": {},
        "$odd": 1,
    }
    checkpoint.save(tmp_path / "a.safetensors", state, CHECKPOINT)
    found = checkpoint.load(tmp_path / "a.safetensors", CHECKPOINT)
    np.testing.assert_array_equal(found.pop("array"), state.pop("array"))
    assert torch.equal(found.pop("tensor"), state.pop("tensor"))
    assert found == state


@pytest.mark.parametrize("damage", ["torn", "foreign", "other", "pickle", "empty", "missing", "newer"])
def test_a_bad_file_is_one_clear_sentence(tmp_path: Path, damage: str) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "a.safetensors"
    checkpoint.save(path, {"weights": torch.ones(1000)}, CHECKPOINT)
    if damage == "torn":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "foreign":
        save_file({"w": torch.ones(2)}, path)
    elif damage == "other":
        checkpoint.save(path, {"w": 1}, checkpoint.CheckpointKind("lzero-async.other", CHECKPOINT.version, "Other"))
    elif damage == "pickle":
        torch.save({"w": print}, path)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "newer":
        save_file({"w": torch.ones(2)}, path, metadata={"format": CHECKPOINT.format, "version": "99", "body": "{}"})
    else:
        path.unlink()
    with pytest.raises(ConfigError) as caught:
        checkpoint.load(path, CHECKPOINT)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert "PriorZero" in str(caught.value)


def test_a_failed_save_keeps_the_old_file_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, {"x": 1}, CHECKPOINT)

    def full(file: BinaryIO, *_: object) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lzero_async.runs.checkpoint.write", full)
    with pytest.raises(ConfigError, match="No space left"):
        checkpoint.save(path, {"x": 2}, CHECKPOINT)
    assert checkpoint.load(path, CHECKPOINT) == {"x": 1}
    assert list(tmp_path.iterdir()) == [path]
