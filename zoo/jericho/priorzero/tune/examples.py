"""What a language model learns from, out of the batches of collectors: equal prompts are one, with all steps that met it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lzero_async.runs.soundness import is_finite
from zoo.jericho.priorzero.llm.candidates import TokenTrie
from zoo.jericho.priorzero.llm.packed import PackedRow
from zoo.jericho.priorzero.llm.prompt_table import ScoredPrompt
from zoo.jericho.priorzero.play.batch import Collected
from zoo.jericho.priorzero.play.open_game import Episode
from zoo.jericho.priorzero.tune.losses import advantages, normalised


@dataclass
class Step:
    """A step that met the prompt: the candidate that was taken and how likely that was, its advantage (NaN: unknown), and what
    the language model scored then."""

    action: int
    taken: float
    advantage: float
    scores: NDArray[Any]


@dataclass
class Example:
    """One distinct prompt: its row of a pass, how many candidates have each candidate's text, the visits of its steps
    together, and the steps."""

    row: PackedRow
    copies: NDArray[Any]  # float32 [candidates]
    visits: NDArray[Any]  # float32 [candidates], a sum
    steps: list[Step] = field(default_factory=list)

    @property
    def target(self) -> NDArray[Any]:
        """The visits as a distribution over the candidates."""
        found: NDArray[Any] = self.visits / max(float(self.visits.sum()), 1e-9)
        return found


def gather(batches: Sequence[Collected], discount: float, n_step: int) -> list[Example]:
    """The examples of these batches, in the order in which they were met. Advantages are normalised over all steps."""
    examples: dict[tuple[Any, ...], Example] = {}
    waiting: list[tuple[Step, float]] = []
    for batch in batches:
        if batch.prompts is None:
            continue
        rows = batch.prompts.rows()
        found = [_example(examples, row) for row in rows]
        for episode in batch.episodes:
            if episode.prompts is None or episode.taken is None or not _is_sound(episode):
                continue
            values, known = advantages(episode.rewards, episode.root_values, episode.ended, discount, n_step)
            for step, number in enumerate(episode.prompts.tolist()):
                example, scores = found[number], rows[number].scores
                example.visits += episode.visits[step, : len(scores)]
                made = Step(int(episode.actions[step]), float(episode.taken[step]), float("nan"), scores)
                example.steps.append(made)
                if known[step]:
                    waiting.append((made, float(values[step])))
    for (made, _), value in zip(
        waiting, normalised(np.asarray([value for _, value in waiting], np.float32)), strict=True
    ):
        made.advantage = float(value)
    return [example for example in examples.values() if example.steps and np.isfinite(example.visits).all()]


def _is_sound(episode: Episode) -> bool:
    """The world model's learner refuses, counts and names others."""
    return all(is_finite(value) for value in (episode.rewards, episode.root_values, episode.visits, episode.taken))


def _example(examples: dict[tuple[Any, ...], Example], row: ScoredPrompt) -> Example:
    key = tuple(row.tokens), tuple(map(tuple, row.candidates))
    if key not in examples:
        texts = [tuple(candidate) for candidate in row.candidates]
        copies = np.asarray([texts.count(text) for text in texts], np.float32)
        trie = TokenTrie.build(row.candidates)
        packed = PackedRow(key, list(row.tokens), trie)
        examples[key] = Example(packed, copies, np.zeros(len(texts), np.float32))
    return examples[key]


def is_held_out(example: Example, share: float) -> bool:
    """Whether this prompt is one of the share that is never trained on: the same ones in every train and run."""
    return zlib.crc32(np.asarray(example.row.tokens, np.int32).tobytes()) < share * 2**32


def can_teach(example: Example) -> bool:
    """Whether there is a choice in it: at least two candidates that the model can say."""
    return len({end for end in example.row.trie.ends if end >= 0}) > 1
