"""A loop of one's own: the exact forms `training()` and `collecting()` hold a batch or a ticket for a `with` block."""

from __future__ import annotations

import threading
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from lzero_async.core.gate import Ticket
from lzero_async.core.keeping.parked import Parked
from lzero_async.core.running.coroutines import enter_awaiting, leave_awaiting
from lzero_async.core.stages import CollectStage, Stage, TrainStage, block
from lzero_async.errors import LzeroAsyncError
from lzero_async.types import Batch, CollectContext, Snapshot, StopSignal

Given = TypeVar("Given")


class OpenCollect:
    """An admitted collect: play with `snapshot` of `version`, and set `data` to what was collected."""

    def __init__(self, context: CollectContext) -> None:
        self.worker: int = context.worker
        self.id: int = context.ticket
        self.version: int = context.version
        self.snapshot: Snapshot | None = context.snapshot
        self.stop: StopSignal = context.stop
        self.data: Any = None


class Held(Generic[Given]):
    """What a `with` or `async with` block holds: it is given back if the block raises, else it is counted."""

    _begun = _open = False

    def __init__(self, stage: Stage, timeout: float | None) -> None:
        self._stage, self._timeout = stage, timeout

    def _given(self) -> Given:
        """What the block gets."""
        raise AssertionError

    def _result(self) -> Any:
        """What a function in the place of the block would have returned."""
        raise AssertionError

    def __enter__(self) -> Given:
        self._begin()
        try:
            asked = self._stage.ask(self._stage.keeper.clock.waiter)
            self._start(asked if isinstance(asked, Ticket) else block(self._stage, asked, self._timeout))
            return self._given()
        except BaseException as error:
            self._let_go(error)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is not None:
            self._let_go(error)
            return
        try:
            self._stage.result = (self._result(),)
            left = self._stage.leave(self._stage.result[0], self._stage.keeper.clock.waiter)
            if isinstance(left, Parked):
                block(self._stage, left, self._timeout)
            self._open = False
        except BaseException as own:
            self._let_go(own)
            raise

    async def __aenter__(self) -> Given:
        self._begin()
        try:
            self._start(await enter_awaiting(self._stage, self._timeout))
            return self._given()
        except BaseException as error:
            self._let_go(error)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if error is not None:
            self._let_go(error)
            return
        try:
            self._stage.result = (self._result(),)
            await leave_awaiting(self._stage, self._timeout)
            self._open = False
        except BaseException as own:
            self._let_go(own)
            raise

    def __del__(self) -> None:
        if self._open:  # an interrupt came between the statement and its block, or a task was thrown away
            left = partial(self._stage.let_go, GeneratorExit(), locked=True)
            self._stage.keeper.when_unlocked(left)

    def give_back(self, error: BaseException) -> None:
        """Let go of it, if it is not counted or given back yet."""
        if self._open:
            self._let_go(error)

    def _begin(self) -> None:
        if self._begun:
            raise LzeroAsyncError("This was entered before; call training() or collecting() for every block.")
        self._begun = self._open = True

    def _start(self, ticket: Ticket) -> None:
        self._stage.ticket = ticket
        self._stage.enter(ticket)

    def _let_go(self, error: BaseException) -> None:
        self._stage.let_go(error)
        self._open = False


class HeldCollect(Held[OpenCollect]):
    """A ticket, for one block."""

    def __init__(self, stage: CollectStage, timeout: float | None) -> None:
        super().__init__(stage, timeout)

    def _given(self) -> OpenCollect:
        self._ticket = OpenCollect(self._stage.context())
        return self._ticket

    def _result(self) -> Any:
        return self._ticket.data


class HeldTrain(Held[Batch]):
    """A batch, for one block."""

    def __init__(self, stage: TrainStage, timeout: float | None) -> None:
        super().__init__(stage, timeout)
        stage.retries = 0  # a block cannot be run again

    def __enter__(self) -> Batch:
        batch = super().__enter__()
        self._stage.parts.block_of = threading.get_ident()
        return batch

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stage.parts.block_of = -1
        super().__exit__(kind, error, tb)

    def _given(self) -> Batch:
        self._stage.parts.report = None  # of a block that raised
        batch: Batch = self._stage.context()
        return batch

    def _result(self) -> Any:
        report, self._stage.parts.report = self._stage.parts.report, None
        return report
