"""The learner's role: LightZero's learner and replay buffer behind calls, and the checkpoints that a run resumes from."""

from __future__ import annotations

import copy
import importlib
import logging
import numbers
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lzero_async.errors import BadData, ConfigError
from lzero_async.lightzero.dice import seed_dice
from lzero_async.lightzero.entries import reanalyze_rule
from lzero_async.lightzero.parts import BEST, Emit, Parts, other_seed
from lzero_async.lightzero.storing import (
    Collected,
    buffer_state,
    detached,
    load_buffer_state,
    pack_batch,
    stored,
    unpack_batch,
    used_bytes,
)
from lzero_async.runs import checkpoint
from lzero_async.runs.soundness import first_bad
from lzero_async.workers.parcels import Parcel

KIND: Final = checkpoint.CheckpointKind("lzero-async.lightzero", 2, "LightZero")
LOOK_EVERY: Final = 10.0  # seconds between two looks at the buffer
MEGABYTE: Final = 1024 * 1024
log = logging.getLogger(__name__)


class LearnerRole:
    """Makes the updates owed for one collect at a time, as LightZero's entry does. A train that broke off is not saved."""

    def __init__(self, parts: Parts, emit: Emit) -> None:
        self.parts, self._emit = parts, emit
        self.epochs = 0  # trains with data enough, LightZero's train_epoch
        self._losses: dict[str, float] = {}
        self._looked_at = -LOOK_EVERY
        self._waiting: list[Any] = []  # of a loaded checkpoint
        self._broken = ""

    @property
    def updates(self) -> int:
        """Updates so far, LightZero's train_iter."""
        return int(self.parts.learner.train_iter)

    def ready(self) -> int:
        """Answered once the role is made: the updates so far."""
        return self.updates

    def weights(self) -> Parcel:
        """The weights as they are now. Raises BadData for those that nobody should play with."""
        weights = self.parts.weights()
        if found := first_bad(weights):
            raise BadData(f"weights that are not finite are not handed out: {found}")
        return Parcel(weights, live=True)

    def learn_state(self) -> Parcel:
        """The whole state of the policy, as LightZero's checkpoints have it; a copy, which its optimizer may change."""
        return Parcel(copy.deepcopy(self.parts.policy.learn_mode.state_dict()))

    def digest(self) -> str:
        """A digest of the weights as they are now."""
        return self.parts.digest()

    def train(self, parcel: Parcel, env_steps: int, temperature: float, epsilon: float) -> dict[str, Any]:
        """Store a collect and make the updates owed for it. `env_steps` are those of all collects up to it; the other two are
        what it was played with, which LightZero's learner logs."""
        start, before, parts = time.monotonic(), self.updates, self.parts
        policy = parts.policy
        policy._collect_mcts_temperature = policy.collect_mcts_temperature = (
            temperature  # AlphaZero's has the other name
        )
        policy._collect_epsilon = epsilon
        try:
            self._look_at_buffer()
            missing = self._train(self._opened(parcel), env_steps)
        except BaseException as error:
            self._broken = repr(error)
            raise
        parts.writer.hand_over(self._emit)
        return {
            "updates": self.updates - before, "total_updates": self.updates, "losses": dict(self._losses),
            "seconds": time.monotonic() - start, "buffer": stored(parts.buffer), "missing": missing,
        }  # fmt: skip

    def _opened(self, parcel: Parcel) -> Collected:
        found: Collected = parcel.open()
        return found if self.parts.shared else Collected(detached(found.data), detached(found.meta))

    def _train(self, collected: Collected, env_steps: int) -> str:
        """What is missing for an update, '' if nothing is."""
        parts, policy = self.parts, self.parts.cfg.policy
        owed = policy.update_per_collect
        if owed is None:
            owed = int(collected.length(policy.get("game_segment_length", 0)) * policy.replay_ratio)
        if parts.reward_model is not None:
            self._train_reward_model(collected)
        self._store(collected, env_steps)
        each = self._reanalyze_between(owed)
        missing = ""
        if parts.entry.world_model and env_steps <= policy.train_start_after_envsteps:
            missing, owed = f"training starts after {policy.train_start_after_envsteps:,} environment steps", 0
        elif parts.entry.world_model and (missing := self._missing_data()):
            return missing  # LightZero goes on with the next collect then
        for number in range(owed):
            if each and number % each == 0:
                self._reanalyze()
            batch = self._sample(number)
            if batch is None:
                missing = self._too_few(stored(parts.buffer), "transitions")
                break
            self._update(batch, env_steps)
        self.epochs += 1
        if parts.entry.world_model:
            parts.clear_caches()
        return missing

    def _missing_data(self) -> str:
        """What UniZero's entries lack before any update."""
        policy, buffer = self.parts.cfg.policy, self.parts.buffer
        episodes = policy.sample_type == "episode"
        found = buffer.get_num_of_game_segments() if episodes else buffer.get_num_of_transitions()
        return "" if found > policy.batch_size else self._too_few(found, "segments" if episodes else "transitions")

    def _too_few(self, found: int, what: str) -> str:
        return f"{found:,} {what} in the buffer, and a batch of {self.parts.cfg.policy.batch_size:,} needs more"

    def _store(self, collected: Collected, env_steps: int) -> None:
        buffer = self.parts.buffer
        if self.parts.entry.transitions:
            buffer.push(collected.data, cur_collector_envstep=env_steps)
        else:
            buffer.push_game_segments((collected.data, collected.meta))
            buffer.remove_oldest_data_to_fit()

    def _sample(self, number: int) -> Any:
        """A batch for update `number` of this train; None if there is none."""
        parts, policy = self.parts, self.parts.cfg.policy
        if parts.entry.transitions:
            return parts.buffer.sample(policy.batch_size, self.updates)
        if not parts.entry.world_model and stored(parts.buffer) <= policy.batch_size:
            return None
        batch = parts.buffer.sample(policy.batch_size, parts.policy)
        if parts.entry.world_model:
            if not parts.entry.segments and policy.reanalyze_ratio > 0 and number % 20 == 0:
                parts.clear_caches()
            batch.append(self.updates)
        return batch

    def _update(self, batch: Any, env_steps: int) -> None:
        parts = self.parts
        learned = batch if parts.reward_model is None else parts.reward_model.estimate(batch)
        logged = parts.learner.train(learned, env_steps)
        if not parts.entry.transitions and parts.cfg.policy.use_priority:
            parts.buffer.update_priority(batch, logged[0]["value_priority_orig"])
        self._losses = {
            name: float(value)
            for name, value in logged[0].items()
            if "loss" in name and isinstance(value, numbers.Real)
        }

    # -- reanalysis, the reward model, the buffer's numbers ------------------------------------------------------------

    def _reanalyze_between(self, owed: int) -> int:
        """Updates between two reanalyses of this train, 0 for none; one that is due less often is made now."""
        if not self.parts.entry.reanalyzes:
            return 0
        freq = self.parts.cfg.policy.buffer_reanalyze_freq
        if freq >= 1:
            return int(owed // freq)
        if self.parts.entry.world_model:
            due = self.epochs > 0 and self.epochs % int(1 / freq) == 0
        else:
            due = self.epochs % (1 // freq) == 0
        if due:
            self._reanalyze()
        return 0

    def _reanalyze(self) -> None:
        parts = self.parts
        size, least = reanalyze_rule(parts.plan.entry, parts.cfg.policy)
        if stored(parts.buffer) > least:
            parts.buffer.reanalyze_buffer(size, parts.policy)

    def _train_reward_model(self, collected: Collected) -> None:
        model = self.parts.reward_model
        model.collect_data((collected.data, collected.meta))
        seen = model.train_latent_state if model.cfg.input_type == "latent_state" else model.train_obs
        if len(seen) > model.cfg.batch_size:
            model.train_with_data()
        model.clear_old_data()

    def _look_at_buffer(self) -> None:
        """Record LightZero's numbers of the buffer, now and then: its own way to count bytes looks at every object."""
        if self.parts.entry.transitions or time.monotonic() - self._looked_at < LOOK_EVERY:
            return
        from lzero.entry.utils import log_buffer_run_time

        self._looked_at, own = time.monotonic(), importlib.import_module("psutil").Process()
        buffer, writer = self.parts.buffer, self.parts.writer
        values = {
            "num_of_all_collected_episodes": buffer.num_of_collected_episodes,
            "num_of_game_segments": buffer.get_num_of_game_segments(),
            "num_of_transitions": buffer.get_num_of_transitions(),
            "memory_usage/game_segment_buffer": used_bytes(buffer.game_segment_buffer) / MEGABYTE,
            "memory_usage/process": own.memory_info().rss / MEGABYTE,
        }
        for name, value in values.items():
            writer.add_scalar(f"Buffer/{name}", value, self.updates)
        if not self.parts.entry.world_model and hasattr(buffer, "sample_times"):
            log_buffer_run_time(self.updates, buffer, writer)

    # -- saving and resuming -------------------------------------------------------------------------------------------

    def save(self, path: str, state: Mapping[str, Any], waiting: Sequence[Parcel]) -> None:
        """Write a checkpoint to go on from: `state`, all that the learner knows, its buffer, and the collects that wait."""
        if self._broken:
            raise ConfigError(
                f"The learner broke off a train ({self._broken}), so its state is not saved; the checkpoint before stands."
            )
        parts = self.parts
        learned = parts.policy.learn_mode.state_dict()
        if found := first_bad(learned):
            raise BadData(f"a checkpoint that is not finite is not written: {found}")
        whole = {
            **state,
            "learner": {
                "policy": learned, "updates": self.updates, "epochs": self.epochs,
                "env_steps": parts.learner.collector_envstep, **_beside(parts.policy),
            },
            "buffer": buffer_state(parts.buffer),
            "waiting": [{"batch": pack_batch(parcel.open()), "meta": dict(parcel.meta)} for parcel in waiting],
            "random": checkpoint.random_state(),
            "dice": other_seed(parts.seed, 0, self.updates),  # the trees' have no state that could be saved: they begin anew
        }  # fmt: skip
        if parts.reward_model is not None:
            whole["learner"]["reward_model"] = parts.reward_model.state_dict()
        checkpoint.save(Path(path), whole, KIND)
        if not parts.shared:  # at degree 0 the collector has the same dice, and goes on as LightZero's does
            seed_dice(whole["dice"])  # a run that is not broken off goes on as one that is resumed

    def save_weights(self, path: str, state: Mapping[str, Any], weights: Parcel) -> None:
        """Write the best weights: to play with, and as a checkpoint of LightZero's, whose optimizer is the newest."""
        from ding.utils import save_file

        best = dict(weights.open())
        checkpoint.save(Path(path), {**state, "weights": best}, KIND)
        learned, learner = self.parts.policy.learn_mode.state_dict(), self.parts.learner
        learned["model"] = best
        learned |= {"last_iter": self.updates, "last_step": learner.collector_envstep}
        save_file(str(Path(path).with_name(BEST)), learned)

    def finish(self) -> None:
        """The run is over: LightZero's hooks, which write the last checkpoint of its own."""
        self.parts.learner.call_hook("after_run")
        self.parts.writer.hand_over(self._emit)

    def load(self, path: str) -> int:
        """Go on from a checkpoint; how many collects wait in it (`waiting` hands them out)."""
        state, parts = checkpoint.load(Path(path), KIND), self.parts
        if found := first_bad(state.get("learner")):
            raise ConfigError(f"{path} cannot be resumed: {found} in it; give --resume an earlier one.")
        with checkpoint.fitting(path):
            learner = state["learner"]
            parts.policy.learn_mode.load_state_dict(learner["policy"])
            _load_beside(parts.policy, learner)
            parts.learner.last_iter.update(int(learner["updates"]))
            parts.learner.collector_envstep = int(learner["env_steps"])
            if parts.reward_model is not None:
                parts.reward_model.load_state_dict(learner["reward_model"])
            self.epochs = int(learner["epochs"])
            load_buffer_state(parts.buffer, state["buffer"], parts.cfg.policy)
            self._waiting = list(state["waiting"])
            checkpoint.restore_random_state(state["random"])
            parts.clear_caches()
        seed_dice(int(state["dice"]))
        return len(self._waiting)

    def waiting(self, place: int) -> Parcel:
        """The collect that waited at this place of the line."""
        packed, self._waiting[place] = self._waiting[place], None
        return Parcel(unpack_batch(packed["batch"], self.parts.cfg.policy), packed["meta"])


def _beside(policy: Any) -> dict[str, Any]:
    """What an update changes and LightZero's checkpoints leave out."""
    found: dict[str, Any] = {}
    if hasattr(policy, "lr_scheduler"):
        scheduler = policy.lr_scheduler.state_dict()
        found["lr_scheduler"] = {name: value for name, value in scheduler.items() if name != "lr_lambdas"}
    if hasattr(getattr(policy, "_target_model", None), "_update_count"):
        found["target_updates"] = int(policy._target_model._update_count)
    return found


def _load_beside(policy: Any, state: Mapping[str, Any]) -> None:
    if "lr_scheduler" in state:
        own = policy.lr_scheduler.state_dict()
        policy.lr_scheduler.load_state_dict({**own, **state["lr_scheduler"]})
    if "target_updates" in state:
        policy._target_model._update_count = int(state["target_updates"])
