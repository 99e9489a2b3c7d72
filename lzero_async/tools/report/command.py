"""The program: read the runs, write the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lzero_async.errors import ConfigError
from lzero_async.runs.options import program_parser
from lzero_async.runs.run_dir import REPORT, exit_code
from lzero_async.tools.report.inputs import read_all
from lzero_async.tools.report.page import make_page


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
    page = make_page(read_all(folders))
    out.parent.mkdir(parents=True, exist_ok=True)
    new = out.with_name(f"{out.name}.new")
    new.write_text(page, encoding="utf-8")
    new.replace(out)
