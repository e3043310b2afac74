"""A web server whose replies a test chooses, for a Prometheus that misbehaves; also nine series of a minute, and
source options that request them."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from migratory_spark.prometheus.options import SourceOptions, parse_options

from migratory_testing import prometheus_wire as made

STREAMED = "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse"
PLAIN = "application/x-protobuf"
JSON = "application/json"
Samples = list[tuple[int, float]]
Serve = Callable[[Callable[["Request"], "Reply"]], "FakePrometheus"]


@dataclass(slots=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Reply:
    """An answer to send. The last `cut` bytes of the announced body are not sent. The body without its first `begin`
    bytes is sent once `wait` is set, or after 30 s."""

    body: bytes = b""
    status: int = 200
    kind: str = STREAMED
    cut: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    wait: threading.Event | None = None
    begin: int = 0


class FakePrometheus:
    """A web server on a free port of this machine: `with FakePrometheus(answer) as server:`. `answer` is called with
    each request, in a thread of its own, and returns the reply. `server.requests` holds all requests."""

    def __init__(self, answer: Callable[[Request], Reply], tls: ssl.SSLContext | None = None) -> None:
        self._scheme = "https" if tls else "http"
        self.requests: list[Request] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                size = int(self.headers.get("Content-Length", "0"))
                request = Request(self.command, self.path, dict(self.headers.items()), self.rfile.read(size))
                outer.requests.append(request)
                reply = answer(request)
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.kind)
                self.send_header("Content-Length", str(len(reply.body)))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body[: reply.begin])
                self.wfile.flush()
                if reply.wait is not None:
                    reply.wait.wait(30)
                self.wfile.write(reply.body[reply.begin : len(reply.body) - reply.cut])
                if reply.cut:
                    self.close_connection = True

            do_GET = do_POST

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing: tests print no requests."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Print nothing when a client disconnected or its handshake failed: the test sees the error at its
                own end."""

        self._server = Server(("127.0.0.1", 0), Handler)
        if tls is not None:
            # The handshake is made by the thread of the request: one that fails must not end the listener.
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()


START, END = 1_700_000_000_000, 1_700_000_060_000
MANY = [({"__name__": "c_total", "i": str(i)}, [(START + 1000 * k, float(i * k)) for k in range(60)]) for i in range(9)]


def options(*servers: FakePrometheus | str, **given: str) -> SourceOptions:
    """Return the options of a source that reads the series of `MANY` from these servers. `given` adds or replaces
    options."""
    url = ",".join(one if isinstance(one, str) else one.url for one in servers)
    base = {"url": url, "matchers": "c_total", "start": str(START // 1000), "end": str(END // 1000)}
    return parse_options(base | {"retries": "1", "timeout": "5s"} | given)


def good(request: Request) -> Reply:
    """Return the reply of a Prometheus server that works: the samples of `MANY` in the requested window, without series
    that have none there."""
    first, last = made.window_of(request.body)
    inside = [(labels, [one for one in samples if first <= one[0] <= last]) for labels, samples in MANY]
    return Reply(made.streamed([(labels, samples) for labels, samples in inside if samples]))
