"""An OTLP endpoint that takes everything and counts it: telemetry under test must have somewhere to go."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class OtlpSink:
    """`exports` counts what came by path, `/v1/metrics` and `/v1/traces`."""

    def __init__(self, server: ThreadingHTTPServer, exports: Counter[str]) -> None:
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.exports = exports


@contextmanager
def otlp_sink() -> Iterator[OtlpSink]:
    """Listens on a free port of loopback, in threads of this process."""
    exports: Counter[str] = Counter()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            exports[self.path] += 1
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield OtlpSink(server, exports)
        finally:
            server.shutdown()
