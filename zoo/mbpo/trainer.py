"""What the three trainers share: the roles and where they live, what is recorded and shown, saved and resumed.

This process only coordinates; weights and batches pass through it as parcels that nobody opens on the way.
"""

from __future__ import annotations

import logging
import math
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from lzero_async import AsyncTrainingCoordinator, Parcel, Recovery, Worker, make_backend
from lzero_async.errors import ConfigError, WorkerStuck
from lzero_async.runs import checkpoint
from lzero_async.runs.applications import PipelineDescription
from lzero_async.runs.checks import present_device
from lzero_async.runs.folder_lock import FolderLock
from lzero_async.runs.options import as_dict
from lzero_async.runs.role_set import PLACES, thread_limit
from lzero_async.runs.run_dir import free_folder
from lzero_async.runs.scored import ScoredApplication
from lzero_async.telemetry.quantities import label, rate_label
from lzero_async.telemetry.sinks import Records
from lzero_async.telemetry.terminal.progress import Progress, duration
from lzero_async.telemetry.utilisation import Utilisation
from lzero_async.telemetry.view import SECONDS, Count, Progressed, per_second, seconds_remaining
from lzero_async.types import BackgroundContext, Batch, EvalResult, RunResult, TrainReport
from lzero_async.validation import one_of
from zoo.mbpo.application import describe
from zoo.mbpo.collect.data_collector import AsyncDataCollector
from zoo.mbpo.envs.guarding import BAD_EPISODE, STUCK
from zoo.mbpo.envs.sources import EnvSource, GymSource
from zoo.mbpo.options import HARMLESS, MbpoOptions, backend_of, build_options
from zoo.mbpo.roles import PRELOAD, make_role
from zoo.mbpo.saving import check_same_run
from zoo.mbpo.troubles import Troubles

EVAL_ENVS: Final = 20  # at most so many environments play an evaluation at once
COUNTERS: Final = ("real_data", "model_data", "agent_updates", "dynamics_updates")
log = logging.getLogger(__name__)


class Trainer(ScoredApplication):
    """One run: build it, `resume` it or not, `run` it, `close` it. Subclasses say how it is coordinated and who learns.

    `options` may be a dictionary of those that differ from their defaults, and `folder` may be left to `exp_name`: one of that
    name, with a number behind it when another run is there, which this one holds until it is closed.
    """

    program, axis = "mbpo", "real_steps"
    trainers: ClassVar[tuple[str, ...]]  # the values of the option `trainer` that it serves; the first is its default
    options: MbpoOptions
    collectors: AsyncDataCollector

    def __init__(
        self,
        options: MbpoOptions | Mapping[str, Any],
        folder: Path | None = None,
        *,
        source: EnvSource | None = None,
        progress: Progress | None = None,
    ) -> None:
        if not isinstance(options, MbpoOptions):
            options = build_options({"trainer": self.trainers[0], **options})
        one_of("trainer", options.trainer, self.trainers)
        self._lock = FolderLock()
        if folder is None:
            folder = free_folder(options.exp_name, None, self._lock, HARMLESS)
        records = Records(folder, wandb=options.wandb, project="mbpo", run_name=folder.name, config=as_dict(options))
        backend = make_backend(
            backend_of(options),
            preload=PRELOAD,
            ray_address=options.ray_address,
            ray_resources=options.ray_resources,
        )
        super().__init__(options, folder, backend, records, progress)
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.troubles = Troubles()
        self._hung: WorkerStuck | None = None  # an environment hangs in this process, where nothing can end it
        self.ages: dict[str, float] = {}  # of the sampled rows, by source
        self._fill: dict[str, float] = {}
        self._busy: dict[str, float] = {}  # seconds that each role has worked
        self._rates: dict[str, float] = {}
        self._logged = 0
        self._since_last = Utilisation()
        self.source = source or GymSource(options)
        self._build_or_close(self._build)

    def _build(self) -> None:
        """Start every role; they are made at the same time, each in its own place. Then wait for them."""
        options = self.options
        if place := PLACES.get(self.backend.kind):
            self.progress.note(f"{options.trainer} trainer: starting the roles, {place} ...")
        self._records.prepare()  # while the template of the roles makes its imports
        self.collectors = AsyncDataCollector(
            self.backend,
            self.source,
            num_envs=options.num_envs,
            random_steps=options.random_steps,
            environment=thread_limit(1),
            output=self.role_set.output,
            on_event=self._on_event,
            **self._collecting(),
        )
        envs = min(EVAL_ENVS, options.eval_episodes)
        evaluator = self.source.evaluator(envs) if options.eval_every else None
        if options.eval_every and evaluator is None:
            if options.target_score is not None:
                raise ConfigError(
                    f"target_score is {options.target_score:g}, but {options.env} is not evaluated, since a second "
                    "environment cannot live beside the collectors'; leave it out and set max_env_steps."
                )
            self.progress.note("no evaluations: a second environment cannot live beside the collectors'")
        self.evaluator = (
            None if evaluator is None else self.role_set.start("evaluator", evaluator, on_event=self._on_event)
        )
        sizes = self.source.sizes()
        if sizes is None:
            sizes = self.collectors.ready()
        learning = replace(options, device=present_device("device", options.device), torch_threads=self._threads())
        self._start_learners(learning, sizes)
        for worker in self._learners():
            self.counters |= {name: count for name, count in worker.call("ready").items() if name in COUNTERS}
        self.collectors.ready()
        self.coordinator = AsyncTrainingCoordinator(
            recovery=Recovery(
                on_failure="restart", max_restarts=options.max_restarts, restart_backoff=options.restart_backoff
            ),
            enable_async_eval=options.trainer != "sync",
            get_weights=lambda: self.learner.call("weights"),
            **self._coordination(),
        )
        if self.backend.kind in PLACES:
            self.progress.note(f"ready after {self.elapsed:.0f} s")
        self._locate()

    def _threads(self) -> int:
        return int(self.options.torch_threads) or (0 if self.backend.kind == "inline" else 1)

    def _start_role(self, name: str, role: str, options: MbpoOptions, sizes: tuple[int, int]) -> Worker:
        factory = partial(make_role, role, options, sizes)
        threads = self._threads() or 1
        return self.role_set.start(name, factory, threads=threads, on_event=self._on_event, pin_to_driver=True)

    # -- what a trainer says ---------------------------------------------------------------------------------------------

    @abstractmethod
    def _collecting(self) -> dict[str, Any]:
        """num_collectors and collection_batch_size."""

    @abstractmethod
    def _coordination(self) -> dict[str, Any]:
        """The coordinator's arguments: degree, queue and so on."""

    @abstractmethod
    def _start_learners(self, options: MbpoOptions, sizes: tuple[int, int]) -> None:
        """Start the roles that learn; `self.learner` is the one that owns the agent."""

    def _learners(self) -> list[Worker]:
        return [self.learner]

    @abstractmethod
    def _learn(self, batch: Batch) -> dict[str, Any]:
        """Have the learner do what is owed for a batch; its report."""

    def _background(self) -> dict[str, Callable[[BackgroundContext], object]]:
        return {}

    def _other_state(self) -> Parcel | None:
        """What a checkpoint keeps besides the learner's own."""
        return None

    def _load_others(self, path: Path) -> None:
        """Roles besides the learner go on from a checkpoint."""

    def _state_of_own(self) -> dict[str, Any]:
        return {}

    def _load_own(self, state: Mapping[str, Any]) -> None:
        """The rest of a trainer's own state."""

    def _steps_per_collect(self) -> int | None:
        """Real steps of every collect, if they are all equal."""
        shares = enumerate(self.collectors.shares)
        sizes = {envs * self.collectors.vector_steps(worker) for worker, envs in shares}
        return sizes.pop() if len(sizes) == 1 else None

    # -- the stages ----------------------------------------------------------------------------------------------------

    def train(self, batch: Batch) -> TrainReport:
        """Have the learners take a batch in (or, in a replay, go on with what they have), and record what came of it."""
        done = {name: value for name, value in self._learn(batch).items() if not _is_unsound(value)}
        self.troubles.learned(done)
        self.counters |= {name: done[name] for name in COUNTERS if name in done}
        self.ages |= {name: value for name, value in done.items() if "_age_" in name}
        self._fill = {name: done[name] for name in ("real_buffer", "model_buffer")}
        self._busy["learner"] = self._busy.get("learner", 0.0) + done["seconds"]
        version = self.coordinator.version + 1
        self._mark(version)
        self._rates["updates"] = done["updates"] / max(done["seconds"], 1e-9)
        try:
            self._record(batch, done, version)
        except OSError as error:  # this train is made and has to be counted first
            self._unwritten = error
        return TrainReport(
            sample_age_mean=done.get("real_age_mean"), sample_age_max=done.get("real_age_max"),
            sample_count=max(1, done["updates"]),
        )  # fmt: skip

    def _record(self, batch: Batch, done: Mapping[str, Any], version: int) -> None:
        skipped = {"weights", *COUNTERS}
        values = {f"learner/{name}": value for name, value in done.items() if name not in skipped and value is not None}
        values |= {f"data/{name}": count for name, count in self.counters.items()}
        values |= {"data/collected": self.collectors.steps, "learner/updates_per_second": self._rates["updates"]}
        row: dict[str, Any] = {"train": version, "replay": batch.replay, **values}
        if not batch.replay:
            meta = batch.data.meta
            values["learner/staleness"] = row["learner/staleness"] = batch.staleness
            row |= {f"batch/{name}": meta[name] for name in ("worker", "version", "number", "steps", "seconds")}
            if meta["returns"]:
                values["collector/return"] = row["collector/return"] = sum(meta["returns"]) / len(meta["returns"])
            values["collector/steps_per_second"] = meta["steps"] / max(meta["seconds"], 1e-9)
        self._records.scalars(values, self.counters["real_data"])
        self._records.train(row)

    def _now(self) -> dict[str, int]:
        """How far the run is."""
        return {
            "real_steps": self.counters["real_data"],
            "collected_steps": self.collectors.steps,
            "agent_updates": self.counters["agent_updates"],
        }

    # -- the run -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._lock.release()

    def run(self) -> RunResult:
        timer = threading.Timer(self.options.max_seconds, self._out_of_time)
        timer.daemon = True
        if self.options.max_seconds and self.backend.kind == "inline":  # nobody else can say so while a step hangs
            timer.start()
        try:
            result = super().run()
        finally:
            timer.cancel()
        if self._hung is not None:
            raise self._hung
        return result

    def _out_of_time(self) -> None:
        self.coordinator.stop("max_seconds")

    def _loop(self) -> dict[str, Any]:
        options, evaluates = self.options, self.evaluator is not None
        return dict(
            collect=self.collectors.collect,
            eval_fn=self.evaluate if evaluates else None,
            eval_every=options.eval_every if evaluates else 0,
            max_collect=self._max_collect(),
            max_seconds=options.max_seconds or None,
            eval_target=options.target_score,
            stop_fn=self._enough,
            on_eval=self._evaluated,
            on_restart=self._restarted,
            on_retire=self.collectors.retire,
            background=self._background(),
        )

    def _max_collect(self) -> int | None:
        """Collects to make in all, so that no more than `max_steps` real steps (rounded up to a collect) are made; None where
        batches may be dropped, and only what is trained counts."""
        limit, each = self.options.max_env_steps, self._steps_per_collect()
        if not limit or each is None or self.coordinator.has_queue:
            return None
        waiting = sum(int(batch.meta["steps"]) for batch in self.coordinator.waiting_batches)
        left = int(limit) - self.counters["real_data"] - waiting
        return self.coordinator.collect_count + max(0, -(-left // each))

    def _enough(self) -> bool:
        limit = self.options.max_env_steps
        return bool(limit) and self.counters["real_data"] >= limit

    def _restarted(self, worker: int, error: Exception) -> None:
        self.troubles.role_failed(error)
        self.collectors.restarted(worker, error)
        worker_of = self.collectors.workers[worker]
        worker_of.wait_until_ready(self.coordinator.stop_signal)  # without a ticket, which others wait for
        self._locate()

    def _trained(self) -> None:
        if self.counters["agent_updates"] // self.options.log_interval > self._logged:
            self._logged = self.counters["agent_updates"] // self.options.log_interval
            self.progress.note(self.log_line())
        super()._trained()

    def _own_scalars(self) -> dict[str, float]:
        """Use of CPU and GPU, 0 to 1, since this was asked last, where it is known."""
        seen = self._since_last.sample()
        return {
            f"utilisation/{name}": share for name, share in (("cpu", seen.cpu), ("gpu", seen.gpu)) if share is not None
        }

    def log_line(self) -> str:
        """The line that says how far it is; `step` counts agent updates."""
        counts = " ".join(f"{name}={self.counters[name]}" for name in COUNTERS)
        return f"[AsyncMBPO] step={self.counters['agent_updates']} {counts}"

    def _say_evaluation(self, result: EvalResult, at: Mapping[str, int]) -> str:
        return (
            f"evaluation at {at['collected_steps']:,} real steps ({at['real_steps']:,} trained, version {result.version}): "
            f"mean return {float(result.value):.1f}, {result.seconds:.1f} s"
        )

    # -- numbers -------------------------------------------------------------------------------------------------------

    def busy(self) -> dict[str, float]:
        """Share of the run's time that each kind of role worked."""
        statistics = self.coordinator.get_statistics()
        wall = max(statistics["wall_time"], 1e-9)
        collectors = len(self.collectors.workers)
        shares = {"collectors": statistics["collect_total_time"] / wall / collectors}
        # Background roles may end their last pass after the last train, which ends the wall time.
        return shares | {name: min(1.0, seconds / wall) for name, seconds in self._busy.items()}

    def _pipeline(self) -> PipelineDescription:
        return describe(self.options)

    def results(self) -> dict[str, Any]:
        seconds = max(self.coordinator.get_statistics()["wall_time"], 1e-9)
        return {
            **super().results(),
            "env": self.options.env,
            "trainer": self.options.trainer,
            "ages": dict(self.ages),
            "busy": self.busy(),
            "effective_samples_per_second": self.counters["real_data"] / seconds,
            "collectors": self.collectors.statistics()._asdict(),
            "troubles": {**self.troubles.counts(), "bad_episodes_by_kind": dict(self.troubles.bad_episodes)},
        }

    def _title(self) -> str:
        return f"MBPO ({self.options.trainer}): {self.options.env}"

    def _progressed(self) -> Progressed:
        options, elapsed, collectors = self.options, self.elapsed, self.collectors.statistics()
        counts = (
            Count("steps_trained", self.counters["real_data"], options.max_env_steps or None),
            Count("steps_played", collectors.steps),
            Count("updates", self.counters["agent_updates"]),
            Count(SECONDS, elapsed, options.max_seconds or None),
        )
        return Progressed(
            counts=counts,
            fills={"queue": self.queue.mean, "buffer": self._fill.get("real_buffer")},
            score="mean return",
            last_score=self.history[-1]["mean_return"] if self.history else None,
            best_score=self.best["return"],
            highest_score=None,
            recent_score=collectors.mean_return,
        )

    def line(self) -> str:
        """The live line."""
        options, steps, seen = self.options, self.counters["real_data"], self.progressed()
        elapsed, left = self.elapsed, seconds_remaining(seen.counts, self.elapsed)
        parts = [duration(elapsed) + (f", {duration(left)} left" if left is not None else "")]
        parts.append(
            f"{label('steps_trained')} {steps:,}" + (f"/{options.max_env_steps:,}" if options.max_env_steps else "")
        )
        parts.append(f"return {seen.recent_score:.0f}" if seen.recent_score is not None else "return -")
        parts.append(f"best eval {self.best['return']:.0f}" if self.best["return"] is not None else "best eval -")
        parts.append(f"lag {self.coordinator.collect_train_lag}")
        if self._rates:
            rates = per_second(seen.counts, elapsed)
            parts += [f"{rates[key]:.0f} {rate_label(key)}" for key in ("steps_played", "updates") if rates]
        return " | ".join(parts)

    def _on_event(self, event: Any) -> None:
        """A role says how far it is, or what went wrong."""
        if event[0] == BAD_EPISODE:
            self.troubles.episode(*event[1:])
        elif event[0] == STUCK:
            self._end_hung(event[1])
        if hasattr(self, "coordinator"):
            self.progress.show(self.line())

    def _end_hung(self, sentence: str) -> None:
        """An environment hangs in a thread of this process: leave it behind, and end the run."""
        if not self.coordinator.stop_signal.is_set():
            self._hung = WorkerStuck(f"{sentence}; it runs in a thread, which cannot be ended: use --backend process.")
            self.troubles.role_failed(self._hung)
            self.coordinator.stop("an environment hangs")
        for worker in self._roles():
            if worker not in self._learners():
                worker.kill()

    def _role_restarted(self, error: Exception | None = None) -> None:
        self.troubles.role_failed(error)
        super()._role_restarted(error)

    def _troubles(self) -> dict[str, int]:
        return self.troubles.counts()

    def _roles(self) -> list[Worker]:
        return [*self._learners(), *self.collectors.workers, *([] if self.evaluator is None else [self.evaluator])]

    # -- saving and resuming -------------------------------------------------------------------------------------------

    def _counters(self) -> dict[str, int]:
        return dict(self.counters)

    def _description(self) -> dict[str, Any]:
        return {**super()._description(), "source": self.source.description()}

    def save(self) -> Path:
        """Write the last checkpoint. Call it between trains."""
        state: dict[str, Any] = {
            **self._description(),
            "collectors": self.collectors.state_dict(),
            "history": list(self.history),
            "busy": dict(self._busy),
            "trainer": self._state_of_own(),
            "troubles": self.troubles.state_dict(),
        }
        return self._save_whole(state, self._other_state())

    def resume(self, path: Path, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint of the same environment and sizes, by whichever trainer it was written; `state` is what
        was loaded from `path`, its arrays left out. Episodes begin anew."""
        check_same_run(path, state, self.options)
        count = self.learner.call("load", str(path))
        self._load_others(path)
        with checkpoint.fitting(path):
            batches = [self.learner.call("waiting", place) for place in range(count)]
            self.coordinator.load_state_dict(state["coordinator"], batches=batches)
            self.collectors.load_state_dict(state["collectors"])
            self.best = {"return": state["best"]["return"], "version": int(state["best"]["version"])}
            self.history = list(state["history"])
            self._busy = {name: float(seconds) for name, seconds in state["busy"].items()}
            self.earlier_seconds = float(state.get("seconds", 0.0))
            self.counters |= {name: int(state["counters"][name]) for name in COUNTERS}
            self._load_own(state.get("trainer") or {})
            if "troubles" in state:
                self.troubles.load_state_dict(state["troubles"])
        self._logged = self.counters["agent_updates"] // self.options.log_interval
        version = self.coordinator.version
        self._records.resume(version, self.counters["real_data"])
        self._mark(version)


def _is_unsound(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
