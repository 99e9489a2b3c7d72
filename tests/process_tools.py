"""What tests ask of the system about processes."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from pathlib import Path

from tests.commands import template_pids


def children(parent: int | None = None) -> set[int]:
    """The children of a process, of this one if none is named; dead ones that were not reaped included, and not those that the
    tests' programs are forked from."""
    mine = f" {parent or os.getpid()} "
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if path.read_text().rpartition(")")[2][2:].startswith(mine):
                found.add(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found - template_pids()


def ended(pids: Iterable[int], seconds: float = 10.0) -> bool:
    """Whether all these processes, of whomever, end in time; one that was not reaped has ended."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([process], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return False
        finally:
            os.close(process)
    return True
