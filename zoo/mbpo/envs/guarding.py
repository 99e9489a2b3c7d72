"""What becomes of an environment that fails: its episode is left out and counted, and a new one begins. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from lzero_async.errors import BadData, ConfigError, StepOverdue
from lzero_async.workers.step_watch import StepWatch

STEP_TIMEOUT: Final = 300.0
BAD_EPISODE, STUCK = (
    "bad episode",
    "stuck",
)  # what a role tells its owner: (BAD_EPISODE, kind, sentence), (STUCK, sentence)
KINDS: Final = ("not_finite", "shape", "type", "crash", "timeout")
ATTEMPTS: Final = 5  # failures in a row after which an environment that has never worked is given up
HOPELESS: Final = (
    ImportError,
    TypeError,
    AttributeError,
    NameError,
    NotImplementedError,
)  # no seed makes these go away
_NOTHING: Final = nullcontext()


class Guard:
    """Watches the calls of one role's environments and tells what fails.

    `given_up()` says whether the run stops, so that a call that was interrupted is no failure.
    """

    def __init__(
        self, name: str = "", watch: StepWatch | None = None, tell: Callable[[Any], None] | None = None
    ) -> None:
        self._name, self._watch, self._tell = name, watch, tell
        self.given_up: Callable[[], bool] = lambda: False
        self.works = False  # an environment has made a step that can be used
        self._failures = 0
        self.bad_episodes = 0

    def running(self, what: str) -> AbstractContextManager[None]:
        """A context for one call."""
        return _NOTHING if self._watch is None else self._watch.running(f"{self._name}, {what}")

    def is_given_up(self, error: Exception) -> bool:
        """Whether it says that a call was interrupted because the run stops."""
        return isinstance(error, StepOverdue) and self.given_up()

    def failed(self, env: str, place: str, error: Exception) -> None:
        """An episode failed: count and tell it. Raises ConfigError for what can never succeed, and `error` itself when the
        run stops."""
        if isinstance(error, ConfigError) or self.is_given_up(error):
            raise error
        kind, text = _described(error, place)
        if not self.works:
            self._failures += 1
            if self._failures == ATTEMPTS or isinstance(error, HOPELESS):
                raise ConfigError(f"{env} cannot be used: {text}; repair the environment.") from error
        self.bad_episodes += 1
        if self._tell is not None:
            self._tell((BAD_EPISODE, kind, f"{self._name}: {text}" if self._name else text))


def _described(error: Exception, place: str) -> tuple[str, str]:
    if isinstance(error, BadData):
        return error.kind.replace(" ", "_"), str(error)
    if isinstance(error, StepOverdue):
        return "timeout", str(error)
    return "crash", f"{place} failed with {type(error).__name__}: {error}"
