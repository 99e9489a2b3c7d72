"""What the measured times of each application say about others: the stages that limit it, and sizes for more environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from lzero_async.runs.run_files import Run
from lzero_async.tools.compare.apps import CONTINUOUS, App, queue_of
from lzero_async.tools.compare.measured import Measured
from lzero_async.tools.compare.recommend import COLLECTORS, QUEUES, Choice, Plan, Times, spread_of

STEPS: Final = (8, 16, 32, 64)  # of every environment in one collect
EPISODES: Final = (1, 2, 4)  # of every environment in one collect


class Pair(NamedTuple):
    """Both runs of one application, as files and as numbers."""

    app: App
    sync: Run
    asynchronous: Run
    of_sync: Measured
    of_async: Measured
    cores: int


class Model(NamedTuple):
    """`stages`: seconds per sample of what runs at the same time. `measured`: the sizes of the asynchronous run itself."""

    stages: Mapping[str, float]
    note: str  # on the limit
    own: Mapping[str, float]  # what the stages of the asynchronous run took by themselves
    times: Times
    plans: tuple[Plan, ...]
    measured: Plan
    flags: Callable[[Choice], str]
    assumption: str


def model_of(pair: Pair) -> Model:
    """The model of the application that was run."""
    return MODELS[pair.app.name](pair)


def _mbpo(pair: Pair) -> Model:
    options = pair.asynchronous.options
    continuous = options["trainer"] == CONTINUOUS
    of_sync, of_async = pair.of_sync, pair.of_async
    collect = of_sync.collect_seconds / of_sync.collected
    wait = float(options["step_seconds"])
    compute = max(0.0, collect - wait / of_sync.envs)
    parts = _parts(pair.sync, of_sync) if continuous else {"train": of_sync.train_seconds / of_sync.trained}
    own = of_async.collect_seconds / of_async.collected / of_async.collectors if continuous else collect
    times = Times(
        wait, compute, _update(pair), _fixed(of_sync), *_spreads(pair), pair.cores, drops=_drops(pair),
        others=sum(seconds for name, seconds in parts.items() if name not in ("train", "agent")),
    )  # fmt: skip
    if continuous:
        steps = options["collection_batch_size"] * options["num_collectors"] / options["num_envs"]
        measured = Plan(options["num_collectors"], queue_of(pair.app, pair.asynchronous), steps)
    else:
        measured = Plan(1, queue_of(pair.app, pair.asynchronous), options["num_steps_per_env"])
    return Model(
        {"collect": own, **parts},
        " ".join(_mbpo_notes(pair, continuous)),
        _own(pair),
        times,
        tuple(Plan(number, queue, step) for number in (COLLECTORS if continuous else (1,)) for queue in QUEUES for step in STEPS),
        measured,
        _continuous_flags if continuous else _batch_flags,
        "the wait of --step_seconds does not grow with the environments of a collector, all else of a step does, and an update "
        "takes as long as it did",
    )  # fmt: skip


def _mbpo_notes(pair: Pair, continuous: bool) -> Iterator[str]:
    if continuous:
        yield "Each collector has its share of the environments: what its steps took in the asynchronous run counts here."
    if pair.sync.options["torch_threads"] == 0:
        yield "The synchronous learner has a thread for each core, the other one has one; --torch_threads 1 makes them alike."


def _parts(run: Run, measured: Measured) -> dict[str, float]:
    """Seconds per sample of what the continuous trainer's learners do at the same time, and the synchronous one in turn."""
    names = {"agent": ("agent", "take"), "dynamics": ("dynamics",), "rollouts": ("rollout",)}
    return {
        role: sum(row.get(f"learner/{part}_seconds", 0.0) for row in run.rows for part in parts) / measured.trained
        for role, parts in names.items()
    }


def _drops(pair: Pair) -> bool:
    return pair.asynchronous.results["coordinator"]["queue_capacity"] is not None


def _batch_flags(choice: Choice) -> str:
    plan = choice.plan
    return (
        f"--trainer batch --num_envs {choice.envs} --num_steps_per_env {plan.steps:.0f} --batch_queue_size {plan.queue}"
    )


def _continuous_flags(choice: Choice) -> str:
    plan = choice.plan
    batch = round(plan.steps * choice.envs / plan.collectors)
    return (
        f"--trainer continuous --num_envs {choice.envs} --num_collectors {plan.collectors} --collection_batch_size {batch} "
        f"--max_queue_size {batch * plan.queue}"
    )


def _priorzero(pair: Pair) -> Model:
    of_sync, options = pair.of_sync, pair.asynchronous.options
    collect, train = of_sync.collect_seconds / of_sync.collected, of_sync.train_seconds / of_sync.trained
    own = _own(pair)
    evaluate = of_sync.eval_seconds / of_sync.trained
    background = options["policy_config"]["enable_async_eval"]
    length = _episode_length(pair.sync)
    games, episodes = options["env_config"]["collector_env_num"], options["policy_config"]["n_episode"]
    return Model(
        {"collect": collect / pair.of_async.collectors, "train": train + (0.0 if background else evaluate)},
        "From degree 1 on games go at their own pace (env_asynchrony), which can make a collect itself shorter."
        + ("" if background else " Evaluations take the learner's turn, unless --async_eval is given."),
        own,
        Times(0.0, own["collect"], _update(pair), _fixed(of_sync), *_spreads(pair), pair.cores),
        tuple(Plan(number, queue, many * length) for number in COLLECTORS for queue in QUEUES for many in EPISODES),
        Plan(pair.of_async.collectors, queue_of(pair.app, pair.asynchronous), episodes * length / games),
        lambda choice: _priorzero_flags(choice, length),
        f"a step takes as long for each game more, an episode has {length:.0f} steps, and the learner needs a core",
    )


def _episode_length(run: Run) -> float:
    episodes = run.options["policy_config"]["n_episode"] * run.results["statistics"]["train_count"]
    return float(run.results["env_steps"] / episodes)


def _priorzero_flags(choice: Choice, length: float) -> str:
    plan = choice.plan
    games = choice.envs // plan.collectors
    return (
        f"--num_collectors {plan.collectors} --off_policy_degree {plan.queue} --set env_config.collector_env_num={games} "
        f"--set policy_config.n_episode={round(plan.steps / length * games)}"
    )


def _episode_ppo(pair: Pair) -> Model:
    of_sync, of_async, options = pair.of_sync, pair.of_async, pair.asynchronous.options
    played = pair.asynchronous.results["environments"]
    step = played["busy_seconds"] / played["steps"]  # of one environment
    free = step / played["at_once"]  # per sample, if all that can play at once always do
    workers = options["num_workers"] or min(options["n_envs"], pair.cores)
    # The cores cannot have computed more in each step than the rate leaves them time for, nor, where the run's own CPU seconds
    # are known, more than those without the learner's. The rest of a step is waiting.
    known = of_async.utilisation.get("cpu_seconds")
    own = [] if known is None else [max(0.0, known - of_async.train_seconds) / of_async.collected]
    compute = max(1e-9, min(step, min(workers, pair.cores) * free, *own))
    wait = step - compute if played["at_once"] > workers else 0.0
    length = of_async.trained / pair.asynchronous.results["counters"]["episodes"]
    barrier = of_sync.collect_seconds / of_sync.collected / free
    return Model(
        {"collect": free, "train": of_sync.train_seconds / of_sync.trained},
        "The collect at the same time is that of environments which are always at work. In turn, with the step barrier and the "
        f"end of every round to wait for, collecting takes {barrier:.2f} times as long; so much of the limit is theirs.",
        {"collect": free, "train": _update(pair)},
        Times(wait, compute, _update(pair), _fixed(of_sync), *_spreads(pair), pair.cores, episode=length),
        tuple(Plan(number, queue, many * length) for number in COLLECTORS for queue in QUEUES for many in EPISODES),
        Plan(workers, queue_of(pair.app, pair.asynchronous), options["episodes_per_update"] / of_async.envs * length),
        lambda choice: _episode_ppo_flags(choice, length),
        f"a step waits {1000 * wait:.2f} ms, which takes no core, and computes for {1000 * compute:.2f} ms; the lengths of "
        f"episodes are exponential with the mean {length:.0f}; a worker computes on one core at most",
    )  # fmt: skip


def _episode_ppo_flags(choice: Choice, length: float) -> str:
    plan = choice.plan
    return (
        f"--n_envs {choice.envs} --num_workers {plan.collectors} "
        f"--episodes_per_update {round(plan.steps / length * choice.envs)} --off_policy_degree {plan.queue}"
    )


def _own(pair: Pair) -> dict[str, float]:
    run = pair.of_async
    return {"collect": run.collect_seconds / run.collected, "train": run.train_seconds / run.trained}


def _update(pair: Pair) -> float:
    """Seconds of the asynchronous learner per sample, trains on old data left out."""
    statistics: Mapping[str, Any] = (
        pair.asynchronous.results.get("coordinator") or pair.asynchronous.results["statistics"]
    )
    return float(statistics["train_total_time"]) / pair.of_async.trained


def _fixed(of_sync: Measured) -> float:
    """Seconds of each train beside its stages: handing over, saving."""
    stages = of_sync.collect_seconds + of_sync.train_seconds + of_sync.eval_seconds
    return max(0.0, of_sync.seconds - stages) / of_sync.trains


def _spreads(pair: Pair) -> tuple[tuple[float, ...], tuple[float, ...]]:
    collects = [span.seconds for span in pair.sync.of("collect")]
    trains = [span.seconds for span in pair.asynchronous.of("train")]
    return spread_of(collects), spread_of(trains)


MODELS: Final[dict[str, Callable[[Pair], Model]]] = {
    "mbpo": _mbpo,
    "priorzero": _priorzero,
    "episode_ppo": _episode_ppo,
}
