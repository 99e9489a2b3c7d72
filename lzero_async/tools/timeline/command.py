"""The program: `lzero-async timeline RUN` shows what the roles of a run did when."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Final

from lzero_async.errors import ConfigError
from lzero_async.runs.options import program_parser, with_underscores
from lzero_async.runs.run_dir import exit_code
from lzero_async.tools.timeline import text
from lzero_async.tools.timeline.kinds import FAILED, kind_of, legend
from lzero_async.tools.timeline.reading import Survey, read, survey, usual_length
from lzero_async.tools.timeline.stretch import CELLS, Stretch
from lzero_async.tools.traces import TRACE, find_trace
from lzero_async.validation import number_between, positive_number, whole_number

DESCRIPTION: Final = """Show what the roles of a run did when, from its trace: the whole run, and a part of it in which single
collects and trains can be seen; as text, and as a picture beside the trace.

  lzero-async timeline runs/mine                            the whole run, and a part from its middle
  lzero-async timeline runs/mine --from 60 --seconds 5      another part
  lzero-async timeline runs/mine --batch 12                 the way of one batch: its collect, its train
  lzero-async timeline runs/mine/trace-1.json               a file: what a run did before it was resumed

docs/timeline.md says how to read it. The trace itself opens in Perfetto (ui.perfetto.dev)."""
COUNTED: Final = {
    "collect": ("collect", "collects"),
    "train": ("train", "trains"),
    "replay": ("train on old data", "trains on old data"),
    "eval": ("evaluation", "evaluations"),
}
TEXT_WIDTH: Final = 100
WIDTHS: Final = (20, 500)
_MARGIN: Final = 0.15  # of its way, before and after what happened to a batch


@dataclass(frozen=True)
class Request:
    """What is to be shown."""

    run: Path
    start: float | None
    seconds: float | None
    width: int
    out: Path | None
    batch: int | None


def _parser() -> argparse.ArgumentParser:
    parser = program_parser("timeline", DESCRIPTION)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run, or a trace file")
    parser.add_argument(
        "--from", type=float, dest="start", metavar="SECONDS", help="where the part begins (default: the middle)"
    )
    parser.add_argument(
        "--seconds", type=float, metavar="N", help="how long the part is (default: a few collects and trains)"
    )
    parser.add_argument(
        "--batch", type=int, metavar="N", help="show the part in which this batch was collected and trained"
    )
    parser.add_argument("--width", type=int, default=CELLS, metavar="N", help=f"characters of a row (default: {CELLS})")
    parser.add_argument("--out", type=Path, metavar="PNG", help="the picture (default: timeline.png beside the trace)")
    return parser


def parse(arguments: Sequence[str]) -> Request:
    """The request; ConfigError in one sentence for what cannot be done. --help prints and exits."""
    flags = _parser().parse_args([with_underscores(word) for word in arguments])
    if flags.start is not None and flags.batch is not None:
        raise ConfigError("--from and --batch both choose where the part begins; leave one of them out.")
    if flags.start is not None:
        number_between("--from", flags.start, 0, 1e12)
    if flags.seconds is not None:
        positive_number("--seconds", flags.seconds)
    if flags.batch is not None:
        whole_number("--batch", flags.batch, 0)
    number_between("--width", flags.width, *WIDTHS)
    if flags.out is not None and flags.out.suffix != ".png":
        raise ConfigError(f"--out is {str(flags.out)!r}; its name must end with .png.")
    return Request(flags.run, flags.start, flags.seconds, flags.width, flags.out, flags.batch)


def main(arguments: Sequence[str]) -> int:
    """Show the timeline; return the exit code: 0 done, 2 bad input."""
    return exit_code(lambda: show(parse(arguments)), "--out")


def show(request: Request) -> int:
    """Write the picture and print the text."""
    path = find_trace(request.run)
    found = survey(path, request.batch)
    start, end = part(found, request)
    window = Stretch(start, end, request.width)
    is_whole = end - start >= found.seconds
    whole = None if is_whole else Stretch(0.0, found.seconds, request.width)
    read(found, [window] if whole is None else [whole, window], request.batch)
    out = request.out or path.with_name("timeline.png" if path.name == TRACE else f"timeline-{path.stem}.png")
    drawn, problem = _draw(out, found, whole, window, request.batch)
    print(_printable(as_text(found, whole, window, request.batch)), flush=True)
    if problem:
        raise ConfigError(problem)
    if drawn:
        print(f"\npicture: {out}")
    return 0


def part(found: Survey, request: Request) -> tuple[float, float]:
    """Where the part begins and ends, in seconds; ConfigError if it lies outside of the run."""
    if request.batch is not None:
        return _around_batch(found, request.batch, request.seconds)
    length = min(found.seconds, request.seconds or usual_length(found))
    start = text.start_of(found.seconds, length) if request.start is None else request.start
    if start >= found.seconds > 0:
        raise ConfigError(f"--from is {start:g}, but the trace ends at {found.seconds:.2f} s; choose a smaller one.")
    return start, min(found.seconds, start + length)


def _around_batch(found: Survey, batch: int, seconds: float | None) -> tuple[float, float]:
    if not found.batch:
        known = f"it has {found.first_batch} to {found.last_batch}" if found.last_batch >= 0 else "it has no batches"
        raise ConfigError(f"--batch is {batch}, which is not in the trace; {known}.")
    first, last = (choose(moments) for choose, moments in (
        (min, [span.start for span in found.batch.values()]), (max, [span.end for span in found.batch.values()])))  # fmt: skip
    margin = max(0.0, seconds - (last - first)) / 2 if seconds else _MARGIN * (last - first)
    return max(0.0, first - margin), min(found.seconds, last + margin)


def as_text(found: Survey, whole: Stretch | None, window: Stretch, batch: int | None) -> str:
    """All of it, for a screen of about 100 columns."""
    parts = [_heading(found)]
    if batch is not None:
        parts.append(_way_of(found, batch))
    for words, stretch in (("The whole run", whole), (f"From {window.start:.2f} to {window.end:.2f} s", window)):
        if stretch is not None:
            each = f"a character is {_seconds(stretch.length / stretch.cells)}"
            parts.append("\n".join([f"{words} ({each})", *text.draw(stretch)]))
    kinds = window.kinds | (whole.kinds if whole is not None else set())
    parts.append(f"{fill(legend(kinds), TEXT_WIDTH)}\n{text.LABELS}")
    return "\n\n".join(parts)


def _heading(found: Survey) -> str:
    failed = sum(count for name, count in found.names.items() if kind_of(name) == FAILED)
    shown = [f"{count:,} {words[count != 1]}" for name, words in COUNTED.items() if (count := found.names[name])]
    shown += [f"{failed:,} failed"] if failed else []
    going = (
        ""
        if found.closed
        else "\nThe trace is not closed: the run goes on, or it was killed. This is as far as it goes."
    )
    return f"{found.path}: {found.seconds:.1f} s, {', '.join(shown) or 'other work only'}{going}"


def _way_of(found: Survey, batch: int) -> str:
    """One batch in a sentence."""
    collect, train = found.batch.get("collect"), found.batch.get("train")
    parts = []
    if collect is not None:
        parts.append(f"collected by {collect.role} from {collect.start:.2f} to {collect.end:.2f} s")
    if collect is not None and train is not None:
        parts.append(f"waited {_seconds(train.start - collect.end)}")
    parts.append("never trained" if train is None else f"trained from {train.start:.2f} to {train.end:.2f} s")
    return f"Batch {batch}: {', '.join(parts)}."


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _draw(out: Path, found: Survey, whole: Stretch | None, window: Stretch, batch: int | None) -> tuple[bool, str]:
    """Whether the picture was written, and what a user can do if it could not."""
    try:
        from lzero_async.tools.timeline.picture import draw

        out.parent.mkdir(parents=True, exist_ok=True)
        name = found.path.resolve().parent.name if found.path.name == TRACE else found.path.name
        draw(out, f"{name}: {found.seconds:.1f} s", whole, window, batch)
    except ImportError as error:
        print(f"There is no picture, since {error.name} is not installed; pip install matplotlib.", file=sys.stderr)
        return False, ""
    except OSError as error:
        return False, f"The picture cannot be written to {out} ({error.strerror}); choose another --out."
    return True, ""


def _printable(words: str) -> str:
    """The text as the screen can show it; bars become question marks where it knows ASCII only."""
    known = sys.stdout.encoding or "utf-8"
    return words.encode(known, "replace").decode(known)
