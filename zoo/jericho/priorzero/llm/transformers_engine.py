"""The `transformers` engine: one packed pass per prompt scores all its candidates; an episode's KV cache is kept between calls.

The new prompt tokens and the inner nodes of the candidates' token trie go through the model as one sequence, under a tree-shaped
attention mask: every node sees the prompt and its own ancestors. Measured with SmolLM2-135M on one CPU thread, 20 candidates of
three tokens after 300: one packed pass 1.3 s, prefill and a packed pass 1.5 s, prefill and a batch over the repeated KV cache
2.4 s, one full pass per candidate 21 s.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from transformers import AutoTokenizer, DynamicCache
from transformers.cache_utils import DynamicLayer

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.llm import Prompt, Reduction, ScoreRequest, check_reduction
from zoo.jericho.priorzero.llm.candidates import PromptTokenizer, TokenTrie
from zoo.jericho.priorzero.llm.digest import weights_digest
from zoo.jericho.priorzero.llm.kv_store import KvEntry, KvStore
from zoo.jericho.priorzero.llm.model_loading import clear_errors, context_limit, load_model, stop_tokens
from zoo.jericho.priorzero.llm.packed import PackedRow, forward, node_log_probs
from zoo.jericho.priorzero.llm.smollm2 import model_folder
from zoo.jericho.priorzero.llm.trained import (
    Trainable,
    load_trained,
    make_trainable,
    switch_adapter,
    trained_digest,
    trained_weights,
)

# A padded batch pays on a CPU while its rows are short, since the weights are read once for all (8 rows of 60 tokens: 1.8 s
# against 2.4 s one by one), and loses when they are long (8 of 300: 9.8 s against 7.9 s). A GPU wants large passes.
TOKENS_PER_PASS = {"cpu": 512, "cuda": 16_384}


class TransformersEngine:
    """Scores and generates with a causal language model in this process: float32 on a CPU, bfloat16 on a GPU; see `Engine`.

    `model` is a folder or hub name ('' is SmolLM2-135M-Instruct); `device` '' takes a GPU where there is one; `threads` sets
    torch's thread count for the whole process (0 leaves it); `context_length` limits prompts in tokens (0: the model's limit).
    At most `max_kv_entries` prompts of `max_kv_tokens` tokens in total stay cached (46 kB per token for SmolLM2-135M, float32).
    Scores differ in the sixth digit with what is cached and batched; `deterministic` computes each prompt alone and from its
    start, so that equal requests give equal bits in every run. `trainable` makes room for weights that are trained elsewhere.
    """

    def __init__(
        self,
        model: str = "",
        *,
        device: str = "",
        threads: int = 0,
        context_length: int = 0,
        max_kv_entries: int = 32,
        max_kv_tokens: int = 8_192,
        tokens_per_pass: int = 0,
        deterministic: bool = False,
        seed: int = 0,
        trainable: Trainable | None = None,
    ) -> None:
        limits = {"threads": threads, "context_length": context_length, "max_kv_entries": max_kv_entries}
        for name, value in (limits | {"max_kv_tokens": max_kv_tokens, "tokens_per_pass": tokens_per_pass}).items():
            if value < 0:
                raise ConfigError(f"{name} is {value}, but must be 0 or more")
        if threads:
            torch.set_num_threads(threads)
        self.model_name = model or "SmolLM2-135M-Instruct"
        self.weights_version = 0
        self._device = torch.device(device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
        self._dtype = torch.float32 if self._device.type == "cpu" else torch.bfloat16
        folder = model_folder(model)
        self.weights_digest = self._base_digest = weights_digest(folder)
        self._folder, self._trainable = folder, trainable
        with clear_errors(f"cannot load the language model {model!r}", "give a model folder or a reachable hub name"):
            self._tokens = PromptTokenizer(AutoTokenizer.from_pretrained(folder))
            self._model: Any = load_model(folder, self._dtype).to(self._device)
        if trainable is not None and trainable.method == "lora":
            switch_adapter(make_trainable(self._model, trainable), False)
        own_limit = context_limit(self._model.config)
        if context_length > own_limit:
            raise ConfigError(
                f"context_length is {context_length}, but {self.model_name} reads at most {own_limit} tokens"
            )
        self.context_length = context_length or own_limit
        self._stop_tokens = stop_tokens(self._tokens.tokenizer, self._model)
        self._deterministic = deterministic
        self._tokens_per_pass = 1 if deterministic else tokens_per_pass or TOKENS_PER_PASS.get(self._device.type, 4_096)
        self._random = torch.Generator().manual_seed(seed)
        self._store = KvStore(max_kv_entries, max_kv_tokens)
        self._lock = threading.RLock()
        self._counts = dict.fromkeys(("requests", "passes", "prompt_tokens", "reused_tokens", "candidate_tokens"), 0)

    # -- Engine -----------------------------------------------------------

    def count_tokens(self, prompt: Prompt) -> int:
        with self._lock:
            return len(self._tokens.prompt_ids(prompt))

    def score(self, requests: Sequence[ScoreRequest], reduction: Reduction = "mean") -> list[NDArray[Any]]:
        check_reduction(reduction)
        with self._lock, torch.inference_mode():
            self._check_open()
            rows = [self._row(request) for request in requests]
            log_probs: dict[int, NDArray[Any]] = {}
            for batch in self._batches([i for i, row in enumerate(rows) if row.trie.tokens], rows):
                log_probs.update(zip(batch, self._node_log_probs([rows[i] for i in batch]), strict=True))
            self._counts["requests"] += len(rows)
            return [row.trie.reduce(log_probs.get(i, ()), reduction) for i, row in enumerate(rows)]

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        temperature: float = 0.0,
        keys: Sequence[Hashable] | None = None,
    ) -> list[str]:
        if max_new_tokens < 1 or not temperature >= 0:
            raise ConfigError(
                f"max_new_tokens is {max_new_tokens} and temperature {temperature}, but must be at least 1 and 0"
            )
        if self._deterministic and len(prompts) > 1:
            return [self.generate([prompt], max_new_tokens, temperature)[0] for prompt in prompts]
        with self._lock, torch.inference_mode():
            self._check_open()
            if self._deterministic:
                self._store.clear()
            rows = [
                PackedRow(("generated", i), self._tokens.prompt_ids(prompt), TokenTrie())
                for i, prompt in enumerate(prompts)
            ]
            texts = [list[int]() for _ in rows]
            going = list(range(len(rows)))
            for _ in range(max_new_tokens):
                going = [i for i in going if len(rows[i].tokens) < self.context_length]
                still_going = []
                for batch in self._batches(going, rows):
                    for i, logits in zip(batch, self._forward([rows[i] for i in batch]), strict=True):
                        token = self._choose(logits[0], temperature)
                        if token not in self._stop_tokens:
                            texts[i].append(token)
                            rows[i].tokens = [*rows[i].tokens, token]
                            still_going.append(i)
                going = still_going
            return [self._tokens.tokenizer.decode(ids, skip_special_tokens=True) for ids in texts]

    def load_trained(self, weights: Mapping[str, torch.Tensor] | None, version: int, digest: str) -> None:
        if weights is None:
            digest = self._base_digest
        with self._lock:
            self._check_open()
            if digest == self.weights_digest:
                return
            if self._trainable is None:
                raise ConfigError("this engine was made without trainable weights: give it `trainable`")
            if weights is not None and trained_digest(self._base_digest, weights) != digest:
                raise ConfigError(
                    f"trained weights of version {version} are not those of this model, or are damaged: put the run's own "
                    "language model back"
                )
            if self._trainable.method == "lora":
                if weights is not None:
                    load_trained(self._model, weights)
                switch_adapter(self._model, weights is not None)
            else:
                first = {} if weights is not None else trained_weights(load_model(self._folder, self._dtype))
                load_trained(self._model, first or weights or {})
            self.weights_version, self.weights_digest = version, digest
            self._store.clear()

    def request_ids(self, request: ScoreRequest) -> tuple[list[int], list[tuple[int, ...]]]:
        with self._lock:
            return self._tokens.request_ids(request)

    def health(self) -> dict[str, Any]:
        with self._lock:
            state = {"ok": self._model is not None, "engine": "transformers", "model": self.model_name}
            state |= {"weights_version": self.weights_version, "device": str(self._device)}
            return state | self._counts | {"kv_entries": len(self._store), "kv_tokens": self._store.tokens}

    def close(self) -> None:
        with self._lock:
            self._model = None
            self._store.clear()

    # -- one pass ---------------------------------------------------------

    def _row(self, request: ScoreRequest) -> PackedRow:
        prompt, candidates = self._tokens.request_ids(request)
        longest = max(map(len, candidates), default=0)
        if len(prompt) + longest > self.context_length:
            raise ConfigError(
                f"the prompt has {len(prompt)} tokens and its longest action {longest}, but the language model reads at most "
                f"{self.context_length}: shorten the prompt or raise context_length"
            )
        return PackedRow(request.key, prompt, TokenTrie.build(candidates))

    def _batches(self, indices: Sequence[int], rows: Sequence[PackedRow]) -> Iterator[list[int]]:
        """Groups of rows of similar length, each padded to at most `tokens_per_pass` tokens (or one row alone)."""
        for i in indices:
            self._look_up(rows[i])
        batches: list[list[int]] = []
        for i in sorted(indices, key=lambda i: rows[i].new):
            if not batches or rows[i].new * (len(batches[-1]) + 1) > self._tokens_per_pass:
                batches.append([])
            batches[-1].append(i)
        for batch in batches:
            for i in batch:  # again: the batches before may have left a longer beginning
                self._look_up(rows[i])
            yield batch

    def _look_up(self, row: PackedRow) -> None:
        """Set how much of the row's prompt is in the KV store; its last token is always computed, for its logits."""
        if self._deterministic and row.trie.tokens:
            return
        length, entry = self._store.find(row.key, row.tokens)
        row.past = min(length, len(row.tokens) - 1)
        row.layers = entry.prefix(row.past) if entry is not None and row.past else None

    def _node_log_probs(self, rows: list[PackedRow]) -> Iterator[NDArray[Any]]:
        for row, logits in zip(rows, self._forward(rows), strict=True):
            yield node_log_probs(row, logits).cpu().numpy()

    def _forward(self, rows: list[PackedRow]) -> list[torch.Tensor]:
        """The logits of each row, as `packed.forward` has them. Keeps the KV."""
        past, new = max(row.past for row in rows), max(row.new for row in rows)
        cache = self._past(rows, past)
        logits = forward(self._model, rows, cache)
        for i, row in enumerate(rows):
            self._remember(row, cache, i, past + new - row.new)
            self._counts["prompt_tokens"] += row.rest
            self._counts["reused_tokens"] += row.past
            self._counts["candidate_tokens"] += len(row.inner)
        self._counts["passes"] += 1
        return logits

    def _past(self, rows: list[PackedRow], past: int) -> DynamicCache:
        """A cache of the rows' known beginnings, padded on the right to `past` tokens."""
        cache = DynamicCache()
        known = next((row.layers for row in rows if row.layers is not None), None)
        for index, like in enumerate(known or ()):
            layer = DynamicLayer()
            layer.lazy_initialization(*like)
            layer.keys, layer.values = (self._stacked(rows, index, part, like[part], past) for part in (0, 1))
            cache.layers.append(layer)
        return cache

    @staticmethod
    def _stacked(rows: list[PackedRow], index: int, part: int, like: torch.Tensor, past: int) -> torch.Tensor:
        if len(rows) == 1:
            return like
        out = like.new_zeros((len(rows), like.shape[1], past, like.shape[3]))
        for i, row in enumerate(rows):
            if row.layers is not None:
                out[i, :, : row.past] = row.layers[index][part][0]
        return out

    def _remember(self, row: PackedRow, cache: DynamicCache, i: int, first: int) -> None:
        if self._deterministic and row.trie.tokens:
            return

        def own(full: torch.Tensor) -> torch.Tensor:
            if len(full) == 1:  # without padding the prompt is one stretch: a view
                return full[:, :, : len(row.tokens)]
            mine = full[i : i + 1]
            return torch.cat([mine[:, :, : row.past], mine[:, :, first : first + row.rest]], dim=2)

        layers: list[Any] = cache.layers  # of attention, as _past makes them
        entry = KvEntry(row.tokens, [(own(layer.keys), own(layer.values)) for layer in layers])
        self._store.put(row.key, entry)

    def _choose(self, logits: torch.Tensor, temperature: float) -> int:
        if temperature == 0:
            return int(logits.argmax())
        probabilities = torch.softmax(logits.float().cpu() / temperature, -1)
        return int(torch.multinomial(probabilities, 1, generator=self._random))

    def _check_open(self) -> None:
        if self._model is None:
            raise ConfigError("the language-model engine is closed: make a new one")
