"""Rows of a replay buffer as a few large arrays, which a checkpoint keeps, and back again: equal, of the same types and in the
same order.

Rows of one kind become one part: numbers an array, arrays and tensors (of one dtype and number of dimensions) all their items
and every shape, lists all their items and every length, dictionaries a column for each key. Rows of several kinds become a part
for each, and an array that says which row is of which. What has no column of its own (text, bytes, huge integers, sets) stays
a list.

As in a checkpoint, a tensor comes back on the CPU and without its gradient's flag. What rows share is kept for each of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

import numpy as np

Rows = list[Any]
Part = dict[str, Any]

_INT64: Final = range(-(2**63), 2**63)
_NUMBERS: Final = {bool: "bool", int: "int", float: "float", type(None): "none"}


def pack_rows(rows: Sequence[Any]) -> Part:
    """Columns for `unpack_rows`: a few arrays for every kind of value in every place of a row, however many rows there are."""
    kinds = [_kind(row) for row in rows]
    groups: dict[tuple[Hashable, ...], Rows] = {kind: [] for kind in kinds}
    for kind, row in zip(kinds, rows, strict=True):
        groups[kind].append(row)
    parts = [{"kind": kind[0], **_KINDS[str(kind[0])][0](group)} for kind, group in groups.items()]
    if len(parts) == 1:
        return parts[0]
    places = {kind: place for place, kind in enumerate(groups)}
    order = np.array([places[kind] for kind in kinds], np.min_scalar_type(len(parts)))
    return {"kind": "mixed", "order": order, "parts": parts}


def unpack_rows(packed: Mapping[str, Any]) -> Rows:
    """The rows that `pack_rows` was given; each has its own memory, which is free as soon as the row is."""
    if packed["kind"] != "mixed":
        return _KINDS[packed["kind"]][1](packed)
    parts = [iter(unpack_rows(part)) for part in packed["parts"]]
    return [next(parts[place]) for place in packed["order"].tolist()]


def _kind(row: Any) -> tuple[Hashable, ...]:
    """The name of a row's kind in `_KINDS`, and what else its rows have in common."""
    kind = type(row)
    if kind in _NUMBERS and (kind is not int or row in _INT64):
        return (_NUMBERS[kind],)
    if kind is list or kind is tuple:
        return (kind.__name__,)
    if kind is dict:
        return "dict", tuple(map(type, row)), repr([*row])  # 1 and True are equal and not the same
    if kind in (np.ndarray, np.memmap):
        if row.dtype.kind in "OSU":
            return "objects" if row.dtype.kind == "O" else "text", row.ndim
        return "array", row.dtype, row.ndim
    if isinstance(row, np.generic) and row.dtype.kind in "biufcmM":
        return "scalar", row.dtype
    torch = sys.modules.get("torch")  # unloaded, no row can be a tensor
    if torch is not None and kind in (torch.Tensor, torch.nn.Parameter) and row.layout is torch.strided:
        return "tensor", row.dtype, row.ndim
    return ("values",)


def _shapes(rows: Rows) -> Any:
    return np.array([tuple(row.shape) for row in rows], np.int64).reshape(len(rows), rows[0].ndim)


def _sizes(part: Mapping[str, Any]) -> Iterator[tuple[int, list[int]]]:
    """Of every row how many items it has, and its shape."""
    return zip(part["shapes"].prod(axis=1).tolist(), part["shapes"].tolist(), strict=True)


def _pieces(part: Mapping[str, Any]) -> Iterator[tuple[Any, list[int]]]:
    """The items of every row, as a view, and its shape."""
    end = 0
    for size, shape in _sizes(part):
        start, end = end, end + size
        yield part["data"][start:end], shape


def _pack_array(rows: Rows) -> Part:
    return {"data": np.concatenate([row.reshape(-1) for row in rows], dtype=rows[0].dtype), "shapes": _shapes(rows)}


def _unpack_array(part: Mapping[str, Any]) -> Rows:
    return [piece.copy().reshape(shape) for piece, shape in _pieces(part)]


def _pack_tensor(rows: Rows) -> Part:
    import torch

    with torch.no_grad():
        return {"data": torch.cat([row.cpu().reshape(-1) for row in rows]), "shapes": _shapes(rows)}


def _unpack_tensor(part: Mapping[str, Any]) -> Rows:
    return [piece.clone().reshape(shape) for piece, shape in _pieces(part)]


def _pack_text(rows: Rows) -> Part:
    """Arrays of text or bytes: each is as wide as its longest item, so their bytes are one array."""
    data = np.frombuffer(bytearray().join(row.tobytes() for row in rows), np.uint8)
    shapes = np.array([(*row.shape, row.itemsize) for row in rows], np.int64)
    return {"data": data, "shapes": shapes, "dtypes": [row.dtype.str for row in rows]}


def _unpack_text(part: Mapping[str, Any]) -> Rows:
    found = zip(_pieces(part), part["dtypes"], strict=True)
    return [np.ndarray(shape[:-1], dtype, piece.copy()) for (piece, shape), dtype in found]


def _pack_objects(rows: Rows) -> Part:
    return {"shapes": _shapes(rows), "items": pack_rows([item for row in rows for item in row.flat])}


def _unpack_objects(part: Mapping[str, Any]) -> Rows:
    items = iter(unpack_rows(part["items"]))
    return [np.fromiter(islice(items, size), object, size).reshape(shape) for size, shape in _sizes(part)]


def _pack_list(rows: Rows) -> Part:
    return {"lengths": np.array([len(row) for row in rows], np.int64), "items": pack_rows([*chain.from_iterable(rows)])}


def _unpack_list(part: Mapping[str, Any]) -> Rows:
    items = iter(unpack_rows(part["items"]))
    return [list(islice(items, length)) for length in part["lengths"].tolist()]


def _pack_dict(rows: Rows) -> Part:
    return {"count": len(rows), "columns": {key: pack_rows([row[key] for row in rows]) for key in rows[0]}}


def _unpack_dict(part: Mapping[str, Any]) -> Rows:
    columns = {key: unpack_rows(column) for key, column in part["columns"].items()}
    found = zip(*columns.values(), strict=True) if columns else [()] * part["count"]
    return [dict(zip(columns, row, strict=True)) for row in found]


_KINDS: Final[dict[str, tuple[Callable[[Rows], Part], Callable[[Mapping[str, Any]], Rows]]]] = {
    "none": (lambda rows: {"count": len(rows)}, lambda part: [None] * part["count"]),
    "bool": (lambda rows: {"data": np.array(rows, np.bool_)}, lambda part: part["data"].tolist()),
    "int": (lambda rows: {"data": np.array(rows, np.int64)}, lambda part: part["data"].tolist()),
    "float": (lambda rows: {"data": np.array(rows, np.float64)}, lambda part: part["data"].tolist()),
    "scalar": (lambda rows: {"data": np.array(rows, rows[0].dtype)}, lambda part: list(part["data"])),
    "array": (_pack_array, _unpack_array),
    "text": (_pack_text, _unpack_text),
    "tensor": (_pack_tensor, _unpack_tensor),
    "objects": (_pack_objects, _unpack_objects),
    "list": (_pack_list, _unpack_list),
    "tuple": (_pack_list, lambda part: [*map(tuple, _unpack_list(part))]),
    "dict": (_pack_dict, _unpack_dict),
    "values": (lambda rows: {"values": rows}, lambda part: [*part["values"]]),
}
