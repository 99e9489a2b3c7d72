"""The `vllm` engine: prefix caching, and one one-token request per inner node of the candidates' token trie.

Each request asks for the exact log-probabilities of that node's children, whatever their rank; the prompt in front of them is
computed once. (`prompt_logprobs`, the other exact way, switches prefix caching off.) An engine that dies or hangs is restarted a
bounded number of times, gets the newest weights again, and is asked again what it had not answered.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import secrets
import threading
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lzero_async.errors import ConfigError
from lzero_async.validation import backoff as pause_after
from lzero_async.validation import duration, whole_number
from zoo.jericho.priorzero.llm import Message, Prompt, Reduction, ScoreRequest, check_reduction, prompt_key
from zoo.jericho.priorzero.llm.candidates import PromptTokenizer, TokenTrie
from zoo.jericho.priorzero.llm.digest import weights_digest
from zoo.jericho.priorzero.llm.smollm2 import model_folder
from zoo.jericho.priorzero.llm.vllm.in_process import InProcessTransport
from zoo.jericho.priorzero.llm.vllm.pool import PoolTransport
from zoo.jericho.priorzero.llm.vllm.protocol import PROBE, PROBE_TIMEOUT, Answer, EngineFailure, Question, Transport
from zoo.jericho.priorzero.llm.vllm.server import HttpTransport, ProcessTransport
from zoo.jericho.priorzero.sections import split_addresses

log = logging.getLogger(__name__)
ENVIRONMENT = ".venv-vllm"
CHECK_REQUEST = ScoreRequest(
    [Message(role="user", content="You stand at a locked gate.")], ("unlock gate with brass key",)
)
"""What `load_weights` scores (sum) to compare with the `expected_logprob` that another engine gave for the same weights."""


def make_vllm_engine(
    model: str = "",
    url: str = "",
    *,
    python: str = "",
    in_process: bool | None = None,
    tensor_parallel_size: int = 1,
    gpu_memory_utilization: float | None = None,
    dtype: str = "",
    max_model_len: int = 0,
    enforce_eager: bool | None = None,
    vllm_arguments: dict[str, Any] | None = None,
    request_timeout: float = 300.0,
    start_timeout: float = 900.0,
    log_dir: str = "",
    max_restarts: int = 3,
    backoff: float = 1.0,
) -> VllmEngine:
    """A vllm engine: the server at `url`, else in this process (`in_process`), else in a process of its own.

    `url` may be several addresses with commas between them. `in_process` None takes this process where vllm can be imported
    and no `python` is given. A process of its own runs `python`, by default that of `.venv-vllm` in the checkout or the
    working directory. The options from `tensor_parallel_size` to `enforce_eager` are vLLM's; those left unset are vLLM's to
    choose (on a CPU: float32, eager), and `vllm_arguments` holds any other of its engine arguments. Times are in seconds; the
    pause `backoff` doubles with each restart.
    """
    arguments = _engine_options(tensor_parallel_size, gpu_memory_utilization, dtype, max_model_len, enforce_eager)
    arguments |= vllm_arguments or {}
    for name, value in {"request_timeout": request_timeout, "start_timeout": start_timeout}.items():
        duration(name, value)
    transport: Transport
    addresses = split_addresses("llm_url", url)
    if addresses:
        if in_process or python:
            raise ConfigError(
                f"llm_url is {url!r}, so neither `python` nor `in_process` can be used: leave one of them out"
            )
        if len(addresses) > 1:
            transport = PoolTransport(addresses, model, request_timeout=request_timeout)
        else:
            transport = HttpTransport(addresses[0], model, request_timeout=request_timeout)
    elif in_process or (in_process is None and not python and _has_vllm()):
        if not _has_vllm():
            raise ConfigError("in_process is True, but vllm is not installed in this environment: leave in_process out")
        transport = InProcessTransport(_absolute(model_folder(model)), arguments, request_timeout=request_timeout)
    else:
        transport = ProcessTransport(
            python=_find_python(python),
            model=_absolute(model_folder(model)),
            arguments=arguments,
            request_timeout=request_timeout,
            start_timeout=start_timeout,
            log_dir=log_dir,
        )
    return VllmEngine(transport, max_restarts=max_restarts, backoff=backoff)


class VllmEngine:
    """Scores and generates through a vLLM engine behind `transport`; see `Engine`. Calls are served one after the other."""

    def __init__(
        self, transport: Transport, *, max_restarts: int = 3, backoff: float = 1.0, tokenizer: Any = None
    ) -> None:
        whole_number("max_restarts", max_restarts, 0)
        duration("backoff", backoff, zero=True)
        self.weights_version = 0
        self._transport, self._max_restarts, self._backoff = transport, max_restarts, backoff
        self._weights, self._closed, self._lock = "", threading.Event(), threading.RLock()
        self._ready = True  # False while an engine may run without the newest weights: it must not be asked then
        self._counts = dict.fromkeys(("requests", "questions", "failures", "restarts"), 0)
        try:
            transport.restart()
            self.model_name = getattr(transport, "model", "")
            self.weights_digest = weights_digest(self.model_name)
            self.context_length = transport.context_length
            self._tokens = PromptTokenizer(tokenizer or _load_tokenizer(self.model_name))
            self._stop_tokens = _stop_tokens(self._tokens.tokenizer, self.model_name)
        except EngineFailure as failure:
            transport.close()
            where = (
                "start it, or leave --llm_url out"
                if not transport.owns_engine
                else "see above, or use --llm_engine transformers"
            )
            raise ConfigError(f"the vllm engine does not work: {failure}\n{where}") from failure
        except BaseException:
            transport.close()
            raise

    @property
    def restarts(self) -> int:
        """How often the engine's process was started again."""
        return self._counts["restarts"]

    def count_tokens(self, prompt: Prompt) -> int:
        with self._lock:
            return len(self._tokens.prompt_ids(prompt))

    def request_ids(self, request: ScoreRequest) -> tuple[list[int], list[tuple[int, ...]]]:
        with self._lock:
            return self._tokens.request_ids(request)

    def score(self, requests: Sequence[ScoreRequest], reduction: Reduction = "mean") -> list[NDArray[Any]]:
        check_reduction(reduction)
        with self._lock:
            rows = [self._row(request) for request in requests]
            nodes = [
                (i, parent, tuple(prompt + trie.path(parent)), children)
                for i, (prompt, trie) in enumerate(rows)
                for parent, children in trie.children.items()
            ]
            wanted: dict[tuple[int, ...], dict[int, None]] = {}  # equal prompts of several requests are asked once
            keys: dict[tuple[int, ...], Hashable] = {}
            for i, _, context, children in nodes:
                wanted.setdefault(context, {}).update(dict.fromkeys(rows[i][1].tokens[child] for child in children))
                keys.setdefault(context, _key(requests[i].prompt, requests[i].key))
            size = self._transport.ids_per_question
            questions = [
                Question(context, tuple(ids)[start : start + size], key=keys[context])
                for context, ids in wanted.items()
                for start in range(0, len(ids), size)
            ]
            known: dict[tuple[int, ...], dict[int, float]] = {}
            for question, answer in zip(questions, self._ask(questions), strict=True):
                known.setdefault(question.token_ids, {}).update(answer.log_probs)
            log_probs = [np.zeros(len(trie.tokens)) for _, trie in rows]
            for i, _, context, children in nodes:
                for child in children:
                    log_probs[i][child] = known[context][rows[i][1].tokens[child]]
            self._counts["requests"] += len(rows)
            return [trie.reduce(values, reduction) for (_, trie), values in zip(rows, log_probs, strict=True)]

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
        with self._lock:
            texts = [""] * len(prompts)
            questions: dict[int, Question] = {}
            for i, prompt in enumerate(prompts):
                ids = self._tokens.prompt_ids(prompt)
                if room := max(0, min(max_new_tokens, self.context_length - len(ids))):
                    key = _key(prompt, keys[i] if keys else None)
                    questions[i] = Question(tuple(ids), (), room, temperature, self._stop_tokens, key)
            for i, answer in zip(questions, self._ask(list(questions.values())), strict=True):
                texts[i] = self._tokens.tokenizer.decode(list(answer.token_ids), skip_special_tokens=True)
            return texts

    def load_weights(
        self, path: str, version: int, *, expected_logprob: float | None = None, tolerance: float = 1e-2
    ) -> None:
        """See `Engine`. With `expected_logprob`, the sum score of CHECK_REQUEST must then be that, within `tolerance`."""
        if not isinstance(version, int) or version < 0:
            raise ConfigError(f"the weights version is {version!r}, but must be a whole number, 0 or more")
        if self._transport.owns_engine:
            _check_weights(path)
        # A folder that only the server sees: nobody can say what is in it, so nothing that was known before counts.
        digest = weights_digest(path) if Path(path).is_dir() else secrets.token_hex(16)
        with self._lock:
            self._check_open()
            before = self._weights
            try:
                self._reload(str(Path(path).absolute()))
                if expected_logprob is not None:
                    found = float(self.score([CHECK_REQUEST], "sum")[0][0])
                    if not abs(found - expected_logprob) <= tolerance:
                        raise ConfigError(
                            f"the weights in {path!r} give the log-probability {found:.4f} where {expected_logprob:.4f} was "
                            "expected, so they did not arrive whole; the old weights stay"
                        )
            except ConfigError:
                self._reload(before or self._transport.base_weights)
                raise
            self.weights_version, self.weights_digest = version, digest

    def _reload(self, weights: str) -> None:
        """Have the engine take these weights; an engine that dies over them is brought back with the old ones and asked again."""
        for attempt in range(self._max_restarts + 1):
            try:
                self._transport.reload(weights)
                self._weights, self._ready = weights, True
                return
            except EngineFailure as error:
                failure = error
                self._ready = False
                self._counts["failures"] += 1
            self._check_open()
            if self._is_alive():
                if failure.answered:
                    raise ConfigError(
                        f"cannot load the weights in {weights!r}: {failure}; the old weights stay"
                    ) from failure
                continue  # only the question was lost
            if attempt < self._max_restarts:
                log.warning("the vllm engine failed over new weights: %s", failure)
                self._recover(pause_after(self._backoff, attempt))
        raise self._gave_up(failure)

    def health(self) -> dict[str, Any]:
        """See `Engine`; `ok` is the answer to a real request, made now."""
        state = {"ok": not self._closed.is_set() and self._is_alive(), "engine": "vllm", "mode": self._transport.name}
        state |= {"model": self.model_name, "weights_version": self.weights_version}
        return state | self._counts | self._transport.statistics()

    def server_statistics(self) -> dict[str, int]:
        """The counters of each of several servers as flat numbers, `server_1_served` and so on; asks nobody."""
        servers = self._transport.statistics().get("servers", [])
        return {
            f"server_{i}_{name}": int(value)
            for i, server in enumerate(servers, 1)
            for name, value in server.items()
            if name != "url"
        }

    def close(self) -> None:
        self._closed.set()
        self._transport.close()

    def _row(self, request: ScoreRequest) -> tuple[list[int], TokenTrie]:
        prompt, candidates = self._tokens.request_ids(request)
        longest = max(map(len, candidates), default=0)
        if len(prompt) + longest > self.context_length:
            raise ConfigError(
                f"the prompt has {len(prompt)} tokens and its longest action {longest}, but the language model reads at most "
                f"{self.context_length}: shorten the prompt or raise max_model_len"
            )
        return prompt, TokenTrie.build(candidates)

    def _ask(self, questions: Sequence[Question]) -> list[Answer]:
        """Answers to all questions; those that an engine failure left open are asked again after it was brought back."""
        self._check_open()
        self._counts["questions"] += len(questions)
        answers: dict[int, Answer] = {}
        failure = EngineFailure("it did not come back after the last failure")
        for attempt in range(self._max_restarts + 1):
            if attempt or not self._ready:
                failure = self._recover(pause_after(self._backoff, attempt - 1) if attempt else 0.0) or failure
                if not self._ready:
                    continue
            open_ones = [i for i in range(len(questions)) if i not in answers]
            replies = self._transport.ask([questions[i] for i in open_ones])
            answers.update((i, reply) for i, reply in zip(open_ones, replies, strict=True) if isinstance(reply, Answer))
            if len(answers) == len(questions):
                return [answers[i] for i in range(len(questions))]
            failure = next(reply for reply in replies if isinstance(reply, EngineFailure))
            self._counts["failures"] += 1
            self._check_open()
            left = len(questions) - len(answers)
            log.warning("the vllm engine failed with %d of %d requests open: %s", left, len(questions), failure)
        raise self._gave_up(failure)

    def _recover(self, pause: float) -> EngineFailure | None:
        """Bring a failed engine back with the newest weights, unless a real request shows that it works. What went wrong."""
        self._closed.wait(pause)
        self._check_open()
        try:
            alive = self._ready and self._is_alive()
            self._ready = False
            if not alive:
                self._counts["restarts"] += 1
                self._transport.restart()
            if self._weights and not (alive and self._transport.owns_engine):
                self._transport.reload(self._weights)
            self._ready = True
        except EngineFailure as failure:
            log.warning("the vllm engine did not come back: %s", failure)
            return failure
        return None

    def _gave_up(self, failure: EngineFailure) -> EngineFailure:
        found = EngineFailure(f"the vllm engine failed {self._max_restarts + 1} times in a row; at last: {failure}")
        found.__cause__ = failure
        return found

    def _is_alive(self) -> bool:
        return isinstance(self._transport.ask([PROBE], PROBE_TIMEOUT)[0], Answer)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise ConfigError("the language-model engine is closed: make a new one")


def _engine_options(
    tensor_parallel_size: int, memory: float | None, dtype: str, max_model_len: int, eager: bool | None
) -> dict[str, Any]:
    if tensor_parallel_size < 1 or max_model_len < 0:
        raise ConfigError(
            f"tensor_parallel_size is {tensor_parallel_size} and max_model_len {max_model_len}, but must be at least 1 and 0"
        )
    if memory is not None and not 0 < memory <= 1:
        raise ConfigError(f"gpu_memory_utilization is {memory}, but must be more than 0 and at most 1")
    given: dict[str, Any] = {"tensor_parallel_size": tensor_parallel_size if tensor_parallel_size > 1 else None}
    given |= {"gpu_memory_utilization": memory, "dtype": dtype or None, "max_model_len": max_model_len or None}
    return {name: value for name, value in (given | {"enforce_eager": eager}).items() if value is not None}


def _key(prompt: Prompt, key: Hashable) -> Hashable:
    """What questions have in common that one server answers fastest: the episode, else the prompt up to the assistant's turn."""
    if key is not None:
        return key
    asked = prompt[:-1] if prompt and prompt[-1]["role"] == "assistant" else prompt
    return hash(prompt_key(asked))


def _absolute(model: str) -> str:
    """A folder by its full path, so that a restart from another working directory finds it; a hub name as it is."""
    return str(Path(model).absolute()) if Path(model).is_dir() else model


def _has_vllm() -> bool:
    return importlib.util.find_spec("vllm") is not None


def _find_python(given: str) -> str:
    """The Python that has vllm: as given, or that of the environment which `make vllm` builds."""
    places = (
        [Path(given)]
        if given
        else [folder / ENVIRONMENT / "bin" / "python" for folder in (Path(__file__).resolve().parents[5], Path.cwd())]
    )
    for place in places:
        if os.access(place, os.X_OK) and place.is_file():
            return str(place.absolute())  # not resolved: a link's own place is what makes it that environment's Python
    raise ConfigError(
        f"there is no vLLM environment at {' or '.join(dict.fromkeys(map(str, places)))}: "
        "run `make vllm`, or give --llm_url, or use --llm_engine transformers"
    )


def _check_weights(path: str) -> None:
    folder = Path(path)
    if not path or not any(folder.glob("*.safetensors")):
        raise ConfigError(f"the weights path {path!r} is no folder with .safetensors files; the old weights stay")


def _load_tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"cannot load the tokenizer of {model!r}: {reason}; give --llm the model's folder") from error


def _stop_tokens(tokenizer: Any, model: str) -> tuple[int, ...]:
    """The tokenizer's end of turn, and those that a model folder's generation settings name."""
    settings = Path(model) / "generation_config.json"
    named = json.loads(settings.read_text()).get("eos_token_id") if settings.is_file() else None
    tokens = [*named] if isinstance(named, list) else [named]
    return tuple(sorted({token for token in (*tokens, tokenizer.eos_token_id) if token is not None}))
