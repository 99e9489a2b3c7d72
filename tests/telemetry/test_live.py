"""The live view: what a frame says, that it fits, and that nothing else on the terminal is mixed into it."""

from __future__ import annotations

import io
import itertools
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lzero_async.clock import RealClock
from lzero_async.core.activity import RoleActivity
from lzero_async.runs.run_dir import logging_to
from lzero_async.telemetry.terminal import live
from lzero_async.telemetry.terminal.frame import frame, render_svg, render_text
from lzero_async.telemetry.terminal.live import LiveProgress, make_progress
from lzero_async.telemetry.terminal.progress import Progress
from lzero_async.telemetry.terminal.screen import Screen
from lzero_async.telemetry.view import Count, View
from lzero_async.threads import ThreadGroup
from tests.telemetry.terminal import Shown, Terminal

ROOT = Path(__file__).resolve().parents[2]
STATISTICS: dict[str, Any] = {
    "off_policy_degree": 4, "queue_capacity": None, "collect_train_lag": 2, "mean_lag": 1.25, "max_lag": 4,
    "staleness_mean": 1.2, "staleness_max": 3, "dropped": 0, "failed": 1, "rejected": 0, "restarts": 2, "abandoned": 0,
    "retired": 0, "degree_changes": 0,
}  # fmt: skip
SYNC = {"off_policy_degree": 0, "collect_train_lag": 1, "staleness_mean": 0.0, "staleness_max": 0, "max_lag": 1}


def role(
    name: str, shares: tuple[float, float, float], seconds: float, doing: str = "collect", since: float = 2.25
) -> RoleActivity:
    state = "idle" if not doing else "waiting" if doing.startswith("wait") else "active"
    return RoleActivity(name, state, doing, since, *(share * seconds for share in shares))


def at(seconds: float, collectors: int = 4, **changes: Any) -> View:
    """A run whose collectors worked half of the first 100 s and 80 % from then on."""
    early, late = min(seconds, 100.0), max(0.0, seconds - 100.0)
    work = early * 0.5 + late * 0.8
    roles = [
        RoleActivity(
            f"collector {i}", "active", "collect", 1.5 + i, work, (seconds - work) * 0.75, (seconds - work) * 0.25
        )
        for i in range(collectors)
    ]
    view = View(
        title="PriorZero: The Light on Gannet Rock",
        elapsed=seconds,
        remaining=430.0,
        counts=(
            Count("steps_trained", 40 * seconds, 20_000),
            Count("steps_played", 41.2 * seconds),
            Count("updates", 3 * seconds),
            Count("seconds", seconds),
        ),
        roles=(
            *roles,
            role("learner", (0.9, 0.1, 0), seconds, "wait train", 0.5),
            role("evaluator", (0, 0, 1), seconds, "", 130),
        ),
        statistics=STATISTICS,
        fills={"queue": 0.5, "buffer": 0.3},
        score="score",
        last_score=12.0,
        best_score=20.0,
        highest_score=100.0,
        recent_score=9.25,
        warnings=("12:03:04 collector 1 failed (ValueError: no); restart 1 of at most 3",),
    )
    return replace(view, **changes)


# -- frames ------------------------------------------------------------------------------------------------------------


def test_a_frame_says_what_a_run_does() -> None:
    assert (
        render_text(at(130.0), at(100.0), 79, 18)
        == """\
PriorZero: The Light on Gannet Rock                        2:10 gone, 7:10 left
steps trained ████············ 5,200 of 20,000  40.0/s  now 40.0/s
steps played                   5,356  41.2/s  now 41.2/s
updates                        390  3.00/s  now 3.00/s
lag           ████████········ 2 now, mean 1.2, max 4; degree 4
staleness     █████··········· mean 1.2, max 3; degree 4
queue fill    ████████········ 50%  ███······· buffer fill 30%
            █ active ▒ wait · idle   last 30 s % whole run % now
collector 0 ███████████████████▒▒▒▒·  80  15   5  57  32  11 collect 1.5 s
collector 1 ███████████████████▒▒▒▒·  80  15   5  57  32  11 collect 2.5 s
collector 2 ███████████████████▒▒▒▒·  80  15   5  57  32  11 collect 3.5 s
collector 3 ███████████████████▒▒▒▒·  80  15   5  57  32  11 collect 4.5 s
learner     ██████████████████████▒▒  90  10   0  90  10   0 wait train 0.5 s
evaluator   ························   0   0 100   0   0 100 idle 2:10
score: last 12.0, best 20.0 of 100; collected episodes 9.2
dropped batches 0, failed collects 1, restarts 2
12:03:04 collector 1 failed (ValueError: no); restart 1 of at most 3
"""
    )


def test_the_first_frame_of_a_run_in_turn_before_any_evaluation() -> None:
    view = at(
        50.0, 1, statistics=STATISTICS | SYNC | {"failed": 0, "restarts": 0}, last_score=None, best_score=None,
        recent_score=None, remaining=None, fills={"queue": None, "buffer": None}, warnings=(),
    )  # fmt: skip
    text = render_text(view, None, 79, 18)
    assert text.splitlines()[0].endswith("0:50 gone")
    assert "lag           ████████████████ 1 now, mean 1.2, max 1; degree 0\n" in text
    assert "staleness                      mean 0.0, max 0; degree 0\n" in text
    assert "queue fill                     unknown  buffer fill unknown\n" in text
    assert "score: no evaluation yet\n" in text
    assert "last" not in text  # no shares of the last seconds yet
    assert "collector 0 ██████████████████▒▒▒▒▒▒▒▒▒▒▒▒▒▒····  50  38  12 collect 1.5 s\n" in text


def test_numbers_of_the_applications_own_have_a_line() -> None:
    text = render_text(at(130.0, measures={"prior top-1": 0.71823, "LLM trains": 12.0}), None, 79, 24)
    assert "prior top-1 0.718, LLM trains 12" in text
    assert "prior" not in render_text(at(130.0), None, 79, 24)


def test_a_role_that_was_not_there_yet() -> None:
    text = render_text(at(130.0), replace(at(100.0), roles=()), 79, 18)
    assert "collector 0 ██████████████▒▒▒▒▒▒▒···  57  32  11  57  32  11 collect 1.5 s\n" in text


def test_a_queue_bounds_the_lag_and_not_the_staleness() -> None:
    text = render_text(
        at(130.0, statistics=STATISTICS | {"queue_capacity": 7, "lag_bound": 8, "collect_train_lag": 4}), None, 79, 18
    )
    assert "lag           ████████········ 4 now, mean 1.2, max 4; queue of 7\n" in text
    assert "staleness                      mean 1.2, max 3; no bound\n" in text


def test_many_collectors_are_folded_into_their_mean() -> None:
    late, early = at(130.0, 64), at(100.0, 64)
    waits = late.roles[5]._replace(state="waiting", doing="wait collect")
    late = replace(late, roles=(*late.roles[:5], waits, *late.roles[6:]))
    lines = render_text(late, early, 79, 18).splitlines()
    assert len(lines) == 18
    assert [line.split("  ")[0].rstrip(" █▒·") for line in lines[8:15]] == [
        "collector 0", "collector 1", "collector 2", "collector 3", "collectors 4-63", "learner", "evaluator",
    ]  # fmt: skip
    assert lines[12] == "collectors 4-63 ████████████████▒▒▒·  80  15   5  57  32  11 59 collect, 1 wai…"
    folded = render_text(late, early, 79, 10).splitlines()
    assert len(folded) == 10
    assert [line[:16].strip() for line in folded if "collector" in line[:10]] == ["collectors 0-63"]


def test_the_mean_of_folded_roles() -> None:
    def view(seconds: float) -> View:
        workers = tuple(role(f"worker-{i}", (1.0, 0.0, 0.0) if i < 4 else (0.0, 1.0, 0.0), seconds) for i in range(16))
        return at(seconds, 0, roles=workers)

    line = next(line for line in render_text(view(60.0), view(30.0), 79, 9).splitlines() if line.startswith("worker"))
    assert line.split() == [
        "workers",
        "0-15",
        "██████▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒",
        "25",
        "75",
        "0",
        "25",
        "75",
        "0",
        "16",
        "collect",
    ]


def test_nothing_is_wider_or_higher_than_the_terminal() -> None:
    views = [
        at(130.0),
        at(130.0, 64),
        at(0.0, 0, roles=(), counts=(), fills={}),
        at(130.0, 2, title="灯台" * 30),
    ]
    for view in views:
        for width in (1, 2, 7, 20, 39, 60, 79, 100, 200):
            for height in (1, 2, 5, 9, 18, 50):
                lines = render_text(view, at(100.0), width, height).splitlines()
                assert 1 <= len(lines) <= height
                assert max(map(len, lines)) <= width


def test_a_short_terminal_keeps_what_matters() -> None:
    lines = render_text(at(130.0), at(100.0), 79, 5).splitlines()
    assert [line.split()[0] for line in lines] == ["PriorZero:", "steps", "collectors", "learner", "score:"]


def test_forty_columns() -> None:
    lines = render_text(at(130.0), at(100.0), 39, 18).splitlines()
    assert lines[0] == "PriorZero: The L…  2:10 gone, 7:10 left"
    assert lines[7] == "            █a ▒w ·i        last 30 s %"
    assert lines[8] == "collector 0 ████████████▒▒·  80  15   5"


def test_a_long_warning_is_cut_and_only_the_last_ones_are_shown() -> None:
    view = at(130.0, warnings=("one", "two", "three", "four\nfive " + "x" * 200))
    lines = render_text(view, None, 79, 24).splitlines()
    assert lines[-3:] == ["two", "three", ("four five " + "x" * 200)[:78] + "…"]


def test_a_terminal_without_block_characters() -> None:
    from rich.console import Console

    console = Console(width=79, color_system=None)
    with console.capture() as captured:
        console.print(frame(at(130.0, title="灯"), at(100.0), 39, 18, ascii_only=True))
    text = captured.get()
    assert text.isascii()
    assert "collector 0 ############==.  80  15   5\n" in text


def test_a_frame_as_a_picture(tmp_path: Path) -> None:
    render_svg(at(130.0), tmp_path / "live.svg", at(100.0))
    picture = (tmp_path / "live.svg").read_text()
    assert "collector&#160;3" in picture
    assert "url(http" not in picture and "@font-face" not in picture


# -- plain or live -----------------------------------------------------------------------------------------------------


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    with Terminal() as terminal:
        monkeypatch.setenv("TERM", "xterm-256color")
        yield terminal


@pytest.fixture
def standard(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the terminal stdout and stderr. Called by the test itself, since pytest sets them before it."""

    def change() -> None:
        monkeypatch.setattr(sys, "stdout", terminal.stream)
        monkeypatch.setattr(sys, "stderr", terminal.stream)

    return change


def test_lines_where_there_is_no_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with (tmp_path / "log").open("w+") as stream:
        progress = make_progress(False, stream)
        assert type(progress) is Progress
        progress.watch(lambda: pytest.fail("nobody looks"))
        progress.show("a line")
        progress.note("a note")
        progress.clear()
        stream.seek(0)
        assert stream.read() == "a line\na note\n"


def test_when_a_terminal_gets_lines(
    terminal: Terminal, standard: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    standard()
    assert type(make_progress(False)) is LiveProgress
    assert type(make_progress(True)) is Progress
    with monkeypatch.context() as without_rich:
        without_rich.setattr(live.importlib.util, "find_spec", lambda name: None)
        assert type(make_progress(False)) is Progress
    monkeypatch.setenv("TERM", "dumb")
    progress = make_progress(False, terminal.stream)
    assert type(progress) is Progress
    progress.show("one", now=True)
    progress.show("two", now=True)
    assert terminal.output() == "one\r\ntwo\r\n"


# -- on a terminal -----------------------------------------------------------------------------------------------------


def expected(view: View, recent: View | None = None) -> list[str]:
    return render_text(view, recent, 79, 18).splitlines()


def test_the_last_state_stays_and_the_cursor_is_shown(terminal: Terminal, standard: Callable[[], None]) -> None:
    standard()
    views = iter([at(100.0), at(130.0)])
    progress = LiveProgress(terminal.stream, every=3600.0)
    progress.show("before the run", now=True)
    progress.watch(lambda: next(views))
    progress.show("not needed", now=True)
    progress.note("a note")
    progress.clear()
    assert progress._threads.alive() == []  # the interval was not waited for
    assert (sys.stdout, sys.stderr) == (terminal.stream, terminal.stream)
    progress.note("a note after it")
    output = terminal.output()
    assert "\x1b[32m" in output  # in colour
    shown = Shown(output)
    assert shown.cursor
    assert shown.lines == ["a note", *expected(at(130.0), at(100.0)), "a note after it", ""]


def test_recent_means_the_last_thirty_seconds(terminal: Terminal) -> None:
    seconds = itertools.count(100)
    painter = live._Painter(Screen(terminal.stream), lambda: at(float(next(seconds))), terminal.stream, 1.0)
    shown: list[str] = []
    painter._screen.paint = shown.append  # type: ignore[method-assign]
    for _ in range(50):
        painter.paint()
    found = [re.search(r"last (..) s", block) for block in shown]
    assert [match and int(match[1]) for match in found] == [None, *range(1, 31), *[30] * 19]


def test_whatever_is_printed_comes_whole_above_the_view(
    terminal: Terminal, standard: Callable[[], None], tmp_path: Path
) -> None:
    standard()
    kept = logging.StreamHandler(terminal.stream)  # made before, by somebody else
    other = logging.getLogger("somebody.else")
    other.addHandler(kept)
    progress, talkers = LiveProgress(terminal.stream, every=0.0005), ThreadGroup(RealClock(), "talk")
    says: dict[str, Callable[[str], object]] = {
        "note": progress.note,
        "print": print,
        "error": lambda text: print(text, file=sys.stderr, flush=True),
        "log": logging.getLogger("lzero_async.x").warning,
        "other": other.warning,
    }

    def talk(word: str) -> None:
        for number in range(50):
            says[word](f"{word} {number} " + "-" * (number % 60))

    with logging_to(tmp_path, "zoo"):
        progress.watch(lambda: at(130.0))
        print("begun ", end="", flush=True)
        for word in says:
            talkers.start(word, partial(talk, word))
        assert talkers.join(30) == []
        print("and ended")
        print("never ended", end="")
        progress.clear()
    assert kept.stream is terminal.stream
    other.removeHandler(kept)
    assert progress._threads.failures == talkers.failures == []
    last = [*expected(at(130.0)), "never ended"]
    lines = Shown(terminal.output()).lines
    assert lines[-len(last) :] == last
    above = lines[: -len(last)]
    for word in says:
        texts = [f"{word} {number} ".rstrip() + (" " + "-" * (number % 60)) * bool(number % 60) for number in range(50)]
        assert [line for line in above if line.startswith(f"{word} ")] == texts
    assert above.count("begun and ended") == 1
    assert len(above) == 50 * len(says) + 1
    assert "Traceback" not in (tmp_path / "run.log").read_text()


def test_the_log_on_the_screen_goes_to_what_stderr_is_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    with logging_to(tmp_path, "zoo"):
        monkeypatch.setattr(sys, "stderr", said)
        logging.getLogger("zoo.x").info("not for the screen")
        logging.getLogger("zoo.x").warning("beware of %s", "dogs")
    assert said.getvalue() == "beware of dogs\n"


def test_bars_and_colours_of_others(terminal: Terminal, standard: Callable[[], None]) -> None:
    standard()
    progress = LiveProgress(terminal.stream, every=3600.0)
    progress.watch(lambda: at(130.0))
    for share in (10, 50, 100):
        sys.stderr.write(f"\rloading {share}%")
        sys.stderr.flush()
    print(file=sys.stderr)
    sys.stderr.writelines(["50%\r", "60%\r", "\n"])
    print("\x1b[1A\x1b[2Kup \x1b]0;title\x07\x1b[31mred")
    assert sys.stderr.isatty()
    progress.clear()
    output = terminal.output()
    assert "up \x1b[31mred\x1b[0m\r\n" in output
    assert Shown(output).lines == ["loading 100%", "60%", "up red", *expected(at(130.0)), ""]


def test_what_goes_to_a_file_still_goes_there(
    terminal: Terminal, standard: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standard()
    with (tmp_path / "out").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        progress = LiveProgress(terminal.stream, every=3600.0)
        progress.watch(lambda: at(130.0))
        print("kept")
        progress.clear()
    assert (tmp_path / "out").read_text() == "kept\n"
    assert Shown(terminal.output()).lines == [*expected(at(130.0)), ""]


def test_a_handler_made_meanwhile_goes_on_afterwards(terminal: Terminal, standard: Callable[[], None]) -> None:
    standard()
    progress = LiveProgress(terminal.stream, every=3600.0)
    progress.watch(lambda: at(130.0))
    stream = sys.stderr
    progress.clear()
    stream.write("after")
    stream.flush()
    assert Shown(terminal.output()).lines == [*expected(at(130.0)), "after"]


def test_a_view_that_fails_gives_way_to_lines(terminal: Terminal, standard: Callable[[], None], tmp_path: Path) -> None:
    standard()

    def fail() -> View:
        raise ValueError("no view")

    progress = LiveProgress(terminal.stream, every=3600.0)
    with logging_to(tmp_path, "zoo"):
        progress.watch(fail)
        assert progress._threads.join(30) == []
        assert sys.stderr is terminal.stream
        progress.show("a line instead", now=True)
        progress.clear()
    output = terminal.output()
    assert "a line instead" in output
    assert "The live view ends (ValueError('no view')); lines are shown instead.\r\nTraceback" in output


def test_a_view_that_cannot_begin_gives_way_to_lines(
    terminal: Terminal, standard: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no handlers")

    standard()
    monkeypatch.setattr(Screen, "_redirect_handlers", fail)
    progress = LiveProgress(terminal.stream)
    progress.watch(lambda: at(130.0))
    assert (sys.stdout, sys.stderr) == (terminal.stream, terminal.stream)
    progress.note("a note")
    progress.clear()
    assert Shown(terminal.output()).lines[-2:] == ["a note", ""]


def test_a_view_that_fails_at_the_end_does_not_hide_why_the_run_ended(
    terminal: Terminal, standard: Callable[[], None], tmp_path: Path
) -> None:
    standard()
    views = iter([at(130.0)])
    progress = LiveProgress(terminal.stream, every=3600.0)

    def run() -> None:
        progress.watch(lambda: next(views))
        try:
            raise ValueError("the run's own")
        finally:
            progress.clear()

    with logging_to(tmp_path, "zoo"), pytest.raises(ValueError, match="the run's own"):
        run()
    assert sys.stderr is terminal.stream
    assert Shown(terminal.output()).lines[:-1] == [
        "The last state of the run could not be shown: StopIteration()",
        *expected(at(130.0)),
    ]


def test_a_terminal_that_gets_narrower_has_wrapped_the_lines(terminal: Terminal) -> None:
    screen = Screen(terminal.stream)
    screen.begin()
    screen.paint("x" * 79 + "\n" + "\x1b[32myy\x1b[0m\n\n")
    terminal.resize(30, 24)
    screen.above("note\n")  # without a block that would not fit
    screen.paint("z\n")
    terminal.resize(60, 24)
    screen.paint("")
    screen.end()
    assert screen.size() == (60, 24)
    output = terminal.output()
    assert re.findall(r"\x1b\[(\d+)A", output) == ["5", "1"]
    assert output.count("x" * 79) == 1


# -- a whole run -------------------------------------------------------------------------------------------------------

SMALL_RUN = [
    "--n_envs", "2", "--num_workers", "1", "--episodes_per_update", "4", "--total_episodes", "24", "--hidden_size", "8",
    "--hidden_layers", "1", "--epochs", "1", "--eval_every", "2", "--eval_episodes", "2", "--device", "cpu", "--backend",
    "thread", "--report", "false",
]  # fmt: skip


def test_a_run_is_watched_from_its_beginning_to_its_end(
    terminal: Terminal, standard: Callable[[], None], tmp_path: Path
) -> None:
    from zoo.episode_ppo.train import main

    standard()
    assert main([*SMALL_RUN, "--exp_name", str(tmp_path / "run")]) == 0
    shown = Shown(terminal.output())
    titles = [place for place, line in enumerate(shown.lines) if line.startswith("Whole-episode PPO: CartPole-v1  ")]
    assert shown.cursor
    assert len(titles) == 1
    above, frame = shown.lines[: titles[0]], shown.lines[titles[0] : shown.lines.index("=" * 80)]
    assert re.fullmatch(r"episodes trained +█+ 24 of 24  .*", frame[1])
    assert [line.split(" ")[0] for line in frame if re.match("(collector|learner|evaluator)", line)] == [
        "collector", "collector", "learner", "evaluator",
    ]  # fmt: skip
    assert re.fullmatch(r"mean return: last .*, best .*; collected episodes .*", frame[-2])
    assert any(line.startswith("evaluation after 16 episodes") for line in above)
    assert sys.stderr is terminal.stream


def test_a_run_that_is_closed_is_watched_no_more(
    terminal: Terminal, standard: Callable[[], None], tmp_path: Path
) -> None:
    from zoo.episode_ppo.envs.factories import describe
    from zoo.episode_ppo.options import build_options
    from zoo.episode_ppo.trainer import Trainer

    standard()
    options = build_options({"backend": "thread", "n_envs": 1, "num_workers": 1, "exp_name": str(tmp_path)})
    trainer = Trainer(options, tmp_path, describe(options.env, options.env_args))
    assert isinstance(trainer.progress, LiveProgress)
    trainer.progress.watch(trainer.view)
    assert sys.stderr is not terminal.stream
    trainer.close()
    assert sys.stderr is terminal.stream


def test_a_run_in_plain_lines(terminal: Terminal, standard: Callable[[], None], tmp_path: Path) -> None:
    from zoo.episode_ppo.train import main

    standard()
    assert main([*SMALL_RUN, "--plain", "true", "--exp_name", str(tmp_path / "run")]) == 0
    output = terminal.output()
    assert "\x1b" not in output
    assert output.count("\r") == output.count("\r\n")
    assert "Update complete" in output


# -- the end of the program --------------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, threading, warnings
from lzero_async.telemetry.terminal.live import make_progress
from lzero_async.runs.run_dir import exit_code
from lzero_async.core.running.signals import OrderlyStop
from tests.telemetry.test_live import at

def run():
    progress, told = make_progress(False), threading.Event()
    progress.watch(lambda: at(130.0))
    stop = OrderlyStop(lambda name: told.set())
    stop.install()
    try:
        {body}
    finally:
        stop.restore()
        progress.clear()
    return 0

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
sys.exit(exit_code(run))
"""
INTERRUPTED = "os.kill(os.getpid(), signal.SIGINT); told.wait(); signal.raise_signal(signal.SIGINT)"
SAID = "SIGINT: ending in order, after what runs now; once more to interrupt."


def run_program(terminal: Terminal, body: str) -> tuple[int, Shown]:
    program = PROGRAM.format(body=body)
    environment = os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT)}
    command, fd = [sys.executable, "-c", program], terminal.fd
    child = subprocess.Popen(command, cwd=ROOT, stdin=fd, stdout=fd, stderr=fd, env=environment)
    terminal.close_fd()
    code = child.wait(60)
    return code, Shown(terminal.output())


def test_interrupted_in_order_and_at_once() -> None:
    with Terminal() as terminal:
        code, shown = run_program(terminal, INTERRUPTED)
    assert code == 130
    assert shown.cursor
    assert shown.lines == [
        SAID, *expected(at(130.0)), "",
        "interrupted at once; the last checkpoint, if there was one yet, is still there.", "",
    ]  # fmt: skip


def test_an_error_ends_the_view_first() -> None:
    with Terminal() as terminal:
        code, shown = run_program(terminal, "warnings.warn('beware'); raise ValueError('a failure')")
    assert code == 1
    assert shown.cursor
    frame = expected(at(130.0))
    warned = shown.lines.index(frame[0])
    assert shown.lines[0].endswith(": UserWarning: beware")
    assert shown.lines[warned : warned + len(frame) + 1] == [*frame, "Traceback (most recent call last):"]
    assert shown.lines[-2:] == ["ValueError: a failure", ""]


def test_a_killed_program_leaves_the_cursor() -> None:
    with Terminal() as terminal:
        code, shown = run_program(
            terminal, "print('x'); progress._threads.wait_for_change(9, 0.0); os.kill(os.getpid(), 9)"
        )
    assert code == -signal.SIGKILL
    assert shown.cursor
