"""What the report is made of: the bottleneck's verdicts, a long trace in bins, scalars, curves, numbers in words."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator
from lzero_async.core.statistics import Recorder
from lzero_async.core.trace import TraceWriter
from lzero_async.errors import ConfigError
from lzero_async.testing import FakeCollector, FakeEvaluator, FakeLearner, VirtualClock
from lzero_async.tools.report.bottleneck import find_bottleneck
from lzero_async.tools.report.charts import thin, ticks, times
from lzero_async.tools.report.command import write_report
from lzero_async.tools.report.curves import spread, value_at
from lzero_async.tools.report.inputs import POINTS, Scalars, read_material, read_scalars
from lzero_async.tools.report.markup import TIMES, UNKNOWN, duration, html, moment, number, percent, ratio, short, size
from lzero_async.tools.report.trace_digest import BINS, WINDOW_SPANS, digest
from tests.tools.report_runs import roles, statistics, summary, write_run, write_trace

MINUS = "\N{MINUS SIGN}"


# -- the bottleneck ----------------------------------------------------------------------------------------------------


def busy(cpu: float, own: float, cores: int = 2) -> dict[str, Any]:
    """`own` is the share of the cores that this run used."""
    return {"utilisation": {"cpu": cpu, "cpu_seconds": own * cores * 60.0}, "machine": {"cores": cores}}


SYNC = {"mode": "SYNCHRONOUS", "off_policy_degree": 0}
FINE = roles((0.9, 0.08, 0.02), (0.9, 0.08, 0.02))
WAITING = roles((1.0, 0.0, 0.0), (0.1, 0.9, 0.0))
VERDICTS = [
    ("unknown", {"roles": []}, ["too short"]),
    ("unknown", {"statistics": statistics(train_count=2)}, ["too short"]),
    ("turns", {"statistics": statistics(**SYNC, collect_total_time=30.0, train_total_time=24.0)}, ["50 %", "40 %", "1.80 times"]),
    ("turns", {"statistics": statistics(**SYNC, collect_total_time=57.0, train_total_time=3.0)}, ["Collecting is", "95 %"]),
    ("turns", {"statistics": statistics(**SYNC, collect_total_time=2.0, train_total_time=57.0)}, ["Training is", "95 %"]),
    ("turns", {"statistics": statistics(**SYNC, collect_total_time=20.0, train_total_time=20.0, eval_total_time=18.0)},
     ["evaluating 30 %"]),
    ("failures", {"roles": roles((0.5, 0.1, 0.4), (0.5, 0.5, 0.0), restarts={"collector 1": 12, "evaluator": 5}),
                  "statistics": statistics(failed=30, restarts=17)}, ["40 %", "30 failed collects and 12 restarts;"]),
    ("failures", {"roles": roles((0.5, 0.1, 0.4), (0.5, 0.5, 0.0)), "statistics": statistics(failed=1, restarts=0)},
     ["after 1 failed collect;"]),
    ("none", {"roles": roles((0.5, 0.1, 0.4), (0.5, 0.1, 0.4), restarts={"evaluator": 5}),
              "statistics": statistics(failed=0, restarts=5)}, ["Nothing stands out"]),
    ("evaluation", {"roles": roles((0.4, 0.6, 0.0), (0.6, 0.05, 0.35), (0.34, 0.0, 0.66))}, ["34 %", "60 %", "background"]),
    ("evaluation", {"roles": roles((0.4, 0.6, 0.0), (0.6, 0.4, 0.0), (0.34, 0.0, 0.66)),
                    "statistics": statistics(async_eval=False)}, ["34 %", "60 %", "background"]),
    ("collectors", {"roles": roles((1.0, 0.0, 0.0), (0.2, 0.8, 0.0), (0.3, 0.0, 0.7)),
                    "statistics": statistics(async_eval=False)}, ["waited 50 % for batches"]),
    ("learner", {"statistics": statistics(dropped=15), **busy(1.0, 0.9)}, ["75 % of the collected", "97 %", "fewer collectors"]),
    ("cores", {"roles": FINE, **busy(0.96, 0.9)}, ["96 % of 2", "more collectors do not"]),
    ("others", {"roles": FINE, **busy(0.96, 0.4)}, ["96 % of 2 cores", "used 0.8", "alone"]),
    ("learner", {}, ["97 %", "33 %", "more collectors do not"]),
    ("collectors", {"roles": WAITING}, ["100 %", "90 %", "more collectors"]),
    ("collectors", {"roles": WAITING, **busy(1.0, 0.1)}, ["Other programs kept 1.8 of 2 cores busy"]),
    ("learner", busy(0.95, 0.4), ["33 %", "Other programs kept 1.1 of 2 cores busy"]),
    ("none", {"roles": FINE, **busy(0.96, 0.1)}, ["Other programs kept 1.7 of 2 cores busy"]),
    ("degree", {"roles": roles((0.6, 0.4, 0.0), (0.7, 0.3, 0.0))}, ["off_policy_degree 2", "40 %", "30 %"]),
    ("none", {"roles": FINE}, ["Nothing stands out", "90 %"]),
    ("none", {"roles": FINE, **busy(0.5, 0.5)}, ["Nothing stands out"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "changes", "words"), VERDICTS, ids=[f"{n}-{kind}" for n, (kind, *_) in enumerate(VERDICTS)]
)
def test_the_bottleneck(kind: str, changes: dict[str, Any], words: list[str]) -> None:
    found = find_bottleneck(summary(**changes))
    assert found.kind == kind, found
    for word in words:
        assert word in found.sentence
    assert found.sentence.endswith(".") and "\n" not in found.sentence


def test_an_evaluation_in_the_background_is_no_bottleneck() -> None:
    """The learner is not idle while it runs."""
    assert find_bottleneck(summary(roles=roles((0.6, 0.4, 0.0), (0.97, 0.02, 0.01), (0.9, 0.0, 0.1)))).kind == "learner"


def evaluated(
    background: bool, trace: Path, *, collect: float = 1.0, seconds: float = 6.0, degree: int = 2
) -> dict[str, Any]:
    """The summary of a run on the virtual clock with trains of 1 s and an evaluation after every fourth."""
    with VirtualClock() as clock:
        learner = FakeLearner(clock, 1.0)
        with AsyncTrainingCoordinator(
            degree, background, get_weights=learner.get_weights, clock=clock, trace=trace
        ) as coordinator:
            coordinator.run(
                FakeCollector(clock, collect), learner, FakeEvaluator(clock, seconds), eval_every=4, max_train=40
            )
            found, seen = coordinator.get_statistics(), coordinator.get_activity()
    return {"seconds": clock.now(), "statistics": found, "roles": [{**one._asdict(), "restarts": 0} for one in seen]}


def test_evaluations_of_real_runs(tmp_path: Path) -> None:
    """In the learner's turn they hold the run back, in the background they do not; a trace alone says the same."""
    for number_, (background, options, kind) in enumerate((
        (False, {}, "evaluation"), (True, {}, "none"), (False, {"seconds": 0.2}, "none"),
        (False, {"collect": 4.0, "seconds": 4.0}, "collectors"), (False, {"degree": 0}, "turns"),
    )):  # fmt: skip
        run = tmp_path / str(number_)
        run.mkdir()
        made = evaluated(background, run / "trace.json", **options)
        assert find_bottleneck(made).kind == kind, (options, find_bottleneck(made))
        if kind == "evaluation":
            words = "it took 59 % of the time in the learner's turn, while the learner trained 40 %"
            assert words in find_bottleneck(made).sentence
        if kind != "turns":  # a trace does not tell the mode
            assert find_bottleneck(read_material(run).summary).kind == kind


def test_the_share_of_the_cores_is_of_this_part_of_the_run() -> None:
    """60 s since a resume, after an hour before it: the run used 1.9 of 2 cores, not 0.03."""
    found = find_bottleneck(summary(roles=FINE, statistics=statistics(wall_time=3660.0), **busy(0.96, 0.95)))
    assert found.kind == "cores", found


# -- the trace in bins -------------------------------------------------------------------------------------------------


def test_the_digest_keeps_every_second(tmp_path: Path) -> None:
    """Random spans: what is in the bins is what the spans took, kind by kind, and every batch is counted."""
    rng = random.Random(3)
    trace, now, work, waits = TraceWriter(tmp_path / "trace.json"), 50.0, 0.0, 0.0
    for batch in range(300):
        took = rng.expovariate(1.0)
        trace.collect("collector 0", now, now + took, batch, batch)
        trace.span("collector 0", "wait collect", now + took, now + took + 0.1)
        trace.train(now, now + took / 2, batch, batch + 1, min(2, batch))
        now, work, waits = now + took + 0.1, work + took, waits + 0.1
    trace.close()
    found = digest(tmp_path / "trace.json")
    assert found is not None
    collector, learner = found.tracks["collector 0"], found.tracks["learner"]
    assert sum(collector.bins["collect"]) == pytest.approx(work, abs=1e-3) == pytest.approx(collector.active)
    assert sum(collector.bins["wait"]) == pytest.approx(waits, abs=1e-3) == pytest.approx(collector.waiting)
    assert sum(learner.bins["train"]) == pytest.approx(work / 2, abs=1e-3)
    assert max(collector.bins["collect"]) <= found.width * 1.0001
    assert found.seconds == pytest.approx(now - 50.0, abs=1e-3)
    assert sum(found.collects) == sum(found.trains) == 300
    assert found.staleness == {0: 1, 1: 1, 2: 298}
    assert len(found.collects) == BINS


def test_staleness_is_counted_as_the_statistics_do(tmp_path: Path) -> None:
    trace, recorder = TraceWriter(tmp_path / "trace.json"), Recorder()
    for number_, staleness in enumerate((0, 100, 101, 127, 127, 128, 255, 300)):
        trace.train(number_, number_ + 0.5, number_, number_ + 1, staleness)
        recorder.trained_on(staleness)
    trace.close()
    found = digest(tmp_path / "trace.json")
    assert found is not None
    assert found.staleness == recorder.staleness
    assert (found.staleness_sum, found.staleness_max) == (1138, 300)


def test_counters_are_weighed_by_time(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "trace.json")
    trace.span("learner", "train", 0.0, 120.0)
    for at, lag in ((0.0, 0), (30.25, 4), (30.5, 2), (90.0, 0)):
        trace.counters(at, lag=lag)
    trace.close()
    found = digest(tmp_path / "trace.json")
    assert found is not None
    lag = found.levels["lag"]
    assert [lag.means[place] for place in (0, 29, 31, 60, 89, 91, 119)] == pytest.approx([0, 0, 2, 2, 2, 0, 0])
    assert lag.means[30] == pytest.approx(0.25 * 0 + 0.25 * 4 + 0.5 * 2)
    assert lag.highest[30] == 4 and lag.highest[31] == 2 and lag.highest[29] == 0


def test_the_window_shows_single_spans_of_the_middle(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.json", 400)
    found = digest(tmp_path / "trace.json")
    assert found is not None
    assert found.window_start == pytest.approx(found.seconds / 2)
    assert found.window_seconds == pytest.approx(12 * found.seconds / 400)
    inside = [span for span in found.window if span.name == "train"]
    assert 12 <= len(inside) <= 13
    assert {"batch", "version", "staleness"} <= set(inside[0].facts)
    assert all(span.start < found.window_start + found.window_seconds for span in found.window)


def test_the_window_is_bounded_and_whole(tmp_path: Path) -> None:
    """Many small spans beside one long train: the window ends where it is full, and the long one is in it."""
    trace = TraceWriter(tmp_path / "trace.json")
    for batch in range(4 * WINDOW_SPANS):
        trace.collect("collector 0", batch * 0.01, batch * 0.01 + 0.009, batch, 0)
    trace.train(0.0, 4 * WINDOW_SPANS * 0.01, 0, 1, 0)
    trace.close()
    found = digest(tmp_path / "trace.json")
    assert found is not None
    assert len(found.window) == WINDOW_SPANS + 1
    assert found.window[0].name == "train"
    assert found.window_seconds == pytest.approx(WINDOW_SPANS * 0.01, rel=0.01)


def test_a_long_trace_needs_little_memory(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.json", 10_000)
    tracemalloc.start()
    try:
        assert digest(tmp_path / "trace.json") is not None
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "trace.json").stat().st_size > 8e6
    assert most < 3e6


def test_an_evaluation_in_the_learners_turn_is_the_evaluators(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "trace.json")
    trace.span("learner", "train", 0.0, 6.0)
    trace.span("learner", "eval", 6.0, 10.0)
    trace.close()
    found = digest(tmp_path / "trace.json")
    assert found is not None
    assert {role: track.active for role, track in found.tracks.items()} == pytest.approx(
        {"learner": 6.0, "evaluator": 4.0}
    )


def test_what_the_end_cuts_off_is_no_failure(tmp_path: Path) -> None:
    trace = TraceWriter(tmp_path / "trace.json")
    trace.span("collector 0", "collect failed", 0.0, 10.0)
    trace.span("collector 0", "collect cut off", 80.0, 90.0)
    trace.span("collector 0", "collect failed", 90.0, 100.0)
    trace.close()
    found = digest(tmp_path / "trace.json")
    assert found is not None
    assert {kind: sum(bins) for kind, bins in found.tracks["collector 0"].bins.items()} == pytest.approx(
        {"failed": 20.0, "cut": 10.0}
    )


def test_a_trace_without_spans_and_a_file_that_is_none(tmp_path: Path) -> None:
    TraceWriter(tmp_path / "trace.json").close()
    assert digest(tmp_path / "trace.json") is None
    (tmp_path / "other.json").write_text('[{"ph":"X","ts":1,"dur":2,"name":"x"},\nnonsense\n{"ph":"X"}\n]')
    with pytest.raises(ConfigError, match="not a trace"):
        digest(tmp_path / "other.json")


def test_a_page_does_not_grow_with_the_run(tmp_path: Path) -> None:
    sizes = []
    for trains in (1000, 4000):
        run = write_run(tmp_path / str(trains), trains=trains)
        write_report([run], run / "report.html")
        sizes.append((run / "report.html").stat().st_size)
    assert sizes[1] < 1.3 * sizes[0]
    assert sizes[1] < 500_000


# -- scalars -----------------------------------------------------------------------------------------------------------


def test_long_series_keep_their_extremes_and_mean(tmp_path: Path) -> None:
    rng = random.Random(5)
    values = [rng.gauss(0, 1) for _ in range(10_000)]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"train": n, "x": value}) + "\n" for n, value in enumerate(values, 1)))
    found = read_scalars(path)
    assert found is not None and found.rows == 10_000
    series = found.series["x"]
    assert POINTS / 2 < len(series.stretches) <= 2 * POINTS
    assert series.last == values[-1]
    share = int(series.stretches[1][0] - series.stretches[0][0])
    for place, (first, mean, low, high) in enumerate(series.stretches):
        mine = values[place * share : (place + 1) * share]
        assert (first, low, high) == (place * share + 1, min(mine), max(mine))
        assert mean == pytest.approx(sum(mine) / len(mine))


def test_scalars_that_are_none() -> None:
    found = Scalars()
    found.add({"train": 1, "flag": True, "text": "x", "nan": float("nan"), "x": 1})
    assert list(found.series) == ["x"]
    for number_ in range(200):
        found.add({f"name{number_}": 1.0})
    assert len(found.series) == 80 and found.left_out


# -- words and pictures ------------------------------------------------------------------------------------------------


def test_numbers_in_words() -> None:
    cases = {0: "0", 7: "7", 12345: "12,345", 12345.678: "12,346", 1.5: "1.5", 0.12345: "0.123", 99.96: "100",
             -2.5: MINUS + "2.5", 1e-7: "1.00e-07", 3e20: "3.00e+20", 0.1: "0.1"}  # fmt: skip
    assert {value: number(value) for value in cases} == cases
    assert [number(value) for value in (None, "x", float("nan"), True)] == [UNKNOWN] * 4
    assert [duration(value) for value in (0.35, 4.0, 41.25, 200, 240, 7500)] == [
        "0.35 s", "4.0 s", "41.2 s", "3 min 20 s", "4 min", "2 h 05 min"
    ]  # fmt: skip
    assert [moment(value) for value in (12.34, 245, 3723)] == ["12.3 s", "4:05", "1:02:03"]
    assert [size(value) for value in (999, 12_340, 4e8, None)] == ["999 B", "12.3 kB", "400 MB", UNKNOWN]
    assert [short(value) for value in (0.0, 950.0, 25_000.0, 1.5e6, -3e9)] == ["0", "950", "25k", "1.5M", MINUS + "3G"]
    assert [percent(value) for value in (0.974, None)] == ["97 %", UNKNOWN]
    assert [ratio(3, 2), ratio(50, 2), ratio(1, 0), ratio(-1, 2), ratio(None, 2)] == [
        f"{TIMES} 1.50",
        f"{TIMES} 25",
        "",
        "",
        "",
    ]


def test_ticks_are_round_and_inside() -> None:
    assert ticks(0, 10) == [0, 2.5, 5, 7.5, 10]
    assert ticks(0.13, 0.87) == [0.2, 0.4, 0.6, 0.8]
    assert ticks(5, 5) == [5]
    rng = random.Random(1)
    for _ in range(200):
        low = rng.uniform(-1, 1) * 10 ** rng.randint(-6, 6)
        high = low + rng.random() * 10 ** rng.randint(-6, 6) + 1e-6
        found = ticks(low, high)
        assert 1 <= len(found) <= 6
        assert all(low - (high - low) * 1e-3 <= tick <= high + (high - low) * 1e-3 for tick in found)


def test_times_are_at_full_minutes_and_hours() -> None:
    def words(low: float, high: float) -> list[str]:
        return [text for _, text in times(low, high)]

    assert words(0, 40) == ["0 s", "10 s", "20 s", "30 s", "40 s"]
    assert words(0, 2000) == ["0 s", "10:00", "20:00", "30:00"]
    assert words(0, 20000) == ["0 s", "2:00:00", "4:00:00"]
    assert words(0, 900000) == ["0 s", "72:00:00", "144:00:00", "216:00:00"]
    assert words(1003.1, 1004.3) == ["1,003.5 s", "1,004 s"]
    assert words(0.2, 1.1) == ["0.25 s", "0.5 s", "0.75 s", "1 s"]


def test_a_curve_in_fewer_points_keeps_its_peaks() -> None:
    points = [(float(x), 0.0) for x in range(10_000)]
    points[1234], points[9000] = (1234.0, 5.0), (9000.0, -5.0)
    found = thin(points, 400)
    assert len(found) <= 402
    assert (1234.0, 5.0) in found and (9000.0, -5.0) in found
    assert found[0] == points[0] and found[-1] == points[-1]
    assert list(found) == sorted(found)


def test_text_is_escaped_unless_it_is_html() -> None:
    assert html("p", "<b>", html("i", "&"), None, ["a", 5], title='"', hidden=False, class_="c") == (
        '<p title="&quot;" class="c">&lt;b&gt;<i>&amp;</i>a5</p>'
    )


# -- curves -----------------------------------------------------------------------------------------------------------


def test_the_spread_is_that_of_the_stretch_that_all_have() -> None:
    mean, around = spread([[(0.0, 0.0), (10.0, 10.0)], [(2.0, 6.0), (4.0, 6.0), (20.0, 6.0)]])
    assert mean == [(2.0, 4.0), (4.0, 5.0), (10.0, 8.0)]
    assert around == [(2.0, 2.0, 6.0), (4.0, 4.0, 6.0), (10.0, 6.0, 10.0)]
    assert spread([[(0.0, 1.0)], [(2.0, 1.0)]]) == ([], [])
    assert spread([]) == ([], [])
    assert [value_at([(0.0, 0.0), (2.0, 4.0)], x) for x in (-1.0, 0.5, 2.0, 9.0)] == [0.0, 1.0, 4.0, 4.0]
