"""The timeline of a run: what is read of its trace, the text, the picture, the program, and the page about it."""

from __future__ import annotations

import importlib.util
import json
import re
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from lzero_async import AsyncTrainingCoordinator, Bound, Stopped
from lzero_async.__main__ import main as programs
from lzero_async.testing import FakeCollector, FakeLearner, VirtualClock
from lzero_async.tools.timeline import command, picture, stretch, text
from lzero_async.tools.timeline.kinds import kind_of, legend, mark
from lzero_async.tools.timeline.reading import read, survey, usual_length
from lzero_async.tools.timeline.stretch import End, Steps, Stretch
from lzero_async.tools.traces import Span, read_events
from tests.core.trace_rules import violations
from tests.sentences import assert_one_sentence

ROOT = Path(__file__).resolve().parents[2]
TRACKS = {"collector 0": (1, 1), "learner": (9, 2), "collector 1": (1, 3)}


def stretch_of(spans: Iterable[Span], start: float, end: float, cells: int = stretch.CELLS) -> Stretch:
    """A stretch in which the roles did this; every role has its row."""
    found = Stretch(start, end, cells)
    for span in spans:
        found.meet(span.role)
        found.add(span)
    return found


def examples() -> Any:
    spec = importlib.util.spec_from_file_location("timelines", ROOT / "docs" / "examples" / "timelines.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Trace:
    """Events written by hand; times in seconds since the trace's own zero, which is at 1000 s of the clock."""

    def __init__(self) -> None:
        self.lines = [
            {"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": {"name": role}}
            for role, (pid, tid) in TRACKS.items()
        ]

    def add(self, what: str, role: str, at: float, **more: Any) -> Trace:
        pid, tid = TRACKS[role]
        self.lines.append({"ph": what, "pid": pid, "tid": tid, "ts": (1000 + at) * 1e6, **more})
        return self

    def span(self, role: str, name: str, start: float, end: float, **args: int) -> Trace:
        return self.add("X", role, start, name=name, dur=(end - start) * 1e6, args=args)

    def count(self, name: str, at: float, value: float) -> Trace:
        return self.add("C", "learner", at, name=name, args={"batches": value})

    def arrow(self, kind: str, number: int, tail: tuple[str, float], head: tuple[str, float]) -> Trace:
        self.add("s", *tail, name=kind, cat=kind, id=number)
        return self.add("f", *head, name=kind, cat=kind, id=number, bp="e")

    def write(self, path: Path, end: str = "\n]\n") -> Path:
        path.write_text("[" + ",\n".join(json.dumps(line) for line in self.lines) + end)
        return path


def small() -> Trace:
    """Two collects and two trains in 10 seconds, degree 2."""
    trace = Trace().count("degree", -1, 2).count("lag", -1, 0)
    trace.span("collector 0", "collect", 0, 3, batch=0, version=0).count("lag", 3, 1)
    trace.span("learner", "wait train", 0, 3).span("learner", "train", 3, 5, batch=0, version=1, staleness=0)
    trace.arrow("batch", 0, ("collector 0", 2.9), ("learner", 3)).span("learner", "publish", 5, 5.5, version=1)
    trace.count("lag", 4.95, 0).span("collector 0", "collect", 6, 8, batch=1, version=1)
    trace.arrow("weights", 1, ("learner", 5.4), ("collector 0", 6)).count("lag", 8, 1)
    trace.span("learner", "train", 8, 10, batch=1, version=2, staleness=0)
    return trace.arrow("batch", 1, ("collector 0", 7.9), ("learner", 8)).span(
        "collector 1", "collect failed", 1, 2, version=0
    )


def shown(path: Path, start: float, end: float, cells: int = 20, batch: int | None = None) -> Stretch:
    part = Stretch(start, end, cells)
    read(survey(path, batch), [part], batch)
    return part


# -- the parts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "character"),
    [
        ({}, " "),
        ({"wait": 0.6}, "."),
        ({"wait": 0.4}, " "),
        ({"train": 0.6, "wait": 0.4}, "#"),
        ({"train": 0.4, "wait": 0.6}, "+"),
        ({"train": 0.01, "wait": 0.9}, "."),
        ({"train": 0.2, "publish": 0.4}, "P"),
        ({"collect": 0.99, "failed": 1e-9}, "x"),
        ({"cut off": 1.0}, "~"),
        ({"other": 0.3}, "o"),
    ],
)
def test_a_character_shows_what_took_most_of_its_time(shares: dict[str, float], character: str) -> None:
    assert mark(shares) == character


def test_spans_are_of_a_kind_by_their_names() -> None:
    names = ["collect", "wait commit", "collect failed", "train cut off", "roll", "eval"]
    assert [kind_of(name) for name in names] == ["collect", "wait", "failed", "cut off", "other", "eval"]
    assert legend({"train", "wait"}) == "# train; + the same, less than half of the time; . waits; blank: idle"


def test_time_is_shared_out_to_the_characters_it_fell_in() -> None:
    part = stretch_of([Span("learner", "train", -5, 1.5), Span("learner", "train", 2.25, 2.75)], 0.0, 4.0, 4)
    assert [cell.get("train", 0.0) for cell in part.shares(["learner"], 4)] == pytest.approx([1.0, 0.5, 0.5, 0.0])
    nested = stretch_of([Span("learner", "train", 0, 4), Span("learner", "step", 1, 3)], 0.0, 4.0, 4)
    assert stretch.totals(nested.shares(["learner"], 4)) == pytest.approx((1.0, 0.0))


def test_a_counter_keeps_its_value_until_it_changes() -> None:
    steps = Steps(10.0, 14.0, 4)
    assert steps.line() == [] and steps.largest() == [None] * 4
    for at, value in [(3, 1), (9, 2), (11.5, 3), (11.2, 5), (13.0, 0), (20, 9)]:
        steps.add(at, value)
    assert steps.largest() == [2, 5, 3, 3]
    assert steps.line() == [(10.0, 2), (11.2, 5), (11.5, 3), (13.0, 0), (14.0, 0)]


def test_many_spans_and_changes_are_kept_as_bins_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretch, "MOST_SPANS", 10)
    part = Stretch(0.0, 20.0, 20)
    part.arrow_end("batch", 1, End("learner", 0.5), head=False)
    part.arrow_end("batch", 1, End("learner", 0.7), head=True)
    for second in range(20):
        part.add(Span("learner", "train", second, second + 1))
        part.count("lag", second + 0.5, second)
    assert part.items is None and part.arrows() == []
    assert len(part.counters["lag"].line()) == part.bins - 9 + 1  # the first 9 bins (half a second) know no value yet
    assert stretch.totals(part.shares(["learner"], 20)) == pytest.approx((1.0, 0.0))


# -- reading -----------------------------------------------------------------------------------------------------------


def test_a_trace_is_drawn_as_text(tmp_path: Path) -> None:
    part = shown(small().write(tmp_path / "trace.json"), 0.0, 10.0)
    assert text.draw(part) == [
        f"{'':36}busy waits",
        "collector 0  [v0===      [v1=        50%    0%",
        "collector 1    [x                    10%    0%",
        "learner      ......[s0#P     [s0#    45%   30%",
        "lag          ▁▁▁▁▁▁▅▅▅▅▁▁▁▁▁▁▅▅▅▅  at most 1 of 2",
        "             |----|----|----|----",
        "             0.0 s2.5 s5.0 s7.5 s",
    ]
    assert sorted(part.arrows()) == [
        ("batch", 0, ("collector 0", pytest.approx(2.9)), ("learner", pytest.approx(3))),
        ("batch", 1, ("collector 0", pytest.approx(7.9)), ("learner", pytest.approx(8))),
        ("weights", 1, ("learner", pytest.approx(5.4)), ("collector 0", pytest.approx(6))),
    ]


def test_every_role_has_a_row_in_every_part_and_arrows_from_outside_are_left_out(tmp_path: Path) -> None:
    part = shown(small().write(tmp_path / "trace.json"), 5.8, 7.8)
    assert [name for name, _ in part.rows()] == ["collector 0", "collector 1", "learner"]
    assert part.arrows() == []
    assert "▁" * 20 + "  at most 0 of 2" in "\n".join(text.draw(part))  # carried into the part from before


def test_without_counters_there_is_no_lag(tmp_path: Path) -> None:
    path = Trace().span("learner", "train", 0, 1).write(tmp_path / "trace.json")
    assert not any(line.startswith("lag") for line in text.draw(shown(path, 0.0, 1.0)))


def test_the_bound_of_a_queue_that_drops_is_its_size_and_the_batch_in_work(tmp_path: Path) -> None:
    trace = Trace().span("learner", "train", 0, 1).count("lag", 0, 5).count("degree", 0, 3)
    assert [value for _, value in shown(trace.write(tmp_path / "a.json"), 0.0, 1.0).bound()] == [3, 3]
    assert [
        value for _, value in shown(trace.count("queue capacity", 0, 4).write(tmp_path / "a.json"), 0.0, 1.0).bound()
    ] == [5, 5]
    serial = Trace().span("learner", "train", 0, 1).count("degree", 0, 0).write(tmp_path / "a.json")
    assert [value for _, value in shown(serial, 0.0, 1.0).bound()] == [1, 1]


def test_what_is_not_known_is_skipped(tmp_path: Path) -> None:
    trace = small()
    expected = text.draw(shown(trace.write(tmp_path / "trace.json"), 0.0, 10.0))
    strange = [
        {"ph": "Z", "name": "new", "ts": 3}, {"name": "no kind"}, {"ph": "X", "name": "no time"},
        {"ph": "X", "name": "bad", "ts": "a"},
        {"ph": "C", "name": "lag", "ts": 1e9 + 1, "args": {}}, {"ph": "i", "name": "a moment", "ts": 5}, 7, "x",
        {"ph": "s", "cat": "batch", "id": "abc", "ts": 1e9},
    ]  # fmt: skip
    trace.lines[5:5] = strange  # type: ignore[assignment]
    assert text.draw(shown(trace.write(tmp_path / "trace.json"), 0.0, 10.0)) == expected


def test_a_trace_that_was_cut_off_is_shown_as_far_as_it_goes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small().write(tmp_path / "trace.json", end=',\n{"name": "tra')
    assert not survey(path).closed
    assert programs(["timeline", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "10.0 s, 2 collects, 2 trains, 1 failed\nThe trace is not closed: the run goes on, or it was killed." in said
    assert survey(small().write(path)).closed


def test_a_long_trace_needs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with path.open("w") as file:
        file.write('[{"name":"thread_name","ph":"M","pid":1,"tid":1,"args":{"name":"learner"}}')
        for number in range(20_000):
            file.write(
                f',\n{{"name":"train","ph":"X","pid":1,"tid":1,"ts":{number * 100}.0,"dur":90.0,"args":{{"batch":{number}}}}}'
            )
            file.write(f',\n{{"name":"lag","ph":"C","pid":1,"ts":{number * 100}.0,"args":{{"batches":{number % 3}}}}}')
    found = survey(path)
    tracemalloc.start()
    part = Stretch(0.0, found.seconds, 72)
    read(found, [part])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3e6  # all spans and changes would be 10 MB
    assert part.items is None and set(part.shares(["learner"], 72)[40]) == {"train"}


def test_the_usual_part_shows_some_collects_of_each_collector_and_some_trains(tmp_path: Path) -> None:
    trace = Trace()
    for number in range(100):
        trace.span("learner", "train", number, number + 0.9)
    for number in range(20):
        trace.span("collector 0", "collect", 5 * number, 5 * number + 4).span(
            "collector 1", "collect", 5 * number, 5 * number + 5
        )
    found = survey(trace.write(tmp_path / "trace.json"))
    assert (found.seconds, found.collectors) == (100, 2)
    assert usual_length(found) == pytest.approx(4 * 5)
    request = command.parse([str(tmp_path)])
    assert command.part(found, request) == pytest.approx((50, 70))


# -- the picture -------------------------------------------------------------------------------------------------------


def axes_of(draw: Callable[[Any], None]) -> Any:
    from matplotlib.figure import Figure

    axis = Figure().subplots()
    draw(axis)
    return axis


def test_the_picture_has_bars_with_labels_and_arrows(tmp_path: Path) -> None:
    part = shown(small().write(tmp_path / "trace.json"), 0.0, 10.0, batch=1)
    axis = axes_of(lambda axis: picture.bars(axis, part))
    assert [label.get_text() for label in axis.get_yticklabels()] == ["learner", "collector 1", "collector 0"]
    assert sorted(words.get_text() for words in axis.texts) == ["b1", "b1", "s0", "v0"]
    drawn = axes_of(lambda axis: picture.arrows(axis, part)).texts
    assert len(drawn) == 3
    bold = axes_of(lambda axis: picture.arrows(axis, part, batch=0)).texts
    assert sorted(arrow.arrow_patch.get_linewidth() for arrow in bold) == [0.6, 0.6, 1.8]


def test_too_many_arrows_are_left_out_but_for_those_of_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = shown(small().write(tmp_path / "trace.json"), 0.0, 10.0)
    monkeypatch.setattr(picture, "MOST_ARROWS", 2)
    assert len(axes_of(lambda axis: picture.arrows(axis, part)).texts) == 0
    assert len(axes_of(lambda axis: picture.arrows(axis, part, batch=0)).texts) == 1


def test_the_lag_is_drawn_with_its_bound(tmp_path: Path) -> None:
    part = shown(small().write(tmp_path / "trace.json"), 0.0, 10.0)
    lag, bound = axes_of(lambda axis: picture.lag(axis, part)).lines
    assert list(lag.get_ydata()) == [0, 1, 0, 1, 1] and list(bound.get_ydata()) == [2, 2]


def test_a_dense_part_is_drawn_as_shares(tmp_path: Path) -> None:
    part = shown(small().write(tmp_path / "trace.json"), 0.0, 10.0)
    part.items = None
    axis = axes_of(lambda axis: picture.bars(axis, part))
    assert len(axis.collections) == 5  # collect, failed, and of the learner wait, train and publish


# -- the program -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "10.5"], ["--from is 10.5", "ends at 10.00 s"]),
        (["--from", "-1"], ["--from is -1", "between 0"]),
        (["--seconds", "0"], ["--seconds is 0", "above 0"]),
        (["--width", "5"], ["--width is 5", "between 20 and 500"]),
        (["--batch", "7"], ["--batch is 7", "it has 0 to 1"]),
        (["--batch", "1", "--from", "3"], ["--from and --batch"]),
        (["--out", "x.jpg"], ["--out is 'x.jpg'", ".png"]),
        (["--wide", "3"], ["--wide", "--help"]),
        (["--from", "soon"], ["soon", "--help"]),
    ],
)
def test_what_cannot_be_shown_is_said_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: list[str]
) -> None:
    small().write(tmp_path / "trace.json")
    assert command.main([str(tmp_path), *words]) == 2
    assert_one_sentence(capsys.readouterr().err, said)
    assert not (tmp_path / "timeline.png").exists()


def test_what_is_no_trace_is_said_in_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for given, words in (
        (tmp_path, ["no trace at", "trace.json", "folder of a run"]),
        (tmp_path / "gone", ["no trace at", "gone"]),
        (Trace().write(tmp_path / "empty.json"), ["empty.json", "no spans yet"]),
    ):
        assert command.main([str(given)]) == 2
        assert_one_sentence(capsys.readouterr().err, words)
    text_file = tmp_path / "notes.txt"
    text_file.write_text("dear reader,\nthis is no trace\n")
    assert command.main([str(text_file)]) == 2
    assert_one_sentence(capsys.readouterr().err, ["notes.txt is not a trace of ours", "line 1"])


def test_the_program_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small().write(tmp_path / "trace.json")
    assert programs(["timeline", str(tmp_path), "--from", "4", "--seconds", "100", "--width", "30"]) == 0
    said = capsys.readouterr().out
    assert "The whole run (a character is 333 ms)" in said and "From 4.00 to 10.00 s (a character is 200 ms)" in said
    assert said.count("\nlearner ") == 2 and f"picture: {tmp_path / 'timeline.png'}" in said
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert programs(["timeline", str(tmp_path), "--from", "0", "--seconds", "10"]) == 0
    assert "The whole run" not in capsys.readouterr().out  # it is all there already


def test_the_way_of_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = small().span("collector 1", "collect", 9, 10, batch=2, version=1).write(tmp_path / "trace-1.json")
    assert command.main([str(trace), "--batch", "1", "--out", str(tmp_path / "new" / "one.png")]) == 0
    said = capsys.readouterr().out
    assert "Batch 1: collected by collector 0 from 6.00 to 8.00 s, waited 0 ms, trained from 8.00 to 10.00 s." in said
    assert "From 5.40 to 10.00 s" in said and "[b1=" in said and "[b1#" in said
    assert (tmp_path / "new" / "one.png").is_file()
    assert command.main([str(trace), "--batch", "2"]) == 0
    assert "Batch 2: collected by collector 1 from 9.00 to 10.00 s, never trained." in capsys.readouterr().out
    assert (tmp_path / "timeline-trace-1.png").is_file()


def test_the_text_is_there_also_where_the_picture_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small().write(tmp_path / "trace.json")
    assert command.main([str(path), "--out", str(path / "x.png")]) == 2
    said = capsys.readouterr()
    assert "learner" in said.out
    assert_one_sentence(said.err, ["The picture cannot be written to", "choose another --out"])


# -- real traces -------------------------------------------------------------------------------------------------------


def test_the_page_shows_what_the_program_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "timeline.md").read_text()
    blocks = dict(re.findall(r"<!-- timeline: ([a-z-]+) -->\n```text\n(.*?)```", page, re.DOTALL))
    module = examples()
    assert set(blocks) == set(module.PATTERNS)
    for name, block in blocks.items():
        module.make(name, tmp_path / f"{name}.json")
        part = shown(tmp_path / f"{name}.json", 0.0, 32.0, 64)
        assert block == "\n".join(text.draw(part)) + "\n", name


@pytest.mark.parametrize("pattern", list(examples().PATTERNS))
def test_traces_keep_the_rules_of_viewers(pattern: str, tmp_path: Path) -> None:
    examples().make(pattern, tmp_path / "trace.json")
    events = list(read_events(tmp_path / "trace.json"))
    assert violations(events) == []
    trains = sum(event["name"] == "train" for event in events)
    assert sum(event["ph"] == "f" and event["cat"] == "batch" for event in events) == trains == 24
    assert {event["name"] for event in events if event["ph"] == "C"} == {"lag", "queue", "open collects", "degree"}


def test_traces_of_real_threads_keep_the_rules_whatever_is_rounded(tmp_path: Path) -> None:
    with AsyncTrainingCoordinator(4, num_collectors=3, get_weights=dict, trace=tmp_path / "trace.json") as coordinator:
        coordinator.run(lambda context: 1, lambda batch: sum(range(500)), max_train=400, print_statistics=False)
    events = list(read_events(tmp_path / "trace.json"))
    assert violations(events) == []
    assert sum(event["name"] == "publish" for event in events) == 400


def test_the_size_of_a_queue_that_drops_is_counted(tmp_path: Path) -> None:
    with VirtualClock() as clock:
        bound = Bound(queue_capacity=3, staleness_policy="allow")
        with AsyncTrainingCoordinator(4, bound=bound, trace=tmp_path / "trace.json", clock=clock) as coordinator:
            coordinator.run(FakeCollector(clock, 1.0), FakeLearner(clock, 5.0), max_train=4, print_statistics=False)
    part = shown(tmp_path / "trace.json", 0.0, 20.0)
    assert {value for _, value in part.bound()} == {4}
    assert max(value for _, value in part.line("lag")) == 4


def test_what_the_end_of_a_run_cuts_off_did_not_fail(tmp_path: Path) -> None:
    module = examples()
    module.make("dead-worker", tmp_path / "trace.json")
    found = survey(tmp_path / "trace.json")
    assert found.names["collect failed"] == 2 and found.names["collect cut off"] == 0
    with AsyncTrainingCoordinator(2, trace=tmp_path / "stopped.json") as coordinator:
        for error in (Stopped(), KeyboardInterrupt(), ValueError()):

            def collect(error: BaseException = error) -> None:
                raise error

            with pytest.raises(type(error)):
                coordinator.run_collect(collect)
    assert survey(tmp_path / "stopped.json").names == {"collect cut off": 2, "collect failed": 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda events: events[5].update(dur=events[5]["dur"] + 0.2), "overlaps"),
        (lambda events: events[6].update(ts=events[6]["ts"] + 5e6), "is at"),
        (lambda events: events[7].update(ts=events[7]["ts"] - 0.1), "is at"),
        (lambda events: events.pop(6), "does not begin"),
        (lambda events: events.append(dict(events[6])), "has 2 ends s"),
        (lambda events: events[8].update(args={"batches": "many"}), "no number"),
        (lambda events: events.pop(0), "has no name"),
        (lambda events: events[5]["args"].update(batch=4), "joins batch"),
    ],
)
def test_the_rules_notice_what_viewers_would_drop(change: Callable[[list[dict[str, Any]]], None], words: str) -> None:
    trace = Trace().span("collector 0", "collect", 0, 1, batch=0, version=0).span("collector 0", "wait collect", 1, 2)
    trace.span("learner", "train", 1, 2, batch=0, version=1, staleness=0)
    trace.arrow("batch", 0, ("collector 0", 0.9), ("learner", 1)).count("lag", 1, 1)
    events = [*trace.lines[:3], trace.lines[4], trace.lines[5], trace.lines[3], *trace.lines[6:]]
    assert violations(events) == []
    change(events)
    assert any(words in violation for violation in violations(events)), violations(events)
