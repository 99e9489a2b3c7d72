"""What every application's run shares, whatever it trains: its roles, the checkpoint that a failure leaves, and its end."""

from __future__ import annotations

import importlib
import json
import logging
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar, Final

from lzero_async.core.coordinator import AsyncTrainingCoordinator
from lzero_async.errors import ConfigError
from lzero_async.runs.pipeline import PipelineDescription
from lzero_async.runs.run_dir import BEST_CHECKPOINT, INTERRUPTED, LAST_CHECKPOINT, REPORT, TRACE, naming, write_json
from lzero_async.runs.summary import machine, versions, write_summary
from lzero_async.telemetry.prometheus_server import MetricsServer
from lzero_async.telemetry.quantities import label, rate_label
from lzero_async.telemetry.recent_warnings import KeptWarnings
from lzero_async.telemetry.scalars import AsyncScalars
from lzero_async.telemetry.sinks import Records
from lzero_async.telemetry.terminal.live import make_progress
from lzero_async.telemetry.terminal.progress import Progress
from lzero_async.telemetry.utilisation import QueueUse, Use, Utilisation, UtilisationSample, use_of
from lzero_async.telemetry.view import SECONDS, Progressed, View, seconds_left
from lzero_async.types import Batch, EvalContext, EvalResult, RunResult, StopSignal
from lzero_async.workers.backend import Backend, Worker, ask_again
from lzero_async.workers.calls import CallStop
from lzero_async.workers.parcels import Parcel

KEPT_EVALUATIONS: Final = 10_000
KEPT_VERSIONS: Final = 1_000
SHOWN_WARNINGS: Final = 5
PLACES: Final = {
    "process": "a process each",
    "ray": "an actor each on Ray",
}  # backends whose roles have processes of their own
SCORES: Final = ("mean_return", "min_return", "max_return", "mean_length")
log = logging.getLogger(__name__)


def carry_through(
    application: Application,
    resume: Callable[[], str] | None,
    ends: Mapping[str, str],
    report: Callable[[Any, str], None],
) -> int:
    """The program around a run: resume it, run it, evaluate it once more, report, close it; return the exit code.

    `resume()` goes on from a checkpoint and returns what to say of that. `ends` has the program's names for the loop's
    limits. `report(final, reason)` says what came of it; `final` is None without a final evaluation.
    """
    interrupted = False
    try:
        if resume is not None:
            print(resume(), flush=True)
        write_json(application.folder / "options.json", application.options)
        try:
            result = application.run()
        except Exception as error:
            application.ended_by = f"a failure: {error!r}"
            application.summarise()
            if application.last_checkpoint.is_file():
                print(f"\ngo on from the last checkpoint with: --resume {application.folder}", file=sys.stderr)
            raise
        application.save()
        reason = ends.get(result.reason, result.reason)
        interrupted = result.reason.startswith("SIG")
        failure: Exception | None = None
        try:
            application.final = None if interrupted else application.final_evaluation()
        except KeyboardInterrupt:
            interrupted, reason = True, f"{reason}; the final evaluation was interrupted"
        except Exception as error:  # what was learned is reported first
            failure, reason = error, f"{reason}; the final evaluation failed"
        application.progress.clear()
        application.coordinator.print_statistics()
        application.ended_by = reason
        application.summarise()
        report(application.final, reason)
        if interrupted:
            print(f"go on with: --resume {application.folder}")
        if failure is not None:
            raise failure
    except BaseException as error:
        try:
            application.close()
        except Exception as late:  # the first error is the one to show
            log.error("while closing after %r: %r", error, late)
        if isinstance(error, Exception) and not isinstance(error, ConfigError):
            application.write_report()
        raise
    application.close()
    application.write_report()
    return INTERRUPTED if interrupted else 0


def thread_limit(number: int) -> dict[str, str]:
    """The environment variables of a process whose numerical libraries may use so many threads."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(number))


class Application(ABC):
    """One run. A subclass sets these attributes and says which roles there are, how it is coordinated and how it is saved."""

    program: ClassVar[str]
    options: Any
    folder: Path
    backend: Backend
    coordinator: AsyncTrainingCoordinator
    learner: Worker
    evaluator: Worker | None
    _records: Records
    _closing = False
    _unsaved = False  # a checkpoint was begun and not finished
    _unwritten: OSError | None = None  # why the last train is not in the records

    def __init__(
        self, options: Any, folder: Path, backend: Backend, records: Records, progress: Progress | None
    ) -> None:
        self.options, self.folder, self.backend, self._records = options, folder, backend, records
        self.progress = progress or make_progress(self._watching().plain)
        self.queue = QueueUse(lambda: self.coordinator.queue_seconds())
        self.ended_by: str | None = None
        self.target_reached = False  # the run ended because its best weights reached the target, twice
        self.final: Any = None  # the final evaluation
        self._eval_every = 0
        self.kept = KeptWarnings(("lzero_async", type(self).__module__.rpartition(".")[0]))
        self._started = time.monotonic()
        self._began = datetime.now(timezone.utc)
        self._gone: float | None = None  # seconds of the run, once it is over
        self._used: UtilisationSample | None = None  # of the whole run
        self._roles_used: dict[str, Use] | None = None  # when the run was over
        self._used_before: dict[tuple[str, int], Use] = {}  # by the roles when the run began, by process
        self._batches, self._batch_bytes = 0, 0
        self._counted_before: dict[str, float] = {}  # when this part of the run began
        self.earlier_seconds = 0.0  # of the run before its last resume
        self._said: set[str] = set()  # what of the watching has failed
        self._scalars = AsyncScalars(records, self.view, self._own_scalars)
        self.metrics_server: MetricsServer | None = None  # while somebody may ask it

    @abstractmethod
    def _title(self) -> str:
        """What is trained on what, in a few words."""

    @abstractmethod
    def _progressed(self) -> Progressed:
        """How far the run is."""

    @abstractmethod
    def _evaluations(self) -> list[dict[str, Any]]:
        """The evaluations so far, each with `name`, `version`, `steps`, `seconds`, `score`, `low` and `high`, and what else is
        known of it."""

    @abstractmethod
    def _loop(self) -> dict[str, Any]:
        """The arguments of the coordinator's `run`."""

    @abstractmethod
    def train(self, batch: Batch) -> Any:
        """Have the learner train on a batch, and record what came of it."""

    @abstractmethod
    def _trained(self) -> None:
        """What follows a train that was counted and recorded: checkpoints, a line to show."""

    def _own_scalars(self) -> dict[str, float]:
        """Scalars of the application's own that are recorded now and then, with those under async/."""
        return {}

    def _pipeline(self) -> PipelineDescription:
        """What the tools are to know of this run's pipeline."""
        return PipelineDescription(collectors=self.coordinator.num_collectors)

    def results(self) -> dict[str, Any]:
        """Numbers of the application that summary.json holds besides those of every run."""
        return {}

    def _troubles(self) -> dict[str, int]:
        """What was left out or went wrong, besides the coordinator's own counts; keys of `quantities` are shown wherever the
        run is."""
        return {}

    @abstractmethod
    def final_evaluation(self) -> Any:
        """Evaluate the last weights once more."""

    @abstractmethod
    def save(self) -> Path:
        """Write the last checkpoint; called between trains."""

    @abstractmethod
    def _roles(self) -> list[Worker]:
        """Every role of this run."""

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> RunResult:
        """Train until a limit is reached; save the last and the best checkpoint on the way."""
        self._started, self._began = time.monotonic(), datetime.now(timezone.utc)
        self._gone = self._roles_used = self.ended_by = None
        self._counted_before = {count.name: count.value for count in self._progressed().counts if count.name != SECONDS}
        self._begin_trace()
        self._serve_metrics()
        self.kept.begin()
        use = Utilisation()
        pids = self._pids()
        self._used_before = {(name, pids[name]): used for name, used in use_of(pids).items()}
        if not self.last_checkpoint.is_file():
            self.save()  # from now on there always is one to go on from
        self.summarise()  # of a run that goes on, the earlier one tells how that part ended
        try:
            self.progress.watch(self.view)
            loop = self._loop()
            self._eval_every = loop.get("eval_every", 0)
            result = self.coordinator.run(
                train_fn=self._train, after_train=self._after_train, print_statistics=False, **loop
            )
            self.target_reached = result.reason == "eval_target"
            return result
        except Exception as error:
            self._save_after(error)
            raise
        finally:
            self._gone = self.gone
            self.progress.clear()
            self._used, self._roles_used = use.sample(), self._use_of_roles()
            self._watch("the last scalars", lambda: self._scalars.record(now=True))
            self.summarise()

    def _train(self, batch: Batch) -> Any:
        if not batch.replay:
            parcels = batch.data if isinstance(batch.data, list) else [batch.data]
            sizes = [parcel.nbytes for parcel in parcels if isinstance(parcel, Parcel)]
            self._batches += 1
            self._batch_bytes += sum(size for size in sizes if size is not None)
        return self.train(batch)

    def _after_train(self) -> None:
        self._raise_unwritten()
        self._watch("the scalars", self._scalars.record)
        self._trained()

    def _serve_metrics(self) -> None:
        """Let Prometheus ask from now until `close`, if that is wanted."""
        port = self._watching().metrics_port
        if port and self.metrics_server is None:
            self.metrics_server = MetricsServer(port, self.view, pids=self._pids)
            self.progress.note(f"metrics for Prometheus: {self.metrics_server.address}")

    def progressed(self) -> Progressed:
        """How far the run is, and where each count was when this part of it began."""
        found, before = self._progressed(), self._counted_before
        return replace(
            found, counts=tuple(count._replace(before=before.get(count.name, 0.0)) for count in found.counts)
        )

    def _seconds_now(self) -> float:
        """Seconds of the run until now, those before a resume included."""
        return self.earlier_seconds + time.monotonic() - self._started

    @property
    def gone(self) -> float:
        """Seconds since the run began; of the whole run once it is over."""
        return time.monotonic() - self._started if self._gone is None else self._gone

    # -- what is seen of it --------------------------------------------------------------------------------------------

    def view(self) -> View:
        """What there is to see now; from any thread."""
        gone, progressed = self.gone, self.progressed()
        statistics = {**self.coordinator.get_statistics(), **self._troubles()}
        # A count that is a statistic has gone on since: both tell the same number.
        counts = tuple(count._replace(value=statistics.get(count.name, count.value)) for count in progressed.counts)
        return View(
            **vars(replace(progressed, counts=counts)),
            title=self._title(),
            gone=gone,
            left=seconds_left(counts, gone),
            roles=self.coordinator.get_activity(),
            statistics=statistics,
            warnings=self.kept.lines(SHOWN_WARNINGS),
        )

    def utilisation(self) -> dict[str, float | None]:
        """Use of queue, buffer, CPU and GPU over the whole run, 0 to 1, and the run's own CPU seconds; None where unknown."""
        seen = self._used
        return {
            "queue": self.queue.mean,
            "buffer": self._progressed().fills.get("buffer"),
            "cpu": None if seen is None else seen.cpu,
            "gpu": None if seen is None else seen.gpu,
            "cpu_seconds": None if seen is None else seen.cpu_seconds,
        }

    def write_summary(self) -> None:
        """Write summary.json anew."""
        seen = self.view()
        write_summary(
            self.folder,
            {
                "program": self.program,
                "title": seen.title,
                "command": sys.argv,
                "began": self._began.isoformat(timespec="seconds"),
                "seconds": seen.gone,
                "earlier_seconds": self.earlier_seconds,
                "ended_by": self.ended_by,
                "versions": versions(),
                "machine": machine(),
                "score": {
                    "name": seen.score, "highest": seen.highest_score, "best": seen.best_score, "last": seen.last_score
                },
                "axis": label(seen.counts[0].name),
                "evaluations": self._evaluations(),
                "final_evaluation": self.final,
                "counts": {label(count.name): count.value for count in seen.counted},
                "rates": {rate_label(key): rate for key, rate in seen.rates.items()},
                "statistics": dict(seen.statistics),
                "roles": self._role_rows(seen),
                "utilisation": self.utilisation(),
                "batch_bytes": self._batch_bytes / self._batches if self._batch_bytes else None,
                "pipeline": self._described(seen),
                "results": self.results(),
                "events": self.kept.events(),
            },
        )  # fmt: skip

    def _described(self, seen: View) -> dict[str, Any]:
        """The pipeline with what the application's counts say of it."""
        counts = {count.name: count.value for count in seen.counted}
        names = {"collected": "steps_played", "trained": "steps_trained", "updates": "updates"}
        counted: Any = {name: counts[key] for name, key in names.items() if key in counts}
        return asdict(replace(self._pipeline(), eval_every=self._eval_every, **counted))

    def summarise(self) -> None:
        """Write summary.json anew; a failure is logged."""
        self._watch("the summary", self.write_summary)

    def _watch(self, what: str, look: Callable[[], object]) -> None:
        """Do what only watches: a failure of it is logged, once, and never ends a run."""
        try:
            look()
        except Exception as error:
            if what not in self._said:
                self._said.add(what)
                log.warning(
                    "%s cannot be written (%r); the run goes on", what, error, exc_info=not isinstance(error, OSError)
                )

    def write_report(self) -> None:
        """Write report.html if it is wanted, once the trace is complete. The run is over: what fails here is only logged."""
        if not self._watching().report:
            return
        path = self.folder / REPORT
        try:
            importlib.import_module("lzero_async.tools.report.command").write_report([self.folder], path)
        except Exception as error:
            log.warning("the report cannot be written: %r", error)
        else:
            print(f"{'report:':17}{path}", flush=True)

    def _role_rows(self, seen: View) -> list[dict[str, Any]]:
        """What each role did and used; one that works for others, who have the spans (environments of a pool, say), has no
        seconds of its own."""
        workers = {worker.name: worker for worker in self._roles()}
        spent = {one.role: one for one in seen.roles}
        used = self._use_of_roles() if self._roles_used is None else self._roles_used
        rows = []
        for role in [*spent, *(name for name in workers if name not in spent and name in used)]:
            one, (cpu, memory, queued) = spent.get(role), used.get(role, (None, None, None))
            seconds = {name: None if one is None else getattr(one, name) for name in ("active", "waiting", "idle")}
            restarts = workers[role].restarts if role in workers else 0
            used_by = {"cpu_seconds": cpu, "queued_seconds": queued, "memory_bytes": memory}
            rows.append({"role": role, **seconds, **used_by, "restarts": restarts})
        return rows

    def _use_of_roles(self) -> dict[str, Use]:
        """What the roles that have a process of their own used since the run began, and their memory."""
        pids, nothing = self._pids(), Use(0.0, 0, 0.0)
        return {
            name: used.since(self._used_before.get((name, pids[name]), nothing)) for name, used in use_of(pids).items()
        }

    def _pids(self) -> dict[str, int]:
        """The processes of the roles that have one of their own on this machine."""
        if self.backend.kind not in PLACES:
            return {}
        return {worker.name: worker.pid for worker in self._roles() if worker.alive and not worker.host}

    # -- roles and their failures --------------------------------------------------------------------------------------

    def _watching(self) -> Any:
        """The options of lzero_async.runs.options.WATCHING."""
        return self.options

    def _begin_trace(self) -> None:
        """Keep the trace of an earlier part of the run under another name, and begin a new one if one is wanted."""
        path, number = self.folder / TRACE, 1
        while (kept := path.with_name(f"{path.stem}-{number}{path.suffix}")).exists():
            number += 1
        if path.exists():
            path.replace(kept)
        if self._watching().trace:
            self.coordinator.start_trace(path)
            self._locate()

    def _build_or_close(self, build: Callable[[], None]) -> None:
        """Build the run; if that fails, what was started ends with it."""
        try:
            build()
        except BaseException as error:
            try:
                self.close()
            except Exception as late:  # the first error is the one to show
                log.error("while closing after %r: %r", error, late)
            raise

    @property
    def last_checkpoint(self) -> Path:
        """Where `save` writes."""
        return self.folder / LAST_CHECKPOINT

    def _locate(self) -> None:
        for worker in self._roles():
            self.coordinator.locate(worker.name, worker.pid)

    def _ask_evaluator(self, *arguments: Any, stop: StopSignal, max_restarts: int, restart_backoff: float) -> Any:
        """An evaluation; an evaluator that fails is made anew and asked again."""
        assert self.evaluator is not None
        return ask_again(
            self.evaluator, "evaluate", *arguments, stop=stop, max_restarts=max_restarts, restart_backoff=restart_backoff,
            given_up=lambda: self._closing, on_restart=self._role_restarted,
        )  # fmt: skip

    def _role_restarted(self, error: Exception | None = None) -> None:
        self.coordinator.count_restart()
        self._locate()

    def _raise_unwritten(self) -> None:
        """A train that could not be recorded was made and counted first; now the run ends with why."""
        if self._unwritten is not None:
            error, self._unwritten = self._unwritten, None
            with naming(self.folder):
                raise error

    def _save_whole(self, state: dict[str, Any], *more: Any) -> Path:
        """Have the learner write the last checkpoint: `state`, the coordinator's, the waiting batches and its own."""
        coordinator = self.coordinator.state_dict(with_batches=True)  # once: a collector may commit at any moment
        waiting = coordinator.pop("batches")
        state = {**state, "coordinator": coordinator, "seconds": self.earlier_seconds + self.gone}
        self._unsaved = True
        self.learner.call("save", str(self.last_checkpoint), state, waiting, *more)
        self._unsaved = False
        self._records.flush()
        self.summarise()
        return self.last_checkpoint

    def _save_after(self, error: Exception) -> None:
        """A run that fails leaves a checkpoint of its last finished train, if the learner still lives."""
        threads, changes = self.coordinator.threads, 0
        # A train that was left behind is finished and counted first; a learner that dies meanwhile wakes nobody here.
        while "learner" in threads.alive() and self.learner.alive:
            changes = threads.wait_for_change(changes, 1.0)
        if self._unsaved or not self.learner.alive:
            return
        try:
            self.save()
        except Exception as another:  # the first error is the one to show
            log.error("the checkpoint could not be written after %r: %r", error, another)

    def close(self) -> None:
        """End every role and whatever else runs, each of them whatever becomes of the others."""
        self._closing = True
        self.kept.stop()
        failed: Exception | None = None
        server = [] if self.metrics_server is None else [self.metrics_server.close]
        coordinator = [self.coordinator.close] if hasattr(self, "coordinator") else []
        for close in (self.progress.clear, *server, self.backend.close, *coordinator, self._records.close):
            try:
                close()
            except Exception as error:
                if failed is not None:
                    log.error("while closing after %r: %r", failed, error)
                failed = failed or error
        if failed is not None:
            raise failed


class ScoredApplication(Application):
    """A run whose evaluator answers `evaluate(version, weights, episodes, repeat)` with a row of SCORES, `episodes` and
    `returns`, other ones for another `repeat`; the best weights are kept. Options: eval_episodes, max_restarts,
    restart_backoff. `axis` is the count of `_now` over which scalars are drawn."""

    axis: ClassVar[str]

    def __init__(
        self, options: Any, folder: Path, backend: Backend, records: Records, progress: Progress | None
    ) -> None:
        super().__init__(options, folder, backend, records, progress)
        self.best: dict[str, Any] = {"return": None, "version": -1}
        self.history: list[dict[str, Any]] = []  # one row per evaluation
        self._at: dict[int, dict[str, int]] = {}  # how far the run was at the last versions

    @abstractmethod
    def _now(self) -> dict[str, int]:
        """Counts that say how far the run is."""

    @abstractmethod
    def _counters(self) -> dict[str, int]:
        """The counts that a checkpoint's description holds."""

    @abstractmethod
    def _say_evaluation(self, result: EvalResult, at: Mapping[str, int]) -> str:
        """What to print of an evaluation of weights that were trained so far."""

    def _mark(self, version: int) -> None:
        """Remember how far the run is at this version."""
        self._at[version] = self._now()
        self._at.pop(version - KEPT_VERSIONS, None)

    def evaluate(self, context: EvalContext) -> float:
        """Have the evaluator play with the weights of the context; the score is the mean return."""
        assert context.snapshot is not None
        row = self._evaluate(context.version, context.snapshot.state, context.stop, context.repeat)
        return float(row["mean_return"])

    def _evaluate(self, version: int, weights: Any, stop: StopSignal, repeat: int = 0) -> dict[str, Any]:
        options = self.options
        row: dict[str, Any] = self._ask_evaluator(
            version, weights, options.eval_episodes, repeat, stop=stop, max_restarts=options.max_restarts,
            restart_backoff=options.restart_backoff,
        )  # fmt: skip
        row |= {**self._at.get(version, self._now()), "seconds_at": self._seconds_now()}
        del row["returns"]
        self.history = [*self.history, row][-KEPT_EVALUATIONS:]
        self._records.scalars({f"evaluator/{name}": row[name] for name in SCORES}, row[self.axis])
        return row

    def _evaluated(self, result: EvalResult) -> None:
        self.progress.note(self._say_evaluation(result, self._at.get(result.version, self._now())))
        assert result.snapshot is not None
        self._keep_best(float(result.value), result.version, result.snapshot.state)

    def _keep_best(self, score: float, version: int, weights: Any) -> None:
        if self.best["return"] is None or score > self.best["return"]:
            self.best = {"return": score, "version": version}
            self.learner.call("save_weights", str(self.folder / BEST_CHECKPOINT), self._description(), weights)

    def final_evaluation(self) -> dict[str, Any] | None:
        """Evaluate the last weights once more; None without an evaluator."""
        if self.evaluator is None:
            return None
        version, weights = self.coordinator.version, self.learner.call("weights")
        row = self._evaluate(version, weights, CallStop())
        if not self.target_reached:  # the best weights are confirmed then, which a single evaluation does not outdo
            self._keep_best(row["mean_return"], version, weights)
        self.save()  # the last weights may be the best
        return row

    def _evaluations(self) -> list[dict[str, Any]]:
        return [
            {
                **row, "name": "evaluation", "steps": row[self.axis], "seconds": row["seconds_at"],
                "score": row["mean_return"], "low": row["min_return"], "high": row["max_return"],
            }
            for row in self.history
        ]  # fmt: skip

    def results(self) -> dict[str, Any]:
        return {"best": dict(self.best), "counters": self._counters()}

    def _description(self) -> dict[str, Any]:
        return {
            "options": json.loads(json.dumps(self.options)),
            "counters": self._counters(),
            "best": dict(self.best),
        }
