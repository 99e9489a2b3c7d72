"""A vLLM server as the engine: one that somebody else runs, by its address, or one that we start and look after."""

from __future__ import annotations

import atexit
import json
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from lzero_async.errors import ConfigError
from zoo.jericho.priorzero.llm.vllm import vllm_worker
from zoo.jericho.priorzero.llm.vllm.protocol import PROBE, PROBE_TIMEOUT, Answer, EngineFailure, Question
from zoo.jericho.priorzero.paths import cache_dir

log = logging.getLogger(__name__)
IDS_OF_A_DEFAULT_SERVER = 19
"""Token ids per question that a server with vLLM's default --max-logprobs 20 answers in full."""
LOGS_KEPT = 10
GENERATE = "/inference/v1/generate"


class HttpTransport:
    """A vLLM server that somebody else started, by its address."""

    name = "server"
    owns_engine = False

    def __init__(self, url: str, model: str = "", *, request_timeout: float = 300.0, connections: int = 32) -> None:
        self.url, self.model, self.base_weights, self.context_length = url.rstrip("/"), model, "", 0
        self.ids_per_question = IDS_OF_A_DEFAULT_SERVER
        self._timeout, self._connections = request_timeout, connections
        self._pool = ThreadPoolExecutor(connections, thread_name_prefix="vllm-ask")
        self._client = self._make_client(None)
        if logging.getLogger("httpx").level == logging.NOTSET:
            logging.getLogger("httpx").setLevel(logging.WARNING)  # it reports every single request as news

    def _make_client(self, socket: str | None) -> httpx.Client:
        # Idle connections are given up well before vLLM's server does so (5 s): a request on one that it is closing is lost.
        limits = httpx.Limits(
            max_connections=self._connections, max_keepalive_connections=self._connections, keepalive_expiry=1.0
        )
        try:
            return httpx.Client(
                base_url=self.url,
                transport=httpx.HTTPTransport(uds=socket, limits=limits),
                trust_env=False,
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise ConfigError(f"llm_url {self.url!r} is no address ({error}); write http://HOST:PORT") from error

    def restart(self) -> None:
        """Find the server's model, and check by a real request that the server can do what is needed."""
        cards = self._call("GET", "/v1/models", timeout=min(self._timeout, PROBE_TIMEOUT)).get("data", [])
        names = [str(card.get(key)) for card in cards for key in ("id", "root") if card.get(key)]
        wanted = Path(self.model).name if self.model else ""
        card = next(
            (c for c in cards if not wanted or wanted in {Path(str(c.get(k))).name for k in ("id", "root")}), None
        )
        if card is None:
            raise ConfigError(
                f"llm is {self.model!r}, but the server at {self.url} serves {', '.join(sorted(set(names))) or 'nothing'}; "
                "give --llm that name, or a folder with its tokenizer and the same last part"
            )
        self.base_weights = str(card.get("root") or card["id"])
        self.model = self.model or self.base_weights
        self.context_length = int(card.get("max_model_len") or 0)
        (answer,) = self.ask([PROBE], PROBE_TIMEOUT)
        if isinstance(answer, EngineFailure):
            raise answer

    def ask(self, questions: Sequence[Question], timeout: float | None = None) -> list[Answer | EngineFailure]:
        """Answers in the order of the questions, all in flight at once; `timeout` (seconds) only shortens the usual one."""
        patience = min(self._timeout, timeout or self._timeout)
        try:
            return list(self._pool.map(lambda question: self.ask_one(question, patience), questions))
        except (RuntimeError, CancelledError):  # the pool was closed under this call
            return [EngineFailure("the engine is closed")] * len(questions)

    def ask_one(self, question: Question, timeout: float) -> Answer | EngineFailure:
        """The answer, asked for by the calling thread within `timeout` seconds."""
        try:
            body = {"token_ids": list(question.token_ids), "sampling_params": question.sampling()}
            return self._parse(question, self._call("POST", GENERATE, body, timeout))
        except EngineFailure as failure:
            return failure

    def _parse(self, question: Question, reply: dict[str, Any]) -> Answer:
        choice = (reply.get("choices") or [{}])[0]
        content = (choice.get("logprobs") or {}).get("content") or [{}]
        found = {entry["token_id"]: float(entry["logprob"]) for entry in content[0].get("top_logprobs") or []}
        wanted = {token: found[token] for token in question.wanted if token in found}
        if len(wanted) < len(set(question.wanted)) or any(value > 1e-3 for value in wanted.values()):
            raise ConfigError(
                f"the server at {self.url} does not give the log-probabilities of chosen tokens (logprob_token_ids); "
                "it must be vLLM 0.32 or newer with --logprobs-mode raw_logprobs, its default"
            )
        return Answer(tuple(choice.get("token_ids") or ()), wanted)

    def reload(self, path: str) -> None:
        """Load the weights of a folder and forget every cached prefix."""
        try:
            self._rpc("reload_all_weights", path)
        except EngineFailure as failure:
            if self.owns_engine or "no attribute" not in str(failure):
                raise
            # A server without our worker extension: its own method is right on GPUs and for untied output layers.
            self._rpc("reload_weights", path)
        self._call("POST", "/reset_prefix_cache?reset_running_requests=true")

    def _rpc(self, method: str, path: str) -> None:
        self._call("POST", "/collective_rpc", {"method": method, "kwargs": {"weights_path": path}})

    def _call(
        self, verb: str, path: str, body: dict[str, Any] | None = None, timeout: float | None = None
    ) -> dict[str, Any]:
        patience = httpx.Timeout(timeout or self._timeout, connect=min(5.0, timeout or self._timeout))
        # After an error in one of its methods the server hangs up: only the many small questions share connections.
        headers = {} if path == GENERATE else {"connection": "close"}
        try:
            reply = self._client.request(verb, path, json=body, timeout=patience, headers=headers)
        except httpx.UnsupportedProtocol as error:
            raise ConfigError(f"llm_url {self.url!r} is no address ({error}); write http://HOST:PORT") from error
        except (httpx.TransportError, RuntimeError) as error:  # RuntimeError: the client was closed under this call
            raise EngineFailure(f"no answer from {self.url}{path}: {type(error).__name__} {error}".rstrip()) from error
        if reply.status_code >= 500:
            raise EngineFailure(f"{self.url}{path} answered {reply.status_code}: {_message(reply)}", answered=True)
        if reply.status_code in (403, 404):
            remedy = (
                "start it with VLLM_SERVER_DEV_MODE=1"
                if "rpc" in path or "reset" in path
                else "it must be vLLM 0.32 or newer, started with --enable-scale-out"
            )
            raise ConfigError(f"the server at {self.url} does not offer {path} ({_message(reply)}); {remedy}")
        if reply.status_code >= 400:
            raise ConfigError(f"the server at {self.url} refused {path}: {_message(reply)}")
        try:
            value = reply.json() if reply.content else {}
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ConfigError(
                f"the server at {self.url} answered {path} with something that is no JSON object; is it vLLM?"
            )
        return value

    def statistics(self) -> dict[str, Any]:
        """Nothing: one server's counters are the engine's own."""
        return {}

    def close(self) -> None:
        """Close the connections."""
        self._client.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


class ProcessTransport(HttpTransport):
    """A vLLM server that we start in its own environment, on a Unix socket in a private folder; it ends when we do."""

    name = "process"
    owns_engine = True

    def __init__(
        self,
        python: str,
        model: str,
        arguments: dict[str, Any],
        *,
        start_timeout: float = 900.0,
        log_dir: str = "",
        worker: str = vllm_worker.__file__,
        **options: Any,
    ) -> None:
        super().__init__("http://vllm", model, **options)
        self.ids_per_question = vllm_worker.MAX_TOKEN_IDS - 1
        self._python, self._worker, self._arguments, self._start_timeout = python, worker, arguments, start_timeout
        self._folder = tempfile.mkdtemp(prefix="lzero-vllm-")  # readable by this user only
        self._process: subprocess.Popen[bytes] | None = None
        self._owner, self._starts = os.getpid(), 0
        logs = Path(log_dir) if log_dir else cache_dir() / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        for old in sorted(logs.glob("vllm-*.log"), key=lambda path: path.stat().st_mtime)[: -LOGS_KEPT + 1]:
            old.unlink(missing_ok=True)
        self.log_path = logs / f"vllm-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{Path(self._folder).name[-4:]}.log"
        atexit.register(self.close)

    @property
    def process_id(self) -> int | None:
        """The server's process id, which is also its group's."""
        return self._process.pid if self._process else None

    def restart(self) -> None:
        """End the server if there is one, start another, and wait until it answers a real request."""
        self._stop()
        self._starts += 1
        socket = f"{self._folder}/{self._starts}.sock"
        self._client.close()
        self._client = self._make_client(socket)
        order = json.dumps({"model": self.model, "socket": socket, "arguments": self._arguments})
        log.info("starting vLLM for %s (about a minute); its log: %s", self.model, self.log_path)
        with self.log_path.open("ab") as out:
            self._process = subprocess.Popen(
                [self._python, self._worker, order],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, vllm_worker.OWNER_VARIABLE: str(self._owner)},
            )
        deadline = time.monotonic() + self._start_timeout
        while True:
            code = self._process.poll()
            if code is not None:
                raise EngineFailure(f"vLLM ended with code {code} while starting; {self._log_tail()}")
            if time.monotonic() > deadline:
                self._stop()
                raise EngineFailure(
                    f"vLLM did not answer within {self._start_timeout:g} s of its start; {self._log_tail()}"
                )
            if os.path.exists(socket):
                try:
                    return super().restart()
                except EngineFailure:
                    pass  # the socket is there before the model is loaded
            time.sleep(0.1)

    def _log_tail(self, lines: int = 15) -> str:
        tail = self.log_path.read_text(errors="replace").splitlines()[-lines:]
        return f"the end of {self.log_path}:\n" + "\n".join(tail)

    def _stop(self) -> None:
        """End the server and everything that it started: asked first, so that it frees its shared memory."""
        if self._process is None or os.getpid() != self._owner:
            return
        for sign, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 10.0)):
            try:
                os.killpg(self._process.pid, sign)
                self._process.wait(patience)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                pass
        self._process = None

    def close(self) -> None:
        """End the server and free what it held."""
        if os.getpid() != self._owner:
            return  # a forked child must not take the server of its parent away
        atexit.unregister(self.close)
        super().close()
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def _message(reply: httpx.Response) -> str:
    """What the server says about its error, in one line."""
    try:
        text = str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        text = reply.text or reply.reason_phrase
    return " ".join(text.split())[:300]
