"""The errors of the library, as one small tree.

LzeroAsyncError
├── ConfigError (also ValueError)      an argument or a saved state that cannot be used
├── GateTimeout (also TimeoutError)    a wait ran out; the message names the rule that blocks
├── Stopped                            the run has ended: this call was released, not served
│   └── CoordinatorClosed              the same, after ``close()``
├── WorkerError                        something about a worker of a backend
│   ├── WorkerDied                     its process ended, hung or was closed under this call
│   └── RemoteError                    its role raised what cannot be brought here; the text of that
├── QueueClosed                        a queue was closed under this call
└── Deadlock                           (testing) every thread waits and no timer is left
"""

from __future__ import annotations


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


class RemoteError(WorkerError):
    """A role raised an exception that cannot be brought to the caller; says what it was."""


class QueueClosed(LzeroAsyncError):
    """The queue was closed: nothing more goes in, and nothing is left to take out."""


class Deadlock(LzeroAsyncError):
    """Every thread on a virtual clock waits and no timer is left to wake one."""
