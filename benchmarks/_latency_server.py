"""A language-model server that takes its time: what a vLLM server answers, after a pause that costs no CPU.

    python -m benchmarks._latency_server MODEL_FOLDER LATENCY_SECONDS [AT_ONCE]

Listens on a free port of the loopback interface, prints it, serves any number of clients at once, and ends when its standard
input is closed. It answers every request after the latency, whatever else it has to answer: a batch that a client sends at once
takes one latency. With AT_ONCE it works on no more than that many at a time. Log-probabilities are a checksum of the tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import zlib
from typing import Any

CONTEXT_LENGTH = 8192


def answer(body: dict[str, Any]) -> dict[str, Any]:
    """What vLLM's generate endpoint returns: tokens, and the log-probabilities that were asked for."""
    parameters = body["sampling_params"]
    context = zlib.crc32(str(body["token_ids"]).encode())
    ids = dict.fromkeys(parameters.get("logprob_token_ids") or [])
    top = [{"token_id": token, "logprob": -1e-3 * (zlib.crc32(b"%d %d" % (context, token)) % 9000)} for token in ids]
    tokens = [0] * int(parameters["max_tokens"])
    return {"choices": [{"token_ids": tokens, "logprobs": {"content": [{"token_id": 0, "top_logprobs": top}]}}]}


class Server:
    """The model's name, how long an answer takes and how many it works on at once (0: any number)."""

    def __init__(self, model: str, latency: float, at_once: int = 0) -> None:
        self.card = {"id": model, "root": model, "max_model_len": CONTEXT_LENGTH}
        self.latency = latency
        self.room = asyncio.Semaphore(at_once) if at_once else contextlib.nullcontext()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after the other."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lines = head.lower().split("\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
                body = await reader.readexactly(length)
                if lines[0].startswith("get "):
                    reply: dict[str, Any] = {"data": [self.card]}
                else:
                    async with self.room:
                        await asyncio.sleep(self.latency)
                    reply = answer(json.loads(body))
                data = json.dumps(reply).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
                await writer.drain()
                if "connection: close" in lines:
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client has hung up, or this server ends
        finally:
            writer.close()


async def main(model: str, latency: float, at_once: int = 0) -> None:
    """Serve until standard input ends."""
    server = await asyncio.start_server(Server(model, latency, at_once).serve, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    await over.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2]), *map(int, sys.argv[3:4])))
