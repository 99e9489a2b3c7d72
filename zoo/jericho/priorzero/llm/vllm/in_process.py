"""vLLM's engine in this process, for environments where vllm can be imported."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.llm.vllm import vllm_worker
from zoo.jericho.priorzero.llm.vllm.protocol import PROBE, PROBE_TIMEOUT, Answer, EngineFailure, Question


class InProcessTransport:
    """vLLM's own engine object; a script that uses it needs `if __name__ == "__main__"`, since vLLM starts processes."""

    name = "in-process"
    ids_per_question = vllm_worker.MAX_TOKEN_IDS - 1
    owns_engine = True

    def __init__(self, model: str, arguments: dict[str, Any], *, request_timeout: float = 300.0) -> None:
        self.model, self.base_weights, self.context_length = model, model, 0
        self._arguments, self._timeout = arguments, request_timeout
        self._llm: Any = None

    def restart(self) -> None:
        """Drop the engine if there is one and build another."""
        import vllm

        self.close()
        vllm_worker.set_environment()
        os.environ[vllm_worker.OWNER_VARIABLE] = str(os.getpid())  # for the processes that vLLM starts now
        extension = f"{vllm_worker.__name__}.WeightReload"
        try:
            self._llm = vllm.LLM(**vllm_worker.engine_arguments(self.model, self._arguments, extension))
        except Exception as error:
            # vLLM raises errors of many kinds here; each of them means that there is no engine
            raise EngineFailure(f"vLLM does not start: {error}") from error
        finally:
            del os.environ[vllm_worker.OWNER_VARIABLE]
        self.context_length = self._llm.llm_engine.model_config.max_model_len
        (answer,) = self.ask([PROBE], PROBE_TIMEOUT)
        if isinstance(answer, EngineFailure):
            raise answer

    def ask(self, questions: Sequence[Question], timeout: float | None = None) -> list[Answer | EngineFailure]:
        """Answers in the order of the questions; `timeout` (seconds) only shortens the usual one."""
        import vllm

        prompts = [{"prompt_token_ids": list(question.token_ids)} for question in questions]
        parameters = [vllm.SamplingParams(**question.sampling()) for question in questions]
        try:
            outputs = self._run(lambda llm: llm.generate(prompts, parameters, use_tqdm=False), timeout)
        except ValueError as error:
            raise ConfigError(f"vLLM refused the request: {error}") from error
        except Exception as error:
            # vLLM's EngineDeadError, and what an engine's death throws on the way; the engine may be rebuilt
            return [EngineFailure(f"{type(error).__name__}: {error}")] * len(questions)
        return [self._parse(question, output.outputs[0]) for question, output in zip(questions, outputs, strict=True)]

    @staticmethod
    def _parse(question: Question, output: Any) -> Answer:
        first = output.logprobs[0] if question.wanted else {}
        return Answer(tuple(output.token_ids), {token: float(first[token].logprob) for token in question.wanted})

    def reload(self, path: str) -> None:
        """Load the weights of a folder and forget every cached prefix."""
        try:
            self._run(lambda llm: llm.collective_rpc("reload_all_weights", kwargs={"weights_path": path}))
            self._run(lambda llm: llm.reset_prefix_cache(reset_running_requests=True))
        except EngineFailure:
            raise
        except Exception as error:
            # the worker's own error, passed on by vLLM
            raise EngineFailure(f"{type(error).__name__}: {error}", answered=True) from error

    def _run(self, call: Callable[[Any], Any], timeout: float | None = None) -> Any:
        """What `call` returns or raises; EngineFailure when the engine dies over it, where vLLM's object waits for ever."""
        if self._llm is None:
            raise EngineFailure("the engine is closed")
        llm = self._llm
        results: list[tuple[Any, Exception | None]] = []

        def run() -> None:
            try:
                results.append((call(llm), None))
            except Exception as error:
                # raised again by the waiting thread
                results.append((None, error))

        thread = threading.Thread(target=run, name="vllm-ask", daemon=True)
        thread.start()
        deadline = time.monotonic() + min(self._timeout, timeout or self._timeout)
        while not results:
            thread.join(0.05)
            resources = getattr(llm.llm_engine.engine_core, "resources", None)
            if not results and (getattr(resources, "engine_dead", False) or time.monotonic() > deadline):
                raise EngineFailure("vLLM's engine core has ended, or does not answer")
        value, error = results[0]
        if error is not None:
            raise error
        return value

    def statistics(self) -> dict[str, Any]:
        """Nothing: one engine's counters are those of whoever asks it."""
        return {}

    def close(self) -> None:
        """Shut the engine down."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.llm_engine.engine_core.shutdown()
