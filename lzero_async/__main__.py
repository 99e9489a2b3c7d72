"""The library's own programs: report, timeline, advise and compare."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final

from lzero_async.runs.run_dir import BAD_INPUT

PROGRAMS: Final = {
    "report": "one HTML page about a run, or about several side by side",
    "timeline": "what the roles of a run did, as text and as a picture",
    "advise": "which off_policy_degree and how many collectors suit a run, by simulation",
    "compare": "run an application synchronously and asynchronously on the same work and show both side by side",
}
USAGE: Final = "\n".join(
    [
        "usage: python -m lzero_async PROGRAM ...",
        "",
        *(f"  {name:10}{meaning}" for name, meaning in PROGRAMS.items()),
        "",
        "python -m lzero_async PROGRAM --help explains its options.",
    ]
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that the first word names; return its exit code, 2 where there is no such program."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in PROGRAMS:
        program = importlib.import_module(f"lzero_async.tools.{words[0]}.command")
        return int(program.main(words[1:]))
    if words and words[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    if words:
        print(f"error: there is no program {words[0]!r}; choose one of {', '.join(PROGRAMS)}.", file=sys.stderr)
    else:
        print(USAGE, file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
