"""What every application's run shares, whatever it trains: its roles, the checkpoint that a failure leaves, and its end."""

from __future__ import annotations

import json
import logging
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final

from lzero_async.backends import Backend, Worker, ask_again
from lzero_async.calls import CallStop
from lzero_async.coordinator import AsyncTrainingCoordinator
from lzero_async.progress import Progress
from lzero_async.records import Records
from lzero_async.run_folder import BEST_CHECKPOINT, INTERRUPTED, LAST_CHECKPOINT, write_json
from lzero_async.types import EvalContext, EvalResult, RunResult, StopSignal

KEPT_EVALUATIONS: Final = 10_000
KEPT_VERSIONS: Final = 1_000
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
        except Exception:
            if application.last_checkpoint.is_file():
                print(f"\ngo on from the last checkpoint with: --resume {application.folder}", file=sys.stderr)
            raise
        application.save()
        reason = ends.get(result.reason, result.reason)
        interrupted = result.reason.startswith("SIG")
        final: Any = None
        failure: Exception | None = None
        try:
            final = None if interrupted else application.final_evaluation()
        except KeyboardInterrupt:
            interrupted, reason = True, f"{reason}; the final evaluation was interrupted"
        except Exception as error:  # what was learned is reported first
            failure, reason = error, f"{reason}; the final evaluation failed"
        application.coordinator.print_statistics()
        report(final, reason)
        if interrupted:
            print(f"go on with: --resume {application.folder}")
        if failure is not None:
            raise failure
    except BaseException as error:
        try:
            application.close()
        except Exception as late:  # the first error is the one to show
            log.error("while closing after %r: %r", error, late)
        raise
    application.close()
    return INTERRUPTED if interrupted else 0


def thread_limit(number: int) -> dict[str, str]:
    """The environment variables of a process whose numerical libraries may use so many threads."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(number))


class Application(ABC):
    """One run. A subclass sets these attributes and says which roles there are and how it is saved."""

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

    @abstractmethod
    def run(self) -> RunResult:
        """Train until a limit is reached."""

    @abstractmethod
    def final_evaluation(self) -> Any:
        """Evaluate the last weights once more."""

    @abstractmethod
    def save(self) -> Path:
        """Write the last checkpoint; called between trains."""

    @abstractmethod
    def _roles(self) -> list[Worker]:
        """Every role of this run."""

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
            given_up=lambda: self._closing, on_restart=self._evaluator_restarted,
        )  # fmt: skip

    def _evaluator_restarted(self) -> None:
        self.coordinator.count_restart()
        self._locate()

    def _raise_unwritten(self) -> None:
        """A train that could not be recorded was made and counted first; now the run ends with why."""
        if self._unwritten is not None:
            error, self._unwritten = self._unwritten, None
            raise error

    def _save_whole(self, state: dict[str, Any], *more: Any) -> Path:
        """Have the learner write the last checkpoint: `state`, the coordinator's, the waiting batches and its own."""
        coordinator = self.coordinator.state_dict(with_batches=True)  # once: a collector may commit at any moment
        waiting = coordinator.pop("batches")
        self._unsaved = True
        self.learner.call("save", str(self.last_checkpoint), {**state, "coordinator": coordinator}, waiting, *more)
        self._unsaved = False
        self._records.flush()
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
        failed: Exception | None = None
        coordinator = [self.coordinator.close] if hasattr(self, "coordinator") else []
        for close in (self.backend.close, *coordinator, self._records.close):
            try:
                close()
            except Exception as error:
                if failed is not None:
                    log.error("while closing after %r: %r", failed, error)
                failed = failed or error
        if failed is not None:
            raise failed


class ScoredApplication(Application):
    """A run whose evaluator answers `evaluate(version, weights, episodes)` with a row of SCORES, `episodes` and `returns`; the
    best weights are kept. Options: eval_episodes, max_restarts, restart_backoff. `axis` is the count of `_now` over which
    scalars are drawn."""

    axis: ClassVar[str]

    def __init__(
        self, options: Any, folder: Path, backend: Backend, records: Records, progress: Progress | None
    ) -> None:
        self.options, self.folder, self.backend, self._records = options, folder, backend, records
        self.progress = progress or Progress()
        self.best: dict[str, Any] = {"return": None, "version": -1}
        self.history: list[dict[str, Any]] = []  # one row per evaluation
        self._at: dict[int, dict[str, int]] = {}  # how far the run was at the last versions
        self._started = time.monotonic()

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
        row = self._evaluate(context.version, context.snapshot.state, context.stop)
        return float(row["mean_return"])

    def _evaluate(self, version: int, weights: Any, stop: StopSignal) -> dict[str, Any]:
        options = self.options
        row: dict[str, Any] = self._ask_evaluator(
            version, weights, options.eval_episodes, stop=stop, max_restarts=options.max_restarts,
            restart_backoff=options.restart_backoff,
        )  # fmt: skip
        row |= {**self._at.get(version, self._now()), "seconds_at": time.monotonic() - self._started}
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
        version, weights = self.coordinator.shell.gate.version, self.learner.call("weights")
        row = self._evaluate(version, weights, CallStop())
        self._keep_best(row["mean_return"], version, weights)
        self.save()  # the last weights may be the best
        return row

    def _description(self) -> dict[str, Any]:
        return {
            "options": json.loads(json.dumps(self.options)),
            "counters": self._counters(),
            "best": dict(self.best),
        }
