"""What a run of each application says: its pipeline, what can be changed in it, and the flags that change it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import NormalDist, median
from typing import Any, Final

from lzero_async.errors import ConfigError
from lzero_async.runs.run_files import load_run
from lzero_async.runs.summary import machine
from lzero_async.tools.advise.arguments import EVAL_EVERY, Request
from lzero_async.tools.advise.calibrate import alone, without_queues
from lzero_async.tools.advise.measured import Measured
from lzero_async.tools.advise.model import COLLECT, EVAL, TRAIN, Model, Pipeline, RoundsModel, Setting, Sizes, Stage
from lzero_async.tools.compare.apps import CONTINUOUS

MEGABYTE: Final = 1e6


@dataclass(frozen=True)
class Advised:
    """What advice is given on. `own` is the setting of the run, and `check` the batches per second that it should have made and
    that it made. `degree`: what the settings' degree is called there. `one_collector`: why the number of collectors is not
    tried. `flags` says how a setting is typed."""

    title: str
    model: Model
    stages: Mapping[str, Stage]
    flags: Callable[[Setting], str]
    own: Setting | None = None
    check: tuple[float, float] | None = None
    unit: str = ""
    degree: str = "off_policy_degree"
    least_degree: int = 0
    free_collectors: bool = False  # the degree does not limit how many collect at once
    one_collector: str = ""
    players: str = ""  # who collects, where these are not collectors
    eval_every: int = 0
    async_eval: bool = False
    notes: tuple[str, ...] = field(default=())


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
    return Advised("times by hand", model, stages, _generic_flags, eval_every=every, async_eval=beside)


def of_run(found: Measured, request: Request) -> Advised:
    """The pipeline of a run, its stages as they would be alone on the machine."""
    options, program = found.options, found.summary["program"]
    if found.statistics["degree_changes"]:
        found.notes.append("The degree adapted itself in this run; its own line takes the last one.")
    if program == "episode_ppo":
        return _episode_ppo(found, request)
    if program == "mbpo":
        return _continuous(found, request) if options["trainer"] == CONTINUOUS else _batch(found, request)
    if program == "priorzero":
        return _priorzero(found, request)
    return _advised(found, request, _every_of(found), found.beside, _generic_flags)


def _advised(
    found: Measured,
    request: Request,
    eval_every: int,
    async_eval: bool,
    flags: Callable[[Setting], str],
    rules: Mapping[str, Any] | None = None,
    **more: Any,
) -> Advised:
    """Find the stages alone in the run's own setting, with the pipeline's `rules`; then change what the request changes."""
    statistics = found.statistics
    # In turn nothing shares the cores, and what other programs took cannot be told apart; else it can, or is guessed.
    known, in_turn = {COLLECT, TRAIN} <= set(found.queued), statistics["off_policy_degree"] == 0
    free = float(found.cores) if in_turn and not known else found.free or float(found.cores)
    stages = {stage: _stage(found, stage) for stage in found.seconds}
    evaluation = stages.get(EVAL) if eval_every else None
    as_run = Pipeline(
        stages[COLLECT], stages[TRAIN], free, evaluation, eval_every if evaluation is not None else 0,
        async_eval, background={role: Stage(*times) for role, times in found.background.items()}, sizes=_sizes(found),
        **(rules or {}),
    )  # fmt: skip
    own = Setting(int(statistics["queue_capacity"] or statistics["off_policy_degree"]), found.collectors)
    model = as_run if known or in_turn else alone(as_run, own)
    _refuse_evaluations(found, request, model)
    changed = replace(model, cores=request.cores or float(found.cores))
    if model.evaluation is not None:
        beside = model.async_eval if request.async_eval is None else request.async_eval
        changed = replace(changed, eval_every=request.eval_every or model.eval_every, async_eval=beside)
    return Advised(
        found.summary["title"], changed, changed.stages(own.collectors), flags, own,
        (model.predict(own).batches, found.batches), found.summary["axis"],
        eval_every=changed.eval_every, async_eval=changed.async_eval, notes=tuple(found.notes), **more,
    )  # fmt: skip


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


def _every_of(found: Measured) -> int:
    """Trains between evaluations, of a loop whose options nobody knows."""
    trains, evaluations = found.statistics["train_count"], found.statistics["eval_count"]
    return max(1, round(trains / evaluations)) if evaluations else 0


def _generic_flags(setting: Setting) -> str:
    return f"off_policy_degree={setting.degree}, num_collectors={setting.collectors}"


def _priorzero(found: Measured, request: Request) -> Advised:
    policy, run = found.options["policy_config"], found.options["run_config"]
    if found.options["env_config"]["env_asynchrony"] == "auto":
        where = "degree 0" if found.statistics["off_policy_degree"] else "degrees from 1 on"
        found.notes.append(
            "From degree 1 on each game goes at its own pace (env_asynchrony auto), and its collects may be shorter than those "
            f"of degree 0: what is said of {where} is less sure."
        )

    def flags(setting: Setting) -> str:
        return f"--off_policy_degree {setting.degree} --num_collectors {setting.collectors}"

    every = run["eval_every"] if run["eval_modes"] else 0
    return _advised(found, request, every, policy["enable_async_eval"], flags, {"policy": policy["staleness_policy"]})


def _batch(found: Measured, request: Request) -> Advised:
    def flags(setting: Setting) -> str:
        return f"--trainer batch --batch_queue_size {setting.degree}" if setting.degree else "--trainer sync"

    return _advised(
        found, request, found.options["eval_every"], found.options["trainer"] != "sync", flags,
        degree="batch_queue_size",
        one_collector="one collector steps all environments here; --num_envs makes its batches larger, and --trainer continuous "
        "has several collectors",
    )  # fmt: skip


def _continuous(found: Measured, request: Request) -> Advised:
    options, drops = found.options, found.statistics["queue_capacity"] is not None
    bound = options["off_policy_degree"] if drops and options["off_policy_degree"] >= 0 else None

    def flags(setting: Setting) -> str:
        queue = f"--max_queue_size {setting.degree * options['collection_batch_size']}"
        degree = queue if drops else f"--off_policy_degree {setting.degree}"
        return f"--trainer continuous --num_collectors {setting.collectors} {degree}"

    rules = {
        "policy": "wait" if not drops else "allow" if bound is None else "drop",
        "queue": drops,
        "bound": bound,
        "max_train_ahead": options["max_train_ahead"],
        "shared": found.collectors,
    }
    found.notes.append(
        "The collectors share the environments: with n times as many, each makes n times as many steps for a batch."
    )
    return _advised(
        found, request, options["eval_every"], True, flags, rules,
        degree="queue" if drops else "off_policy_degree", least_degree=1, free_collectors=drops,
    )  # fmt: skip


def _episode_ppo(found: Measured, request: Request) -> Advised:
    options, statistics = found.options, found.statistics
    if options["collector"] == "sync":
        raise ConfigError(
            f"{found.folder} was made with --collector sync, which says nothing of episodes without a barrier; "
            "give a run with --collector async."
        )
    played = load_run(found.folder).results["environments"]
    seconds = played["busy_seconds"] / played["complete"]
    episode = Stage(seconds, _episode_cpu(found, played["complete"], seconds), _episode_spread(found))
    evaluations = found.cpu.get(EVAL, 0.0) * statistics["eval_count"] / max(1, statistics["train_count"])
    train = _stage(found, TRAIN)
    model = RoundsModel(
        episode, train, request.cores or float(found.cores), played["at_once"], options["episodes_per_update"], evaluations,
        Sizes(found.summary.get("batch_bytes"), None, found.samples),
    )  # fmt: skip
    own = Setting(int(statistics["off_policy_degree"]), 1)
    as_run = replace(model, cores=found.free or float(found.cores))
    return Advised(
        found.summary["title"], model, {"episode": episode, TRAIN: train},
        lambda setting: f"--off_policy_degree {setting.degree}", own,
        (as_run.predict(own).batches, found.batches), found.summary["axis"], least_degree=1,
        players="the environments work",
        one_collector="environments are dealt episodes of whichever round is open; --n_envs and --num_workers say how many play",
        eval_every=options["eval_every"], async_eval=True,
        notes=(*found.notes, "Degree 0 is --collector sync, with a barrier at every step; it is not simulated."),
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


def _episode_spread(found: Measured) -> float:
    """Sigma of lognormal lengths whose longest of a round is to the mean as the measured one was."""
    rows = load_run(found.folder).rows
    return _sigma(
        (row["learner/max_length"] / row["learner/mean_length"] for row in rows if row.get("learner/mean_length")),
        found.options["episodes_per_update"],
    )


def _sigma(ratios: Iterable[float], number: int) -> float:
    """Sigma by what the longest of `number` episodes is, as multiples of the mean."""
    seen = list(ratios)
    if not seen or number < 2:
        return 0.0
    high = NormalDist().inv_cdf(
        0.5 ** (1 / number)
    )  # where the longest lies half of the time, in deviations of the logarithm
    root = high * high - 2 * math.log(max(1.0, median(seen)))
    return high - math.sqrt(root) if root > 0 else high
