"""The library's own programs: `python -m lzero_async compare` puts a synchronous and an asynchronous run side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lzero_async.compare.command import main as compare
from lzero_async.run_folder import BAD_INPUT

PROGRAMS = {"compare": compare}
USAGE = """usage: python -m lzero_async compare --app mbpo|priorzero|episode_ppo ...

  compare   run an application synchronously and asynchronously on the same work and show both side by side

python -m lzero_async compare --help explains its options."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program that the first word names; return its exit code, 2 where there is no such program."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in PROGRAMS:
        return PROGRAMS[words[0]](words[1:])
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
