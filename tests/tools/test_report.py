"""`python -m lzero_async report`: what is on the page, from whatever a run left, and what it says about it."""

from __future__ import annotations

import json
import logging
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lzero_async.__main__ import main
from lzero_async.core.trace import TraceWriter
from lzero_async.errors import ConfigError
from lzero_async.runs.observer import RunObserver
from lzero_async.runs.program import run_program
from lzero_async.runs.summary import FORMAT
from lzero_async.tools.report.command import write_report
from lzero_async.tools.report.curves import groups_of
from lzero_async.tools.report.inputs import names_of, read_material
from lzero_async.tools.report.markup import TIMES
from tests.sentences import assert_one_sentence
from tests.tools.report_runs import SECTIONS, evaluation, roles, statistics, summary, write_run, write_trace


class Page(HTMLParser):
    """What a browser would make of a page: elements in order, their attributes, and the text."""

    EMPTY = frozenset({"meta", "br", "hr"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(path.read_text())
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.words.append(data.replace("\xa0", " "))

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def report(*folders: Path, out: Path) -> Page:
    assert main(["report", *map(str, folders), "--out", str(out)]) == 0
    return Page(out)


# -- one run -----------------------------------------------------------------------------------------------------------


def test_a_run_gets_a_page_in_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "one")
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"report: {run / 'report.html'}\n"
    page = Page(run / "report.html")
    assert [attributes["id"] for attributes in page.of("section")] == list(SECTIONS)
    for words in (
        "A test: of the report", "began 2026-01-02 03:04 UTC", "It ran 1 min and trained on 20 batches (12,345 steps trained",
        "ended by max_env_step", "The best mean return was 432 of 500, the last 400.", "206 per second",
        "The learner is the bottleneck: it was active 97 % of the time while collectors waited 33 %",
        "Staleness was 1.5 on average and 2 at most, the lag 1.4 on average and 2 at most (degree 2, kept).",
        "bound: degree 2", "failed collects 1, restarts 1.",
        "12.5 s warning collector 1 failed (no answer); restart 1 of at most 3",
        "12.5 s CPU · 300 MB", "2 scalars over 20 trains", "The same all the time: learner/fixed 7.",
        "python train.py --seed 1", "8 cores", "16 GB of memory", "no GPU", "lzero-async 0.1.0", "policy.lr 0.001",
    ):  # fmt: skip
        assert words in page.text, words
    assert "missing" not in page.text


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    """No script, no link, no picture from elsewhere, no address; and the browser is told so."""
    page = report(write_run(tmp_path / "one"), out=tmp_path / "page.html")
    assert not {"script", "link", "img", "iframe", "object", "base"} & {name for name, _ in page.elements}
    for name, attributes in page.elements:
        for key, value in attributes.items():
            assert not key.startswith("on") and key not in ("src", "srcset"), name
            assert key != "href" or (value or "").startswith("#")
    policy = next(meta["content"] for meta in page.of("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in str(policy)
    assert "url(" not in (tmp_path / "page.html").read_text()


def test_what_is_drawn_is_described(tmp_path: Path) -> None:
    page = report(write_run(tmp_path / "one"), out=tmp_path / "page.html")
    assert page.of("html")[0]["lang"] == "en"
    pictures = page.of("svg")
    assert len(pictures) > 8
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    assert sum(name == "title" for name, _ in page.elements) > len(pictures)
    shares = [attributes["aria-label"] for attributes in page.of("div") if attributes.get("class") == "share"]
    assert "collector 0: active 67 % (40.2 s), waiting 33 % (19.8 s), idle 0 % (0 s)" in shares


def test_numbers_of_the_applications_own_are_tiles_and_rows(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", measures={"prior top-1": 0.718, "LLM trains": 12, "odd": "words"})
    other = write_run(tmp_path / "two", measures={"prior top-1": 0.359})
    text = (report(one, out=tmp_path / "page.html")).text
    assert "prior top-1" in text and "0.718" in text and "LLM trains" in text and "odd" not in text
    both = (report(one, other, out=tmp_path / "both.html")).text
    assert "prior top-1" in both and "0.359" in both


def test_batches_beyond_the_bound_stand_out(tmp_path: Path) -> None:
    counts = {"1": 10, "2": 5, "3": 4, "4": 1}
    run = write_run(tmp_path / "one", statistics=statistics(staleness_counts=counts, staleness_max=4))
    page = report(run, out=tmp_path / "page.html")
    bars = [bar["class"] for bar in page.of("rect") if str(bar["class"]).startswith("bar")]
    assert bars == ["bar"] * 3 + ["bar beyond"] * 2
    assert "(degree 2, exceeded)" in page.text


def test_a_bound_that_is_none_is_not_judged(tmp_path: Path) -> None:
    late = statistics(staleness_counts={"9": 1}, staleness_max=9)
    for changes, words in (
        ({"options": {"staleness_policy": "allow"}, "statistics": late}, "(degree 2)."),
        ({"statistics": late | {"staleness_policy": "allow"}}, "(degree 2)."),
        ({"statistics": late | {"staleness_policy": "drop"}}, "(degree 2, exceeded)."),
        ({"statistics": late | {"queue_capacity": 8}}, "(queue of 8)."),
        ({"statistics": late | {"degree_changes": 1}}, "(degree 2, exceeded)."),
        ({"statistics": statistics(train_count=0)}, "No batch was trained."),
    ):
        page = report(write_run(tmp_path / "one", **changes), out=tmp_path / "page.html")
        assert words in page.text
        assert ("bound: degree" in page.text) == ("exceeded" in words or "No batch" in words)


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({"off_policy_degree": 0, "lag_bound": 1}, 1),
        ({"off_policy_degree": 0}, 1),
        ({"off_policy_degree": 3}, 3),
        ({"queue_capacity": 4, "lag_bound": 5}, 5),
        ({"queue_capacity": 4}, 5),
    ],
)
def test_the_bound_of_the_lag_is_drawn(tmp_path: Path, changes: dict[str, Any], bound: int) -> None:
    page = report(write_run(tmp_path / "one", statistics=statistics(**changes)), out=tmp_path / "page.html")
    assert set(re.findall(r"bound: (\d+)", page.text)) == {str(bound)}


def test_a_degree_that_changes_is_drawn(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one", statistics=statistics(degree_changes=2, staleness_max=3))
    trace = TraceWriter(run / "trace.json")
    for number, degree in enumerate((2, 4, 1)):
        trace.counters(number * 10.0, lag=1, degree=degree)
        trace.train(number * 10.0, number * 10.0 + 9, number, number + 1, 1)
    trace.close()
    page = report(run, out=tmp_path / "page.html")
    assert "the degree" in page.text and "(degree 2, kept)." in page.text and "bound: degree 4" in page.text


def test_seconds_without_a_core_are_told(tmp_path: Path) -> None:
    rows = roles((0.6, 0.3, 0.1), (0.9, 0.1, 0.0))
    for row, queued in zip(rows, (30.0, 1.0, 2.0, 0.0), strict=True):
        row["queued_seconds"] = queued
    page = report(write_run(tmp_path / "one", roles=rows), out=tmp_path / "page.html")
    assert "12.5 s CPU · 30 s for a core · 300 MB" in page.text
    assert page.text.count(" s for a core ·") == 1


def test_evaluations_without_a_best_score_are_told(tmp_path: Path) -> None:
    rows = [evaluation(1) | {"name": "prior"}, evaluation(2) | {"name": "search"}]
    page = report(write_run(tmp_path / "one", evaluations=rows, score={}), out=tmp_path / "page.html")
    assert "It was evaluated: prior 80, search 160." in page.text


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one", ended_by=None)
    trace = run / "trace.json"
    trace.write_text(trace.read_text()[:-40])  # in the middle of an event
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"train": 21, "lea')
    page = report(run, out=tmp_path / "page.html")
    assert '<span class="badge warn">not finished</span>' in (tmp_path / "page.html").read_text()
    assert "it is still running, it failed, or it was killed" in page.text
    assert "1 line of metrics.jsonl cannot be read" in page.text
    assert "2 scalars over 20 trains" in page.text


def test_a_run_that_was_killed_after_its_first_checkpoint(tmp_path: Path) -> None:
    """The trace knows of 60 s and 20 trains, the summary of the first moment only."""
    nothing = statistics(train_count=0, collect_count=0, staleness_counts={}, staleness_mean=0.0, staleness_max=0, mean_lag=0.0,
                         max_lag=0, wall_time=0.0, failed=0, restarts=0)  # fmt: skip
    rows = roles((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), None, seconds=0.04)
    early = {"seconds": 0.04, "statistics": nothing, "roles": rows, "evaluations": [], "score": {}, "ended_by": None}
    run = write_run(tmp_path / "one", **early, counts={"steps trained": 7, "updates": 0})
    page = report(run, out=tmp_path / "page.html")
    for words in (
        "It ran 1 min 4 s and trained on 20 batches (7 steps trained). It has not come to its end",
        "it is still running, it failed, or it was killed.", "steps trained 7 at the last summary",
        "trains 20 20 collects",
        "Staleness was 1.85 on average and 2 at most, the lag 2 at most (degree 2, kept).",
        "The learner is the bottleneck", "The last summary was written after 0.04 s, and the trace goes on until 1 min 4 s",
    ):  # fmt: skip
        assert words in page.text, words
    assert "0.04 s and" not in page.text.split("What is missing here")[0]


def test_a_summary_that_knows_more_than_the_trace_is_kept(tmp_path: Path) -> None:
    """A running run whose trace began with its last resume; and one that has ended, whatever its trace says."""
    more = statistics(train_count=900, collect_count=901)
    run = write_run(tmp_path / "one", ended_by=None, seconds=100.0, statistics=more)
    page = report(run, out=tmp_path / "page.html")
    assert "It ran 1 min 40 s and trained on 900 batches" in page.text and "901 collects" in page.text
    assert "The last summary was written" not in page.text
    run = write_run(tmp_path / "two", seconds=1.0, statistics=statistics(train_count=3, collect_count=3))
    assert "It ran 1.0 s and trained on 3 batches" in report(run, out=tmp_path / "page.html").text


def test_a_resumed_run_tells_its_whole_time(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one", earlier_seconds=120.0)
    page = report(run, out=tmp_path / "page.html")
    assert "It ran 3 min (2 min before its last resume included) and trained on 20 batches" in page.text
    assert "time 3 min ended by max_env_step" in page.text
    killed = write_run(tmp_path / "two", earlier_seconds=120.0, seconds=1.0, ended_by=None)
    assert "It ran 3 min 4 s (2 min before" in report(killed, out=tmp_path / "page.html").text


def test_a_run_that_failed_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one", ended_by="a failure: RuntimeError('fire')")
    page = report(run, out=tmp_path / "page.html")
    assert '<span class="badge warn">failed</span>' in (tmp_path / "page.html").read_text()
    assert "was ended by a failure: RuntimeError('fire')." in page.text


FILES = ("summary.json", "options.json", "metrics.jsonl", "trace.json")


@pytest.mark.parametrize(
    "kept", [("trace.json",), ("metrics.jsonl",), ("summary.json",), ("trace.json", "options.json")]
)
def test_a_run_that_left_only_some_files(tmp_path: Path, kept: tuple[str, ...]) -> None:
    run = write_run(tmp_path / "one")
    for name in FILES:
        if name not in kept:
            (run / name).unlink()
    page = report(run, out=tmp_path / "page.html")
    assert [attributes["id"] for attributes in page.of("section")] == [*SECTIONS, "missing"]
    missing = page.text.split("What is missing here")[1]
    assert [name for name in FILES if f"{name} is not there" in missing] == [name for name in FILES if name not in kept]
    if "trace.json" in kept:
        assert "20 trains" in page.text or "trained on 20 batches" in page.text
        assert "55 % of the batches" not in page.text
        assert "collect: 4.0 s from" in page.text


def test_a_trace_that_is_none_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    (run / "trace.json").write_text('{"ph":"X","ts":1,"dur":2}\n{"ph":"X"}\n')
    page = report(run, out=tmp_path / "page.html")
    assert "trace.json holds no span" in page.text


def test_a_resumed_run_says_what_its_trace_covers(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    write_trace(run / "trace-1.json")
    assert "The run was resumed" in report(run, out=tmp_path / "page.html").text


def test_bad_input_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, empty = write_run(tmp_path / "one"), tmp_path / "empty"
    empty.mkdir()
    for arguments, words in (
        ([str(empty)], [str(empty), "holds no run", "summary.json", "give the folder of a run"]),
        ([str(tmp_path / "none")], ["none", "holds no run"]),
        ([str(run), str(empty)], [str(empty), "holds no run"]),
        ([str(run), "--out", str(empty)], ["--out", str(empty), "is a folder"]),
        ([], ["RUN", "--help explains every option"]),
        ([str(run), "--oout", "x"], ["--oout", "--help"]),
        ([str(run), "--ou", "x"], ["--ou", "--help"]),
    ):
        assert main(["report", *arguments]) == 2
        assert_one_sentence(capsys.readouterr().err, words)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trace.json", ""), ("trace.json", "["), ("summary.json", "{"),
        ("summary.json", '{"format": 2}'), ("metrics.jsonl", ""),
        ("metrics.jsonl", "x"),
    ],
)  # fmt: skip
def test_nothing_to_show_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["report", str(tmp_path)]) == 2
    assert_one_sentence(capsys.readouterr().err, [str(tmp_path), "nothing of a run that can be shown", name])
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("text", "said"), [('{"format": 1}', "the format 1,"), ('{"seconds": 3}', "of an older version,")]
)
def test_a_run_of_another_version_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    run = write_run(tmp_path / "one")
    (run / "summary.json").write_text(text)
    assert main(["report", str(run)]) == 2
    assert_one_sentence(capsys.readouterr().err, [str(run), said, f"this version reads {FORMAT}", "run it again"])
    assert not (run / "report.html").exists()


def test_a_broken_summary_beside_a_trace_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    (run / "summary.json").write_text('{"format": 1, "sec')
    page = report(run, out=tmp_path / "page.html")
    missing = page.text.split("What is missing here")[1]
    assert "summary.json is left out" in missing and "cannot be read" in missing
    assert "is not there" not in missing and "Neither" not in missing
    assert "It ran 1 min 4 s and trained on 20 batches." in page.text


# -- what files hold may be anything -----------------------------------------------------------------------------------


EVIL = '<script>alert("1")</script><img src=x onerror=alert(2)>&'


def test_names_cannot_become_elements(tmp_path: Path) -> None:
    events = [{"seconds": 1.0, "level": EVIL, "text": EVIL}]
    row = evaluation(1) | {"name": EVIL}
    run = write_run(
        tmp_path / EVIL.replace("/", ""), title=EVIL, ended_by=EVIL, program=EVIL, command=[EVIL], versions={EVIL: EVIL},
        machine={"system": EVIL, "gpus": [EVIL]}, score={"name": EVIL, "best": 1.0, "last": 1.0}, axis=EVIL, events=events,
        evaluations=[row, evaluation(2) | {"name": EVIL}], counts={EVIL: 3}, rates={f"{EVIL}/s": 3},
        options={EVIL: EVIL, "deep": {EVIL: [EVIL]}},
    )  # fmt: skip
    trace = TraceWriter(run / "trace.json")
    trace.span("<script>alert(3)</script>", "<script>", 1.0, 2.0)
    trace.span("collector 0", "collect", 1.5, 2.0, batch=1)
    trace.close()
    (run / "metrics.jsonl").write_text("".join(json.dumps({"train": n, EVIL: n}) + "\n" for n in (1, 2)))
    other = write_run(tmp_path / "other")
    for page in (report(run, out=tmp_path / "page.html"), report(run, other, out=tmp_path / "two.html")):
        assert not {"script", "img"} & {name for name, _ in page.elements}
        assert not [key for _, attributes in page.elements for key in attributes if key.startswith("on")]
        assert EVIL in page.text
        assert "<script>alert(3)</script>" in page.text


def test_nonsense_in_a_summary_makes_no_traceback(tmp_path: Path) -> None:
    """Every value, one by one, is replaced by others that do not belong there."""
    rng = random.Random(7)
    run = write_run(tmp_path / "one", trains=4)
    (run / "trace.json").unlink()
    good = summary()

    def paths(value: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
        return [prefix] * bool(prefix) + [path for key, item in inner for path in paths(item, (*prefix, key))]

    nonsense: list[Any] = [None, "x", -1, 0, [], {}, [[]], {"a": "b"}, True, float("nan"), 1e300, "<b>"]
    for path in paths(good):
        bad = json.loads(json.dumps(good))
        place = bad
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = rng.choice(nonsense)
        (run / "summary.json").write_text(json.dumps({"format": FORMAT, **bad}))
        write_report([run], tmp_path / "page.html")
    assert len(paths(good)) > 100


# -- several runs ------------------------------------------------------------------------------------------------------


def test_seeds_are_drawn_as_one_with_their_spread(tmp_path: Path) -> None:
    runs = [
        write_run(
            tmp_path / f"seed{seed}", seed=seed, evaluations=[evaluation(n, 10.0 * seed) for n in range(1, 6)],
            score={"name": "mean return", "best": 400.0 + 10 * seed, "last": 400.0},
        )
        for seed in (1, 2, 3)
    ]  # fmt: skip
    page = report(*runs, out=tmp_path / "page.html")
    assert "A test: of the report, 3 seeds" in page.text
    assert "the best mean return was 420 on average, 410 to 430." in page.text
    lines = [str(path["class"]) for path in page.of("path") if str(path.get("class", "")).startswith("line c0")]
    assert lines.count("line c0 thin") == 6  # three seeds over steps and over seconds
    assert [path for path in page.of("path") if str(path.get("class")).startswith("band c0")]
    assert "mean of 3 seeds" in page.text
    assert not [item for item in page.of("i") if "thin" in str(item["class"])]  # single seeds are not in the legend
    differing = page.text.split("What differs")[1]
    assert "seed 1 2 3" in differing and "exp_name" not in differing.split("settings of")[0]


def test_runs_side_by_side(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a" / "run", rates={"updates/s": 2.0})
    two = write_run(
        tmp_path / "b" / "run", options={"policy": {"off_policy_degree": 8, "lr": 0.001}}, rates={"updates/s": 5.0},
        statistics=statistics(off_policy_degree=8, train_count=30),
    )  # fmt: skip
    page = report(one, two, out=tmp_path / "page.html")
    assert "a/run" in page.text and "b/run" in page.text
    assert f"updates/s 2 5 {TIMES} 2.50" in page.text
    assert f"trains 20 30 {TIMES} 1.50" in page.text
    assert "policy.off_policy_degree 2 8" in page.text
    assert "One line per run" in page.text


def test_several_runs_without_a_name_go_to_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [write_run(tmp_path / name) for name in ("one", "two")]
    monkeypatch.chdir(tmp_path)
    assert main(["report", *map(str, runs)]) == 0
    assert (tmp_path / "report.html").is_file()


def test_runs_are_grouped_by_what_they_do(tmp_path: Path) -> None:
    made = []
    for degree in (0, 4):
        for seed in (1, 2):
            folder = write_run(
                tmp_path / f"{degree}-{seed}", seed=seed, options={"policy": {"off_policy_degree": degree}}
            )
            made.append(read_material(folder))
    found = groups_of(made)
    assert [(group.name, [run.name for run in group.runs]) for group in found] == [
        ("off_policy_degree 0 (2 seeds)", ["0-1", "0-2"]),
        ("off_policy_degree 4 (2 seeds)", ["4-1", "4-2"]),
    ]
    assert names_of([tmp_path / "x" / "run", tmp_path / "y" / "run"]) == ["x/run", "y/run"]
    assert names_of([tmp_path / "x", tmp_path / "x"]) == ["x", "x"]


# -- at the end of a run -----------------------------------------------------------------------------------------------


def application(folder: Path, *, wanted: bool = True) -> Any:
    made = SimpleNamespace(folder=folder, _watching=lambda: SimpleNamespace(report=wanted))
    return SimpleNamespace(_application=made)


def test_a_run_ends_with_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "one")
    RunObserver.write_report(application(run, wanted=False))
    assert not (run / "report.html").exists()
    RunObserver.write_report(application(run))
    assert "A test: of the report" in (run / "report.html").read_text()
    assert re.fullmatch(rf"report: +{re.escape(str(run))}/report.html\n", capsys.readouterr().out)


def test_a_report_that_fails_is_logged_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        RunObserver.write_report(application(tmp_path / "nothing"))
    assert "the report cannot be written" in caplog.text


class Recorded:
    """An application that notes what is asked of it, in order; its run raises `error` if there is one."""

    def __init__(self, folder: Path, error: BaseException | None) -> None:
        self.folder, self.plain_options, self.error, self.asked = folder, {}, error, list[str]()
        self.last_checkpoint, self.ended_by = folder / "none", None
        self.progress = self.coordinator = self

    def run(self) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(reason="max_train")

    def __getattr__(self, name: str) -> Any:
        return lambda: self.asked.append(name)


@pytest.mark.parametrize(
    ("error", "written"),
    [(None, True), (RuntimeError("fire"), True), (ConfigError("bad"), False), (KeyboardInterrupt(), False)],
)
def test_the_report_comes_after_everything_is_closed(
    tmp_path: Path, error: BaseException | None, written: bool
) -> None:
    """The trace is complete then; bad input and a second Ctrl+C end the program at once."""
    made = Recorded(tmp_path, error)
    if error is None:
        assert run_program(made, None, {}, lambda final, reason: None) == 0  # type: ignore[arg-type]
    else:
        with pytest.raises(type(error)):
            run_program(made, None, {}, lambda final, reason: None)  # type: ignore[arg-type]
    assert made.asked[-2:] == ["close", "write_report"] if written else made.asked[-1] == "close"
    assert ("write_report" in made.asked) == written
