"""What the bytes of a Z-machine story file mean: header, objects, names and globals (versions 3 to 8, but 6 and 7)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

GLOBALS = 240
_ALPHABETS = ("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", " \n0123456789.,!?_#'\"/\\-:()")
_VERSIONS = (3, 4, 5, 8)


def looks_like_story(data: bytes) -> bool:
    """Whether `data` can be a story file: a known version and header addresses that lie inside it, in order."""
    if len(data) < 64 or data[0] not in _VERSIONS:
        return False
    objects, variables, static = (int.from_bytes(data[at : at + 2], "big") for at in (0x0A, 0x0C, 0x0E))
    return 64 <= objects < static <= len(data) and 64 <= variables < static


class StoryLayout:
    """Where things are in a story's memory; `memory` arguments are its dynamic memory as the interpreter holds it."""

    def __init__(self, story: bytes) -> None:
        self._story = story
        self.version = story[0]
        old = self.version <= 3
        self.object_table, self.globals, self.static = self._word(0x0A), self._word(0x0C), self._word(0x0E)
        self.tree = self.object_table + (31 if old else 63) * 2
        self.entry_size = 9 if old else 14
        self._link_size = 1 if old else 2
        self._attribute_size = 4 if old else 6
        self.object_count, properties = 0, len(story)
        while self.tree + self.entry_size * (self.object_count + 1) <= properties:
            self.object_count += 1
            properties = min(properties, self._properties(self.object_count))
        self.properties = properties

    @property
    def object_region(self) -> tuple[int, int]:
        """First and last-plus-one address of the object tree and its tables of properties."""
        return self.tree, self._end_of_properties()

    @property
    def variable_words(self) -> list[int]:
        """Addresses of the words of state outside the object region: the globals and, where a compiler puts values of
        objects between the tables and the globals (as Inform does), those.
        """
        between = range(self._end_of_properties(), self.globals, 2)
        return [*between, *range(self.globals, min(self.globals + 2 * GLOBALS, self.static - 1), 2)]

    def global_word(self, memory: Sequence[int], number: int) -> int:
        """Value of a global variable as a signed number; 0 is the location, 1 the score, 2 the moves in version 3."""
        at = self.globals + 2 * number
        return int.from_bytes(bytes(memory[at : at + 2]), "big", signed=True)

    def parent(self, memory: Sequence[int], number: int) -> int:
        """Number of the object that holds object `number`; 0 for none."""
        return self._link(memory, number, 0)

    def sibling(self, memory: Sequence[int], number: int) -> int:
        """Number of the next object in the same holder; 0 for none."""
        return self._link(memory, number, 1)

    def child(self, memory: Sequence[int], number: int) -> int:
        """Number of the first object that object `number` holds; 0 for none."""
        return self._link(memory, number, 2)

    def contents(self, memory: Sequence[int], number: int) -> list[int]:
        """Numbers of what an object holds directly, in the game's order."""
        found: list[int] = []
        item = self.child(memory, number)
        while item and len(found) < self.object_count:
            found.append(item)
            item = self.sibling(memory, item)
        return found

    def everything_in(self, memory: Sequence[int], number: int) -> list[int]:
        """Numbers of what an object holds, at any depth."""
        found: list[int] = []
        waiting = self.contents(memory, number)
        while waiting and len(found) < self.object_count:
            item = waiting.pop(0)
            found.append(item)
            waiting.extend(self.contents(memory, item))
        return found

    def name(self, number: int) -> str:
        """Short name of an object, as in the story file; empty if it has none or the number is not an object."""
        if not 1 <= number <= self.object_count:
            return ""
        at = self._properties(number)
        words = self._story[at]
        return self._decode(at + 1, words).strip() if words else ""

    def find(self, name: str) -> int:
        """Number of the first object of that short name; 0 if there is none."""
        return next((n for n in range(1, self.object_count + 1) if self.name(n) == name), 0)

    def _word(self, at: int) -> int:
        return int.from_bytes(self._story[at : at + 2], "big")

    def _entry(self, number: int) -> int:
        return self.tree + self.entry_size * (number - 1)

    def _properties(self, number: int) -> int:
        return self._word(self._entry(number) + self.entry_size - 2)

    def _link(self, memory: Sequence[int], number: int, which: int) -> int:
        at = self._entry(number) + self._attribute_size + which * self._link_size
        return memory[at] if self._link_size == 1 else memory[at] << 8 | memory[at + 1]

    def _end_of_properties(self) -> int:
        end = self.properties
        for number in range(1, self.object_count + 1):
            at = self._properties(number)
            at += 1 + 2 * self._story[at]
            while self._story[at]:
                size = self._story[at]
                if self.version <= 3:
                    at += 2 + (size >> 5)
                elif size & 0x80:
                    at += 2 + ((self._story[at + 1] & 0x3F) or 64)
                else:
                    at += 2 + (size >> 6)
            end = max(end, at + 1)
        return end

    def _decode(self, at: int, words: int | None = None, *, abbreviated: bool = True) -> str:
        codes: list[int] = []
        while words is None or words > 0:
            word = self._word(at)
            at += 2
            codes += [(word >> 10) & 31, (word >> 5) & 31, word & 31]
            if words is not None:
                words -= 1
            if word & 0x8000:
                break
        return "".join(self._characters(codes, abbreviated))

    def _characters(self, codes: list[int], abbreviated: bool) -> Iterable[str]:
        alphabet, at = 0, 0
        while at < len(codes):
            code = codes[at]
            at += 1
            if code == 0:
                yield " "
            elif code <= 3:
                if abbreviated and at < len(codes):
                    entry = self._word(0x18) + 2 * (32 * (code - 1) + codes[at])
                    yield self._decode(2 * self._word(entry), abbreviated=False)
                at += 1
            elif code <= 5:
                alphabet = code - 3
                continue
            elif alphabet == 2 and code == 6:
                if at + 1 < len(codes):
                    yield chr(codes[at] << 5 | codes[at + 1])
                at += 2
            else:
                yield _ALPHABETS[alphabet][code - 6]
            alphabet = 0


def digest(*parts: bytes | bytearray | memoryview) -> bytes:
    """A 16-byte digest of the parts in order."""
    hashed = hashlib.blake2b(digest_size=16)
    for part in parts:
        hashed.update(part)
    return hashed.digest()
