"""Bytes with names in the layout of safetensors, each with a checksum; whatever reads safetensors reads these files.

The layout: eight bytes that say how long the header is, the header (JSON: metadata, and for every name a type, a shape and
where its bytes are), and the bytes without gaps. The last name, `checksums`, has eight bytes (xxh3) for the header and then for
every other name in the file's order, so that no bit of a file can change unseen.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

CHECKSUMS: Final = "checksums"
_METADATA: Final = "__metadata__"
_WIDTH: Final = 8  # bytes of a checksum, of the header's length, and what the header is filled up to
_PIECE: Final = 1 << 20  # bytes that are copied, summed and written while they are in the processor's cache
SIZES: Final = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4, "I32": 4,
    "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""The types of safetensors and their bytes."""


class Entry(NamedTuple):
    """Bytes of a type of `SIZES` and a shape."""

    dtype: str
    shape: tuple[int, ...]
    data: memoryview


class Damaged(ValueError):
    """The file is not what was written; says where."""


def write(file: BinaryIO, entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> None:
    """Write a file. What is summed is what is written, even if somebody changes the bytes meanwhile."""
    # Large items first: then all of them are aligned, which torch demands.
    ordered = sorted(entries.items(), key=lambda item: -SIZES[item[1].dtype])
    sums = bytearray(_WIDTH * (1 + len(ordered)))
    ordered.append((CHECKSUMS, Entry("U8", (len(sums),), memoryview(sums))))
    header: dict[str, Any] = {_METADATA: dict(metadata)}
    offset = 0
    for name, (dtype, shape, data) in ordered:
        end = offset + data.nbytes
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % _WIDTH)
    start = len(text).to_bytes(_WIDTH, "little") + text
    for place, data in enumerate([memoryview(start), *(entry.data for _, entry in ordered)]):
        digest = _write_pieces(file, data)
        if place < len(ordered):  # the last are the checksums themselves
            sums[_WIDTH * place : _WIDTH * (place + 1)] = digest


def _write_pieces(file: BinaryIO, data: memoryview) -> bytes:
    import xxhash

    total, piece = xxhash.xxh3_64(), memoryview(bytearray(min(_PIECE, data.nbytes)))
    for start in range(0, data.nbytes, _PIECE):
        size = min(_PIECE, data.nbytes - start)
        piece[:size] = data[start : start + size]
        total.update(piece[:size])
        file.write(piece[:size])
    return total.digest()


class TensorFile:
    """A file that can be read. Everything raises Damaged that is not as `write` left it.

    It is mapped, so that only what somebody wants is read; that is copied, so that it stays as it is whatever becomes of the
    file, also if somebody writes into it.
    """

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            self._first = _WIDTH + int.from_bytes(self._data[:_WIDTH], "little")
            header = json.loads(bytes(self._data[_WIDTH : self._first]))
            self._header = _checked(header, self._data.nbytes - self._first)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise Damaged("its header cannot be read") from error
        self.metadata: dict[str, str] = self._header.pop(_METADATA)
        self._places = {name: place for place, name in enumerate(self._header, 1)}

    @property
    def has_checksums(self) -> bool:
        """Whether it was written by `write`, at least apparently."""
        return CHECKSUMS in self._header

    def check_header(self) -> None:
        """Compare the header with its checksum; to be called before anything is read."""
        if len(self._bytes(CHECKSUMS)) != _WIDTH * len(self._header) or self._places[CHECKSUMS] != len(self._header):
            raise Damaged("its checksums are not there")
        self._check("its header", self._data[: self._first], 0)

    def read(self, name: str) -> memoryview:
        """The bytes of a name, which are as they were written and may be changed; aligned for its type."""
        data = memoryview(bytearray(self._bytes(name)))
        self._check(name, data, self._places[name])
        return data

    def _bytes(self, name: str) -> memoryview:
        if name not in self._header:
            raise Damaged(f"{name} is not there")
        start, end = self._header[name]["data_offsets"]
        return self._data[self._first + start : self._first + end]

    def _check(self, what: str, data: memoryview, place: int) -> None:
        import xxhash

        if xxhash.xxh3_64_digest(data) != self._bytes(CHECKSUMS)[_WIDTH * place : _WIDTH * (place + 1)]:
            raise Damaged(f"the checksum of {what} is wrong")


def _checked(header: Any, size: int) -> dict[str, Any]:
    """The header if it describes `size` bytes without gaps, in order of their place."""
    metadata = header.get(_METADATA, {})
    if not all(isinstance(value, str) for value in metadata.values()):
        raise Damaged("its metadata are not text")
    entries = sorted(
        ((name, entry) for name, entry in header.items() if name != _METADATA), key=lambda item: item[1]["data_offsets"]
    )
    reached = 0
    for name, entry in entries:
        start, end = entry["data_offsets"]
        if start != reached or end - start != math.prod(entry["shape"]) * SIZES.get(entry["dtype"], 0):
            raise Damaged(f"{name} has another size")
        reached = end
    if reached != size:
        raise Damaged("it has another size")
    return {_METADATA: metadata, **dict(entries)}
