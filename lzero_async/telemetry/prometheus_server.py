"""A small web server that tells Prometheus of a run. It sleeps until it is asked; nothing is measured in between."""

from __future__ import annotations

import contextlib
import importlib
import logging
import selectors
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from lzero_async.clock import RealClock
from lzero_async.errors import ConfigError
from lzero_async.telemetry.view import View
from lzero_async.threads import ThreadGroup
from lzero_async.validation import whole_number

PATIENCE = 5.0  # seconds for a client to say what it wants
log = logging.getLogger(__name__)


class MetricsServer:
    """Serves the metrics of `view()` at `address` from the moment it is made until `close`. Port 0 takes any free one.
    `pids()` are processes whose CPU and memory are told, by role.

    Raises ConfigError when the port is taken or none, or prometheus-client is not installed.
    """

    def __init__(
        self,
        port: int,
        view: Callable[[], View],
        host: str = "127.0.0.1",
        *,
        pids: Callable[[], Mapping[str, int]] | None = None,
    ) -> None:
        if whole_number("metrics_port", port, 0) > 65535:
            raise ConfigError(f"metrics_port is {port}; use a number from 1 to 65535, or 0 for no metrics.")
        try:
            client: Any = importlib.import_module("prometheus_client")
        except ImportError as error:
            raise ConfigError(
                f"metrics_port is {port} and prometheus_client cannot be imported ({error}); install it with pip install "
                "'lzero-async[metrics]' or set metrics_port to 0."
            ) from error
        metrics = importlib.import_module("lzero_async.telemetry.prometheus")
        registry = client.CollectorRegistry()
        registry.register(metrics.ViewCollector(view, pids))
        client.ProcessCollector(registry=registry)  # CPU and memory of this process
        self._application = client.make_wsgi_app(registry)
        try:
            self._server = _Server((host, port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"metrics_port is {port}, but {host}:{port} cannot be listened on ({error.strerror or error}); choose "
                "another port, or 0 for no metrics."
            ) from error
        self._server.set_app(self._answer)
        self._ends, self._end = socket.socketpair()
        self.address = f"http://{host}:{self._server.server_port}/metrics"
        self._threads = ThreadGroup(RealClock(), "metrics")
        self._threads.start("server", self._serve)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            end = selector.register(self._ends, selectors.EVENT_READ)
            while not any(key is end for key, _ in selector.select()):
                self._server.handle_request()

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            answer: Iterable[bytes] = self._application(environ, start_response)
        except Exception as error:  # the run goes on, and the next scrape may be better
            log.error("the metrics cannot be told: %r", error)
            start_response("500 Internal Server Error", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"the metrics cannot be told: {error!r}\n".encode()]
        return answer

    def close(self) -> None:
        """Stop listening and end the thread; a request that is being answered is cut off. Closing twice is allowed."""
        self._end.close()
        self._server.cut_off()
        self._threads.join(PATIENCE)
        self._ends.close()
        self._server.server_close()


class _Server(WSGIServer):
    """One request after the other: a scrape takes milliseconds, and there is one Prometheus."""

    timeout = 0  # whoever calls handle_request knows that somebody is there
    _client: socket.socket | None = None
    _over = False

    def get_request(self) -> tuple[socket.socket, Any]:
        self._client, address = super().get_request()
        if self._over:  # it was cut off before it was there
            self.cut_off()
        return self._client, address

    def cut_off(self) -> None:
        """End the connection that is being served, if there is one, and any that comes."""
        self._over = True  # first: whoever comes after this looks at it
        if (client := self._client) is not None:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a client of the metrics server left early", exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the run."""
