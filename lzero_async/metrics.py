"""What Prometheus is told of a run: every metric with its type, unit and explanation, made from a View when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from lzero_async.async_scalars import STATES
from lzero_async.stats import EXACT_STALENESS
from lzero_async.utilisation import use_of
from lzero_async.view import View

PREFIX: Final = "lzero_async_"
STALENESS_BOUNDS: Final = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 127, 255, 511, 1023)
# Names without prefix and without _total; the statistic; what it is.
COUNTERS: Final = (
    ("collects", "collect_count", "Committed collects."),
    ("trains", "train_count", "Finished trains; replays are not among them."),
    ("replays", "replay_count", "Extra trains on old data."),
    ("evaluations", "eval_count", "Finished evaluations."),
    ("skipped_evaluations", "evals_skipped", "Background evaluations that were left out because one was running."),
    ("dropped_batches", "dropped", "Batches past their deadline, and those that a full queue had no room for."),
    ("failed_collects", "failed", "Collects that raised."),
    ("abandoned_batches", "abandoned", "Collects or batches given up by a stop, a cancelled task or a resume."),
    ("restarts", "restarts", "Collectors and evaluators that went on after a failure."),
    ("degree_changes", "degree_changes", "Changes of an adaptive degree."),
)
GAUGES: Final = (
    ("weights_version", "version", "Finished trains and replays over the whole life of the run."),
    ("lag_batches", "collect_train_lag", "Batches that wait for their train, the one being trained included."),
    ("lag_max_batches", "max_lag", "The largest lag so far."),
    ("open_collects", "open_collects", "Collects that were admitted and have not been committed."),
    ("off_policy_degree", "off_policy_degree", "The degree in force: the bound of staleness, in versions."),
    ("staleness_max_versions", "staleness_max", "The largest staleness of a trained batch so far."),
    ("active_collectors", "active_collectors", "Collects that may run at once now."),
    ("retired_collectors", "retired", "Collectors that failed too often and were given up."),
    ("overlap_efficiency_ratio", "overlap_efficiency", "Time of the busier of collecting and training per wall time."),
)
STAGES: Final = ("collect", "train", "eval")


class ViewCollector:
    """Answers a scrape with metrics of the view at that moment, and of the processes `pids()` by role; between scrapes it does
    nothing."""

    def __init__(self, view: Callable[[], View], pids: Callable[[], Mapping[str, int]] | None = None) -> None:
        self._view, self._pids = view, pids

    def collect(self) -> Iterator[Metric]:
        """All metrics, in one order."""
        view = self._view()
        statistics = view.statistics
        yield InfoMetricFamily(PREFIX + "run", "The run that is shown.", {"title": view.title})
        yield from _run(view)
        yield from _roles(view)
        for name, key, text in COUNTERS:
            yield CounterMetricFamily(PREFIX + name, text, statistics[key])
        for name, key, text in GAUGES:
            yield GaugeMetricFamily(PREFIX + name, text, statistics[key])
        yield GaugeMetricFamily(PREFIX + "lag_bound_batches", "What the lag may reach.", statistics["lag_bound"])
        yield from _stages(statistics)
        yield _staleness(statistics)
        if statistics["sample_age_max"]:  # else no train told the age of its samples
            yield _labelled(
                "sample_age_versions", "Age of replayed samples so far.", "kind",
                {kind: statistics[f"sample_age_{kind}"] for kind in ("mean", "max")},
            )  # fmt: skip
        if self._pids is not None:
            yield from _processes(self._pids())


def _run(view: View) -> Iterator[Metric]:
    """How far and how good it is."""
    yield GaugeMetricFamily(PREFIX + "run_seconds", "Seconds since this run began.", view.gone)
    if view.left is not None:
        yield GaugeMetricFamily(PREFIX + "left_seconds", "Estimated seconds until the run ends.", view.left)
    progress = CounterMetricFamily(PREFIX + "progress", "How far the run is, by what is counted.", labels=["count"])
    for count in view.counts:
        progress.add_metric([count.name], count.value)
    yield progress
    limits = {count.name: count.limit for count in view.counts}
    yield _labelled("progress_limit", "Where the run ends, by what is counted.", "count", limits)
    rates = {name.removesuffix("/s"): value for name, value in view.rates.items()}
    yield _labelled("progress_per_second", "Rates as the run itself gives them, by what is counted.", "count", rates)
    yield _labelled("fill_ratio", "Share of the room that is in use.", "room", view.fills)
    scores = {
        "last": view.last_score,
        "best": view.best_score,
        "recent": view.recent_score,
        "highest": view.highest_score,
    }
    text = "Last and best of the evaluations, recent of collected episodes, highest that can be reached."
    yield _labelled("score", text, "kind", scores)


def _roles(view: View) -> Iterator[Metric]:
    seconds = CounterMetricFamily(
        PREFIX + "role_seconds",
        "Seconds that a role was active, waited for the others or was idle.",
        labels=["role", "state"],
    )
    now = GaugeMetricFamily(PREFIX + "role_state", "1 for the state that a role is in now.", labels=["role", "state"])
    for role in view.roles:
        for state in STATES:
            seconds.add_metric([role.role, state], getattr(role, state))
            now.add_metric([role.role, state], float(role.state == state))
    yield seconds
    yield now
    since = {role.role: role.since for role in view.roles}
    yield _labelled("role_state_seconds", "Seconds that a role has been in its state.", "role", since)


def _stages(statistics: Mapping[str, Any]) -> Iterator[Metric]:
    for name, key, text in (
        ("stage_seconds", "total_time", "Seconds of finished stages, summed over workers."),
        ("wait_seconds", "wait_time", "Seconds of waiting for a stage to be allowed, summed over workers."),
    ):
        family = CounterMetricFamily(PREFIX + name, text, labels=["stage"])
        for stage in STAGES:
            family.add_metric([stage], statistics[f"{stage}_{key}"])
        yield family


def _staleness(statistics: Mapping[str, Any]) -> Metric:
    """The histogram. A count above EXACT_STALENESS stands for numbers up to its double and belongs to the bucket of those."""
    last = {
        key if key <= EXACT_STALENESS else 2 * key - 1: count for key, count in statistics["staleness_counts"].items()
    }
    whole = sum(last.values())
    buckets = [
        (str(float(bound)), float(sum(count for key, count in last.items() if key <= bound)))
        for bound in STALENESS_BOUNDS
    ]
    return HistogramMetricFamily(
        PREFIX + "staleness_versions", "Trained batches by the age in versions of the weights that made them.",
        buckets=[*buckets, ("+Inf", float(whole))], sum_value=statistics["staleness_mean"] * whole,
    )  # fmt: skip


def _labelled(name: str, text: str, label: str, values: Mapping[str, float | None]) -> GaugeMetricFamily:
    """A gauge with one label; what is unknown is left out."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        if value is not None:
            family.add_metric([key], value)
    return family


def _processes(pids: Mapping[str, int]) -> Iterator[Metric]:
    """CPU and memory of roles that live in processes of their own, with everything that those started."""
    text = "CPU seconds of a role's process."
    cpu = CounterMetricFamily(PREFIX + "role_cpu_seconds", text, labels=["role"])
    used = use_of(pids)
    for role, use in used.items():
        cpu.add_metric([role], use.cpu_seconds)
    yield cpu
    memory = {role: use.memory for role, use in used.items()}
    yield _labelled("role_memory_bytes", "Resident memory of a role's process.", "role", memory)
