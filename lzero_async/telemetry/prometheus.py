"""What Prometheus is told of a run: every metric with its type, unit and explanation, made from a View when it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from lzero_async.core.statistics import EXACT_STALENESS
from lzero_async.telemetry.quantities import METRICS, Quantity, label, quantity
from lzero_async.telemetry.scalars import STATES
from lzero_async.telemetry.utilisation import use_of
from lzero_async.telemetry.view import View

STALENESS_BOUNDS: Final = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 127, 255, 511, 1023)


class ViewCollector:
    """Answers a scrape with metrics of the view at that moment, and of the processes `pids()` by role; between scrapes it does
    nothing."""

    def __init__(self, view: Callable[[], View], pids: Callable[[], Mapping[str, int]] | None = None) -> None:
        self._view, self._pids = view, pids

    def collect(self) -> Iterator[Metric]:
        """All metrics, in one order."""
        view = self._view()
        yield InfoMetricFamily(METRICS + "run", "The run that is shown.", {"title": view.title})
        yield from _run(view)
        yield from _roles(view)
        for key, value in view.quantities.items():
            yield _metric(quantity(key), value, view)
        if self._pids is not None:
            yield from _processes(self._pids())


def _run(view: View) -> Iterator[Metric]:
    """How far and how good it is."""
    yield GaugeMetricFamily(METRICS + "run_seconds", "Seconds since this run began.", view.elapsed)
    if view.remaining is not None:
        yield GaugeMetricFamily(METRICS + "left_seconds", "Estimated seconds until the run ends.", view.remaining)
    for key, rate in view.rates.items():
        one = quantity(key)
        yield GaugeMetricFamily(f"{one.metric}_per_second", f"Per second of this run: {one.meaning}", rate)
    for count in view.counted:
        if count.limit is not None:
            one = quantity(count.name)
            yield GaugeMetricFamily(f"{one.metric}_limit", f"Where the run ends: {one.meaning}", count.limit)
    shares = {label(count.name): count.value / count.limit for count in view.counts if count.limit}
    yield _labelled("progress_ratio", "Share of each limit that is reached.", "count", shares)
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
        METRICS + "role_seconds",
        "Seconds that a role was active, waited for the others or was idle.",
        labels=["role", "state"],
    )
    now = GaugeMetricFamily(METRICS + "role_state", "1 for the state that a role is in now.", labels=["role", "state"])
    for role in view.roles:
        for state in STATES:
            seconds.add_metric([role.role, state], getattr(role, state))
            now.add_metric([role.role, state], float(role.state == state))
    yield seconds
    yield now
    since = {role.role: role.since for role in view.roles}
    yield _labelled("role_state_seconds", "Seconds that a role has been in its state.", "role", since)


def _metric(one: Quantity, value: Any, view: View) -> Metric:
    if one.kind == "histogram":
        return _histogram(one, value, view.statistics["staleness_mean"])
    family = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
    return family(one.metric, one.meaning, value)


def _histogram(one: Quantity, counts: Mapping[int, int], mean: float) -> Metric:
    """A count above EXACT_STALENESS stands for numbers up to its double and belongs to the bucket of those."""
    last = {key if key <= EXACT_STALENESS else 2 * key - 1: count for key, count in counts.items()}
    whole = sum(last.values())
    buckets = [
        (str(float(bound)), float(sum(count for key, count in last.items() if key <= bound)))
        for bound in STALENESS_BOUNDS
    ]
    buckets.append(("+Inf", float(whole)))
    return HistogramMetricFamily(one.metric, one.meaning, buckets=buckets, sum_value=mean * whole)


def _labelled(name: str, text: str, label: str, values: Mapping[str, float | None]) -> GaugeMetricFamily:
    """A gauge with one label; what is unknown is left out."""
    family = GaugeMetricFamily(METRICS + name, text, labels=[label])
    for key, value in values.items():
        if value is not None:
            family.add_metric([key], value)
    return family


def _processes(pids: Mapping[str, int]) -> Iterator[Metric]:
    """CPU and memory of roles that live in processes of their own, with everything that those started."""
    text = "CPU seconds of a role's process."
    cpu = CounterMetricFamily(METRICS + "role_cpu_seconds", text, labels=["role"])
    used = use_of(pids)
    for role, use in used.items():
        cpu.add_metric([role], use.cpu_seconds)
    yield cpu
    memory = {role: use.memory for role, use in used.items()}
    yield _labelled("role_memory_bytes", "Resident memory of a role's process.", "role", memory)
