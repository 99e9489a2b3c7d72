"""What every backend promises, as checks that any test runner can run: `run_check(check, make_backend)` for each of CHECKS.

A check gets a fresh backend, which is closed after it. What a kind of backend cannot promise stands in EXEMPT, with the
reason.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Final

from lzero_async.testing.conformance import calls, endings, parcels
from lzero_async.testing.conformance.tools import AT_ONCE
from lzero_async.workers.backend import Backend

__all__ = ["AT_ONCE", "CHECKS", "EXEMPT", "Check", "applicable", "run_check"]

Check = Callable[[Backend], None]
CHECKS: Final[list[Check]] = [  # every function that these modules define
    check
    for module in (calls, endings, parcels)
    for check in vars(module).values()
    if isinstance(check, FunctionType) and check.__module__ == module.__name__
]
EXEMPT: Final[dict[tuple[str, str], str]] = {
    ("kill_during_a_call", "inline"): "code in the calling thread cannot be ended from outside",
    ("a_call_that_takes_too_long_ends_the_worker", "inline"): "nobody is there to watch the calling thread",
    ("a_timeout_holds_while_the_role_is_made", "inline"): "nobody is there to watch the calling thread",
    ("a_stop_holds_while_the_role_is_made", "inline"): "a role of this process is made by its first call",
    ("a_stop_holds_while_the_role_is_made", "thread"): "a role of this process is made by its first call",
    ("close_does_not_wait_for_a_role_that_is_being_made", "inline"): "a role of this process is made by its first call",
    ("close_does_not_wait_for_a_role_that_is_being_made", "thread"): "a role of this process is made by its first call",
    ("an_event_that_is_not_taken_in_disables_nothing", "inline"): "it is taken in by the calling thread",
    ("a_remote_traceback_is_the_cause", "inline"): "the exception itself is raised, with its own traceback",
    ("a_remote_traceback_is_the_cause", "thread"): "the exception itself is raised, with its own traceback",
    ("an_exception_that_cannot_travel", "inline"): "the exception itself is raised, wherever its class lives",
    ("an_exception_that_cannot_travel", "thread"): "the exception itself is raised, wherever its class lives",
    ("a_result_that_cannot_travel", "inline"): "results stay where they are",
    ("a_result_that_cannot_travel", "thread"): "results stay where they are",
    ("an_argument_that_cannot_travel", "inline"): "arguments stay where they are",
    ("an_argument_that_cannot_travel", "thread"): "arguments stay where they are",
}


def applicable(kind: str) -> list[Check]:
    """The checks that a backend of this kind must pass."""
    return [check for check in CHECKS if (check.__name__, kind) not in EXEMPT]


def run_check(check: Check, make_backend: Callable[[], Backend]) -> None:
    """Run one check on a backend of its own."""
    backend = make_backend()
    try:
        check(backend)
    finally:
        backend.close()
