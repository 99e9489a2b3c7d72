"""The applications that can be compared: how each is started, and where its numbers are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lzero_async.runs.run_files import Run
from lzero_async.tools.compare.measured import Measured, busy_of, measure

Words = tuple[str, ...]
CONTINUOUS: Final = "continuous"
SAME: Final = {"exp_name": "it is set for each run; --out names the folder of both", "resume": "both runs begin anew"}


@dataclass(frozen=True)
class App:
    """One application. Names of options are without dashes, and without the section that --set gives them.

    `ways` are the asynchronous modes, the first one is the default. `defaults` are given to both runs and `async_defaults` to
    the asynchronous one unless the user gives them; `async_only` reach only that one. `refused` says why an option cannot be
    given. `limits` are those of its own that end a run.
    """

    name: str
    module: str
    sample: str
    sync: Words
    ways: Mapping[str, Words]
    seconds: Callable[[float], Words]
    measured: Callable[[Run], Measured]
    is_synchronous: Callable[[Run], bool]
    defaults: Mapping[str, Words] = field(default_factory=dict)
    async_defaults: Mapping[str, Words] = field(default_factory=dict)
    async_only: frozenset[str] = frozenset()
    sync_only: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by way
    refused: Mapping[str, str] = field(default_factory=dict)
    mode: str = ""  # the option that makes a run synchronous or not, where that is one alone
    limits: Mapping[str, Words] = field(default_factory=dict)  # what takes them away
    rows: str = ""  # what is special about its rows in the timeline


def _mbpo(run: Run) -> Measured:
    results, statistics = run.results, run.results["coordinator"]
    continuous = run.options["trainer"] == CONTINUOUS
    return measure(
        run, statistics, collected=results["collectors"]["steps"], trained=results["counters"]["real_data"],
        updates=results["counters"]["agent_updates"], collectors=run.options["num_collectors"] if continuous else 1,
        envs=run.options["num_envs"], busy={**_evaluator(run), **results["busy"]},
    )  # fmt: skip


def _priorzero(run: Run) -> Measured:
    results, statistics = run.results, run.results["statistics"]
    collectors = run.options["policy_config"]["num_collectors"]
    return measure(
        run, statistics, collected=results.get("collected_steps", results["env_steps"]), trained=results["env_steps"],
        updates=results["updates"], collectors=collectors,
        envs=collectors * run.options["env_config"]["collector_env_num"],
    )  # fmt: skip


def _episode_ppo(run: Run) -> Measured:
    results, statistics, played = run.results, run.results["coordinator"], run.results["environments"]
    envs = run.options["n_envs"]
    busy = {"collectors": min(1.0, played["busy_seconds"] / played["at_once"] / statistics["wall_time"])}
    return measure(
        run, statistics, collected=played["steps"], trained=results["counters"]["steps"],
        updates=results["counters"]["updates"], collectors=1, envs=envs,
        busy={**busy, "learner": results["busy"]["learner"], **_evaluator(run)},
    )  # fmt: skip


def _evaluator(run: Run) -> dict[str, float]:
    """The share of the evaluator, which only the trace knows."""
    return {role: share for role, share in busy_of(run).items() if role == "evaluator"}


def _set(path: str, value: Any) -> Words:
    return "--set", f"{path}={value}"


APPS: Final = {
    app.name: app
    for app in (
        App(
            name="mbpo",
            module="zoo.mbpo.train",
            sample="a real transition",
            sync=("--trainer", "sync"),
            ways={"batch": ("--trainer", "batch"), CONTINUOUS: ("--trainer", CONTINUOUS)},
            seconds=lambda seconds: ("--max_seconds", f"{seconds:g}"),
            measured=_mbpo,
            is_synchronous=lambda run: bool(run.options["trainer"] == "sync"),
            mode="trainer",
            limits={"max_steps": ("--max_steps", "0")},
            async_only=frozenset(
                (
                    "batch_queue_size",
                    "num_collectors",
                    "max_queue_size",
                    "collection_batch_size",
                    "when_full",
                    "queue_order",
                    "off_policy_degree",
                    "max_train_ahead",
                    "model_queue_size",
                    "adaptive_queue",
                    "adaptive_collectors",
                    "adaptive_batch",
                )
            ),
            sync_only={CONTINUOUS: frozenset(["num_steps_per_env"])},
            refused={
                **SAME,
                "trainer": "it is what is compared; --asynchronous batch or continuous chooses the asynchronous one",
                "preset": "it belongs to one trainer only; give --num_envs, --num_collectors and the others by themselves",
                "max_seconds": "--seconds says how long both runs last",
                "trace": "the comparison is made from the trace",
            },
        ),
        App(
            name="priorzero",
            module="zoo.jericho.priorzero.priorzero_entry",
            sample="an environment step",
            sync=("--off_policy_degree", "0"),
            ways={"degree": ()},
            seconds=lambda seconds: _set("run_config.max_seconds", f"{seconds:g}"),
            measured=_priorzero,
            is_synchronous=lambda run: run.results["statistics"]["mode"] == "SYNCHRONOUS",
            limits={"max_env_step": ("--max_env_step", "0")},
            defaults={
                "trace": _set("run_config.trace", True),
                "final_eval_modes": _set("run_config.final_eval_modes", "[]"),  # after the run: not compared
            },
            async_defaults={"off_policy_degree": ("--off_policy_degree", "2")},
            async_only=frozenset(
                (
                    "off_policy_degree",
                    "num_collectors",
                    "async_eval",
                    "enable_async_eval",
                    "adaptive_degree",
                    "max_degree",
                    "staleness_policy",
                    "backend",
                    "env_asynchrony",
                )
            ),
            refused={
                **SAME,
                "max_seconds": "--seconds says how long both runs last",
                "trace": "the comparison is made from the trace",
            },
        ),
        App(
            name="episode_ppo",
            module="zoo.episode_ppo.train",
            sample="an environment step",
            sync=("--collector", "sync"),
            ways={"async": ("--collector", "async")},
            seconds=lambda seconds: ("--max_seconds", f"{seconds:g}"),
            measured=_episode_ppo,
            is_synchronous=lambda run: bool(run.options["collector"] == "sync"),
            limits={"total_episodes": ("--total_episodes", "0")},
            mode="collector",
            # A barrier over several processes is slower, so the baseline keeps its one worker.
            async_only=frozenset(["off_policy_degree", "staleness_policy", "num_workers"]),
            rows="a collector's row is a round of episodes; how much the environments work is in the table above",
            refused={
                **SAME,
                "collector": "it is what is compared",
                "max_seconds": "--seconds says how long both runs last",
                "trace": "the comparison is made from the trace",
            },
        ),
    )
}


def queue_of(app: App, run: Run) -> int:
    """Batches that may wait for training in an asynchronous run."""
    statistics = run.results["statistics" if app.name == "priorzero" else "coordinator"]
    return int(statistics["queue_capacity"] or statistics["off_policy_degree"])


def different(app: App, sync: Run, asynchronous: Run) -> dict[str, tuple[Any, Any]]:
    """Options that make the work of two runs different: both values by name. What only one of them uses is left out."""
    own = app.async_only.union(*app.sync_only.values()) | {app.mode, "exp_name", "max_seconds", "backend"}
    left, right = _flat(sync.options), _flat(asynchronous.options)
    return {
        name: (left.get(name), right.get(name))
        for name in {**left, **right}
        if name.rpartition(".")[2] not in own and left.get(name) != right.get(name)
    }


def _flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in options.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found
