"""A nested state as JSON and bytes, and back again: whatever goes in comes out equal, of the same type and in the same order.
A tensor comes out without its gradient's flag, a parameter as a tensor, an array in a file as one in memory.

What JSON does not know is a dictionary with one key that begins with "$"; such keys of the state's own are kept as items. A
state is data: unpacking runs no code. The class of a named tuple is looked up among the modules that the program has imported
already, has to be a tuple with the same fields, and is filled without calling it.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

from lzero_async.errors import ConfigError
from lzero_async.runs.checkpoint.tensor_file import Entry

BODY: Final = "body"
MAX_DEPTH: Final = 100
_NAME_LENGTH: Final = 500  # characters of an array's name in the file
_SMALL_INTS: Final = range(-(2**63), 2**64)
_NUMPY: Final = {
    "|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<u2": "U16", "<i2": "I16", "<f2": "F16", "<u4": "U32", "<i4": "I32",
    "<f4": "F32", "<u8": "U64", "<i8": "I64", "<f8": "F64",
}  # fmt: skip
_NUMPY_KINDS: Final = "biufcmMSU"
_TORCH: Final = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16", "bfloat16": "BF16",
    "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64", "float64": "F64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    # Not every version of safetensors knows these: they are plain bytes in the file, aligned for nothing.
    "float8_e4m3fnuz": "", "float8_e5m2fnuz": "", "float8_e8m0fnu": "", "complex32": "", "complex64": "", "complex128": "",
}  # fmt: skip


def pack(state: dict[str, Any]) -> dict[str, Entry]:
    """The entries of a file: the arrays under the names of their places (/learner/weights), and everything else in `BODY`.

    Raises ConfigError for what cannot be kept.
    """
    packer = _Packer()
    body = json.dumps(packer.pack(state, "", 0), allow_nan=False, separators=(",", ":")).encode("ascii")
    return {**packer.entries, BODY: Entry("U8", (len(body),), memoryview(body))}


def unpack(body: bytes, read: Callable[[str], memoryview] | None) -> dict[str, Any]:
    """The state; `read` gives the bytes of an array. Without it None stands for every array and tensor, and a named tuple of a
    class that this program has not imported is a plain one. Raises ConfigError where such a class is missed."""
    state = _Unpacker(read).unpack(json.loads(body))
    if not isinstance(state, dict):
        raise TypeError("not a dictionary")
    return state


class _Packer:
    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._numpy, self._torch = sys.modules.get("numpy"), sys.modules.get("torch")  # unloaded, none can be there

    def pack(self, value: Any, name: str, depth: int, *, key: bool = False) -> Any:
        """JSON for the value at this place, with its arrays taken out into `entries`; as a `key` it may hold none."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if value in _SMALL_INTS else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
        if kind is str:
            return value if _is_plain(value) else {"$text": value.encode("utf-8", "surrogatepass").hex()}
        if depth >= MAX_DEPTH:
            raise ConfigError(
                f"A checkpoint cannot hold what is nested more than {MAX_DEPTH} levels deep (at {name:.100})."
            )
        if kind is dict and all(type(word) is str and not word.startswith("$") and _is_plain(word) for word in value):
            return {word: self.pack(item, f"{name}/{word}", depth + 1) for word, item in value.items()}
        if kind is dict or kind is OrderedDict:
            return {"$items" if kind is dict else "$ordered": self._items(value, name, depth + 1)}
        if kind is list:
            return self._all(value, name, depth, key)
        if kind is tuple:
            return {"$tuple": self._all(value, name, depth, key)}
        if kind is set or kind is frozenset:
            found = (self.pack(item, name, depth + 1, key=True) for item in value)
            return {f"${kind.__name__}": sorted(found, key=json.dumps)}
        if kind is bytes or kind is bytearray:
            return {f"${kind.__name__}": base64.b64encode(value).decode("ascii")}
        if kind is complex:
            return {"$complex": struct.pack(">dd", value.real, value.imag).hex()}
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self._named(value, name, depth, key)
        if self._numpy is not None and isinstance(value, self._numpy.generic):
            return {"$scalar": self._scalar(value, name)}
        if self._numpy is not None and not key and kind in (self._numpy.ndarray, self._numpy.memmap):
            return {"$array": self._array(value, name)}
        if self._torch is not None and not key and kind in (self._torch.Tensor, self._torch.nn.Parameter):
            return {"$tensor": self._tensor(value, name)}
        raise _refused(f"{'a key of type ' * key}{kind.__name__}", name)

    def _all(self, values: Iterable[Any], name: str, depth: int, key: bool) -> list[Any]:
        return [self.pack(item, f"{name}/{index}", depth + 1, key=key) for index, item in enumerate(values)]

    def _items(self, value: dict[Any, Any], name: str, depth: int) -> list[Any]:
        return [
            [self.pack(word, name, depth, key=True), self.pack(item, f"{name}/{word}", depth)]
            for word, item in value.items()
        ]

    def _named(self, value: Any, name: str, depth: int, key: bool) -> dict[str, Any]:
        kind = type(value)
        if _class(kind.__module__, kind.__qualname__) is not kind:
            raise _refused(f"{kind.__qualname__}, which is not found under its name in {kind.__module__}", name)
        return {"$named": [kind.__module__, kind.__qualname__, list(kind._fields), self._all(value, name, depth, key)]}

    def _scalar(self, value: Any, name: str) -> list[Any]:
        kind = value.dtype.kind
        if kind not in _NUMPY_KINDS:
            raise _refused(f"numpy's {value.dtype}", name)
        if kind == "U":  # numpy's own ways would lose the zeros at its end
            return ["U", str.__str__(value).encode("utf-8", "surrogatepass").hex()]
        return ["S" if kind == "S" else value.dtype.str, value.tobytes().hex()]

    def _array(self, value: Any, name: str) -> list[Any]:
        if value.dtype.kind not in _NUMPY_KINDS:
            raise _refused(f"an array of numpy's {value.dtype}", name)
        assert self._numpy is not None
        # Plain and in one piece: a view of what was given if that is so already.
        flat = self._numpy.asarray(value, order="C").reshape(-1).view(self._numpy.ndarray)
        raw = flat.view(self._numpy.uint8) if flat.nbytes else self._numpy.empty(0, self._numpy.uint8)
        return self._keep(name, value.dtype.str, value.shape, _NUMPY.get(value.dtype.str, ""), raw)

    def _tensor(self, value: Any, name: str) -> list[Any]:
        assert self._torch is not None
        dtype = str(value.dtype).partition(".")[2]
        if dtype not in _TORCH or value.layout != self._torch.strided or value.device.type == "meta":
            raise _refused(f"a tensor of {value.dtype} with layout {value.layout} on {value.device}", name)
        flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        flat = flat.as_strided(flat.shape, (1,))  # a single number counts as in one piece whatever its stride
        return self._keep(name, dtype, value.shape, _TORCH[dtype], flat.view(self._torch.uint8).numpy())

    def _keep(self, name: str, dtype: str, shape: Iterable[int], known: str, raw: Any) -> list[Any]:
        """Enter the bytes under a name that is still free: with their type and shape if safetensors knows that."""
        name = name[:_NAME_LENGTH].encode("utf-8", "replace").decode()
        free, number = name, 1
        while free in self.entries:
            number += 1
            free = f"{name}#{number}"
        sizes = [int(size) for size in shape]
        self.entries[free] = Entry(known or "U8", tuple(sizes) if known else (raw.nbytes,), memoryview(raw))
        return [free, dtype, sizes]


class _Unpacker:
    def __init__(self, read: Callable[[str], memoryview] | None) -> None:
        self._read = read

    def unpack(self, value: Any) -> Any:
        """What `_Packer.pack` was given."""
        if isinstance(value, list):
            return [self.unpack(item) for item in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            ((tag, inner),) = value.items()
            if tag.startswith("$"):
                return self._tagged(tag, inner)
        return {word: self.unpack(item) for word, item in value.items()}

    def _tagged(self, tag: str, inner: Any) -> Any:
        if tag == "$array":
            return self._array(*inner)
        if tag == "$tensor":
            return self._tensor(*inner)
        if tag == "$tuple":
            return tuple(self.unpack(inner))
        if tag == "$items":
            return {self.unpack(word): self.unpack(item) for word, item in inner}
        if tag == "$ordered":
            return OrderedDict((self.unpack(word), self.unpack(item)) for word, item in inner)
        if tag == "$set":
            return set(self.unpack(inner))
        if tag == "$frozenset":
            return frozenset(self.unpack(inner))
        if tag == "$named":
            return self._named(*inner)
        if tag == "$int":
            return int(inner, 16)
        if tag == "$float":
            return struct.unpack(">d", bytes.fromhex(inner))[0]
        if tag == "$complex":
            return complex(*struct.unpack(">dd", bytes.fromhex(inner)))
        if tag == "$text":
            return bytes.fromhex(inner).decode("utf-8", "surrogatepass")
        if tag == "$bytes":
            return base64.b64decode(inner)
        if tag == "$bytearray":
            return bytearray(base64.b64decode(inner))
        if tag == "$scalar":
            return _scalar(*inner)
        raise ValueError(f"{tag} is not known")

    def _array(self, name: str, dtype: str, shape: list[int]) -> Any:
        if self._read is None:
            return None
        import numpy as np

        data, kind = self._read(name), np.dtype(dtype)
        if not data:
            return np.empty(shape, kind)
        return np.frombuffer(data, kind).reshape(shape)

    def _tensor(self, name: str, dtype: str, shape: list[int]) -> Any:
        if self._read is None:
            return None
        import torch

        data, kind = self._read(name), getattr(torch, dtype)
        if not data:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(data, dtype=kind).reshape(shape)

    def _named(self, module: str, name: str, fields: list[str], values: list[Any]) -> Any:
        found, held = _class(module, name), tuple(self.unpack(values))
        if not (isinstance(found, type) and issubclass(found, tuple)) or list(getattr(found, "_fields", ())) != fields:
            if self._read is None:
                return held
            raise ConfigError(
                f"holds a named tuple {module}.{name}({', '.join(fields)}), which this program does not have; import its module "
                "first or resume with the program that wrote it"
            )
        return tuple.__new__(found, held)


def _class(module: str, name: str) -> Any:
    """What has this name in a module that is imported already; None if nothing has."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _scalar(dtype: str, data: str) -> Any:
    import numpy as np

    raw = bytes.fromhex(data)
    if dtype == "U":
        return np.str_(raw.decode("utf-8", "surrogatepass"))
    return np.bytes_(raw) if dtype == "S" else np.frombuffer(raw, np.dtype(dtype))[0]


def _is_plain(text: str) -> bool:
    """Whether JSON gives it back as it is: two halves of a character next to each other would become one."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refused(what: str, name: str) -> ConfigError:
    return ConfigError(
        f"A checkpoint cannot hold {what} (at {name or 'the top'}); save plain numbers, text, lists, dictionaries, arrays and "
        "tensors."
    )
