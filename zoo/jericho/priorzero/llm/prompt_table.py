"""Distinct prompts with their candidates as token ids, exactly as they were scored: what a language model learns from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class ScoredPrompt(NamedTuple):
    """One prompt, its candidates, and the reduced log-probability of each, before any temperature."""

    tokens: Sequence[int]
    candidates: Sequence[Sequence[int]]
    scores: NDArray[Any]  # float32 [candidates], -inf for one without tokens


@dataclass(frozen=True)
class PromptTable:
    """Prompts one after the other, as arrays that travel without a copy."""

    tokens: NDArray[Any]  # int32, of all prompts
    ends: NDArray[Any]  # int64 [prompts], where each prompt ends
    candidate_tokens: NDArray[Any]  # int32, of all candidates
    candidate_ends: NDArray[Any]  # int64 [candidates]
    counts: NDArray[Any]  # int64 [prompts], candidates of each
    scores: NDArray[Any]  # float32 [candidates]

    @classmethod
    def build(cls, rows: Sequence[ScoredPrompt]) -> PromptTable:
        """The table of these prompts, in their order."""
        candidates = [candidate for row in rows for candidate in row.candidates]
        scores = [np.asarray(row.scores, np.float32) for row in rows]
        return cls(
            tokens=_joined([row.tokens for row in rows]),
            ends=_ends([row.tokens for row in rows]),
            candidate_tokens=_joined(candidates),
            candidate_ends=_ends(candidates),
            counts=np.asarray([len(row.candidates) for row in rows], np.int64),
            scores=np.concatenate(scores) if scores else np.zeros(0, np.float32),
        )

    def __len__(self) -> int:
        return len(self.ends)

    def row(self, index: int) -> ScoredPrompt:
        """The prompt with this number."""
        return self._row(index, int(self.counts[:index].sum()))

    def _row(self, index: int, first: int) -> ScoredPrompt:
        last = first + int(self.counts[index])
        return ScoredPrompt(
            _part(self.tokens, self.ends, index),
            [_part(self.candidate_tokens, self.candidate_ends, number) for number in range(first, last)],
            self.scores[first:last],
        )

    def rows(self) -> list[ScoredPrompt]:
        """All of them."""
        firsts = np.cumsum(self.counts) - self.counts
        return [self._row(index, int(first)) for index, first in enumerate(firsts)]

    def plain(self) -> dict[str, NDArray[Any]]:
        """The arrays by name, for a checkpoint."""
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> PromptTable:
        """The table with such arrays."""
        return cls(**{field.name: np.asarray(plain[field.name]) for field in fields(cls)})


def _joined(parts: Sequence[Sequence[int]]) -> NDArray[Any]:
    return np.asarray([token for part in parts for token in part], np.int32)


def _ends(parts: Sequence[Sequence[int]]) -> NDArray[Any]:
    return np.cumsum([len(part) for part in parts], dtype=np.int64)


def _part(tokens: NDArray[Any], ends: NDArray[Any], index: int) -> list[int]:
    found: list[int] = tokens[int(ends[index - 1]) if index else 0 : int(ends[index])].tolist()
    return found
