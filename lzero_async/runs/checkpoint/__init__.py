"""Checkpoints: one safetensors file each, written beside its place and moved there, so that a torn one never counts.

Tensors and arrays go into the file as they are, under the names of their places; everything else is JSON beside them. Every
part has a checksum. Loading runs no code from the file. Each application has a `CheckpointKind`, and reads no file of another
one.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from lzero_async.errors import ConfigError
from lzero_async.runs.checkpoint.packing import BODY, pack, unpack
from lzero_async.runs.checkpoint.tensor_file import Damaged, TensorFile, write

_numbers: Final = itertools.count(1)  # of the files that this process writes
LAYOUT: Final = 2  # of every application's files: how a state becomes one


class CheckpointKind(NamedTuple):
    """What the checkpoints of one application are: the header's format and version, and the name that users know."""

    format: str
    version: int
    title: str

    @property
    def written(self) -> str:
        """The version in the header: that of the layout and the application's own."""
        return f"{LAYOUT}.{self.version}"


def save(path: Path, state: Mapping[str, Any], kind: CheckpointKind) -> None:
    """Write `state` (nested dicts, lists, tuples, sets, numbers, text, bytes, arrays, tensors) atomically and durably.

    Raises ConfigError, and leaves an older file at `path` untouched, when the disk refuses or the state holds something else.
    Of several that are saved there at once the last one stays.
    """
    entries = pack(dict(state))
    opened: list[Path] = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _open_beside(path, opened) as file:
            write(file, entries, {"format": kind.format, "version": kind.written})
            file.flush()
            os.fsync(file.fileno())
            opened[-1].replace(path)
        _sync_folder(path.parent)
        _remove_stale(path)
    except BaseException as error:
        for temporary in opened:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConfigError(
                f"The {kind.title} checkpoint {path} cannot be written ({error}); free some space or choose another "
                "--exp_name. The checkpoint written before it is still there."
            ) from error
        raise


def _open_beside(path: Path, opened: list[Path]) -> BinaryIO:
    """A file to write into and to move to `path`, which is held; its own path is the last one of `opened`."""
    while True:
        opened.append(path.with_name(f".{path.name}.{os.getpid()}-{next(_numbers)}.tmp"))
        file = opened[-1].open("wb")
        if _hold(file) and opened[-1].exists():
            return file
        file.close()  # somebody took it for one that was left, before it was held


def _remove_stale(path: Path) -> None:
    """What processes have left that were killed while they wrote."""
    for left in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(OSError), left.open("r+b") as file:  # it may be somebody else's
            if _hold(file):
                left.unlink()


def _hold(file: BinaryIO) -> bool:
    """Have a file that is being written to oneself, as long as it is open; False if somebody else has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # there are no locks here
        return True
    return True


@contextmanager
def fitting(path: str | Path) -> Iterator[None]:
    """While a checkpoint's content is taken over: what one of another shape raises becomes a ConfigError in one sentence."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:  # a ConfigError is a ValueError, too
        kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
        first = (str(error).splitlines() or [""])[0].rstrip(".")
        raise ConfigError(
            f"The checkpoint {path} does not fit this program ({kind}{first}); use another one."
        ) from error


def check_same_run(
    path: str | Path, state: Mapping[str, Any], options: Mapping[str, Any], fixed: Iterable[str]
) -> None:
    """ConfigError if a run with these options cannot go on from `state`, which was loaded from `path`: because that holds no
    `learner`, or because an option that is `fixed` differs."""
    if "learner" not in state:
        raise ConfigError(
            f"{path} holds only the best weights, which cannot be resumed; give --resume the file last.safetensors."
        )
    saved = state.get("options", {})
    for name in fixed:
        if saved.get(name) != json.loads(json.dumps(options[name])):
            raise ConfigError(
                f"{name} was {saved.get(name)!r} in {path} and is {options[name]!r} now; a resumed run cannot change it."
            )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(path: Path, kind: CheckpointKind, *, arrays: bool = True) -> dict[str, Any]:
    """Read what `save` wrote, and check every byte that is read; a missing, damaged or foreign file raises ConfigError with one
    sentence.

    Without `arrays`, None stands for every array and tensor.
    """
    if not path.is_file():
        raise ConfigError(
            f"There is no {kind.title} checkpoint at {path}; give --resume a checkpoint file or a run's folder."
        )
    try:
        file = TensorFile(path)
        if file.has_checksums:
            file.check_header()
        _check_header(path, file.metadata, kind)
        return unpack(bytes(file.read(BODY)), file.read if arrays else None)
    except _Foreign:
        raise
    except ConfigError as error:
        raise ConfigError(f"The {kind.title} checkpoint {path} {error}.") from error
    except (Damaged, OSError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        where = error if isinstance(error, (Damaged, OSError)) else "its content cannot be read"
        raise ConfigError(
            f"The {kind.title} checkpoint {path} is damaged or not one at all ({where}); use another one."
        ) from error


class _Foreign(ConfigError):
    """A file that is whole and cannot be used here."""


def _check_header(path: Path, header: Mapping[str, str], kind: CheckpointKind) -> None:
    if header.get("format") != kind.format:
        raise _Foreign(f"{path} is not a checkpoint of {kind.title}; give --resume one that a run has written.")
    if header.get("version") != kind.written:
        raise _Foreign(
            f"{path} was written in {kind.title}'s checkpoint format {header.get('version')}, and this version reads "
            f"{kind.written}; use the version that wrote it."
        )


def random_state() -> dict[str, Any]:
    """The state of every global random generator that a learner draws from."""
    import numpy as np
    import torch

    kind, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "numpy": {"kind": kind, "keys": keys, "position": position, "has_gauss": has_gauss, "gauss": gauss},
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Put the generators back."""
    import numpy as np
    import torch

    numpy = state["numpy"]
    np.random.set_state((numpy["kind"], numpy["keys"], numpy["position"], numpy["has_gauss"], numpy["gauss"]))
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
