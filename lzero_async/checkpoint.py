"""Checkpoints: one safetensors file each, written beside its place and moved there, so that a torn one never counts.

Tensors and arrays go into the file as they are; everything else is JSON in its header. Loading runs no code from the
file. Each application has a `CheckpointKind`, and reads no file of another one.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lzero_async.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import torch


class CheckpointKind(NamedTuple):
    """What the checkpoints of one application are: the header's format and version, and the name that users know."""

    format: str
    version: int
    title: str


def save(path: Path, state: Mapping[str, Any], kind: CheckpointKind) -> None:
    """Write `state` (nested dicts, lists, tuples, numbers, text, arrays, tensors) atomically and durably.

    Raises ConfigError, and leaves an older file at `path` untouched, when the disk refuses.
    """
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    body = json.dumps(_pack(state, "", tensors))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, temporary, metadata={"format": kind.format, "version": str(kind.version), "body": body})
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
        for stale in path.parent.glob(f".{path.name}.*.tmp"):  # of a process that was killed while it wrote
            stale.unlink(missing_ok=True)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) or type(error).__name__ == "SafetensorError":
            raise ConfigError(
                f"The {kind.title} checkpoint {path} cannot be written ({error}); free some space or choose another "
                "--exp_name. The checkpoint written before it is still there."
            ) from error
        raise


@contextmanager
def fitting(path: str | Path) -> Iterator[None]:
    """While a checkpoint's content is taken over: what one of another shape raises becomes a ConfigError in one sentence."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError) as error:  # a ConfigError is a ValueError, too
        kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
        first = (str(error).splitlines() or [""])[0].rstrip(".")
        raise ConfigError(
            f"The checkpoint {path} does not fit this program ({kind}{first}); resume from another one."
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
    """Read what `save` wrote; a missing, torn or foreign file raises ConfigError with one sentence.

    Without `arrays`, None stands for every array and tensor.
    """
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise ConfigError(
            f"There is no {kind.title} checkpoint at {path}; give --resume a checkpoint file or a run's folder."
        )
    try:
        with safe_open(path, framework="pt" if arrays else "numpy") as file:
            header = file.metadata() or {}
            _check_header(path, header, kind)
            names = list(file.keys())
            tensors = {name: file.get_tensor(name) if arrays else None for name in names}
        state = _unpack(json.loads(header["body"]), tensors)
        if not isinstance(state, dict):
            raise TypeError("not a dictionary")
    except ConfigError:
        raise
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"The {kind.title} checkpoint {path} is damaged or not one at all; resume from another one."
        ) from error
    return state


def _check_header(path: Path, header: Mapping[str, str], kind: CheckpointKind) -> None:
    if header.get("format") != kind.format:
        raise ConfigError(f"{path} is not a checkpoint of {kind.title}; give --resume one that a run has written.")
    if header.get("version") != str(kind.version):
        raise ConfigError(
            f"{path} was written in {kind.title}'s checkpoint format {header.get('version')}, and this version reads "
            f"{kind.version}; resume it with the version that wrote it."
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
    keys = np.asarray(numpy["keys"]).astype(np.uint32)
    np.random.set_state((numpy["kind"], keys, int(numpy["position"]), int(numpy["has_gauss"]), float(numpy["gauss"])))
    torch.set_rng_state(torch.as_tensor(state["torch"], dtype=torch.uint8))
    version, inner, gauss = state["python"]
    random.setstate((version, tuple(inner), gauss))


def _pack(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """JSON for `value`, with its tensors taken out into `tensors`."""
    import numpy as np
    import torch

    if isinstance(value, (np.ndarray, torch.Tensor)):
        tensor = value.detach().cpu() if isinstance(value, torch.Tensor) else torch.from_numpy(_plain(value))
        tensors[name] = tensor.clone().contiguous()  # the file format refuses tensors that share memory
        return {"$array" if isinstance(value, np.ndarray) else "$tensor": name}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _pack(item, f"{name}/{key}", tensors) for key, item in value.items()}
        return {
            "$items": [[_pack(key, name, {}), _pack(item, f"{name}/{key}", tensors)] for key, item in value.items()]
        }
    if isinstance(value, tuple):
        return {"$tuple": [_pack(item, f"{name}/{index}", tensors) for index, item in enumerate(value)]}
    if isinstance(value, list):
        return [_pack(item, f"{name}/{index}", tensors) for index, item in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__} (at {name or 'the top'})")


def _plain(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    import numpy as np

    if array.dtype == np.uint32:
        return array.astype(np.int64)
    return np.array(array, order="C")  # a copy: torch warns of arrays that cannot be written to


def _unpack(value: Any, tensors: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"$array"}:
        found = tensors[value["$array"]]
        return None if found is None else found.numpy()
    if set(value) == {"$tensor"}:
        return tensors[value["$tensor"]]
    if set(value) == {"$tuple"}:
        return tuple(_unpack(item, tensors) for item in value["$tuple"])
    if set(value) == {"$items"}:
        return {_unpack(key, tensors): _unpack(item, tensors) for key, item in value["$items"]}
    return {key: _unpack(item, tensors) for key, item in value.items()}
