"""The program: read a run or the times by hand, simulate, print the advice."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from lzero_async.core.trace import to_json
from lzero_async.errors import ConfigError
from lzero_async.runs.run_dir import exit_code
from lzero_async.tools.advise.arguments import Request, parse
from lzero_async.tools.advise.choose import advise
from lzero_async.tools.advise.measured import read_run
from lzero_async.tools.advise.show import as_json, as_text
from lzero_async.tools.advise.subject import Advised, by_hand, of_run


def main(arguments: Sequence[str]) -> int:
    """Print the advice; return the exit code: 0 done, 2 bad input."""
    return exit_code(lambda: _print(parse(arguments)), "RUN")


def _print(request: Request) -> int:
    advised = advised_of(request)
    advice = advise(advised, request)
    try:
        print(to_json(as_json(advised, advice), indent=1) if request.json else as_text(advised, advice), flush=True)
    except BrokenPipeError:  # who reads it has seen enough; nothing is to be written to it when Python ends either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def advised_of(request: Request) -> Advised:
    """What the request asks advice on."""
    advised = by_hand(request) if request.run is None else of_run(read_run(request.run), request)
    if request.envs and not advised.facts.size_flags:
        raise ConfigError(f"--envs is given, but the environments of {advised.title} cannot be chosen; leave it out.")
    return advised
