"""What every application's run shares, whatever it trains: its roles, the checkpoint that a failure leaves, and its end."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

from lzero_async.core.coordinator import AsyncTrainingCoordinator
from lzero_async.runs.applications import PipelineDescription
from lzero_async.runs.observer import RunObserver
from lzero_async.runs.options import Watching, as_dict
from lzero_async.runs.role_set import RoleSet
from lzero_async.runs.run_dir import LAST_CHECKPOINT, TRACE, naming
from lzero_async.telemetry.sinks import Records
from lzero_async.telemetry.terminal.progress import Progress
from lzero_async.telemetry.view import Progressed, View
from lzero_async.types import Batch, RunResult, StopSignal
from lzero_async.workers.backend import Backend, Worker, ask_again

log = logging.getLogger(__name__)


class Application(ABC):
    """One run. A subclass sets these attributes and says which roles there are, how it is coordinated and how it is saved.
    `observer` looks at the run, `role_set` starts the roles."""

    program: ClassVar[str]
    options: Any
    folder: Path
    backend: Backend
    coordinator: AsyncTrainingCoordinator
    learner: Worker
    evaluator: Worker | None = None
    _records: Records
    _closing = False
    _unsaved = False  # a checkpoint was begun and not finished
    _unwritten: OSError | None = None  # why the last train is not in the records

    def __init__(
        self,
        options: Any,
        folder: Path,
        backend: Backend,
        records: Records | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.options, self.folder, self.backend, self._records = options, folder, backend, records or Records(folder)
        self.ended_by: str | None = None
        self.target_reached = False  # the run ended because its best weights reached the target, twice
        self.final: Any = None  # the final evaluation
        self.eval_every: int | None = 0  # trains between evaluations; None where a function says when one is due
        self.earlier_seconds = 0.0  # of the run before its last resume
        self.role_set = RoleSet(backend, folder, lambda: self._roles())
        self.observer = RunObserver(self, progress)
        self.progress, self.queue = self.observer.progress, self.observer.queue

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

    def _watching(self) -> Any:
        """How the run is watched, from the options that there are."""
        given: dict[str, Any] = {one.name: getattr(self.options, one.name, one.default) for one in fields(Watching)}
        return Watching(**given)

    @property
    def plain_options(self) -> dict[str, Any]:
        """The options as a dictionary."""
        return as_dict(self.options)

    # -- the run -------------------------------------------------------------------------------------------------------

    def run(self) -> RunResult:
        """Train until a limit is reached; save the last and the best checkpoint on the way."""
        self.ended_by = None
        self._records.prepare()  # what takes seconds to import is not to hold up the first train
        self._begin_trace()
        self.observer.begin()
        self.role_set.begin()
        if not self.last_checkpoint.is_file():
            self.save()  # from now on there always is one to go on from
        self.summarise()  # of a run that goes on, the earlier one tells how that part ended
        try:
            self.progress.watch(self.view)
            loop = self._loop()
            every = loop.get("eval_every", 0)
            self.eval_every = None if callable(every) else every
            result = self.coordinator.run(
                train_fn=self._train, after_train=self._after_train, print_statistics=False, **loop
            )
            self.target_reached = result.reason == "eval_target"
            return result
        except Exception as error:
            self._save_after(error)
            raise
        finally:
            self.observer.end()
            self.role_set.end()
            self.summarise()

    def _train(self, batch: Batch) -> Any:
        self.observer.count(batch)
        return self.train(batch)

    def _after_train(self) -> None:
        self._raise_unwritten()
        self.observer.record()
        self._trained()

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

    # -- what is seen of it --------------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds since the run began; of the whole run once it is over."""
        return self.observer.elapsed

    def _seconds_now(self) -> float:
        """Seconds of the run until now, those before a resume included."""
        return self.earlier_seconds + time.monotonic() - self.observer.started

    def progressed(self) -> Progressed:
        """How far the run is, and where each count was when this part of it began."""
        return self.observer.progressed()

    def view(self) -> View:
        """What there is to see now; from any thread."""
        return self.observer.view()

    def utilisation(self) -> dict[str, float | None]:
        """Use of queue, buffer, CPU and GPU over the whole run, 0 to 1, and the run's own CPU seconds; None where unknown."""
        return self.observer.utilisation()

    def summarise(self) -> None:
        """Write summary.json anew; a failure is logged."""
        self.observer.summarise()

    def write_report(self) -> None:
        """Write report.html if it is wanted, once the trace is complete."""
        self.observer.write_report()

    # -- roles and their failures --------------------------------------------------------------------------------------

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
        state = {**state, "coordinator": coordinator, "seconds": self.earlier_seconds + self.elapsed}
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
        self.observer.warnings.stop()
        failed: Exception | None = None
        metrics = self.observer.metrics_server
        server = [] if metrics is None else [metrics.close]
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
