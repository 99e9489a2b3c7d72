"""What the coordinating process knows of the roles: how each is made, what a collector is told, and when one is to give up.
Everything heavy is imported by the role's own process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zoo.jericho.priorzero.quiet import quiet

if TYPE_CHECKING:
    from zoo.jericho.priorzero.learner_role import LearnerRole
    from zoo.jericho.priorzero.parts import Parts
    from zoo.jericho.priorzero.players import CollectorRole, EvaluatorRole
    from zoo.jericho.priorzero.rank_role import RankRole
    from zoo.jericho.priorzero.reanalyze import ReanalyzeRole

Emit = Callable[[Any], None]


class GroupBroken(RuntimeError):
    """The ranks of a data-parallel learner lost each other: one died, hung or did not come. A new group can be made."""


class RankFailed(RuntimeError):
    """Another rank of the learner failed in an update; its own call raises why."""


@dataclass(frozen=True)
class CollectOrder:
    """What a collector needs to know besides the weights; `number` says which of its streams of random numbers to use."""

    version: int
    number: int
    env_steps: int


def learner(parts: Parts, device: str, emit: Emit) -> LearnerRole:
    """The learner."""
    with quiet():
        from zoo.jericho.priorzero.learner_role import LearnerRole
    return LearnerRole(parts, device, emit)


def rank(parts: Parts, number: int, device: str, emit: Emit) -> RankRole:
    """Another rank of the learner, from 1 on."""
    with quiet():
        from zoo.jericho.priorzero.rank_role import RankRole
    return RankRole(parts, number, device, emit)


def collector(parts: Parts, worker: int, device: str, asynchronous: bool, emit: Emit) -> CollectorRole:
    """A collector."""
    with quiet():
        from zoo.jericho.priorzero.players import CollectorRole
    return CollectorRole(parts, worker, device, asynchronous, emit)


def evaluator(parts: Parts, device: str, asynchronous: bool, emit: Emit) -> EvaluatorRole:
    """The evaluator."""
    with quiet():
        from zoo.jericho.priorzero.players import EvaluatorRole
    return EvaluatorRole(parts, device, asynchronous, emit)


def reanalyzer(parts: Parts, device: str, own_process: bool, emit: Emit) -> ReanalyzeRole:
    """A role that searches old episodes again."""
    with quiet():
        from zoo.jericho.priorzero.reanalyze import ReanalyzeRole
    return ReanalyzeRole(parts, device, own_process, emit)
