"""How one prompt and the trie of its candidates are laid out in one pass through a model; numpy only."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.jericho.priorzero.llm.candidates import ROOT, TokenTrie


@dataclass
class PackedRow:
    """One prompt of a pass: its tokens, where the trie's inner nodes follow them, and what is known of its beginning."""

    key: Hashable
    tokens: list[int]
    trie: TokenTrie
    past: int = 0
    layers: list[tuple[Any, Any]] | None = None

    def __post_init__(self) -> None:
        self.inner = [node for node in self.trie.children if node != ROOT]
        self.slot = {ROOT: 0} | {node: i + 1 for i, node in enumerate(self.inner)}

    @property
    def rest(self) -> int:
        """Prompt tokens still to compute."""
        return len(self.tokens) - self.past

    @property
    def new(self) -> int:
        """Tokens of the row in the pass: the rest of the prompt and the inner nodes."""
        return self.rest + len(self.inner)

    def new_tokens(self) -> list[int]:
        """The tokens themselves, in the order of the pass."""
        return self.tokens[self.past :] + [self.trie.tokens[node] for node in self.inner]

    def positions(self) -> list[int]:
        """Their positions in the text: siblings of the trie share one."""
        length = len(self.tokens)
        return [*range(self.past, length), *(length + self.trie.depths[node] for node in self.inner)]

    def visible(self, past: int, new: int) -> NDArray[Any]:
        """The mask [new, past + new] of a pass with these sizes: past is padded on the right, the new tokens on the left."""
        mask = np.zeros((new, past + new), bool)
        first = new - self.new
        np.fill_diagonal(mask[:, past:], True)  # padding sees itself: a row that sees nothing would turn into NaN
        mask[first:, : self.past] = True
        nodes, column = first + self.rest, past + first
        mask[first:nodes, column : column + self.rest] |= np.tri(self.rest, dtype=bool)
        mask[nodes:, column : column + self.rest] = True
        for i, node in enumerate(self.inner):
            for ancestor in self.trie.ancestors(node):
                mask[nodes + i, past + nodes + self.slot[ancestor] - 1] = True
        return mask
