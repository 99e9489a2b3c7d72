"""Language-model engines: one small protocol that scores candidate actions after a chat prompt, and how to make one.

A prompt is a list of chat messages. An engine applies the model's own chat template and opens the assistant's turn; a last
message with the role `assistant` is the beginning of that turn (a reasoning prefix) and is continued, not closed.

A candidate's score is the log-probability of the tokens of its text where the assistant's turn goes on, summed or averaged over
those tokens, in float32; no end-of-turn token is scored. A candidate without tokens (empty or only white space) scores -inf.
Equal candidates get equal scores. Scores agree with one full pass per candidate within 1e-3.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

from numpy.typing import NDArray

from lzero_async.errors import ConfigError

Reduction = Literal["sum", "mean"]
ENGINE_KINDS = ("transformers", "vllm")
REDUCTIONS = ("mean", "sum")


class Message(TypedDict):
    """One chat message; `role` is system, user or assistant."""

    role: str
    content: str


Prompt = list[Message]


@dataclass(frozen=True)
class ScoreRequest:
    """Score `candidates` after `prompt`; requests with the same `key` (an episode) may reuse each other's KV cache."""

    prompt: Prompt
    candidates: tuple[str, ...]
    key: Hashable = None


@runtime_checkable
class Engine(Protocol):
    """What every language-model engine offers. All methods may be called from any thread."""

    weights_version: int
    weights_digest: str
    """Other weights have another one; see `digest.py`."""
    context_length: int

    def count_tokens(self, prompt: Prompt) -> int:
        """Tokens of the prompt with its template and the opened assistant's turn."""
        ...

    def score(self, requests: Sequence[ScoreRequest], reduction: Reduction = "mean") -> list[NDArray[Any]]:
        """Token log-probabilities, float32 of shape [candidates], one array per request."""
        ...

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        temperature: float = 0.0,
        keys: Sequence[Hashable] | None = None,
    ) -> list[str]:
        """Continue each prompt by at most `max_new_tokens`; temperature 0 takes the likeliest token.

        `keys` are those of ScoreRequest, one per prompt.
        """
        ...

    def request_ids(self, request: ScoreRequest) -> tuple[list[int], list[tuple[int, ...]]]:
        """Tokens of the prompt and of each candidate, as `score` takes them."""
        ...

    def health(self) -> dict[str, Any]:
        """`ok`, `engine`, `model`, `weights_version` and counters."""
        ...

    def close(self) -> None:
        """Free what the engine holds; closing twice is harmless."""
        ...


@runtime_checkable
class TrainedEngine(Engine, Protocol):
    """An engine whose model may be trained elsewhere."""

    def load_trained(self, weights: Mapping[str, Any] | None, version: int, digest: str) -> None:
        """Take the trained part of the weights in place, None: the model as it was; nothing is done for those that are here. A
        ConfigError leaves the old ones."""
        ...


def prompt_key(prompt: Prompt) -> tuple[tuple[str, str], ...]:
    """The prompt as a hashable value."""
    return tuple((message["role"], message["content"]) for message in prompt)


def check_reduction(reduction: str) -> None:
    """Raise ConfigError unless `reduction` is one of `mean` and `sum`."""
    if reduction not in REDUCTIONS:
        raise ConfigError(f"reduction is {reduction!r}, but must be one of: {', '.join(REDUCTIONS)}")


def make_engine(kind: str, model: str = "", url: str = "", **options: Any) -> Engine:
    """An engine of `kind` for a model folder or hub name; '' is SmolLM2-135M-Instruct, converted once into the user's cache.

    `url` names an existing server, or several with commas between them (vllm only); `options` are those of the engine's class.
    """
    if kind == "transformers":
        if url:
            raise ConfigError(f"llm_url is {url!r}, but only the vllm engine talks to a server: use --llm_engine vllm")
        from zoo.jericho.priorzero.llm.transformers_engine import TransformersEngine

        return TransformersEngine(model, **options)
    if kind == "vllm":
        from zoo.jericho.priorzero.llm.vllm.engine import make_vllm_engine

        return make_vllm_engine(model, url, **options)
    raise ConfigError(f"llm_engine is {kind!r}, but must be one of: {', '.join(ENGINE_KINDS)}")
