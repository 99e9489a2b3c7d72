"""Key-value caches of prompts, kept between calls: bounded by entries and tokens, least recently used out first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KvEntry:
    """The tokens of a prompt and, per layer, its (keys, values) of shape [1, heads, tokens, size]; never changed in place."""

    tokens: Sequence[int]
    layers: list[tuple[Any, Any]]

    def prefix(self, length: int) -> list[tuple[Any, Any]]:
        """The layers cut to the first `length` tokens, without a copy."""
        return [(keys[:, :, :length], values[:, :, :length]) for keys, values in self.layers]


class KvStore:
    """Remembers one entry per key and finds the entry with the longest beginning in common with a new prompt."""

    def __init__(self, max_entries: int, max_tokens: int) -> None:
        self._max_entries = max_entries
        self._max_tokens = max_tokens
        self._entries: OrderedDict[Hashable, KvEntry] = OrderedDict()
        self.tokens = 0
        """Tokens held in total."""

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: Hashable, tokens: Sequence[int]) -> tuple[int, KvEntry | None]:
        """The longest common beginning and its entry: that of `key`, unless another entry shares more.

        Looking at all entries lets a new episode start from the instructions that every prompt begins with.
        """
        best_length, best_key = 0, None
        for candidate in (key, *self._entries):
            entry = self._entries.get(candidate)
            if entry is not None and (length := common_prefix(entry.tokens, tokens)) > best_length:
                best_length, best_key = length, candidate
        if not best_length:
            return 0, None
        self._entries.move_to_end(best_key)
        return best_length, self._entries[best_key]

    def put(self, key: Hashable, entry: KvEntry) -> None:
        """Remember the entry as the newest; forget the oldest ones beyond the bounds (an entry beyond them alone is not kept)."""
        self._forget(key)
        if len(entry.tokens) > self._max_tokens or self._max_entries < 1:
            return
        self._entries[key] = entry
        self.tokens += len(entry.tokens)
        while len(self._entries) > self._max_entries or self.tokens > self._max_tokens:
            self._forget(next(iter(self._entries)))

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.tokens = 0

    def _forget(self, key: Hashable) -> None:
        old = self._entries.pop(key, None)
        if old is not None:
            self.tokens -= len(old.tokens)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens the two begin with in common."""
    length = min(len(left), len(right))
    for i in range(length):
        if left[i] != right[i]:
            return i
    return length
