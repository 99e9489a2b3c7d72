"""The learner: it alone owns the world model, its optimizer and the replay buffer (LightZero's UniZero)."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from lzero_async.errors import BadData
from lzero_async.lightzero.silence import quiet
from lzero_async.runs.soundness import first_bad
from lzero_async.types import TrainReport
from zoo.jericho.priorzero.learn.careful import MOST_BAD_UPDATES, BadUpdate, CarefulUpdate, check_batch, check_episode
from zoo.jericho.priorzero.play.open_game import Episode

if TYPE_CHECKING:
    from zoo.jericho.priorzero.learn.reanalyze import Fresh

log = logging.getLogger(__name__)
LOSSES = ("weighted_total_loss", "obs_loss", "reward_loss", "value_loss", "policy_loss", "target_policy_entropy",
          "policy_entropy", "total_grad_norm_before_clip_wm", "target_reward", "target_value")  # fmt: skip
SEGMENT_ARRAYS = (
    "obs_segment", "action_segment", "reward_segment", "child_visit_segment", "root_value_segment",
    "action_mask_segment", "to_play_segment", "timestep_segment",
)  # fmt: skip


@dataclass(frozen=True)
class TrainResult:
    """One train: how many updates it made and the mean of each loss over them (empty when none was possible yet).

    `ages` of the samples' targets in versions, by source: `collected`, `reanalysed` (each where there are such), `targets` for
    all of them, and `reanalysed_share`. `left_out`: updates that were not made because they were not finite; `refused`: episodes
    that were not stored, for the same reason or for a wrong shape.
    """

    updates: int
    losses: dict[str, float]
    report: TrainReport
    ages: dict[str, float]
    left_out: int = 0
    refused: int = 0


def new_policy(cfg: Any) -> Any:
    """UniZero with a model and an optimizer of its own, to learn only."""
    with quiet():
        from lzero.policy.unizero import UniZeroPolicy

        policy = UniZeroPolicy(cfg, enable_field=["learn"])
    # UniZero's learn step logs two numbers that only its collect mode sets.
    policy._collect_mcts_temperature = policy._collect_epsilon = 0.0
    return policy


class Learner:
    """UniZero's learner over UniZero's buffer; `cfg` is the whole policy configuration as an EasyDict.

    `policy` is made from it unless given, and `update(data, number)` makes an update of that unless given. An update that is not
    finite is left out; `most_bad` of them in a row raise BadData.
    """

    def __init__(
        self,
        cfg: Any,
        absorbing_steps: int = 2,
        *,
        policy: Any = None,
        update: Callable[[list[list[NDArray[Any]]], int], dict[str, float]] | None = None,
        most_bad: int = MOST_BAD_UPDATES,
    ) -> None:
        self.policy = new_policy(cfg) if policy is None else policy
        with quiet():
            from gym.spaces import Discrete
            from lzero.mcts.buffer.game_segment import GameSegment

            from zoo.jericho.priorzero.learn.replay import ReplayBuffer

            self.buffer = ReplayBuffer(cfg)
        self._update = CarefulUpdate(self.policy) if update is None else update
        self.cfg = cfg
        self.updates = 0
        self._most_bad, self._bad_in_a_row = most_bad, 0
        self._owed = 0.0  # updates of replay_ratio that are not whole yet
        self._absorbing = absorbing_steps
        self._versions: list[int] = []  # of the buffer's segments, in its order
        self._targets: list[int] = []  # the versions of their targets: newer where they were searched again
        self._sources: list[
            tuple[int, int, int]
        ] = []  # the batch, the episode in it and the step that each begins with
        self._last_batch = -1  # whose episodes were stored last
        self._new_segment: Callable[[], Any] = lambda: GameSegment(
            Discrete(cfg.model.action_space_size), game_segment_length=cfg.game_segment_length, config=cfg
        )

    @property
    def model(self) -> Any:
        """The model being trained, without LightZero's compile wrapper."""
        model = self.policy._learn_model
        return getattr(model, "_orig_mod", model)

    @property
    def stored(self) -> int:
        """Transitions in the replay buffer."""
        return int(self.buffer.get_num_of_transitions())

    def weights(self) -> dict[str, torch.Tensor]:
        """The model's weights as they are now; whoever keeps them makes a copy."""
        return dict(self.model.state_dict())

    def train(
        self,
        episodes: Sequence[Episode],
        version: int,
        *,
        batch: int = -1,
        newest: int | None = None,
        on_update: Callable[[], None] = lambda: None,
    ) -> TrainResult:
        """Store the episodes, collected with weights of `version`, and make the updates owed for them.

        `newest` is the version of the weights now, which ages of targets count from (None: that of the episodes). The episodes of
        a `batch` that was stored last (its train failed after that) are not stored again. Raises BadData after too many bad
        updates in a row.
        """
        sound = [(number, episode) for number, episode in enumerate(episodes) if self._is_sound(episode)]
        if batch < 0 or batch != self._last_batch:
            for number, episode in sound:
                self._push(episode, version, (batch, number))
            self._last_batch = batch
        self.buffer.remove_oldest_data_to_fit()
        gone = len(self._versions) - len(self.buffer.game_segment_buffer)
        for kept in (self._versions, self._targets, self._sources):
            del kept[:gone]
        steps = sum(len(episode) for _, episode in sound)
        self._owed += self.cfg.update_per_collect or self.cfg.replay_ratio * steps
        ready = self.buffer.get_num_of_transitions() >= self.cfg.batch_size
        sums: dict[str, float] = dict.fromkeys(LOSSES, 0.0)
        ages: list[NDArray[Any]] = []
        sampled: list[NDArray[Any]] = []
        updates = left_out = 0
        while ready and self._owed >= 1:
            self._owed -= 1
            data = self.buffer.sample(self.cfg.batch_size, self.policy)
            try:
                check_batch(data)
                logged = self._update(data, self.updates)
            except BadUpdate as error:
                left_out += 1
                self.leave_out(error)
                if self.unsound():
                    break  # by an earlier step: whoever has the state before it goes back there
                continue
            self._bad_in_a_row = 0
            sampled.append(self._sampled_segments(data[0][4]))
            ages.append(version - np.asarray(self._versions)[sampled[-1]])
            for name in LOSSES:
                sums[name] += logged[name]
            self.updates += 1
            updates += 1
            on_update()
        if not ready:
            self._owed = 0.0  # nothing to learn from yet; the updates are not owed later
        age = np.concatenate(ages) if ages else np.zeros(0)
        report = (
            TrainReport(None, float(age.mean()), float(age.max()), len(age))
            if len(age)
            else TrainReport(sample_count=0)
        )
        losses = {name: sums[name] / updates for name in LOSSES} if updates else {}
        ages_of = self._ages_of(sampled, version if newest is None else newest)
        return TrainResult(updates, losses, report, ages_of, left_out, len(episodes) - len(sound))

    def unsound(self) -> str:
        """What is not finite in the models or the optimizer's moments; '' if all is well."""
        return first_bad(self.policy._state_dict_learn())

    def leave_out(self, why: object) -> None:
        """An update is not made, or was undone. Raises BadData when that were too many in a row."""
        self._bad_in_a_row += 1
        log.warning("an update is left out: %s", why)
        if self._bad_in_a_row >= self._most_bad:
            row = (
                f"{self._bad_in_a_row} updates in a row were not finite"
                if self._most_bad > 1
                else "an update was not finite"
            )
            raise BadData(
                f"{row}, the last one because {why}; the weights from before are kept. Lower "
                "policy_config.learning_rate or policy_config.grad_clip_value."
            )

    def _is_sound(self, episode: Episode) -> bool:
        try:
            check_episode(episode, self.cfg.model.observation_shape, self.cfg.model.action_space_size)
        except BadData as error:
            log.warning("an episode is not stored: %s", error)
            return False
        return True

    def replace(self, fresh: Fresh) -> int:
        """Take new targets of a batch for those of its segments that are still in the buffer; how many these are. Targets that
        are not finite are not taken: every batch with one of them would be left out."""
        if found := first_bad([*fresh.visits, *fresh.values], "targets"):
            log.warning("batch %d, searched again by version %d, is not taken: %s", fresh.batch, fresh.version, found)
            return 0
        replaced = 0
        for index, (batch, episode, start) in enumerate(self._sources):
            if batch != fresh.batch or self._targets[index] >= fresh.version:
                continue
            segment = self.buffer.game_segment_buffer[index]
            visits, values = fresh.visits[episode][start:], fresh.values[episode][start:]
            count = min(len(visits), len(segment.child_visit_segment))  # what follows a game's end stays as it is
            segment.child_visit_segment[:count] = visits[:count]
            segment.root_value_segment[:count] = values[:count]
            self._targets[index] = fresh.version
            replaced += 1
        return replaced

    # -- from episodes to segments -------------------------------------------------------------------------------------

    def _push(self, episode: Episode, version: int, source: tuple[int, int]) -> None:
        """Cut an episode into the buffer's segments, each padded with what follows it, as UniZero's targets need.

        An episode that the game ended goes on for some steps in its last state, with no reward and no value: without
        them nothing teaches the world model that nothing comes after a death. One that ran out of steps
        just ends: its last value targets count the rewards that were seen.
        """
        steps, length, cfg = len(episode), self.cfg.game_segment_length, self.cfg
        extra = self._absorbing if episode.ended else 0
        slots = cfg.model.action_space_size
        observations = _extend(episode.observations, extra)
        actions = np.concatenate([episode.actions, np.arange(extra) % slots])
        rewards = np.concatenate([episode.rewards, np.zeros(extra, np.float32)])
        visits = np.concatenate([episode.visits, np.full((extra, slots), 1 / slots, np.float32)])
        values = np.concatenate([episode.root_values, np.zeros(extra, np.float32)])
        masks = _extend(episode.masks[:-1], extra)
        priorities = np.abs(episode.predicted_values - episode.root_values) + 1e-6
        priorities = np.concatenate([priorities, np.full(extra, priorities.mean())])
        total, reach = steps + extra, cfg.num_unroll_steps + cfg.td_steps
        for start in range(0, total, length):
            end = min(start + length, total)
            follow = min(end + reach, total)  # beyond its end a segment carries what its targets reach for
            segment = self._new_segment()
            segment.obs_segment = list(observations[start : follow + 1])
            segment.action_segment = actions[start:follow].tolist()
            segment.reward_segment = rewards[start:follow].tolist()
            segment.child_visit_segment = visits[start:follow].tolist()
            segment.root_value_segment = values[start:follow].tolist()
            segment.action_mask_segment = list(masks[start:follow])
            segment.to_play_segment = [-1] * (follow - start)
            segment.timestep_segment = list(range(start, follow))
            segment.game_segment_to_array()
            meta = {"done": True, "unroll_plus_td_steps": reach, "priorities": None}  # done: every position has targets
            if cfg.use_priority:
                meta["priorities"] = priorities[start:end]
            self.buffer.push_game_segments(([segment], [meta]))
            self._versions.append(version)
            self._targets.append(version)
            self._sources.append((*source, start))

    def _sampled_segments(self, transitions: Any) -> NDArray[Any]:
        look_up, base = self.buffer.game_segment_game_pos_look_up, self.buffer.base_idx
        return np.asarray([look_up[int(index)][0] - base for index in np.ravel(transitions)])

    def _ages_of(self, sampled: list[NDArray[Any]], newest: int) -> dict[str, float]:
        if not sampled:
            return {}
        segments = np.concatenate(sampled)
        targets = np.asarray(self._targets)[segments]
        again = targets != np.asarray(self._versions)[segments]
        ages = {"targets": float((newest - targets).mean()), "reanalysed_share": float(again.mean())}
        for name, chosen in (("collected", ~again), ("reanalysed", again)):
            if chosen.any():
                ages[name] = float((newest - targets[chosen]).mean())
        return ages

    # -- state ---------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that a train changes but the buffer, copied."""
        return {
            "policy": copy.deepcopy(self.policy._state_dict_learn()),
            "updates": self.updates,
            "owed": self._owed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to such a state."""
        self.policy._load_state_dict_learn(state["policy"])
        self.updates, self._owed = int(state["updates"]), float(state["owed"])

    def set_rates(self) -> None:
        """Learning rate and weight decay of the options instead of those that a loaded optimizer had."""
        for group in self.policy._optimizer_world_model.param_groups:
            group["lr"] = self.cfg.learning_rate
            if group["weight_decay"]:
                group["weight_decay"] = self.cfg.weight_decay

    def buffer_state(self) -> dict[str, NDArray[Any]]:
        """The replay buffer as arrays; equal observations are stored once."""
        segments = self.buffer.game_segment_buffer
        state: dict[str, NDArray[Any]] = {
            "versions": np.asarray(self._versions, dtype=np.int64),
            "targets": np.asarray(self._targets, dtype=np.int64),
            "sources": np.asarray(self._sources, dtype=np.int64).reshape(-1, 3),
            "priorities": np.asarray(self.buffer.game_pos_priorities, dtype=np.float64),
            "counters": np.asarray(
                [self.buffer.base_idx, self.buffer.num_of_collected_episodes, self._last_batch], dtype=np.int64
            ),
        }
        for name in SEGMENT_ARRAYS:
            arrays = [np.asarray(getattr(segment, name)) for segment in segments]
            state[f"{name}.lengths"] = np.asarray([len(array) for array in arrays], dtype=np.int64)
            if arrays:
                state[name] = np.concatenate(arrays)
        if segments:
            rows = state.pop("obs_segment")
            known: dict[bytes, int] = {}
            state["obs_index"] = np.asarray([known.setdefault(row.tobytes(), len(known)) for row in rows])
            state["obs_rows"] = np.stack([np.frombuffer(key, dtype=rows.dtype) for key in known])
        return state

    def load_buffer_state(self, state: dict[str, NDArray[Any]]) -> None:
        """Fill the empty buffer from such arrays."""
        arrays = dict(state)
        if "obs_index" in arrays:
            arrays["obs_segment"] = arrays["obs_rows"][arrays["obs_index"]]
        self.buffer.game_segment_buffer = []
        self.buffer.game_segment_game_pos_look_up = []
        base, episodes, self._last_batch = (int(number) for number in arrays["counters"])
        self.buffer.base_idx, self.buffer.num_of_collected_episodes = base, episodes
        pieces = {
            name: np.split(arrays[name], np.cumsum(arrays[f"{name}.lengths"])[:-1]) if name in arrays else []
            for name in SEGMENT_ARRAYS
        }
        for index in range(len(arrays["versions"])):
            segment = self._new_segment()
            for name in SEGMENT_ARRAYS:
                setattr(segment, name, pieces[name][index])
            segment.improved_policy_probs = np.zeros(0)
            self.buffer.game_segment_buffer.append(segment)
            stored = min(len(segment.action_segment), self.cfg.game_segment_length)
            self.buffer.game_segment_game_pos_look_up += [(base + index, step) for step in range(stored)]
        self.buffer.game_pos_priorities = np.asarray(arrays["priorities"])
        self._versions = [int(version) for version in arrays["versions"]]
        unknown = np.full((len(self._versions), 3), -1)
        self._targets = [int(version) for version in arrays.get("targets", self._versions)]
        self._sources = [
            (int(batch), int(episode), int(start)) for batch, episode, start in arrays.get("sources", unknown)
        ]


def _extend(rows: NDArray[Any], count: int) -> NDArray[Any]:
    return np.concatenate([rows, np.repeat(rows[-1:], count, axis=0)]) if count else rows
