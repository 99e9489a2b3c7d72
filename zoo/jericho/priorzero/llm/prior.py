"""The language model's prior over a state's valid actions, with a cache: a state seen before costs no language model."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.llm import Engine, Prompt, Reduction, ScoreRequest, check_reduction, prompt_key
from zoo.jericho.priorzero.llm.prompt_table import ScoredPrompt
from zoo.jericho.priorzero.llm.prompts import Turn, build_prompt
from zoo.jericho.priorzero.sqlite_cache import SharedStore, full_name

if TYPE_CHECKING:
    from zoo.jericho.priorzero.games.session import GameState

TEMPLATE_TOKENS = 32
"""More tokens than a chat template adds to one message."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PriorRequest:
    """Ask for the prior over `actions` in `state`; `history` holds all turns of `episode` so far, oldest first."""

    state: GameState
    actions: tuple[str, ...]
    history: tuple[Turn, ...] = ()
    episode: Hashable = None


@dataclass
class _Query:
    item: PriorRequest
    prompt: Prompt
    history_length: int


class LLMPrior:
    """Turns an engine's scores into log-probabilities over actions; keeps the last `cache_size` answers.

    `temperature` divides the scores before the softmax; `reduction` is that of a candidate's token log-probabilities. With
    `use_cot` the model first writes at most `cot_tokens` tokens of reasoning. May be called from several threads.

    What is not in memory is looked for in `store`, which the processes of a run share, before the engine is asked. Answers are
    kept as scores, under the digest of the weights that gave them, so that other weights of the same version never find them.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        history_length: int = 0,
        temperature: float = 1.0,
        reduction: Reduction = "mean",
        use_cot: bool = False,
        cot_tokens: int = 48,
        cache_size: int = 100_000,
        game_title: str = "",
        store: SharedStore | None = None,
    ) -> None:
        check_reduction(reduction)
        if not (math.isfinite(temperature) and temperature > 0):
            raise ConfigError(f"the prior's temperature is {temperature}, but must be a finite number above 0")
        for name, value, least in (
            ("history_length", history_length, 0),
            ("cot_tokens", cot_tokens, 1),
            ("cache_size", cache_size, 0),
        ):
            if value < least:
                raise ConfigError(f"{name} is {value}, but must be {least} or more")
        self.engine = engine
        self._history_length = history_length
        self._temperature = temperature
        self._reduction: Reduction = reduction
        self._use_cot = use_cot
        self._cot_tokens = cot_tokens
        self._cache_size = cache_size
        self._game_title = game_title
        self._cache: OrderedDict[bytes, NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(
            ("requests", "hits", "store_hits", "engine_requests", "shortened_prompts", "without_score"), 0
        )
        self._engine_seconds = 0.0
        self._model = _model_of(engine) if store is not None else ()
        self._store = store if self._model else None

    def __call__(self, items: Sequence[PriorRequest]) -> list[NDArray[Any]]:
        """Log-probabilities, float32 [actions], per item; their exponentials sum to 1 (no actions give an empty array).

        An action without text has probability 0, unless none has text; equal actions share one action's probability.
        """
        weights = self.engine.weights_digest
        queries = [self._query(item) for item in items]
        keys = [self._key(query, weights) for query in queries]
        wanted: dict[bytes, _Query] = {}
        for key, query in zip(keys, queries, strict=True):
            wanted.setdefault(key, query)
        answers = self._known(wanted)
        misses = {key: query for key, query in wanted.items() if key not in answers}
        self._count(queries, len(queries) - len(misses))
        if misses:
            fresh = dict(zip(misses, self._ask(list(misses.values())), strict=True))
            answers |= fresh
            if self.engine.weights_digest == weights:  # else nobody can say which weights answered
                self._keep(fresh)
                self._share(fresh)
        return [self._log_probs(query, answers[key]) for key, query in zip(keys, queries, strict=True)]

    def recall(self, request: PriorRequest) -> NDArray[Any] | None:
        """The answer as a call would give it, if it is known in memory or in the store; else None, and nothing is counted.

        It never waits for the engine, unless a prompt is so long that its tokens must be counted.
        """
        query = self._query(request)
        key = self._key(query, self.engine.weights_digest)
        answer = self._known({key: query}).get(key)
        if answer is None:
            return None
        self._count([query], 1)
        return self._log_probs(query, answer)

    def key_of(self, request: PriorRequest) -> bytes:
        """The same for requests with the same prompt and actions, for as long as the weights are the same."""
        return self._key(self._query(request), self.engine.weights_digest)

    def scored(self, request: PriorRequest) -> ScoredPrompt:
        """What was asked of the engine for this request and what it said, as a language model learns from it. Nothing is counted
        where the answer is known."""
        query = self._query(request)
        key = self._key(query, self.engine.weights_digest)
        answer = self._known({key: query}).get(key)
        if answer is None:  # the caches are smaller than a collect
            answer = self._ask([query])[0]
        prompt, candidates = self.engine.request_ids(ScoreRequest(query.prompt, request.actions))
        return ScoredPrompt(prompt, candidates, answer)

    def statistics(self) -> dict[str, Any]:
        """Counters since the start: requests, hits (equal requests of one call and store_hits included), hit_rate and more."""
        with self._lock:
            counts = dict(self._counts)
            hit_rate = counts["hits"] / counts["requests"] if counts["requests"] else 0.0
            return counts | {
                "hit_rate": hit_rate,
                "engine_seconds": self._engine_seconds,
                "cache_entries": len(self._cache),
            }

    def clear(self) -> None:
        """Forget all answers in memory; the counters and the store stay."""
        with self._lock:
            self._cache.clear()

    # -- prompts ----------------------------------------------------------

    def _query(self, item: PriorRequest) -> _Query:
        """The request's prompt, with less of the oldest history where the model could not read it all."""
        length = self._history_length
        prompt = self._build(item, length)
        while length and not self._fits(prompt, item.actions):
            length //= 2
            prompt = self._build(item, length)
        return _Query(item, prompt, length)

    def _build(self, item: PriorRequest, history_length: int, reasoning: str = "") -> Prompt:
        return build_prompt(
            item.state,
            item.history,
            history_length=history_length,
            game_title=self._game_title,
            actions=item.actions,
            use_cot=self._use_cot,
            reasoning=reasoning,
        )

    def _fits(self, prompt: Prompt, actions: Sequence[str]) -> bool:
        room = self.engine.context_length - max((len(action.encode()) for action in actions), default=0)
        room -= self._cot_tokens + 1 if self._use_cot else 0
        # a token holds at least one byte: most prompts are seen to fit without tokenising them
        if sum(len(message["content"].encode()) + TEMPLATE_TOKENS for message in prompt) <= room:
            return True
        return self.engine.count_tokens(prompt) <= room

    # -- the engine -------------------------------------------------------

    def _ask(self, misses: list[_Query]) -> list[NDArray[Any]]:
        start = time.perf_counter()
        episodes = [miss.item.episode if miss.history_length else None for miss in misses]
        if self._use_cot:
            thoughts = self.engine.generate([miss.prompt for miss in misses], self._cot_tokens, keys=episodes)
            for miss, thought in zip(misses, thoughts, strict=True):
                first_line = thought.strip().split("\n", 1)[
                    0
                ]  # the action it goes on to write must not be scored after itself
                miss.prompt = self._build(miss.item, miss.history_length, first_line)
        requests = [
            ScoreRequest(miss.prompt, miss.item.actions, episode)
            for miss, episode in zip(misses, episodes, strict=True)
        ]
        scores = self.engine.score(requests, self._reduction)
        seconds = time.perf_counter() - start
        with self._lock:
            self._engine_seconds += seconds
            self._counts["engine_requests"] += len(requests)
            self._counts["without_score"] += sum(bool(len(one)) and not np.isfinite(one).any() for one in scores)
        return [np.asarray(one, np.float32) for one in scores]

    def _log_probs(self, query: _Query, scores: NDArray[Any]) -> NDArray[Any]:
        return action_log_probs(query.item.actions, scores, self._temperature)

    # -- the cache --------------------------------------------------------

    def _key(self, query: _Query, weights: str) -> bytes:
        parts: list[Any] = [prompt_key(query.prompt), query.item.actions, weights, self._reduction]
        parts += [self._use_cot and self._cot_tokens, self._model]
        return b"scores " + hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).digest()

    def _known(self, wanted: Mapping[bytes, _Query]) -> dict[bytes, NDArray[Any]]:
        """The answers that are in memory or in the store; what came from the store is in memory afterwards."""
        answers = {}
        with self._lock:
            for key in wanted:
                if key in self._cache:
                    answers[key] = self._cache[key]
                    self._cache.move_to_end(key)
        if self._store is None or len(answers) == len(wanted):
            return answers
        stored = self._store.get_many([key for key in wanted if key not in answers])
        found = {
            key: np.frombuffer(value, np.float32)
            for key, value in stored.items()
            if len(value) == 4 * len(wanted[key].item.actions)
        }
        with self._lock:
            self._counts["store_hits"] += len(found)
        self._keep(found)
        return answers | found

    def _count(self, queries: Sequence[_Query], hits: int) -> None:
        with self._lock:
            self._counts["requests"] += len(queries)
            self._counts["hits"] += hits
            self._counts["shortened_prompts"] += sum(q.history_length < self._history_length for q in queries)

    def _share(self, fresh: dict[bytes, NDArray[Any]]) -> None:
        # Reasoning is written at temperature 0, so every answer can be repeated.
        if self._store is not None:
            self._store.put_many({key: value.tobytes() for key, value in fresh.items()})

    def _keep(self, fresh: dict[bytes, NDArray[Any]]) -> None:
        with self._lock:
            for key, value in fresh.items():
                self._cache[key] = value
                self._cache.move_to_end(key)
            while len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)


def _model_of(engine: Engine) -> tuple[str, ...]:
    """What tells the answers of this engine's model from another's; empty if it has no name."""
    health = engine.health()
    if not health.get("model"):
        _logger.warning("the language model has no name: its answers are not shared between processes")
        return ()
    # cuda:0 and cuda:1 answer alike, a CPU does not: it computes with more digits
    device = str(health.get("device", "")).partition(":")[0]
    return str(health.get("engine", "")), full_name(health["model"]), device


def action_log_probs(actions: Sequence[str], scores: NDArray[Any], temperature: float) -> NDArray[Any]:
    """Log-softmax, float32, of scores / temperature over distinct actions; equal texts share one action's probability equally.

    A score of -inf or NaN is no probability; without any finite score the result is uniform.
    """
    if not len(actions):
        return np.zeros(0, np.float32)
    texts = [action.strip() for action in actions]
    groups = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    group = np.array([groups[text] for text in texts])
    values = np.asarray(scores, np.float64) / temperature
    values = np.where(np.isfinite(values), values, -np.inf)
    if np.isneginf(values).all():
        return np.full(len(actions), -math.log(len(actions)), np.float32)
    best = np.full(len(groups), -np.inf)
    np.maximum.at(best, group, values)
    best -= best.max()
    log_probs = best - math.log(np.exp(best).sum())
    with np.errstate(over="ignore"):  # what no float32 can hold is no probability
        shared: NDArray[Any] = (log_probs[group] - np.log(np.bincount(group))[group]).astype(np.float32)
    return shared
