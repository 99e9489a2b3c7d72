"""Whether several servers have the same model with the same weights: by its name, and by what they say to one fixed question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.llm.vllm.protocol import EngineFailure, Question

MARK_QUESTION = Question(token_ids=tuple(range(1, 9)), wanted=tuple(range(1, 17)))
"""Its answer is the mark of a server's weights."""
MARK_TOLERANCE = 0.5
"""Most that one log-probability may differ: more than bfloat16 differs between GPUs, less than models do."""


@dataclass(frozen=True)
class Mark:
    """A server's model and the answer to MARK_QUESTION; `model` is '' where the user named it, since names may then differ."""

    url: str
    model: str
    log_probs: dict[int, float]


def difference(one: Mark, other: Mark) -> str:
    """What the first server has that the second has not, '' if they are alike."""
    if one.model != other.model:
        return (
            f"the server at {one.url} serves {one.model!r}, but that at {other.url} serves {other.model!r}; all servers of "
            "llm_url must serve the same model: leave one out, or give --llm a name that both know"
        )
    if any(abs(value - other.log_probs[token]) > MARK_TOLERANCE for token, value in one.log_probs.items()):
        return (
            f"the server at {one.url} gives other log-probabilities than that at {other.url}, so their weights differ; give "
            "all servers of llm_url the same model and the same folders"
        )
    return ""


def odd_ones(marks: Mapping[str, Mark]) -> tuple[Mark, dict[str, ConfigError]]:
    """The mark that most servers agree with (the first of equals), and an error for each server that does not; by address."""
    reference = max(marks.values(), key=lambda one: sum(not difference(one, other) for other in marks.values()))
    found = {url: difference(mark, reference) for url, mark in marks.items()}
    return reference, {url: ConfigError(text) for url, text in found.items() if text}


def joined(errors: Mapping[str, Exception]) -> EngineFailure:
    """One failure for all servers."""
    answered = any(getattr(error, "answered", False) for error in errors.values())
    return EngineFailure("; ".join(map(str, errors.values())), answered=answered)
