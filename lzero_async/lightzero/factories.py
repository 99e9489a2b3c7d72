"""How the roles are made; LightZero is imported only where they live."""

from __future__ import annotations

import contextlib
import importlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lzero_async.lightzero.parts import Parts, Plan

Emit = Callable[[Any], None]
PRELOAD: Final = ("lzero_async.lightzero.preload",)


class Together:
    """The parts that the roles of one process share, made when the first role is. What LightZero says goes to a file, as it does
    from roles that have a process."""

    def __init__(self, plan: Plan, threads: int = 0) -> None:
        self._plan, self._threads, self._output = plan, threads, Path(plan.folder) / "lightzero.out"
        self._parts: Parts | None = None

    def parts(self) -> Parts:
        """The one `Parts` of all roles."""
        from lzero_async.lightzero.parts import ALL, Parts

        if self._parts is None:
            if self._threads:
                importlib.import_module("torch").set_num_threads(self._threads)
            with self.speaking_apart(), _without_interrupts():
                self._parts = Parts(self._plan, ALL)
        return self._parts

    @contextlib.contextmanager
    def speaking_apart(self) -> Iterator[None]:
        """What is printed inside goes to the file."""
        with (
            self._output.open("a") as file,
            contextlib.redirect_stdout(file),
            contextlib.redirect_stderr(file),
        ):
            yield


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are started inside (DI-engine's environments) never see the terminal's Ctrl+C: the run ends them itself,
    in order. One that comes meanwhile is told afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Apart:
    """A role whose methods speak apart."""

    def __init__(self, role: Any, together: Together) -> None:
        self._role, self._together = role, together

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._role, name)

        def called(*args: Any, **kwargs: Any) -> Any:
            with self._together.speaking_apart():
                return method(*args, **kwargs)

        return called


def _role(
    kind: Callable[[Parts, Emit], Any], name: str, plan: Plan, worker: int, together: Together | None, emit: Emit
) -> Any:
    from lzero_async.lightzero.parts import Parts

    if together is None:
        return kind(Parts(plan, (name,), worker), emit)
    return _Apart(kind(together.parts(), emit), together)


def learner(plan: Plan, together: Together | None, emit: Emit) -> Any:
    """The learner."""
    from lzero_async.lightzero.learner import LearnerRole

    return _role(LearnerRole, "learner", plan, 0, together, emit)


def collector(plan: Plan, worker: int, together: Together | None, emit: Emit) -> Any:
    """A collector."""
    from lzero_async.lightzero.players import CollectorRole

    return _role(CollectorRole, "collector", plan, worker, together, emit)


def evaluator(plan: Plan, together: Together | None, emit: Emit) -> Any:
    """The evaluator."""
    from lzero_async.lightzero.players import EvaluatorRole

    return _role(EvaluatorRole, "evaluator", plan, 0, together, emit)
