"""Which roles a run has, and what each is built from; started at the same time, each in its own place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lzero_async import Worker
from lzero_async.runs.role_set import PLACES
from zoo.jericho.priorzero.games.files import Game
from zoo.jericho.priorzero.options import backend_of, device_of, plays_asynchronously, threads_of, trains_llm
from zoo.jericho.priorzero.play.components import Parts
from zoo.jericho.priorzero.roles import factories
from zoo.jericho.priorzero.roles.learner_group import on_loopback
from zoo.jericho.priorzero.sections import PriorZeroOptions


@dataclass(frozen=True)
class Team:
    """The workers of a run; without evaluations there is no evaluator, and only a language model that learns has a learner."""

    learner: Worker
    ranks: list[Worker]
    collectors: list[Worker]
    reanalyzers: list[Worker]
    evaluator: Worker | None
    llm_learner: Worker | None


def start_team(options: PriorZeroOptions, game: Game, folder: Path, start_role: Callable[..., Worker]) -> Team:
    """Start every role with `start_role(name, factory, threads=...)`, the learner first."""
    policy, run = options.policy_config, options.run_config
    asynchronous, in_turn = plays_asynchronously(options), backend_of(options) == "inline"
    made: dict[tuple[int, str, str], Parts] = {}

    def parts(kind: str, number: int = 0) -> Parts:
        """What the role with this number is built from; in one process equal ones are one, unless they may have other weights
        of the language model at the same time."""
        own = f"{kind} {number}" if trains_llm(options) and not in_turn else ""
        key = threads_of(options, kind), device_of(options.llm_config.llm_devices, number), own
        if key not in made:
            made[key] = Parts(options, game, folder, threads=key[0], llm_device=key[1])
        return made[key]

    def start(kind: str, number: int | None, make: Callable[..., Any], *about: Any, **how: Any) -> Worker:
        """A role made by `make(*about, emit)`."""
        name = kind if number is None else f"{kind} {number}"
        return start_role(name, partial(make, *about), threads=threads_of(options, kind), **how)

    alone = {"pin_to_driver": True, **(on_loopback() if policy.learner_ranks > 1 else {})}
    own_process, trained = backend_of(options) in PLACES, options.llm_train_config
    learning, playing = partial(device_of, policy.device), partial(device_of, policy.collector_devices)
    evaluates = (run.eval_every and run.eval_modes) or run.final_eval_modes
    return Team(
        learner=start("learner", None, factories.learner, parts("learner"), learning(0), **alone),
        ranks=[
            start("learner rank", rank, factories.rank, parts("learner rank"), rank, learning(rank), **alone)
            for rank in range(1, policy.learner_ranks)
        ],
        collectors=[
            start(
                "collector", number, factories.collector, parts("collector", number), number, playing(number), asynchronous
            )
            for number in range(policy.num_collectors)
        ],
        reanalyzers=[
            start("reanalyzer", number, factories.reanalyzer, parts("reanalyzer"), playing(number), own_process)
            for number in range(policy.reanalyze_workers)
        ],
        evaluator=start(
            "evaluator", None, factories.evaluator, parts("evaluator", policy.num_collectors), policy.evaluator_device,
            asynchronous,
        )
        if evaluates
        else None,
        llm_learner=start(
            "llm learner", None, factories.llm_learner, parts("llm learner"), trained.llm_learner_device, own_process,
            pin_to_driver=True,
        )
        if trains_llm(options)
        else None,
    )  # fmt: skip
