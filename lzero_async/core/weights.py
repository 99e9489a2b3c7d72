"""Versioned, immutable snapshots of the weights. A reader gets a whole version or the one before, never a mixture."""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

from lzero_async.errors import ConfigError
from lzero_async.types import Snapshot
from lzero_async.validation import whole_number


class WeightStore:
    """Holds the newest snapshot. One writer publishes; any number of threads read without waiting."""

    def __init__(self) -> None:
        self._latest: Snapshot | None = None
        self.writing = threading.RLock()

    def publish(self, state: Any, version: int) -> Snapshot:
        """Freeze a copy of `state` as `version`, which must be newer than the last one."""
        whole_number("version", version, 0)
        frozen = freeze(state)
        with self.writing:
            if self._latest is not None and version <= self._latest.version:
                raise ConfigError(
                    f"version is {version}, but version {self._latest.version} is published already; versions only grow. "
                    "Use restart() after loading a checkpoint."
                )
            self._latest = snapshot = Snapshot(version, frozen)
        return snapshot

    def restart(self, state: Any, version: int) -> Snapshot:
        """Publish whatever the version: the first snapshot of a resumed run."""
        whole_number("version", version, 0)
        frozen = freeze(state)
        with self.writing:
            self._latest = snapshot = Snapshot(version, frozen)
        return snapshot

    def latest(self) -> Snapshot | None:
        """The newest snapshot, or None before the first."""
        return self._latest


class FrozenDict(dict[Any, Any]):
    """A dictionary that cannot be changed, but pickled and given to whatever takes a dictionary."""

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise TypeError("A snapshot of the weights cannot be changed; change a copy.")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[Any, Any]]]:
        return FrozenDict, (dict(self),)


def freeze(state: Any) -> Any:
    """A deep, read-only copy: mappings become FrozenDicts, sequences tuples (namedtuples stay what they are), numpy arrays
    lose their write flag.

    Torch tensors are detached and cloned; torch has no read-only tensors, so treat them as such. A Parcel is frozen already.
    """
    if (settled := getattr(state, "settled", None)) is not None:  # a Parcel
        return settled(freeze)
    if isinstance(state, Mapping):
        return FrozenDict({key: freeze(value) for key, value in state.items()})
    if isinstance(state, (list, tuple)):
        return getattr(state, "_make", tuple)(freeze(value) for value in state)
    if hasattr(state, "detach") and hasattr(state, "clone"):
        return state.detach().clone()
    if hasattr(state, "setflags") and hasattr(state, "copy"):
        array = copy.deepcopy(state)  # also the objects of an array that holds some
        array.setflags(write=False)
        return array
    return copy.deepcopy(state)
