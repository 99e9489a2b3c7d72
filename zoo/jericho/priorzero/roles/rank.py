"""What the ranks of a data-parallel learner do: rank 0, inside the learner, leads; the others are roles that follow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from zoo.jericho.priorzero.learn.careful import BadUpdate
from zoo.jericho.priorzero.learn.ddp_update import SharedUpdate, share_config, shares
from zoo.jericho.priorzero.learn.learner import new_policy
from zoo.jericho.priorzero.learn.rank_errors import GroupBroken
from zoo.jericho.priorzero.learn.rank_group import RankGroup
from zoo.jericho.priorzero.options import rank_device
from zoo.jericho.priorzero.play.components import Parts

STATE: Final = "state"  # orders of rank 0, besides a share to train on
END: Final = "end"
PATIENCE: Final = 10  # times hang_timeout that a message may take: whoever hangs is ended long before


class Lead:
    """Rank 0: cuts every batch into shares, gives the others theirs, and its own state when they do not have it."""

    def __init__(self, policy: Any, group: RankGroup, clip: float) -> None:
        self._policy, self._group = policy, group
        self._update = SharedUpdate(policy, group, clip)
        self._known = False  # whether the others have this rank's state

    def open(self, host: str) -> tuple[str, int]:
        """Open the meeting point; where the others find it."""
        self._address = self._group.open(host)
        return self._address

    def forget(self) -> None:
        """The state was changed from outside: the others get it before the next update."""
        self._known = False

    @contextlib.contextmanager
    def train(self, generation: int) -> Iterator[None]:
        """Lead one train; whatever fails inside ends the group, so that nobody waits for the rest of it."""
        try:
            if generation != self._group.generation:
                self._group.join(self._address, generation)
                self.forget()
            yield
        except BaseException:
            self.dismiss()
            raise
        try:
            self._order(END)
        except GroupBroken:  # the train is made
            self.dismiss()

    def dismiss(self) -> None:
        """Leave the group, which ends the others' wait for orders."""
        self._group.leave()

    def update(self, data: list[list[NDArray[Any]]], number: int) -> dict[str, float]:
        """One update of all ranks on this batch; its losses."""
        if not self._known:
            self._order(STATE)
            self._group.broadcast(_on_cpu(self._policy._state_dict_learn()))
            self._known = True
        mine, *others = shares(data, number, self._group.ranks)
        self._group.scatter([None, *others])
        return self._update.run(mine)

    def _order(self, order: str) -> None:
        self._group.scatter([order] * self._group.ranks)


class RankRole:
    """Rank 1 or later: a model and an optimizer that follow rank 0, and nothing else."""

    def __init__(self, parts: Parts, rank: int, device: str, emit: Callable[[Any], None]) -> None:
        parts.limit_threads()
        policy = parts.options.policy_config
        self._seed, self._rank = parts.options.run_config.seed, rank
        cfg = parts.unizero(rank_device(device, rank, policy.learner_ranks))
        self.policy = new_policy(share_config(cfg, policy.learner_ranks))
        self._group = new_group(parts, rank, cfg.device)
        self._update = SharedUpdate(self.policy, self._group, cfg.grad_clip_value)

    def ready(self) -> int:
        """Answered once the role is made: its rank."""
        return self._rank

    def follow(self, address: tuple[str, int], generation: int) -> None:
        """Do what rank 0 says until the end of a train."""
        try:
            self._group.join(address, generation)
            while (order := self._group.scatter()) != END:
                if order == STATE:
                    self.policy._load_state_dict_learn(self._group.broadcast())
                else:
                    self._draw_for(order.update)
                    with contextlib.suppress(BadUpdate):  # no rank made it
                        self._update.run(order)
        except BaseException:
            self._group.leave()
            raise

    def close(self) -> None:
        """Leave the group."""
        self._group.leave()

    def _draw_for(self, update: int) -> None:
        """Random numbers (dropout) of this rank in this update, the same when it is made again or after a resume."""
        seed = np.random.SeedSequence((self._seed, self._rank, update)).generate_state(1, np.uint64)[0]
        torch.manual_seed(int(seed))


def new_group(parts: Parts, rank: int, device: str) -> RankGroup:
    """The group's side of this rank, with the run's timeouts."""
    policy = parts.options.policy_config
    seconds = policy.hang_timeout
    return RankGroup(rank, policy.learner_ranks, device, join_timeout=seconds, timeout=PATIENCE * seconds)


def _on_cpu(value: Any) -> Any:
    """The same state with every tensor in the machine's memory: the ranks have devices of their own."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: _on_cpu(part) for key, part in value.items()}
    return [_on_cpu(part) for part in value] if isinstance(value, list) else value
