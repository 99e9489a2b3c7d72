"""The errors of the library, as one small tree.

LzeroAsyncError
├── ConfigError (also ValueError)      an argument or a saved state that cannot be used
├── GateTimeout (also TimeoutError)    a wait ran out; the message names the rule that blocks
├── Stopped                            the run has ended: this call was released, not served
│   └── CoordinatorClosed              the same, after ``close()``
├── WorkerError                        something about a worker of a backend
│   ├── WorkerDied                     its process ended, hung or was closed under this call
│   │   └── WorkerStuck                it ended itself, because what it watched took too long
│   └── RemoteError                    its role raised what cannot be brought here; the text of that
├── SystemRefused                      the system has no thread or no open file left
├── BadData                            data that must not be trained
├── StepOverdue                        a watched call took too long and was interrupted
└── Deadlock                           (testing) every thread waits and no timer is left
"""

from __future__ import annotations

import errno
import logging
import weakref
from collections.abc import Iterator
from typing import Final, Protocol

TOO_MANY_FILES: Final = (
    "no more files can be open; raise the limit (ulimit -n), or keep fewer parcels and workers at once."
)


def out_of_files(error: OSError) -> bool:
    """Whether it says that no more files can be open, in this process or in the system."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class LzeroAsyncError(Exception):
    """Base of every error that the library itself raises."""


class ConfigError(LzeroAsyncError, ValueError):
    """An argument or a saved state that cannot be used; says the value, the range and the remedy."""


class GateTimeout(LzeroAsyncError, TimeoutError):
    """A wait for the gate ran out; says which rule blocks, with its numbers. `origin` is the coordinator's stop signal,
    `holder` whose wait it was."""

    origin: object = None
    holder: object = None


class Stopped(LzeroAsyncError):
    """The run has ended, so the call was released without being served. `origin` is the coordinator's stop signal."""

    origin: object = None


class CoordinatorClosed(Stopped):
    """The coordinator was closed, so the call was released without being served."""


class WorkerError(LzeroAsyncError):
    """Something about a worker of a backend."""


class WorkerDied(WorkerError):
    """The worker ended, hung or was closed under this call; says how. `restart()` gives a new one."""


class WorkerStuck(WorkerDied):
    """The worker ended itself, because a call that it watched (a step of an environment) did not return in time."""


class RemoteError(WorkerError):
    """A role raised an exception that cannot be brought to the caller; says what it was."""


class SystemRefused(LzeroAsyncError):
    """The system has no more of what was wanted; says what to do. `kind` is "thread" or "descriptor" (an open file)."""

    kind: str = ""


class BadData(LzeroAsyncError):
    """Data that must not be trained. Says what is wrong, where, and the value; `kind` is "not finite", "shape" or "type"."""

    kind: str = ""


class StepOverdue(LzeroAsyncError):
    """A call that `StepWatch` watches took too long; this is raised out of it in the main thread."""


class Deadlock(LzeroAsyncError):
    """Every thread on a virtual clock waits and no timer is left to wake one."""


# -- what the system refuses: every open coordinator hears of it, since the limits are those of the process ------------------

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
