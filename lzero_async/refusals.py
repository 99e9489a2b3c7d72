"""What the system refuses to this process, threads and open files: every coordinator that is open hears of it, whoever asked.

The limits are those of the process, so it does not matter for which run the thread or the file was wanted.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from typing import Final, Protocol

from lzero_async.errors import TOO_MANY_FILES, SystemRefused, out_of_files

THREAD, DESCRIPTOR = "thread", "descriptor"
_REMEDIES: Final = {
    THREAD: "no more threads can be started; raise the limit of threads (ulimit -u), or use fewer workers.",
    DESCRIPTOR: TOO_MANY_FILES,
}
_TOLD: Final = "_lzero_async_told"
log = logging.getLogger("lzero_async")


class Hearer(Protocol):
    """Whoever counts refusals."""

    def refused(self, kind: str) -> None:
        """The system refused a THREAD or a DESCRIPTOR; called in any thread."""


_hearers: dict[int, weakref.ref[Hearer]] = {}  # without a lock, which an interrupt could leave locked


def hear_refusals(hearer: Hearer) -> None:
    """Let it hear of every refusal from now on, as long as somebody else holds on to it."""
    key = id(hearer)
    _hearers[key] = weakref.ref(hearer, lambda gone: _hearers.pop(key, None))


def ignore_refusals(hearer: Hearer) -> None:
    """Let it hear no more; any number of times."""
    _hearers.pop(id(hearer), None)


def tell_refusal(error: BaseException) -> None:
    """If this failure, or what caused it, is a refusal that nobody has heard of, log it and let everybody hear of it."""
    hearers = [hearer for each in list(_hearers.values()) if (hearer := each()) is not None]
    refusals = [(each, kind) for each in _causes(error) if (kind := _kind(each))]
    if not hearers or not refusals or any(hasattr(each, _TOLD) for each, _ in refusals):
        return
    for each, _ in refusals:
        setattr(each, _TOLD, True)
    kind = refusals[0][1]
    log.warning("%s", error if isinstance(error, SystemRefused) else f"{error!r}: {_REMEDIES[kind]}")
    for hearer in hearers:
        hearer.refused(kind)


def _kind(error: BaseException) -> str:
    if isinstance(error, SystemRefused):
        return error.kind
    if isinstance(error, OSError) and out_of_files(error):
        return DESCRIPTOR
    return THREAD if isinstance(error, RuntimeError) and str(error) == "can't start new thread" else ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it came from, the last first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
