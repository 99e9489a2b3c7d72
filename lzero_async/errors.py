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
├── QueueClosed                        a queue was closed under this call
└── Deadlock                           (testing) every thread waits and no timer is left
"""

from __future__ import annotations

import errno
from typing import Final

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
    """A wait for the gate ran out; says which rule blocks, with its numbers. `origin` is the gate's shell."""

    origin: object = None


class Stopped(LzeroAsyncError):
    """The run has ended, so the call was released without being served. `origin` is the gate's shell."""

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


class QueueClosed(LzeroAsyncError):
    """The queue was closed: nothing more goes in, and nothing is left to take out."""


class Deadlock(LzeroAsyncError):
    """Every thread on a virtual clock waits and no timer is left to wake one."""
