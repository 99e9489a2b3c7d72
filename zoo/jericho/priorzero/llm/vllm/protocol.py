"""What the vllm engine asks of a vLLM engine, wherever that runs: token ids in; tokens and chosen log-probabilities out.

An engine that has died or hangs is an EngineFailure, after which `restart` may help; what the engine refuses is a ConfigError.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lzero_async.errors import LzeroAsyncError


class EngineFailure(LzeroAsyncError):
    """The engine has died, hangs or answered with an error of its own; the question may be asked again."""

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered
        """Whether this is what the engine itself said, rather than silence."""


@dataclass(frozen=True)
class Question:
    """Continue `token_ids` by at most `max_tokens`; `wanted`: token ids whose log-probability as the next token is asked for.

    Questions with the same `key` have the beginning of their tokens in common: one server answers them fastest.
    """

    token_ids: tuple[int, ...]
    wanted: tuple[int, ...] = ()
    max_tokens: int = 1
    temperature: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    key: Hashable = field(default=None, compare=False)

    def sampling(self) -> dict[str, Any]:
        """vLLM's sampling parameters. Temperature 1 by default: then raw and processed log-probabilities are the same."""
        parameters: dict[str, Any] = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "detokenize": False,
        }
        if self.stop_token_ids:
            parameters["stop_token_ids"] = list(self.stop_token_ids)
        if self.wanted:
            # The answer lists the sampled token first and is cut to `logprobs` entries: one more keeps the last wanted one.
            ids = [*self.wanted, self.wanted[0]]
            parameters |= {"logprob_token_ids": ids, "logprobs": len(ids)}
        return parameters


@dataclass(frozen=True)
class Answer:
    """The tokens that were generated, and the log-probability of each wanted token."""

    token_ids: tuple[int, ...]
    log_probs: dict[int, float]


class Transport(Protocol):
    """One way to a vLLM engine; `restart` also starts it the first time."""

    name: str
    ids_per_question: int
    context_length: int
    base_weights: str
    """The folder or hub name whose weights the engine started with."""
    owns_engine: bool
    """Whether `restart` gives a fresh engine; else somebody else runs it, and may have restarted it unseen."""

    def ask(self, questions: Sequence[Question], timeout: float | None = None) -> list[Answer | EngineFailure]: ...
    def restart(self) -> None: ...
    def reload(self, path: str) -> None: ...
    def statistics(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


PROBE = Question(token_ids=(1, 2), wanted=(1, 2))
"""The smallest real request; its answer shows that the engine lives and that it can do what is needed."""
PROBE_TIMEOUT = 60.0
