"""`for batch in coordinator.batches(collect=...)`: the body of the loop is the learner, in the calling thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lzero_async.core.running.collectors import Collect, CollectorSession
from lzero_async.core.running.coroutines import is_coroutine_function, running_loop
from lzero_async.core.running.own_loop import HeldTrain
from lzero_async.core.running.session import GRACE
from lzero_async.errors import ConfigError, GateTimeout, Stopped
from lzero_async.types import Batch
from lzero_async.validation import time_limit

if TYPE_CHECKING:
    from lzero_async.core.coordinator import AsyncTrainingCoordinator


def batches(
    coordinator: AsyncTrainingCoordinator,
    collect: Collect,
    *,
    max_train: int | None = None,
    max_collect: int | None = None,
    max_seconds: float | None = None,
    timeout: float | None = None,
    on_restart: Callable[[int, Exception], object] | None = None,
    on_retire: Callable[[int], object] | None = None,
    handle_signals: bool = True,
) -> Batches:
    """Iterate over the batches to train: the body of the `for` loop trains, in the calling thread.

    The collectors start with the first batch and stop with the loop: threads, or, at degree 0, in turn here. Asking for the
    next batch counts the last one as trained and publishes the weights. `break` or an exception leaves it first in line, not
    counted; collects that do not end within half a second are left behind. The loop ends by itself at max_train,
    max_collect or max_seconds, on stop() and on the first SIGINT or SIGTERM (`reason` of what this returns says why), and
    raises what a collector raised. timeout: seconds to wait for a batch. The other arguments are those of `run`.
    """
    return Batches(
        _BatchSession(
            coordinator,
            collect,
            max_train=max_train,
            max_collect=max_collect,
            max_seconds=max_seconds,
            on_restart=on_restart,
            on_retire=on_retire,
            patient=True,
        ),
        time_limit("timeout", timeout),
        handle_signals,
    )


class Batches(Iterator[Batch]):
    """What `batches` returns: an iterator that ends everything when the loop over it ends, in whatever way."""

    def __init__(self, session: _BatchSession, timeout: float | None, handle_signals: bool) -> None:
        self._session = session
        self._steps = session.steps(
            timeout, handle_signals
        )  # which does not know this object: leaving the loop ends it

    def __next__(self) -> Batch:
        return next(self._steps)

    @property
    def reason(self) -> str:
        """Why the loop ended: a limit's name, a signal's, or what stop() was given; empty before, and after `break`."""
        return self._session.reason

    def close(self) -> None:
        """End everything now; the batch at hand stays first in line."""
        self._steps.close()

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class _BatchSession(CollectorSession):
    """One such loop."""

    _held: HeldTrain | None = None

    def __init__(self, coordinator: AsyncTrainingCoordinator, collect: Collect, **session: Any) -> None:
        if is_coroutine_function(collect) and running_loop() is not None:
            raise ConfigError(
                "batches() would block this event loop, which its coroutine function may need; use "
                "`async with coordinator.training()`, or another thread."
            )
        super().__init__(coordinator, collect, **session)

    def steps(self, timeout: float | None, handle_signals: bool) -> Generator[Batch, None, None]:
        """The batches; what ends the generator, ends everything."""
        coordinator = self.coordinator
        try:
            coordinator.begin_run(self)
            yield from self._trains(timeout, handle_signals)
            self._shut_down()
        except BaseException as error:  # refused, left, or interrupted between any two lines
            self.keeper.heal()
            if not coordinator.is_run_by(self):
                raise
            self._shut_down_after(error)
        if self.failure is not None:
            raise self.failure

    def _trains(self, timeout: float | None, handle_signals: bool) -> Iterator[Batch]:
        self.begin(handle_signals)
        here, runner = self.coordinator.is_synchronous, self._new_runner()
        if not here:
            self.coordinator.threads.failures.clear()
            self.start_collectors()
        try:
            while not self._ended():
                asked = self.clock.now()
                try:
                    if here and (not self._collect_here(runner) or self._time_is_over()):
                        break
                    self.coordinator.raise_background_failure()
                    asked = self.clock.now()
                    self._held = HeldTrain(self.coordinator.train_stage(self), self._longest(timeout))
                    with self._held as batch:
                        yield batch
                except GateTimeout as error:
                    if (timeout is not None and self.clock.now() - asked >= timeout) or not self._was_paused(error):
                        raise
        except GateTimeout as error:
            if error.origin is not self.signal or not self._time_is_over():
                raise
        except Stopped as error:
            if error.origin is not self.signal:
                raise
            self._end(self.signal.stop_reason or str(error))
        finally:
            runner.close()
        self.coordinator.stop(self.reason, patient=self.patient)
        self._supervise()

    def _longest(self, timeout: float | None) -> float | None:
        left = self._patience()
        return left if timeout is None else timeout if left is None else min(left, timeout)

    def _collect_on_and_on(self, worker: int) -> None:
        try:
            super()._collect_on_and_on(worker)
        except BaseException:
            self.coordinator.stop("a collector failed", patient=False)  # the learner waits in another thread
            raise

    def _shut_down_after(self, error: BaseException) -> None:
        try:
            self._fail(error)
            self._shut_down()
        except BaseException as interrupt:  # after `break`, say: it is the first one
            self._fail(interrupt)
            self._shut_down()

    def _shut_down(self) -> None:
        if self._held is not None:  # an interrupt may have come before its end
            self._held.give_back(self.failure or GeneratorExit())
        if isinstance(self.failure, GeneratorExit):  # the loop was left: what ends in a moment is committed
            self.failure = None
            self.coordinator.stop("the loop was left")
            self.coordinator.threads.join(GRACE)
        super()._shut_down()
