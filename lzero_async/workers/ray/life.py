"""One actor of a Ray worker: asked for, called, listened to, and known to be lost."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from lzero_async.errors import ConfigError, WorkerDied, WorkerStuck
from lzero_async.workers.calls import PackedError, Patience, Signal, unpack_error
from lzero_async.workers.parcels import SMALL, Parcel, Stored, dumps
from lzero_async.workers.ray.cluster import Cluster, in_a_line
from lzero_async.workers.supervision import Deliveries

log = logging.getLogger("lzero_async")
_PATIENCE: Final = 10.0  # seconds without a place for an actor after which that is said
_LOOK: Final = 0.1  # seconds between two looks at an actor that tells more than is taken in
_PLACES: Final = 4  # that an actor is given in a row, if each is lost before the actor begins


class _Call:
    """One call under way."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.reply: tuple[Any, Any] | None = None  # the reference, and what it refers to
        self.error: Exception | None = None
        self.done = Signal()


class Life:
    """One actor of a worker, from its start to its end. `listen` runs in a thread of its own."""

    def __init__(
        self,
        name: str,
        spec: dict[str, Any],
        on_event: Callable[[Any], None] | None,
        place: dict[str, Any],
        pin_to_driver: bool,
        output: str,
        hang_timeout: float,
        cluster: Cluster,
        deliveries: Deliveries,
    ) -> None:
        from lzero_async.workers.ray import actor as ray_host

        self.name, self.pid, self.host, self.node = name, 0, "", ""
        self.death: str | None = None
        self._refusal: ConfigError | None = None
        self._on_event, self._place, self._hang_timeout, self._cluster = on_event, place, hang_timeout, cluster
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._heard = threading.Condition(self._lock)
        self._taken = 0
        self._deliveries = deliveries
        self._running: _Call | None = None
        self._closing: _Call | None = None
        self._ready = self._stuck = False
        self.placed = Signal()
        self._encoding = ray_host
        self._here, self._orders = pin_to_driver, (spec, output)
        self._start = _Call(0)
        self.started = self._start.done
        self._actor: Any = None
        self._ask_for_a_place()

    def _ask_for_a_place(self) -> None:
        """Have Ray make the actor, and the actor make the role."""
        where = {**self._place, "scheduling_strategy": self._cluster.strategy(self._here)}
        try:
            actor = self._encoding.Host.options(**where).remote()  # type: ignore[attr-defined]
        except ValueError as error:
            raise ConfigError(
                f"Ray does not take what {self.name} needs (ray_resources): {in_a_line(error)}"
            ) from error
        with self._lock:
            self._actor, ended = actor, self.death is not None
        if ended:
            self._cluster.kill(actor)
        self._follow(self._start, actor.start.remote(*self._orders))

    # -- the calling side ----------------------------------------------------------------------------------------------

    def wait_until_ready(self, patience: Patience) -> bool:
        """Wait until the role is made; raise what its factory raised. Returns False when the time is over."""
        if not self._ready:
            if not (patience.wait_for(self.placed) and patience.wait_for(self._start.done)):
                return False
            try:
                self._result(self._start, patience)
            except Exception:
                self.end("could not be made")  # an actor without a role is of no use
                raise
            self._ready = True
        return True

    def call(self, method: str, args: tuple[Any, ...], patience: Patience) -> Any:
        """Send the call, wait for its reply, and return or raise what it holds."""
        stop = patience.stop
        parcels: list[Parcel] = []
        body = dumps((method, args), None, parcels)
        boxes = [self._box(parcel) for parcel in parcels]
        call = _Call(next(self._numbers))
        with self._lock:
            self._raise_if_dead()
            self._running = call
        try:
            places = [where for where, _ in boxes]
            sent = self._actor.serve.remote(call.number, body, stop is not None, places, *[box for _, box in boxes])
            self._follow(call, sent)
            if not patience.watch(call.done, self.cancel):
                self.end(f"did not answer {method} within {patience.timeout:g} s")
            return self._result(call, patience)
        except (KeyboardInterrupt, SystemExit):
            self.cancel("SIGINT")
            raise
        finally:
            with self._lock:
                self._running = None

    def _raise_if_dead(self) -> None:
        if self.death is not None or self._closing is not None:
            raise self._dead()

    def _dead(self) -> Exception:
        died = WorkerStuck if self._stuck else WorkerDied
        return self._refusal or died(f"{self.name} {self.death or 'is closed'}.")

    def _box(self, parcel: Parcel) -> tuple[Any, Any]:
        """Where the parcel's content is, and what it is in: a reference to something in Ray's store, or itself if small."""
        stored = parcel.store(self._put)
        if stored.source is None:
            return self._encoding.Where(parcel.meta, ()), (stored.payload, stored.buffers)
        reference, path = stored.source
        return self._encoding.Where(parcel.meta, path), reference

    def _put(self, payload: bytes, buffers: Sequence[Any]) -> Stored:
        if sum(buffer.nbytes for buffer in buffers) < SMALL:
            return Stored(*self._encoding.as_copies(payload, buffers))
        reference = self._cluster.ray.put(self._encoding.as_arrays(payload, buffers))
        payload, buffers = self._cluster.ray.get(reference)  # the same memory as the others will read
        return Stored(payload, buffers, (reference, ()))

    def _follow(self, call: _Call, reference: Any) -> None:
        """Let the call be done when its reply is here."""
        reference.future().add_done_callback(partial(self._finished, call, reference))

    def _finished(self, call: _Call, reference: Any, future: Any) -> None:
        """A thread of Ray's calls it: nothing here may ask Ray for anything."""
        error, lost = future.exception(), self._cluster.ray.exceptions.RayActorError
        if error is None:
            call.reply = reference, future.result()
        elif call is self._start and not self.node and isinstance(error, (lost, *self._cluster.refusals)):
            return  # it never had a place; whoever listens is told the same, and looks for another one
        elif isinstance(error, lost):
            self._lose(_how_it_ended(error))
        else:
            call.error = error
        call.done.set()

    def _result(self, call: _Call, patience: Patience) -> Any:
        if call.error is not None:
            raise call.error
        if call.reply is None:
            raise self._dead()
        reference, encoded = call.reply
        fine, value, told = self._encoding.decode(encoded, lambda place: (reference, (1, place)))
        self._hear(told, patience.left(self._hang_timeout))
        self._deliveries.settle(patience.left(self._hang_timeout), patience.stop)
        if not fine:
            raise unpack_error(value, self.name, patience.stop)
        return value

    def _hear(self, told: int, seconds: float | None) -> None:
        """Wait until so much of what the actor told is here."""
        with self._heard:
            self._heard.wait_for(lambda: self._taken >= told or self.death is not None, seconds)

    def cancel(self, reason: str) -> None:
        """Set the stop signal of the call that runs."""
        with self._lock:
            number = None if self._running is None else self._running.number
        if number is not None:
            self._actor.stop.remote(number, reason)

    def begin_close(self) -> None:
        """Ask the role to close after the call that runs, which is asked to end."""
        self.cancel("the worker was closed")
        with self._lock:
            if self.death is not None or self._closing is not None:
                return
            self._closing = _Call(-1)
        self._follow(self._closing, self._actor.close.remote())

    def finish_close(self, timeout: float) -> PackedError | None:
        """Wait for the role to close, at most so long; end the actor, and return what closing raised, once."""
        closing = self._closing
        if closing is None:
            self.end("is closed")
            return None
        closing.done.wait(timeout)
        reply, closing.reply = closing.reply, None
        error = None
        if reply is not None:
            fine, value, told = self._encoding.decode(reply[1], lambda place: None)
            error = None if fine else value
            self._hear(told, timeout)
        self.end("is closed")
        return error

    def end(self, why: str) -> None:
        """Kill the actor, if it has not ended, for this reason."""
        self._die(why)
        self._cluster.kill(self._actor)

    def abandon(self) -> None:
        """End it without anybody who listens."""
        self.end("was ended: nobody could listen to it")

    def _refuse(self, error: Exception) -> str:
        """Ray will not place it; return why, in short."""
        needs = self._cluster.why_not(self._place)
        self._refusal = ConfigError(f"{self.name} cannot be placed in the Ray cluster: {needs} ({in_a_line(error)}).")
        return "cannot be placed"

    def _lose(self, why: str) -> None:
        """It ended, and nobody here wanted that: perhaps its machine is gone."""
        if self.death is None and self.node:
            self._cluster.suspect(self.node)
        self._die(why)

    def _die(self, why: str) -> None:
        with self._heard:
            self.death = self.death or why
            waiting = [call for call in (self._start, self._running, self._closing) if call is not None]
            self._heard.notify_all()
        for signal in (self.placed, *(call.done for call in waiting)):
            signal.set()

    # -- the listening side --------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Take what the actor says until it ends; then release whoever waits for it."""
        why = "was ended: the thread that listens to it ended"
        try:
            why = self._listen()
        except self._cluster.ray.exceptions.RayActorError as error:
            why = _how_it_ended(error)
        except self._cluster.refusals as error:
            why = self._refuse(error)
        except BaseException as error:  # whatever it is: it is what the callers are told
            why = f"was ended: it could not be listened to ({error!r})"
            log.exception("%s %s", self.name, why)
        finally:
            self._deliveries.rest()
            self._lose(why)
            self.end(why)

    def _listen(self) -> str:
        pid, node, address = self._first_word()
        with self._heard:
            self.pid, self.node, self.host = pid, node, "" if node == self._cluster.node else address
        self.placed.set()
        leave = self._cluster.attend(node, self._without_machine)
        try:
            return self._take_all()
        finally:
            leave()

    def _take_all(self) -> str:
        while self.death is None:
            if self._deliveries.full:  # nothing is asked for until somebody takes in what was told
                self._deliveries.wait_for_room(_LOOK)
                continue
            reference = self._actor.watch.remote(self._hang_timeout / 6)
            found = self._cluster.get(reference, self._hang_timeout)
            if found is None:
                return f"hung: it gave no sign of life for {self._hang_timeout:g} s"
            for place, (kind, encoded) in enumerate(found):
                self._take(kind, encoded, partial(_source, reference, place))
        return self.death

    def _without_machine(self) -> None:
        """Its machine does not answer any more; the actor is killed by whoever restarts or closes the worker."""
        self._lose(f"was lost: its machine {self.host} does not answer")

    def _first_word(self) -> tuple[int, str, str]:
        """Wait until the actor has a place. It may be given one on a machine that is gone, which Ray finds out some time
        later: nothing of it has run then, and it is placed anew."""
        for left in reversed(range(_PLACES)):
            try:
                return self._greeted()
            except self._cluster.ray.exceptions.RayActorError as error:
                if self.death is not None:
                    raise
                if not left:
                    self._refusal = self._cluster.refusal_of_all(self.name, error)
                    raise
                log.warning("%s is placed anew: it %s before it began", self.name, _how_it_ended(error))
                self._ask_for_a_place()
        raise AssertionError

    def _greeted(self) -> tuple[int, str, str]:
        """The actor's greeting; say so once if there is no place for it for a while."""
        reference = self._actor.hello.remote()
        found: tuple[int, str, str] | None = self._cluster.get(reference, _PATIENCE)
        if found is None:
            log.warning("%s waits for a place in the Ray cluster: %s", self.name, self._cluster.why_not(self._place))
            found = self._cluster.ray.get(reference)
        assert found is not None
        self._cluster.has_actors = True
        return found

    def _take(self, kind: str, encoded: Any, source: Callable[[int], Any]) -> None:
        if kind == "stuck":
            self._stuck = True
            self.end(f"was ended: {self._encoding.decode(encoded, source)}")
        else:
            self._deliveries.put(partial(self._deliver, kind, encoded, source))
        with self._heard:
            self._taken += 1
            self._heard.notify_all()

    def _deliver(self, kind: str, encoded: Any, source: Callable[[int], Any]) -> None:
        value = self._encoding.decode(encoded, source)
        if kind == "log":
            name, level, text = value
            logging.getLogger(name).log(level, "%s: %s", self.name, text)
        elif self._on_event is not None:
            self._on_event(value)


def _source(reference: Any, item: int, place: int) -> tuple[Any, tuple[int, ...]]:
    """Where in what `watch` returned a parcel's content is."""
    return reference, (item, 1, 1, place)


def _how_it_ended(error: BaseException) -> str:
    """What Ray says of an actor's end, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in reversed(lines) if ":" not in line.split(" ")[0]), lines[0] if lines else "")
    return f"was lost ({type(error).__name__}: {told})"
