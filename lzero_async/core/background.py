"""Starting background evaluations, from threads and from event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from lzero_async.core.evaluator import EvalOwner, Job
from lzero_async.core.keeping.parked import PAUSED, Holder, MakeWaiter
from lzero_async.core.looking import CoordinatorView
from lzero_async.core.running.coroutines import FutureWaiter
from lzero_async.core.weights import WeightStore
from lzero_async.errors import GateTimeout
from lzero_async.types import EvalContext, Waiter
from lzero_async.validation import time_limit


class EvaluationStarter(CoordinatorView):
    """The part of a coordinator that hands evaluations over to its evaluator."""

    weights: WeightStore

    def start_background_eval(
        self,
        fn: Callable[..., Any],
        *,
        with_context: bool,
        timeout: float | None = None,
        run: EvalOwner | None = None,
    ) -> None:
        """Evaluate in the background whatever `enable_async_eval` says; a coroutine function gets a loop of its own. `run`
        gets the result instead of `poll_eval`."""
        time_limit("timeout", timeout)
        job = Job(fn, with_context, self._eval_context(), None, run)
        deadline = None if timeout is None else self.clock.now() + timeout
        while (waiter := self._submit(job, self.clock.waiter)) is not None:
            if not waiter.wait(None if deadline is None else max(0.0, deadline - self.clock.now())):
                raise self._no_evaluation(timeout, run)

    def _submit(self, job: Job, make_waiter: MakeWaiter) -> Waiter | None:
        """Start a background evaluation, or return what to wait on before asking again."""
        try:
            return self._keeper.while_paused(make_waiter) or self.evaluator.submit(job, make_waiter)
        except BaseException:
            self._keeper.unlock()
            raise

    def _no_evaluation(self, timeout: float | None, run: EvalOwner | None) -> GateTimeout:
        why = PAUSED if self._keeper.pauses.count else "another one still runs"
        error = GateTimeout(f"Waited {timeout:.3g} s in vain to start an evaluation: {why}.")
        error.holder = Holder(run)
        return error

    async def _submit_from_loop(self, fn: Callable[..., Any], with_context: bool, timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        job = Job(fn, with_context, self._eval_context(), loop)
        deadline = None if timeout is None else self.clock.now() + timeout
        while (waiter := self._submit(job, lambda: FutureWaiter(loop))) is not None:
            left = None if deadline is None else max(0.0, deadline - self.clock.now())
            done, _ = await asyncio.wait((cast(FutureWaiter, waiter).future,), timeout=left)
            if not done:
                raise self._no_evaluation(timeout, None)

    def _eval_context(self) -> EvalContext:
        snapshot = self.weights.latest()
        return EvalContext(
            self._keeper.gate.version if snapshot is None else snapshot.version, snapshot, self._keeper.signal
        )
