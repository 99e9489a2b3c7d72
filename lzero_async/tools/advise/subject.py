"""What advice is given on: the pipeline of a run, or the one that the command line describes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist, median
from typing import Any, Final

from lzero_async.errors import ConfigError
from lzero_async.runs.applications import PipelineDescription, Rounds
from lzero_async.runs.summary import machine
from lzero_async.tools.advise.arguments import EVAL_EVERY, Request
from lzero_async.tools.advise.calibrate import alone, without_queues
from lzero_async.tools.advise.measured import Measured
from lzero_async.tools.advise.model import COLLECT, EVAL, TRAIN, Model, Pipeline, RoundsModel, Setting, Sizes, Stage

MEGABYTE: Final = 1e6
BY_HAND: Final = PipelineDescription(flags="off_policy_degree={degree}, num_collectors={collectors}")


@dataclass(frozen=True)
class Advised:
    """What advice is given on. `own` is the setting of the run, and `check` the batches per second that it should have made and
    that it made. `free_collectors`: the degree does not limit how many collect at once."""

    title: str
    model: Model
    stages: Mapping[str, Stage]
    facts: PipelineDescription = BY_HAND
    own: Setting | None = None
    check: tuple[float, float] | None = None
    unit: str = ""
    free_collectors: bool = False
    eval_every: int = 0
    async_eval: bool = False
    notes: tuple[str, ...] = ()

    @property
    def players(self) -> str:
        """Who collects, where these are not collectors."""
        return "the environments work" if self.facts.rounds is not None else ""


def by_hand(request: Request) -> Advised:
    """The pipeline that the command line describes."""
    stages = {
        name: Stage(request.values[name], request.values[f"{name}_cpu"] * request.values[name], request.values[f"{name}_spread"])
        for name in (COLLECT, TRAIN, EVAL)
        if request.values[name] is not None
    }  # fmt: skip
    cores = request.cores or machine()["cores"] or 1
    every = (request.eval_every or EVAL_EVERY) if EVAL in stages else 0
    sizes = Sizes(*(None if size is None else size * MEGABYTE for size in (request.batch_mb, request.collector_mb)))
    beside = bool(request.async_eval)
    model = Pipeline(stages[COLLECT], stages[TRAIN], cores, stages.get(EVAL), every, beside, sizes=sizes)
    return Advised("times by hand", model, stages, eval_every=every, async_eval=beside)


def of_run(found: Measured, request: Request) -> Advised:
    """The pipeline of a run, its stages as they would be alone on the machine."""
    facts = found.pipeline
    if facts.refused:
        raise ConfigError(f"{found.folder} cannot be advised on: {facts.refused}.")
    if found.statistics["degree_changes"]:
        found.notes.append("The degree adapted itself in this run; its own line takes the last one.")
    if facts.rounds is not None:
        return _of_rounds(found, facts.rounds, request)
    # In turn nothing shares the cores, and what other programs took cannot be told apart; else it can, or is guessed.
    known, in_turn = {COLLECT, TRAIN} <= set(found.queued), found.statistics["off_policy_degree"] == 0
    free = float(found.cores) if in_turn and not known else found.free or float(found.cores)
    as_run, own = _as_run(found, free)
    model = as_run if known or in_turn else alone(as_run, own)
    _refuse_evaluations(found, request, model)
    changed = replace(model, cores=request.cores or float(found.cores))
    if model.evaluation is not None:
        beside = model.async_eval if request.async_eval is None else request.async_eval
        changed = replace(changed, eval_every=request.eval_every or model.eval_every, async_eval=beside)
    return Advised(
        found.summary["title"], changed, changed.stages(own.collectors), facts, own,
        (model.predict(own).batches, found.batches), found.summary["axis"], free_collectors=model.queue,
        eval_every=changed.eval_every, async_eval=changed.async_eval, notes=(*found.notes, *facts.notes),
    )  # fmt: skip


def _as_run(found: Measured, free: float) -> tuple[Pipeline, Setting]:
    """The pipeline with the times that its stages took in the run, and the run's own setting."""
    statistics = found.statistics
    drops = statistics["queue_capacity"] is not None
    policy = statistics.get("staleness_policy", "wait")
    stages = {stage: _stage(found, stage) for stage in found.seconds}
    every = found.eval_every if EVAL in stages else 0
    pipeline = Pipeline(
        stages[COLLECT], stages[TRAIN], free, stages.get(EVAL) if every else None, every,
        statistics.get("async_eval", found.beside), policy, drops,
        int(statistics["off_policy_degree"]) if drops and policy == "drop" else None,
        {role: Stage(*times) for role, times in found.background.items()}, _sizes(found),
        replace(found.pipeline, collectors=found.collectors),
    )  # fmt: skip
    return pipeline, Setting(int(statistics["queue_capacity"] or statistics["off_policy_degree"]), found.collectors)


def _refuse_evaluations(found: Measured, request: Request, model: Pipeline) -> None:
    for name in ("eval_every", "async_eval"):
        if request.values[name] and model.evaluation is None:
            raise ConfigError(f"--{name} is given, but {found.folder} has no evaluations; leave it out.")


def _stage(found: Measured, name: str) -> Stage:
    stage = Stage(found.seconds[name], found.cpu[name], found.spread[name], found.fixed.get(name, 0.0))
    return without_queues(stage, found.queued.get(name, 0.0))


def _sizes(found: Measured) -> Sizes:
    memory = [row["memory_bytes"] for row in found.rows("collector") if row["memory_bytes"] is not None]
    return Sizes(found.summary.get("batch_bytes"), sum(memory) / len(memory) if memory else None, found.samples)


def _of_rounds(found: Measured, rounds: Rounds, request: Request) -> Advised:
    statistics = found.statistics
    if not rounds.complete:
        raise ConfigError(f"{found.folder} has no whole episode; let it run for longer.")
    seconds = rounds.busy_seconds / rounds.complete
    episode = Stage(seconds, _episode_cpu(found, rounds.complete, seconds), _episode_spread(found, rounds))
    evaluations = found.cpu.get(EVAL, 0.0) * statistics["eval_count"] / max(1, statistics["train_count"])
    train = _stage(found, TRAIN)
    model = RoundsModel(
        episode, train, request.cores or float(found.cores), rounds.at_once, rounds.episodes, evaluations,
        Sizes(found.summary.get("batch_bytes"), None, found.samples),
    )  # fmt: skip
    own = Setting(int(statistics["off_policy_degree"]), 1)
    as_run = replace(model, cores=found.free or float(found.cores))
    return Advised(
        found.summary["title"], model, {"episode": episode, TRAIN: train}, found.pipeline, own,
        (as_run.predict(own).batches, found.batches), found.summary["axis"],
        eval_every=found.eval_every, async_eval=True, notes=(*found.notes, *found.pipeline.notes),
    )  # fmt: skip


def _episode_cpu(found: Measured, episodes: int, seconds: float) -> float:
    """CPU seconds of an episode: of the processes that play, or what the run has used beside its trains."""
    cpu = [row["cpu_seconds"] for row in found.summary["roles"] if _is_worker(row)]
    if cpu and None not in cpu:
        return float(sum(cpu)) / episodes
    used = found.summary["utilisation"].get("cpu_seconds")
    if used is None:
        return seconds
    return min(seconds, max(0.0, float(used) - found.cpu[TRAIN] * found.counts[TRAIN]) / episodes)


def _is_worker(row: Mapping[str, Any]) -> bool:
    return row["role"] not in ("learner", "evaluator") and not row["role"].startswith("collector ")


def _episode_spread(found: Measured, rounds: Rounds) -> float:
    """Sigma of lognormal lengths whose longest of a round is to the mean as the measured one was."""
    path = found.folder / "metrics.jsonl"
    if not path.is_file():
        return 0.0
    with path.open(encoding="utf-8", errors="replace") as file:
        rows = (json.loads(line) for line in file if line.endswith("}\n"))
        return _sigma(
            (row["learner/max_length"] / row["learner/mean_length"] for row in rows if row.get("learner/mean_length")),
            rounds.episodes,
        )


def _sigma(ratios: Iterable[float], number: int) -> float:
    """Sigma by what the longest of `number` episodes is, as multiples of the mean."""
    seen = list(ratios)
    if not seen or number < 2:
        return 0.0
    # Where the longest lies half of the time, in deviations of the logarithm.
    high = NormalDist().inv_cdf(0.5 ** (1 / number))
    root = high * high - 2 * math.log(max(1.0, median(seen)))
    return high - math.sqrt(root) if root > 0 else high
