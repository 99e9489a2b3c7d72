"""What is seen of a run: the live view, scalars, metrics, warnings, summary.json and the report. It only looks."""

from __future__ import annotations

import importlib
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from lzero_async.runs.run_dir import REPORT
from lzero_async.runs.summary import machine, versions, write_summary
from lzero_async.telemetry.prometheus_server import MetricsServer
from lzero_async.telemetry.quantities import label, rate_label
from lzero_async.telemetry.recent_warnings import KeptWarnings
from lzero_async.telemetry.scalars import AsyncScalars
from lzero_async.telemetry.terminal.live import make_progress
from lzero_async.telemetry.terminal.progress import Progress
from lzero_async.telemetry.utilisation import QueueUse, Utilisation, UtilisationSample
from lzero_async.telemetry.view import SECONDS, Progressed, View, seconds_remaining
from lzero_async.types import Batch
from lzero_async.workers.parcels import Parcel

if TYPE_CHECKING:
    from lzero_async.runs.application import Application

SHOWN_WARNINGS: Final = 5
log = logging.getLogger(__name__)


class RunObserver:
    """Looks at one application's run."""

    def __init__(self, application: Application, progress: Progress | None) -> None:
        self._application = application
        self.progress = progress or make_progress(application._watching().plain)
        self.queue = QueueUse(lambda: application.coordinator.queue_seconds())
        self.warnings = KeptWarnings(("lzero_async", type(application).__module__.rpartition(".")[0]))
        self.metrics_server: MetricsServer | None = None  # while somebody may ask it
        self.started = time.monotonic()
        self._began = datetime.now(timezone.utc)
        self._seconds: float | None = None  # of the run, once it is over
        self._use: Utilisation | None = None
        self._used: UtilisationSample | None = None  # of the whole run
        self._batches, self._batch_bytes = 0, 0
        self._counted_before: dict[str, float] = {}  # when this part of the run began
        self._said: set[str] = set()  # what of the watching has failed
        self._scalars = AsyncScalars(application._records, self.view, application._own_scalars)

    @property
    def elapsed(self) -> float:
        """Seconds since the run began; of the whole run once it is over."""
        return time.monotonic() - self.started if self._seconds is None else self._seconds

    def begin(self) -> None:
        """A run begins."""
        application = self._application
        self.started, self._began, self._seconds = time.monotonic(), datetime.now(timezone.utc), None
        counts = application._progressed().counts
        self._counted_before = {count.name: count.value for count in counts if count.name != SECONDS}
        self._serve_metrics()
        self.warnings.begin()
        self._use = Utilisation()

    def end(self) -> None:
        """The run is over."""
        self._seconds = self.elapsed
        self.progress.clear()
        self._used = None if self._use is None else self._use.sample()
        self.watch("the last scalars", lambda: self._scalars.record(now=True))

    def _serve_metrics(self) -> None:
        """Let Prometheus ask from now until `close`, if that is wanted."""
        port = self._application._watching().metrics_port
        if port and self.metrics_server is None:
            self.metrics_server = MetricsServer(port, self.view, pids=self._application.role_set.pids)
            self.progress.note(f"metrics for Prometheus: {self.metrics_server.address}")

    def count(self, batch: Batch) -> None:
        """A batch comes to its train: how large is it?"""
        if not batch.replay:
            parcels = batch.data if isinstance(batch.data, list) else [batch.data]
            sizes = [parcel.nbytes for parcel in parcels if isinstance(parcel, Parcel)]
            self._batches += 1
            self._batch_bytes += sum(size for size in sizes if size is not None)

    def record(self) -> None:
        """Write the scalars of this moment, now and then."""
        self.watch("the scalars", self._scalars.record)

    def progressed(self) -> Progressed:
        """How far the run is, and where each count was when this part of it began."""
        found, before = self._application._progressed(), self._counted_before
        return replace(
            found, counts=tuple(count._replace(before=before.get(count.name, 0.0)) for count in found.counts)
        )

    def view(self) -> View:
        """What there is to see now; from any thread."""
        application, elapsed, progressed = self._application, self.elapsed, self.progressed()
        statistics = {**application.coordinator.get_statistics(), **application._troubles()}
        # A count that is a statistic has gone on since: both tell the same number.
        counts = tuple(count._replace(value=statistics.get(count.name, count.value)) for count in progressed.counts)
        return View(
            **vars(replace(progressed, counts=counts)),
            title=application._title(),
            elapsed=elapsed,
            remaining=seconds_remaining(counts, elapsed),
            roles=application.coordinator.get_activity(),
            statistics=statistics,
            warnings=self.warnings.lines(SHOWN_WARNINGS),
        )

    def utilisation(self) -> dict[str, float | None]:
        """Use of queue, buffer, CPU and GPU over the whole run, 0 to 1, and the run's own CPU seconds; None where unknown."""
        seen = self._used
        return {
            "queue": self.queue.mean,
            "buffer": self._application._progressed().fills.get("buffer"),
            "cpu": None if seen is None else seen.cpu,
            "gpu": None if seen is None else seen.gpu,
            "cpu_seconds": None if seen is None else seen.cpu_seconds,
        }

    def summarise(self) -> None:
        """Write summary.json anew; a failure is logged."""
        self.watch("the summary", self.write_summary)

    def write_summary(self) -> None:
        """Write summary.json anew."""
        application, seen = self._application, self.view()
        write_summary(
            application.folder,
            {
                "program": application.program,
                "title": seen.title,
                "command": sys.argv,
                "began": self._began.isoformat(timespec="seconds"),
                "seconds": seen.elapsed,
                "earlier_seconds": application.earlier_seconds,
                "ended_by": application.ended_by,
                "versions": versions(),
                "machine": machine(),
                "score": {
                    "name": seen.score, "highest": seen.highest_score, "best": seen.best_score, "last": seen.last_score
                },
                "axis": label(seen.counts[0].name),
                "evaluations": application._evaluations(),
                "final_evaluation": application.final,
                "counts": {label(count.name): count.value for count in seen.counted},
                "rates": {rate_label(key): rate for key, rate in seen.rates.items()},
                "statistics": dict(seen.statistics),
                "measures": dict(seen.measures),
                "roles": application.role_set.rows(seen.roles),
                "utilisation": self.utilisation(),
                "batch_bytes": self._batch_bytes / self._batches if self._batch_bytes else None,
                "pipeline": self._pipeline(seen),
                "results": application.results(),
                "events": self.warnings.events(),
            },
        )  # fmt: skip

    def _pipeline(self, seen: View) -> dict[str, Any]:
        """The pipeline with what the application's counts say of it."""
        counts = {count.name: count.value for count in seen.counted}
        names = {"collected": "steps_played", "trained": "steps_trained", "updates": "updates"}
        counted: Any = {name: counts[key] for name, key in names.items() if key in counts}
        return asdict(replace(self._application._pipeline(), eval_every=self._application.eval_every, **counted))

    def watch(self, what: str, look: Callable[[], object]) -> None:
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
        if not self._application._watching().report:
            return
        folder = self._application.folder
        try:
            importlib.import_module("lzero_async.tools.report.command").write_report([folder], folder / REPORT)
        except Exception as error:
            log.warning("the report cannot be written: %r", error)
        else:
            print(f"{'report:':17}{folder / REPORT}", flush=True)
