"""A stand-in for vLLM's server: the same endpoints, log-probabilities from a checksum. Runs in a thread or instead of the worker.

`plan` says how it misbehaves: per life (start) of the server, the number of the request at which it exits, hangs or answers 500;
`down`: it hangs up on everybody; `hook(server, what)` is called before it answers a question (its tokens) or loads weights (their
path), and may raise Fault over a question.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import sys
import threading
import zlib
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

CONTEXT_LENGTH = 200
BASE_WEIGHTS = "base"


def log_prob(weights: str, context: list[int], token: int) -> float:
    """The log-probability that the stand-in gives to `token` after `context` with these weights."""
    return -1e-4 * (zlib.crc32(json.dumps([weights, context, token]).encode()) % 100_000)


class Fault(Exception):
    """Raised by a hook: the question is answered with status 500."""


class FakeServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: Any, plan: dict[str, Any], life: int = 1, record: Path | None = None) -> None:
        self.plan, self.life, self.record = plan, life, record
        self.weights, self.asked, self.lock = BASE_WEIGHTS, 0, threading.Lock()
        self.answered: list[
            tuple[str, tuple[int, ...]]
        ] = []  # the weights and the tokens of each question that was answered
        super().__init__(address, FakeHandler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # else the client has hung up
            super().handle_error(request, client_address)


class UnixFakeServer(FakeServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)


class FakeHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.server.plan.get("down"):
            self.close_connection = True
            return None
        if "body" in self.server.plan:
            return self.reply(200, self.server.plan["body"])
        card = {"id": self.server.plan.get("id", "fake"), "root": self.server.plan.get("root", "fake")}
        length = self.server.plan.get("context", CONTEXT_LENGTH)
        return self.reply(200, {"data": [card | {"max_model_len": length}]})

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length) or "{}")
        server = self.server
        if server.plan.get("down"):
            self.close_connection = True
            return None
        if status := server.plan.get("status", {}).get(self.path.split("?")[0]):
            return self.reply(status, {"error": {"message": "as planned"}})
        if self.path == "/collective_rpc":
            return self.rpc(body)
        if self.path.startswith("/reset_prefix_cache"):
            return self.reply(200, {"success": True})
        return self.answer(body["token_ids"], body["sampling_params"])

    def rpc(self, body: dict[str, Any]) -> None:
        server = self.server
        if server.plan.pop("lost_reloads", 0):
            self.close_connection = True
            return None
        path = body["kwargs"]["weights_path"]
        if hook := server.plan.get("hook"):
            hook(server, path)
        if body["method"] not in server.plan.get("methods", ["reload_all_weights"]):
            return self.reply(500, {"error": {"message": f"object has no attribute {body['method']!r}"}})
        if server.life in server.plan.get("reload_fails", []) or "refused" in path:
            return self.reply(500, {"error": {"message": "these weights do not fit"}})
        base = path == server.plan.get("root", "fake")
        server.weights = BASE_WEIGHTS if base else Path(path).name + server.plan.get("suffix", "")
        return self.reply(200, {"results": [None]})

    def answer(self, context: list[int], params: dict[str, Any]) -> None:
        server = self.server
        with server.lock:
            server.asked += 1
            number = server.asked
            if server.record:
                with server.record.open("a") as out:
                    out.write(json.dumps([server.life, context]) + "\n")
        if hook := server.plan.get("hook"):
            try:
                hook(server, tuple(context))
            except Fault as fault:
                return self.reply(500, {"error": {"message": str(fault)}})
        for kind, at in server.plan.get("lives", {}).get(str(server.life), {}).items():
            if kind == "exit" and number >= at:
                os._exit(0)
            if kind == "hang" and number >= at:
                threading.Event().wait()
            if kind == "error" and number == at:
                return self.reply(500, {"error": {"message": "EngineDeadError"}})
        tokens = list(range(50, 50 + params["max_tokens"]))
        content = []
        if ids := params.get("logprob_token_ids"):
            # as vLLM does: the sampled token comes first, and the list is cut to `logprobs` entries
            entries = {token: log_prob(server.weights, context, token) for token in [tokens[0], *ids]}
            top = [{"token_id": token, "logprob": value} for token, value in entries.items()][: params["logprobs"]]
            content = [{"token_id": tokens[0], "top_logprobs": [] if server.plan.get("no_logprobs") else top}]
        with server.lock:
            server.answered.append((server.weights, tuple(context)))
        return self.reply(200, {"choices": [{"token_ids": tokens, "logprobs": {"content": content}}]})

    def reply(self, status: int, value: Any) -> None:
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    """What vllm_worker.py does, with the stand-in: the plan is in the engine's arguments."""
    order = json.loads(sys.argv[1])
    arguments = order["arguments"]
    sys.path.insert(0, arguments["engines"])
    import vllm_worker  # noqa: F401  its import watches the owner

    folder = Path(arguments["folder"])
    life = len(list(folder.glob("life-*"))) + 1
    (folder / f"life-{life}").write_text(str(os.getpid()))
    print(f"life {life} of the stand-in", flush=True)
    plan = arguments["plan"]
    if life in plan.get("never_listens", []):
        threading.Event().wait()
    if life in plan.get("no_start", []):
        sys.exit("the stand-in has no mind to start")
    UnixFakeServer(order["socket"], plan, life, folder / "asked").serve_forever()


if __name__ == "__main__":
    main()
