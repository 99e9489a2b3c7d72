"""The role that learns: it alone owns model, optimizer and replay buffer, trains on what collectors send, and saves it all."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lzero_async.errors import BadData, ConfigError
from lzero_async.runs import checkpoint
from lzero_async.runs.soundness import first_bad
from lzero_async.workers.parcels import Parcel
from zoo.jericho.priorzero.learn.careful import MOST_BAD_UPDATES
from zoo.jericho.priorzero.learn.learner import Learner, new_policy
from zoo.jericho.priorzero.learn.saving import CHECKPOINT
from zoo.jericho.priorzero.options import rank_device
from zoo.jericho.priorzero.play.batch import Collected, Weights, pack_batch, unpack_batch
from zoo.jericho.priorzero.play.components import Parts

if TYPE_CHECKING:
    from zoo.jericho.priorzero.roles.rank import Lead

EVENT_EVERY = 0.2  # seconds between two words to the parent about the updates made


class LearnerRole:
    """UniZero's learner behind calls. A train that fails leaves everything as it was before it, so that it can be saved
    or tried again."""

    def __init__(self, parts: Parts, device: str, emit: Callable[[Any], None]) -> None:
        parts.limit_threads()
        self._options = parts.options
        seed_everything(parts.options.run_config.seed)
        policy = parts.options.policy_config
        cfg = parts.unizero(rank_device(device, 0, policy.learner_ranks))
        self._lead: Lead | None = None
        if policy.learner_ranks == 1:
            self.learner = Learner(cfg, policy.absorbing_steps, most_bad=most_bad(policy))
        else:
            self._lead, self.learner = _data_parallel(parts, cfg)
        self._emit, self._said_at = emit, 0.0
        self._before: tuple[int, dict[str, Any], dict[str, Any]] | None = None  # the last train, of which batch
        self._waiting: list[dict[str, Any]] = []  # of a loaded checkpoint
        self._llm: dict[str, Any] | None = None  # the same

    def ready(self) -> int:
        """Answered once the role is made: the updates made so far."""
        return self.learner.updates

    def weights(self) -> Parcel:
        """The weights as they are now. Raises BadData for those that nobody should play with."""
        weights = self.learner.weights()
        if found := first_bad(weights):
            raise BadData(f"weights that are not finite are not handed out: {found}")
        return Parcel(weights, live=True)

    def meet(self, host: str) -> tuple[str, int]:
        """Open the meeting point of the learner's ranks at this address; where they find it."""
        assert self._lead is not None
        return self._lead.open(host)

    def lead(self, generation: int, *arguments: Any) -> dict[str, Any]:
        """`train` with the other ranks of this generation."""
        assert self._lead is not None
        with self._lead.train(generation):
            return self.train(*arguments)

    def dismiss(self) -> None:
        """Let the other ranks go, wherever they are in a train."""
        assert self._lead is not None
        self._lead.dismiss()

    def train(
        self, batch: int, version: int, parcel: Parcel, newest: int | None = None, fresh: Sequence[Parcel] = ()
    ) -> dict[str, Any]:
        """Take in `fresh` targets of older batches, store the batch and make the updates owed for it; what came of it.
        `newest` is the version of the weights now."""
        before = self.learner.state_dict()
        self._before = batch, before, checkpoint.random_state()
        start = time.monotonic()
        try:
            replaced = sum(self.learner.replace(targets.read()) for targets in fresh)
            collected: Collected = parcel.open()
            result = self.learner.train(
                collected.episodes, version, batch=batch, newest=newest, on_update=self._updated
            )
            if (result.updates or result.left_out) and (found := self.learner.unsound()):
                # Of finite gradients: only the state before can be trusted.
                self._load_state(before)
                self.learner.leave_out(found)
                result = replace(result, updates=0, losses={}, left_out=result.updates + result.left_out)
        except Exception:
            self.take_back(batch)
            raise
        return {
            "updates": result.updates,
            "total_updates": self.learner.updates,
            "losses": result.losses,
            "report": result.report,
            "ages": result.ages,
            "replaced": replaced,
            "seconds": time.monotonic() - start,
            "buffer": self.learner.stored,
            "bad_updates": result.left_out,
            "refused_episodes": result.refused,
        }

    def take_back(self, batch: int) -> None:
        """Be as before the train of this batch, if that was the last one: it failed, here or in what belongs to it elsewhere."""
        if self._before is not None and self._before[0] == batch:
            (_, state, dice), self._before = self._before, None
            self._load_state(state)
            checkpoint.restore_random_state(dice)

    def _load_state(self, state: dict[str, Any]) -> None:
        self.learner.load_state_dict(state)
        if self._lead is not None:
            self._lead.forget()

    def _updated(self) -> None:
        if time.monotonic() - self._said_at >= EVENT_EVERY:
            self._said_at = time.monotonic()
            self._emit(("updates", self.learner.updates))

    # -- saving and resuming -------------------------------------------------------------------------------------------

    def save(
        self, path: str, state: Mapping[str, Any], waiting: Sequence[Parcel], llm: Mapping[str, Any] | None = None
    ) -> None:
        """Write a checkpoint: `state`, what the learner knows, the batches that wait, and what belongs to the language model that
        learns. Raises BadData instead of one that is not finite, and keeps the one before."""
        if found := self.learner.unsound():
            raise BadData(f"a checkpoint that is not finite is not written: {found}")
        whole = {
            **state,
            "learner": self.learner.state_dict(),
            "waiting": [pack_batch(parcel.open()) for parcel in waiting],
            "random": checkpoint.random_state(),
        }
        if llm is not None:
            learned = None if llm["state"] is None else llm["state"].read()
            whole["llm"] = {**llm, "state": learned, "kept": [pack_batch(parcel.open()) for parcel in llm["kept"]]}
        if self._options.run_config.checkpoint_buffer:
            whole["buffer"] = self.learner.buffer_state()
        checkpoint.save(Path(path), whole, CHECKPOINT)

    def save_weights(self, path: str, state: Mapping[str, Any], weights: Weights) -> None:
        """Write a checkpoint that holds one version of the weights and nothing to go on from."""
        whole = {**state, "weights": dict(weights.world_model.open())}
        if (llm := weights.llm) is not None:
            whole |= {
                "llm_weights": {"version": llm.version, "digest": llm.digest},
                "llm_trained": dict(llm.trained.open()),
            }
        checkpoint.save(Path(path), whole, CHECKPOINT)

    def load(self, path: str) -> int:
        """Go on from a checkpoint; how many batches wait in it (`waiting` hands them out), or -1 if they were not saved."""
        state = checkpoint.load(Path(path), CHECKPOINT)
        if found := first_bad(state.get("learner")):
            raise ConfigError(
                f"{path} cannot be resumed: {found} in it, so training broke before it was written; give --resume an older "
                "checkpoint, or start anew with a lower policy_config.learning_rate."
            )
        with checkpoint.fitting(path):
            self._load_state(state["learner"])
            if "buffer" in state:
                self.learner.load_buffer_state(state["buffer"])
            self._waiting = list(state["waiting"]) if "buffer" in state else []
            self._llm = state.get("llm")
            checkpoint.restore_random_state(state["random"])
        self.learner.set_rates()
        return len(self._waiting) if "buffer" in state else -1

    def llm(self) -> dict[str, Any] | None:
        """What a loaded checkpoint has of the language model that learns, once."""
        saved, self._llm = self._llm, None
        if saved is None:
            return None
        state = saved["state"]
        kept = [Parcel(collected, collected.summary()) for collected in map(unpack_batch, saved["kept"])]
        return {
            **saved, "kept": kept, "state": None if state is None else Parcel(state),
            "trained": None if state is None else Parcel(dict(state["trained"])),
        }  # fmt: skip

    def waiting(self, place: int) -> Parcel:
        """The batch that waited at this place of the line."""
        collected = unpack_batch(self._waiting[place])
        self._waiting[place] = {}
        return Parcel(collected, collected.summary())


def _data_parallel(parts: Parts, cfg: Any) -> tuple[Lead, Learner]:
    """Rank 0 of several: the learner with the whole buffer, and a model that trains on its share."""
    from zoo.jericho.priorzero.learn.ddp_update import share_config
    from zoo.jericho.priorzero.roles.rank import Lead, new_group

    options = parts.options.policy_config
    policy = new_policy(share_config(cfg, options.learner_ranks))
    lead = Lead(policy, new_group(parts, 0, cfg.device), cfg.grad_clip_value)
    return lead, Learner(cfg, options.absorbing_steps, policy=policy, update=lead.update, most_bad=most_bad(options))


def most_bad(policy: Any) -> int:
    """Bad updates in a row that end a run with these options."""
    return 1 if policy.on_bad_update == "stop" else MOST_BAD_UPDATES


def seed_everything(seed: int) -> None:
    """Seed every global generator that the learner draws from."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
