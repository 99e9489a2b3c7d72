"""The roles of the checks: here, so that another process can import them."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from lzero_async.errors import Stopped
from lzero_async.testing.fakes import Block
from lzero_async.workers.parcels import Parcel

PATIENCE: Final = 20.0  # seconds; only a broken backend waits that long


class Unpicklable(Exception):
    """An exception that does not survive pickling."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)
        self.lock = threading.Lock()


class Broken:
    """A role whose constructor raises."""

    def __init__(self, emit: Callable[[Any], None], text: str = "no model") -> None:
        raise ValueError(text)


class Slow:
    """A role whose constructor takes as long as somebody is patient."""

    def __init__(self, emit: Callable[[Any], None]) -> None:
        emit("making")
        time.sleep(PATIENCE)


class Gated:
    """A role that is made when somebody opens the pipe `gate` for writing."""

    def __init__(self, emit: Callable[[Any], None], gate: str) -> None:
        emit("making")
        with open(gate) as pipe:
            pipe.read()

    def answer(self, stop: Any = None) -> int:
        """Be there."""
        return 42


class Subject:
    """A role that does whatever a check asks for."""

    def __init__(self, emit: Callable[[Any], None], start: int = 0) -> None:
        self._emit = emit
        self.total = start
        self.inside = 0
        self.most_inside = 0
        self.array = bytearray(100_000)
        self.tensors: Any = None

    def add(self, number: int) -> int:
        """Count."""
        self.total += number
        return self.total

    def fail(self, text: str) -> None:
        """Raise something that can be pickled."""
        raise KeyError(text)

    def fail_unpicklably(self) -> None:
        """Raise something that cannot."""
        raise Unpicklable("one", "two")

    def fail_for_good(self) -> None:
        """Raise what is no Exception."""
        raise SystemExit(3)

    def unpicklable(self) -> Any:
        """Return what cannot be pickled."""
        return threading.Lock()

    def tell(self, *events: Any) -> int:
        """Emit events."""
        for event in events:
            self._emit(event)
        return len(events)

    def wait_for_stop(self, stop: Any = None) -> tuple[bool, str]:
        """Say that it began; wait until it is stopped."""
        self._emit("began")
        return stop.wait(PATIENCE), stop.stop_reason

    def stopped(self, stop: Any = None) -> None:
        """Raise what a role raises that gives up because of its stop."""
        stop.wait(PATIENCE)
        error = Stopped("gave up")
        error.origin = stop
        raise error

    def sleep(self, seconds: float, stop: Any = None) -> str:
        """Say that it began; sleep, deaf to any stop."""
        self._emit("began")
        time.sleep(seconds)
        return "slept"

    def busy(self, seconds: float) -> int:
        """Note how many calls are inside at once; return the most so far."""
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        time.sleep(seconds)
        self.inside -= 1
        return self.most_inside

    def parcel(self, byte: int, size: int = 100_000) -> Parcel:
        """A parcel of that many equal bytes."""
        return Parcel({"data": pickle.PickleBuffer(bytearray([byte]) * size), "byte": byte}, meta=("made", byte))

    def live(self) -> Parcel:
        """A parcel of an array that this role goes on changing."""
        return Parcel(Block(self.array), live=True)

    def live_inside(self) -> dict[str, Any]:
        """The same, inside of something else."""
        return {"parts": [(1, Parcel(Block(self.array), live=True))]}

    def scribble(self, byte: int) -> None:
        """Change that array."""
        self.array[:] = bytes([byte]) * len(self.array)

    def look(self, parcel: Parcel) -> tuple[int, list[int]]:
        """Open a parcel of bytes: how many, and which ones."""
        data = parcel.open()["data"]
        return len(memoryview(data)), sorted(set(bytes(data)))

    def look_at_live(self, parcel: Parcel) -> list[int]:
        """Open a parcel of the changing array: which bytes it has."""
        return sorted(set(bytes(parcel.open())))

    def tensor_parcel(self) -> Parcel:
        """A parcel of torch tensors."""
        import torch

        self.tensors = {
            "float": torch.arange(50_000, dtype=torch.float32),
            "bfloat": torch.arange(256, dtype=torch.bfloat16),
            "half": torch.ones(3, 3, dtype=torch.float16).t(),
            "scalar": torch.tensor(7),
            "empty": torch.empty(0, 4),
            "leaf": torch.nn.Parameter(torch.ones(2)),
            "strided": torch.arange(10)[::2],
        }
        return Parcel(self.tensors, live=True)

    def change_tensors(self) -> None:
        """Change the tensors of the last parcel."""
        for tensor in self.tensors.values():
            tensor.data.add_(1)

    def look_at_tensors(self, parcel: Parcel) -> dict[str, Any]:
        """Open a parcel of tensors; change them, too, which nobody else may notice."""
        found = {}
        for name, tensor in parcel.open().items():
            found[name] = (str(tensor.dtype), list(tensor.shape), tensor.sum().item())
        return found


class Closing(Subject):
    """A role that emits when it is closed."""

    def close(self) -> None:
        """Tell it."""
        self._emit(("closed", self.total))


class ClosingBadly(Subject):
    """A role that cannot be closed."""

    def close(self) -> None:
        """Fail."""
        raise OSError("the disk is full")
