"""How prompts and the tries of their candidates are laid out in one pass through a model."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
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


def forward(model: Any, rows: Sequence[PackedRow], cache: Any = None) -> list[Any]:
    """Logits [1 + inner nodes, vocabulary] of each row: after its prompt, then after each inner node. `cache` holds what is known
    of their beginnings, and takes the rest."""
    import torch

    past, new = max(row.past for row in rows), max(row.new for row in rows)
    ids, positions = np.zeros((len(rows), new), np.int64), np.zeros((len(rows), new), np.int64)
    for i, row in enumerate(rows):
        ids[i, new - row.new :] = row.new_tokens()
        positions[i, new - row.new :] = row.positions()
    mask = np.stack([row.visible(past, new) for row in rows])[:, None]
    device = model.device
    logits = model(
        input_ids=torch.from_numpy(ids).to(device),
        position_ids=torch.from_numpy(positions).to(device),
        attention_mask=torch.from_numpy(mask).to(device),
        past_key_values=cache,
        use_cache=cache is not None,
        logits_to_keep=1 + max(len(row.inner) for row in rows),
    ).logits
    return [logits[i, logits.shape[1] - 1 - len(row.inner) :] for i, row in enumerate(rows)]


def node_log_probs(row: PackedRow, logits: Any) -> Any:
    """The log-probability of every node of the row's trie given its path, from the row's logits; float32 [nodes]."""
    import torch

    parents = torch.tensor([row.slot[parent] for parent in row.trie.parents], device=logits.device)
    tokens = torch.tensor(row.trie.tokens, device=logits.device)
    return torch.log_softmax(logits.float(), -1)[parents, tokens]
