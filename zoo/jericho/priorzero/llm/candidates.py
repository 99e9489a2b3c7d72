"""From chat prompts and candidate texts to tokens, and the candidates' token trie; shared by all engines, free of torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.jericho.priorzero.llm import Prompt, Reduction, ScoreRequest, check_reduction

ROOT = -1


def render_prompt(tokenizer: Any, prompt: Prompt) -> str:
    """The prompt as text, ending where the assistant's next token goes.

    Uses the tokenizer's chat template; plain `Role: text` paragraphs where it has none. A template that knows no system role gets
    the system text at the head of the first user message.
    """
    messages, prefix = list(prompt), ""
    if messages and messages[-1]["role"] == "assistant":
        prefix = messages.pop()["content"]
    if not getattr(tokenizer, "chat_template", None):
        lines = [f"{message['role'].capitalize()}: {message['content']}\n\n" for message in messages]
        return "".join(lines) + "Assistant:\n" + prefix
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception:
        # jinja2 raises the template's own complaint; only a missing system role can be worked around
        if len(messages) < 2 or messages[0]["role"] != "system":
            raise
        merged = {"role": "user", "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
        text = tokenizer.apply_chat_template([merged, *messages[2:]], tokenize=False, add_generation_prompt=True)
    return str(text) + prefix


class PromptTokenizer:
    """Tokenises prompts and candidates for one `transformers` tokenizer; candidates' tokens are remembered (bounded)."""

    def __init__(self, tokenizer: Any, max_remembered: int = 50_000) -> None:
        self.tokenizer = tokenizer
        self._max_remembered = max_remembered
        self._remembered: dict[tuple[str, str], tuple[int, ...]] = {}
        self._specials = [token for token in getattr(tokenizer, "all_special_tokens", ()) if token]

    def encode(self, text: str) -> list[int]:
        """Tokens of a rendered text, special tokens written in it included, none added."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Tokens of the rendered prompt."""
        return self._ids(render_prompt(self.tokenizer, prompt))

    def request_ids(self, request: ScoreRequest) -> tuple[list[int], list[tuple[int, ...]]]:
        """Tokens of the prompt, and of each candidate as they follow it; an empty candidate has none."""
        text = render_prompt(self.tokenizer, request.prompt)
        tail = self._tail(text)
        return self._ids(text), [self.candidate_ids(tail, candidate) for candidate in request.candidates]

    def candidate_ids(self, tail: str, candidate: str) -> tuple[int, ...]:
        """Tokens that `candidate` adds after the prompt's last stretch `tail`.

        Where a tokenizer would merge across that border, the candidate is tokenised alone: the prompt's tokens are shared by all
        candidates and stay as they are.
        """
        if not candidate.strip():
            return ()
        known = self._remembered.get((tail, candidate))
        if known is None:
            before, whole = self.encode(tail) if tail else [], self.encode(tail + candidate)
            cut = len(before)
            known = tuple(whole[cut:] if whole[:cut] == before and len(whole) > cut else self.encode(candidate))
            if len(self._remembered) >= self._max_remembered:
                self._remembered.clear()
            self._remembered[tail, candidate] = known
        return known

    def _ids(self, text: str) -> list[int]:
        ids = self.encode(text)
        bos = getattr(self.tokenizer, "bos_token_id", None)
        if bos is not None and getattr(self.tokenizer, "add_bos_token", False) and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def _tail(self, text: str) -> str:
        """What follows (and includes) the last special token, or the last full line: no token crosses its left border."""
        start = max((text.rfind(token) for token in self._specials), default=-1)
        return text[start if start >= 0 else max(text.rstrip("\n").rfind("\n"), 0) :]


@dataclass(frozen=True)
class TokenTrie:
    """Candidates' tokens, common beginnings merged. Node i holds `tokens[i]` and comes after its parent; ROOT is the prompt."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    """Distance from the prompt: 0 for a candidate's first token."""
    ends: list[int] = field(default_factory=list)
    """Per candidate its last node, or ROOT for a candidate without tokens."""

    @staticmethod
    def build(candidates: Sequence[Sequence[int]]) -> TokenTrie:
        """The trie of the given token sequences, in their order."""
        trie, index = TokenTrie(), {}
        for ids in candidates:
            node = ROOT
            for depth, token in enumerate(ids):
                edge = (node, token)
                if edge not in index:
                    index[edge] = len(trie.tokens)
                    trie.tokens.append(token)
                    trie.parents.append(node)
                    trie.depths.append(depth)
                node = index[edge]
            trie.ends.append(node)
        return trie

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """Inner nodes (ROOT included) and their children: each inner node asks the model for one distribution."""
        found: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            found.setdefault(parent, []).append(node)
        return found

    def ancestors(self, node: int) -> Iterator[int]:
        """The node, its parent, and so on to a candidate's first token."""
        while node != ROOT:
            yield node
            node = self.parents[node]

    def path(self, node: int) -> list[int]:
        """Tokens from the prompt to the node, the node's own included; [] for ROOT."""
        return [self.tokens[i] for i in self.ancestors(node)][::-1]

    def reduce(self, node_log_probs: Sequence[float] | NDArray[Any], reduction: Reduction) -> NDArray[Any]:
        """Scores, float32 [candidates], from the log-probability of every node given its path; -inf where there are no tokens."""
        check_reduction(reduction)
        totals = np.zeros(len(self.tokens), np.float64)
        for node, parent in enumerate(self.parents):
            totals[node] = float(node_log_probs[node]) + (totals[parent] if parent != ROOT else 0.0)
        scores = np.full(len(self.ends), -np.inf, np.float32)
        for i, end in enumerate(self.ends):
            if end != ROOT:
                scores[i] = totals[end] / (self.depths[end] + 1 if reduction == "mean" else 1)
        return scores
