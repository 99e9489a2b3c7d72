"""Makes the search of LightZero's compiled trees repeatable.

They draw ties from C's `rand`, which they seed from the time of day before every simulation; sampled actions come from
generators that are seeded from the clock, outcomes of chance from the system's entropy. So no two searches agree and no run
could be resumed exactly. A library calls functions of others through a table of their addresses: here each tree's `srand` is
pointed at a function that does nothing, its clock and its entropy at `rand`, and `seed_dice` seeds that. Where this is not
possible (not Linux on x86-64, another build of the library) searches work as before, only not repeatably, and `repeatable()`
says so. Trees in Python need nothing of this: they draw from `random`, numpy and torch.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import struct
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from lzero_async.errors import ConfigError
from lzero_async.validation import whole_number

RESEED, CLOCK, ENTROPY = "srand", "_ZNSt6chrono3_V212system_clock3nowEv", "_ZNSt13random_device9_M_getvalEv"
STAND_INS = {RESEED: "getpagesize", CLOCK: "rand", ENTROPY: "rand"}  # arguments are ignored, results are not negative
TREES = {
    "mz_tree": ("ctree_muzero", [RESEED]),
    "ez_tree": ("ctree_efficientzero", [RESEED]),
    "gmz_tree": ("ctree_gumbel_muzero", [RESEED]),  # rolls no dice of its own, but would seed everyone else's again
    "smz_tree": ("ctree_sampled_muzero", [RESEED, CLOCK]),
    "ezs_tree": ("ctree_sampled_efficientzero", [RESEED, CLOCK]),
    "stochastic_mz_tree": ("ctree_stochastic_muzero", [RESEED, ENTROPY]),
}
POINTERS = (6, 7)  # R_X86_64_GLOB_DAT, R_X86_64_JUMP_SLOT: relocations that store the address of a function


def seed_dice(seed: int) -> None:
    """Seed the dice of all trees, for this process: from 0 to 2**32 - 1, where 0 is the same as 1. Threads share them.

    Imports LightZero. Raises ConfigError for another seed.
    """
    if whole_number("seed", seed, 0) >= 2**32:
        raise ConfigError(f"seed is {seed!r}; it must be below 2**32.")
    patched = [_patched(tree) for tree in TREES]  # each of them: one that is left out would seed the others' dice again
    if any(patched):
        ctypes.CDLL(None).srand(ctypes.c_uint(int(seed)))


def repeatable(*trees: str) -> bool:
    """Whether searches of these trees (of all TREES, if none is named) can be repeated exactly; the first call makes them so.

    Imports LightZero. Raises ConfigError for a tree that there is not.
    """
    for tree in trees:
        if tree not in TREES:
            raise ConfigError(f"tree is {tree!r}; it must be one of {', '.join(TREES)}.")
    return all(_patched(tree) for tree in trees or TREES)


@cache
def _patched(tree: str) -> bool:
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return False
    package, symbols = TREES[tree]
    try:
        library = importlib.import_module(f"lzero.mcts.ctree.{package}.{tree}").__file__
    except ImportError:  # not in this version of LightZero
        return False
    return library is not None and _redirect(
        Path(library).resolve(), {symbol: _address_of(STAND_INS[symbol]) for symbol in symbols}
    )


def _address_of(function: str) -> int:
    return ctypes.cast(getattr(ctypes.CDLL(None), function), ctypes.c_void_p).value or 0


def _redirect(library: Path, targets: Mapping[str, int]) -> bool:
    """Let a loaded library call the functions at these addresses in place of those named; all of them, or none and False."""
    slots = [(name, offset) for name, offset in _slots(library.read_bytes()) if name in targets]
    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    own = [columns for columns in maps if columns[5:] == [str(library)]]
    base = next((int(columns[0].split("-")[0], 16) for columns in own if int(columns[2], 16) == 0), None)
    if base is None or {name for name, _ in slots} != set(targets):
        return False
    writable = [range(*(int(end, 16) for end in columns[0].split("-"))) for columns in own if "w" in columns[1]]
    sealed = {
        (base + offset) // mmap.PAGESIZE * mmap.PAGESIZE
        for _, offset in slots
        if not any(base + offset in part for part in writable)
    }
    if not all(_protect(page, mmap.PROT_READ | mmap.PROT_WRITE) for page in sealed):
        return False
    for name, offset in slots:
        ctypes.c_uint64.from_address(base + offset).value = targets[name]
    for page in sealed:
        _protect(page, mmap.PROT_READ)
    return True


def _protect(page: int, protection: int) -> bool:
    found: int = ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), protection)
    return found == 0


def _slots(image: bytes) -> Iterator[tuple[str, int]]:
    """The functions of others that a library calls, and where, from its load address, their addresses are kept."""
    if (
        image[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", image, 18)[0] != 62
    ):  # 64 bits, little-endian, x86-64
        return
    table, size, count, names_index = (
        struct.unpack_from(kind, image, at)[0] for kind, at in (("<Q", 40), ("<H", 58), ("<H", 60), ("<H", 62))
    )
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, table + index * size) for index in range(count)]
    names = headers[names_index]
    sections = {
        _text(image, names[4] + header[0]): image[header[4] : header[4] + header[5]]
        for header in headers
        if header[1] != 8  # SHT_NOBITS: takes no room in the file
    }
    symbols, texts = sections.get(".dynsym", b""), sections.get(".dynstr", b"")
    for section in (".rela.plt", ".rela.dyn"):
        for offset, info, _ in struct.iter_unpack("<QQq", sections.get(section, b"")):
            if info & 0xFFFFFFFF in POINTERS:
                yield _text(texts, struct.unpack_from("<I", symbols, 24 * (info >> 32))[0]), offset


def _text(table: bytes, start: int) -> str:
    return table[start : table.index(b"\0", start)].decode()
