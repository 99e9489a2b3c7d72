"""A LightZero run: the roles and where they live, LightZero's counters and schedules, what is recorded and what is saved."""

from __future__ import annotations

import json
import logging
import math
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from lzero_async import AsyncTrainingCoordinator, Bound, Parcel, Recovery, Worker, make_backend
from lzero_async.lightzero import factories
from lzero_async.lightzero.application import describe
from lzero_async.lightzero.entries import ENTRIES, EvalSchedule
from lzero_async.lightzero.gain import most_to_gain
from lzero_async.lightzero.options import LightZeroOptions, backend_of, threads_of
from lzero_async.lightzero.parts import BEST, Plan
from lzero_async.lightzero.players import CollectOrder
from lzero_async.runs import checkpoint
from lzero_async.runs.applications import PipelineDescription
from lzero_async.runs.options import as_dict
from lzero_async.runs.run_dir import BEST_CHECKPOINT
from lzero_async.runs.scored import ScoredApplication
from lzero_async.telemetry.sinks import Records
from lzero_async.telemetry.tensorboard import Board
from lzero_async.telemetry.terminal.progress import Progress
from lzero_async.telemetry.view import SECONDS, Count, Progressed
from lzero_async.types import Batch, CollectContext, EvalResult, RunResult, StopSignal, TrainReport

SAY_GAIN_AFTER: Final = 5  # trains with updates
RECENT: Final = 20  # episodes
COUNTS: Final = ("env_steps", "updates", "episodes", "played", "zero_trains", "segment_age_max")
log = logging.getLogger(__name__)


class LightZeroRun(ScoredApplication):
    """One run: build it, `resume` it or not, `run` it, `close` it."""

    program, axis = "lightzero", "steps_trained"
    options: LightZeroOptions

    def __init__(self, options: LightZeroOptions, plan: Plan, folder: Path, progress: Progress | None = None) -> None:
        records = Records(
            folder,
            wandb=options.wandb,
            project="LightZero",
            run_name=folder.name,
            config=json.loads(json.dumps(as_dict(options))),
        )
        backend = make_backend(
            backend_of(options), hang_timeout=options.hang_timeout, preload=factories.PRELOAD,
            ray_address=options.ray_address, ray_resources=options.ray_resources,
        )  # fmt: skip
        super().__init__(options, folder, backend, records, progress)
        self.plan, self.entry, self.policy = plan, ENTRIES[plan.entry], plan.config["policy"]
        self.counts = dict.fromkeys(COUNTS, 0)
        self.schedule = EvalSchedule(plan.entry, int(self.policy["eval_freq"]))
        self.converged = False
        self._streams = [0] * options.num_collectors  # collects that each worker has begun
        self._counting = threading.Lock()
        self._board = Board(folder / "log" / "serial")  # where LightZero has its tags
        self._recent: list[float] = []
        self._stored, self._trained_with_updates, self._said_gain = 0, 0, False
        self._saved_at = time.monotonic()
        self._build_or_close(self._build)

    def _build(self) -> None:
        options, plan, start = self.options, self.plan, partial(self.role_set.start, on_event=self._on_event)
        together = None if self.role_set.place else factories.Together(plan, options.threads)
        threads = threads_of(options)
        self._records.prepare()  # while the template of the roles makes its imports
        self.learner = start("learner", partial(factories.learner, plan, together), threads=threads, pin_to_driver=True)
        self.collectors = [
            start(f"collector {number}", partial(factories.collector, plan, number, together), threads=threads)
            for number in range(options.num_collectors)
        ]
        self.evaluator = start("evaluator", partial(factories.evaluator, plan, together), threads=threads)
        if self.role_set.place:
            names = ", ".join(worker.name for worker in self._roles())
            self.progress.note(f"starting {names}, {self.role_set.place} ...")
        for worker in self._roles():
            worker.call("ready")
        self.counts["updates"] = self.learner.call("ready")  # of a checkpoint that the config's hooks have loaded
        size = int(self.policy.get("replay_buffer_size") or self.policy["other"]["replay_buffer"]["replay_buffer_size"])
        self.coordinator = AsyncTrainingCoordinator(
            options.off_policy_degree,
            options.async_eval,
            buffer_size=size,
            batch_size=int(self.policy["batch_size"]),
            num_collectors=options.num_collectors,
            bound=Bound(staleness_policy=options.staleness_policy),
            recovery=Recovery(
                on_failure="restart", max_restarts=options.max_restarts, restart_backoff=options.restart_backoff
            ),
            get_weights=lambda: self.learner.call("weights"),
        )
        self._buffer_size = size
        self.progress.note(f"ready after {self.elapsed:.0f} s")
        self._locate()

    def _roles(self) -> list[Worker]:
        return [self.learner, *self.collectors, *([] if self.evaluator is None else [self.evaluator])]

    # -- the stages ----------------------------------------------------------------------------------------------------

    def _order(self, worker: int, version: int) -> CollectOrder:
        """The next order for a collector; no number comes twice, whatever becomes of the collect."""
        with self._counting:
            number, self._streams[worker] = self._streams[worker], self._streams[worker] + 1
            return CollectOrder(version, number, self.counts["updates"], self.counts["played"], self.counts["episodes"])

    def collect(self, context: CollectContext) -> Parcel:
        """Have a collector collect with the weights of the context."""
        assert context.snapshot is not None
        order = self._order(context.worker, context.snapshot.version)
        batch = self._play(self.collectors[context.worker], order, context.snapshot.state, context.stop)
        self._count_collect(batch.meta)
        return batch

    def _play(self, worker: Worker, order: CollectOrder, weights: Parcel, stop: StopSignal) -> Parcel:
        batch: Parcel = worker.call("collect", order, weights, stop=stop)
        return batch

    def _count_collect(self, meta: Mapping[str, Any]) -> None:
        with self._counting:
            self.counts["played"] += meta["steps"]
            self.counts["episodes"] += len(meta["returns"])
            self._recent = (self._recent + meta["returns"])[-RECENT:]

    def train(self, batch: Batch) -> TrainReport:
        """Have the learner store the collect and make the updates owed for it."""
        meta = batch.data.meta
        steps = self.counts["env_steps"] + meta["steps"]
        done = self.learner.call("train", batch.data, steps, meta["temperature"], meta["epsilon"])
        age = batch.version + batch.staleness - meta["began_with"]
        self.counts |= {
            "env_steps": steps, "updates": done["total_updates"],
            "zero_trains": self.counts["zero_trains"] + (not done["updates"]),
            "segment_age_max": max(self.counts["segment_age_max"], age),
        }  # fmt: skip
        self._stored = done["buffer"]
        self._trained_with_updates += bool(done["updates"])
        version = self.coordinator.version + 1
        self._mark(version)
        try:
            self._record(batch, done, version, age)
        except OSError as error:  # this train is made and has to be counted first
            self._unwritten = error
        if not done["updates"]:
            self.progress.note(f"train {version}: no update ({done['missing'] or 'the replay ratio owes none'})")
        return TrainReport()

    def _record(self, batch: Batch, done: Mapping[str, Any], version: int, age: int) -> None:
        meta = batch.data.meta
        values = {f"learner/{name}": value for name, value in done["losses"].items() if math.isfinite(value)}
        values |= {
            "learner/updates": done["total_updates"], "learner/buffer": done["buffer"], "learner/seconds": done["seconds"],
            "learner/staleness": batch.staleness, "learner/segment_age": age, "collector/env_steps": self.counts["env_steps"],
            "collector/seconds": meta["seconds"],
        }  # fmt: skip
        if meta["returns"]:
            values["collector/return"] = float(np.mean(meta["returns"]))
        self._records.scalars(values, self.counts["env_steps"])
        source = {f"batch/{name}": meta[name] for name in ("version", "worker", "steps")}
        self._records.train({"train": version, **values, "batch/id": batch.id, **source})

    def _evaluation(self, version: int) -> tuple[Any, ...]:
        return (self._at.get(version, self._now()),)

    def _evaluated(self, result: EvalResult) -> None:
        super()._evaluated(result)
        updates = self._at.get(result.version, self._now())["updates"]
        offline = self.entry.evaluates_offline and self.policy.get("eval_offline")
        self.converged |= updates > 0 and not offline and float(result.value) >= self.plan.config["env"]["stop_value"]

    def _restarted(self, worker: int, error: Exception) -> None:
        """A collect failed: the next one starts from a new role, and only once that is there."""
        self.collectors[worker].restart()
        self.collectors[worker].wait_until_ready(self.coordinator.stop_signal)
        self._locate()

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> RunResult:
        self._mark(self.coordinator.version)
        result = super().run()
        self.learner.call("finish")
        return result._replace(reason=self._limit() or "stop_value") if result.reason == "stop_fn" else result

    def _loop(self) -> dict[str, Any]:
        due = not self.coordinator.train_count and self.schedule.is_due(
            self.counts["updates"]
        )  # of a loaded checkpoint
        first = not self.coordinator.train_count and (due or self.entry.evaluates_first)
        return dict(
            collect=self.collect,
            eval_fn=self.evaluate,
            eval_every=self._eval_is_due,
            eval_first=int(first),
            max_seconds=self.options.max_seconds or None,
            stop_fn=lambda: self.converged or bool(self._limit()),
            on_eval=self._evaluated,
            on_restart=self._restarted,
            on_retire=lambda worker: self.collectors[worker].kill(),
        )

    def _limit(self) -> str:
        """The limit that is reached, '' if none is."""
        if self.counts["env_steps"] >= self.options.max_env_step:
            return "max_env_step"
        return "max_train_iter" if self.counts["updates"] >= self.options.max_train_iter else ""

    def _eval_is_due(self) -> bool:
        return not self._limit() and self.schedule.is_due(self.counts["updates"])

    def _trained(self) -> None:
        every = self.options.checkpoint_seconds
        if every and time.monotonic() - self._saved_at >= every:
            self.save()
        if self._trained_with_updates >= SAY_GAIN_AFTER and not self._said_gain:
            self._said_gain = True
            self.progress.note(most_to_gain(self.coordinator.get_statistics(), self.options))
        self.progress.show(self.line())

    def final_evaluation(self) -> None:
        """None: LightZero's entries end with their last update."""

    # -- what is seen of it --------------------------------------------------------------------------------------------

    def _on_event(self, event: Any) -> None:
        """A role tells what LightZero recorded, or how many steps it made."""
        kind, rows = event
        if kind != "scalars":
            return
        by_step: dict[int, dict[str, float]] = defaultdict(dict)
        for tag, value, step in rows:
            by_step[step][tag] = value
        try:
            for step, values in by_step.items():
                self._board.scalars(values, step)
        except OSError as error:
            self._unwritten = error

    def _now(self) -> dict[str, int]:
        return {"steps_trained": self.counts["env_steps"], "updates": self.counts["updates"]}

    def _title(self) -> str:
        return f"LightZero {self.plan.entry}: {self.plan.policy} on {environment_of(self.plan.config)}"

    def _progressed(self) -> Progressed:
        counts, options = self.counts, self.options
        limits = {"steps": options.max_env_step, "updates": options.max_train_iter}
        limit = {name: None if value >= 1e10 else value for name, value in limits.items()}
        return Progressed(
            counts=(
                Count("steps_trained", counts["env_steps"], limit["steps"]),
                Count("steps_played", counts["played"]),
                Count("train_count", self.coordinator.train_count),
                Count("updates", counts["updates"], limit["updates"]),
                Count(SECONDS, self.elapsed, options.max_seconds or None),
            ),
            fills={"queue": self.queue.mean, "buffer": min(1.0, self._stored / self._buffer_size)},
            score="mean return",
            last_score=self.history[-1]["mean_return"] if self.history else None,
            best_score=self.best["return"],
            highest_score=None,
            recent_score=float(np.mean(self._recent)) if self._recent else None,
        )

    def _pipeline(self) -> PipelineDescription:
        return describe(self.options, self.plan.config)

    def results(self) -> dict[str, Any]:
        own = {name: self.counts[name] for name in ("zero_trains", "segment_age_max", "episodes", "played")}
        return {
            **super().results(), **own, "entry": self.plan.entry, "policy": self.plan.policy,
            "environment": environment_of(self.plan.config), "converged": self.converged,
        }  # fmt: skip

    # -- saving and resuming -------------------------------------------------------------------------------------------

    def _description(self) -> dict[str, Any]:
        plan = self.plan
        described: dict[str, Any] = {
            "entry": plan.entry,
            "imports": list(plan.imports),
            "policy": plan.policy,
            "path": list(plan.path),
        }
        described["own_model"] = plan.model is not None
        return {**super()._description(), "plan": {**described, "config": plan.config}}

    def save(self) -> Path:
        """Write the last checkpoint. Call it between trains."""
        self._saved_at = time.monotonic()
        state = {
            **self._description(), "history": list(self.history), "counts": dict(self.counts),
            "streams": list(self._streams), "last_eval": self.schedule.last, "recent": list(self._recent),
        }  # fmt: skip
        return self._save_whole(state)

    def resume(self, path: Path, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; `state` is what was loaded from `path`, its arrays left out."""
        count = self.learner.call("load", str(path))
        with checkpoint.fitting(path):
            batches = [self.learner.call("waiting", place) for place in range(count)]
            self.coordinator.load_state_dict(state["coordinator"], batches=batches)
            self.counts = {name: int(state["counts"][name]) for name in COUNTS}
            self.schedule.last = int(state["last_eval"])
            self.best = {"return": state["best"]["return"], "version": int(state["best"]["version"])}
            self.history, self._recent = list(state["history"]), list(state["recent"])
            self.earlier_seconds = float(state.get("seconds", 0.0))
            streams = [int(number) for number in state["streams"]]  # also those of more collectors than there are now
            self._streams = [*streams, *[0] * (len(self._streams) - len(streams))]
        self._take_best_along(path)
        self._records.resume(self.coordinator.version, self.counts["env_steps"])
        self._mark(self.coordinator.version)

    def _take_best_along(self, path: Path) -> None:
        """The best weights of a run that goes on in another folder are its best ones there, too."""
        for name in (Path(BEST_CHECKPOINT).name, BEST):
            there, here = path.with_name(name), self.folder / Path(BEST_CHECKPOINT).parent / name
            if there.is_file() and not here.exists():
                here.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(there, here)
        if not (self.folder / BEST_CHECKPOINT).is_file():
            self.best = {"return": None, "version": -1}

    def _say_evaluation(self, result: EvalResult, at: Mapping[str, int]) -> str:
        score, where = float(result.value), f"{at['steps_trained']:,} environment steps, {at['updates']:,} updates"
        return f"evaluation at {where} (version {result.version}): mean return {score:.2f}, {result.seconds:.1f} s"

    def close(self) -> None:
        board = getattr(self, "_board", None)
        try:
            super().close()
        finally:
            if board is not None:
                board.close()


def environment_of(config: Mapping[str, Any]) -> str:
    """What a config calls its environment."""
    env = config["env"]
    return str(env.get("env_id") or env.get("env_name") or env.get("type") or "its environment")
