"""The program: read the runs, write the page, from top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lzero_async.errors import ConfigError
from lzero_async.runs.options import program_parser
from lzero_async.runs.run_dir import REPORT, exit_code
from lzero_async.tools.report import headline, key_metrics, learning, staleness, strips, working
from lzero_async.tools.report.inputs import Material, read_all
from lzero_async.tools.report.markup import Html, html, section
from lzero_async.tools.report.stylesheet import STYLE

# The browser is told to load nothing and to run nothing, whatever the files of a run put into the page.
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def main(arguments: Sequence[str]) -> int:
    """Write the report that the command line asks for; return the exit code: 0 done, 2 bad input."""
    return exit_code(lambda: _report(arguments), "--out")


def _report(arguments: Sequence[str]) -> int:
    parser = program_parser("report", "One HTML page about one or several runs.")
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="the folder of a run")
    parser.add_argument(
        "--out",
        type=Path,
        help=f"file to write (default: {REPORT} in the run's folder, of several runs in this folder)",
    )
    options = parser.parse_args(arguments)
    out: Path = options.out or (options.runs[0] / REPORT if len(options.runs) == 1 else Path(REPORT))
    if out.is_dir():
        raise ConfigError(f"--out is {out}, which is a folder; give the name of a file.")
    write_report(options.runs, out)
    print(f"report: {out}")
    return 0


def write_report(folders: Sequence[Path], out: Path) -> None:
    """Write the page about the runs in these folders; ConfigError where one of them holds nothing of a run."""
    page = _page(read_all(folders))
    out.parent.mkdir(parents=True, exist_ok=True)
    new = out.with_name(f"{out.name}.new")
    new.write_text(page, encoding="utf-8")
    new.replace(out)


def _page(runs: Sequence[Material]) -> str:
    """One HTML document about these runs; it needs no other file, no network and no script."""
    one = runs[0] if len(runs) == 1 else None
    head = html(
        "head",
        html("meta", charset="utf-8"),
        html("meta", http_equiv="Content-Security-Policy", content=POLICY),
        html("meta", name="viewport", content="width=device-width, initial-scale=1"),
        html("meta", name="color-scheme", content="light dark"),
        html("title", headline.title_of(runs)),
        html("style", Html(STYLE)),
    )
    main = html(
        "main",
        key_metrics.tiles(one) if one is not None else key_metrics.comparison(runs),
        learning.scores(runs),
        working.throughput(runs),
        working.where_time_went(runs),
        staleness.staleness_and_lag(runs),
        strips.timeline(runs),
        key_metrics.trouble(runs),
        learning.scalars(runs),
        headline.settings(runs),
        _missing(runs),
    )
    body = html("body", headline.header(runs), main, html("footer", html("p", "Made by lzero_async report.")))
    return f"<!doctype html>\n{html('html', head, body, lang='en')}\n"


def _missing(runs: Sequence[Material]) -> Html | None:
    lines = [f"{run.name}: {text}" if len(runs) > 1 else text for run in runs for text in run.missing]
    if not lines:
        return None
    return section("missing", "What is missing here", html("ul", [html("li", line) for line in lines]))
