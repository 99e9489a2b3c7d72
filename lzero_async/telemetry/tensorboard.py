"""A run's TensorBoard files: scalars, histograms of whole numbers, and the layout with which its CUSTOM SCALARS page opens."""

from __future__ import annotations

import errno
import importlib
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from lzero_async.core.statistics import EXACT_STALENESS
from lzero_async.telemetry.quantities import COUNTS, TROUBLES, label, tag

# Category, chart and what is drawn in it: expressions that match the names of scalars. Those that match nothing are left out.
CHARTS: Final = (
    ("async", "lag and its bound", (tag("collect_train_lag"), tag("mean_lag"), tag("lag_bound"))),
    ("async", "staleness and the degree", (tag("staleness_mean"), tag("staleness_max"), tag("off_policy_degree"))),
    ("async", "share of the time at work", ("async/active/.+",)),
    ("async", "share of the time waiting for the others", ("async/waiting/.+",)),
    ("async", "share of the time idle", ("async/idle/.+",)),
    ("async", label("overlap_efficiency"), (tag("overlap_efficiency"),)),
    ("async", "queue and buffer fill", (tag("queue_fill"), tag("buffer_fill"))),
    *(("async", f"{label(key)} per second", (f"{tag(key)}_per_second",)) for key in COUNTS),
    ("async", "waits in all, seconds", tuple(tag(f"{stage}_wait_time") for stage in ("collect", "train", "eval"))),
    ("async", "age of replayed samples", (tag("sample_age_mean"), tag("sample_age_max"))),
    ("async", "what went wrong", tuple(tag(key) for key in (*TROUBLES, "evals_skipped"))),
    ("learner", "losses", ("learner/.*loss.*",)),
    ("learner", "updates per second of training", ("learner/updates_per_second",)),
    ("evaluation", "mean", ("evaluator/(.+/)?mean(_return)?",)),
    ("evaluation", "length of the episodes", ("evaluator/(.+/)?(mean_)?length",)),
    ("evaluation", "while collecting", ("collector/(score_mean|return)", "learner/mean_return")),
)
# The value with its range, where the run records all three.
RANGE: Final = (
    "evaluation",
    "mean, worst and best",
    ("evaluator/mean_return", "evaluator/min_return", "evaluator/max_return"),
)
Layout = dict[str, dict[str, list[Any]]]


def layout(names: Iterable[str]) -> Layout:
    """The charts of CHARTS and RANGE for a run that records these scalars, as tensorboardX wants them."""
    names = set(names)
    found: Layout = {}
    for category, title, expressions in CHARTS:
        # TensorBoard matches from the beginning only, so the end is said here.
        kept = [f"{one}$" for one in expressions if any(re.fullmatch(one, name) for name in names)]
        if kept:
            found.setdefault(category, {})[title] = ["Multiline", kept]
    category, title, value_and_range = RANGE
    if names.issuperset(value_and_range):
        found.setdefault(category, {})[title] = ["Margin", list(value_and_range)]
    return found


class Board:
    """Writes into `folder`, from any thread; the files are opened by the first number. What was recorded from step `purge`
    on by an earlier life of the run is hidden."""

    def __init__(self, folder: Path, purge: int | None = None) -> None:
        self.purge = purge
        self._folder = folder
        self._writer: Any = None
        self._names: set[str] = set()
        self._layout: Layout = {}
        self._lock = threading.Lock()

    @staticmethod
    def prepare() -> None:
        """Import the writer, which takes seconds."""
        importlib.import_module("tensorboardX")

    def scalars(self, values: Mapping[str, Any], step: int) -> None:
        """Numbers at this step, as one event: one at a time they cost ten times as much."""
        summary = importlib.import_module("tensorboardX.proto.summary_pb2").Summary
        event = summary(value=[summary.Value(tag=name, simple_value=float(value)) for name, value in values.items()])
        with self._lock:
            writer = self._open()
            writer.file_writer.add_summary(event, step)
            if not self._names.issuperset(values):
                self._names.update(values)
                self._lay_out(writer)

    def _lay_out(self, writer: Any) -> None:
        """The last layout counts, so it is written again when a new name brings a chart."""
        wanted = layout(self._names)
        if wanted != self._layout:
            self._layout = wanted
            writer.add_custom_scalars(wanted)

    def histogram(self, name: str, counts: Mapping[int, int], step: int) -> None:
        """How often each whole number came, at this step; see `buckets`."""
        edges, heights = buckets(counts)
        number = sum(counts.values())
        with self._lock:
            self._open().add_histogram_raw(
                name, min=edges[0], max=edges[-1], num=number, sum=sum(key * count for key, count in counts.items()),
                sum_squares=sum(key * key * count for key, count in counts.items()), bucket_limits=edges[1:],
                bucket_counts=heights, global_step=step,
            )  # fmt: skip

    def _ended(self) -> bool:
        """Whether the writer's thread has died, as it does when a disk refuses; then what is added would wait for ever."""
        if self._writer is None:
            return False
        events = getattr(self._writer.file_writer, "event_writer", None)
        thread = getattr(events, "_worker", None)
        return thread is not None and not thread.is_alive()

    def _open(self) -> Any:
        if self._ended():
            raise OSError(errno.EIO, "TensorBoard's writer has ended after an error", str(self._folder))
        if self._writer is None:
            writer = importlib.import_module("tensorboardX").SummaryWriter
            self._writer = writer(str(self._folder), purge_step=self.purge)
        return self._writer

    def flush(self) -> None:
        """Put on disk what was written."""
        with self._lock:
            if self._writer is not None and not self._ended():
                self._writer.flush()

    def close(self) -> None:
        """Write what is left and close the files."""
        with self._lock:
            if self._writer is not None and not self._ended():
                self._writer.close()


def buckets(counts: Mapping[int, int]) -> tuple[list[float], list[int]]:
    """Counts by whole number as edges (one more) and heights of buckets: one around each number that came, empty ones
    between them. Above EXACT_STALENESS a number stands for all below its double. Raises ValueError without any."""
    if not counts:
        raise ValueError("A histogram needs at least one count.")
    edges, heights = [min(counts) - 0.5], []
    for key in sorted(counts):
        if key - 0.5 > edges[-1]:
            edges.append(key - 0.5)
            heights.append(0)
        edges.append((key if key <= EXACT_STALENESS else 2 * key - 1) + 0.5)
        heights.append(counts[key])
    return edges, heights
