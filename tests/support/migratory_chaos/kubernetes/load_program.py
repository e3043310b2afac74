"""The program of the load pod: `python load_program.py SCENARIO.json`. A ConfigMap mounts it there. It uses only
the standard library and the load generator of the image.

It publishes until it is asked to stop, and serves HTTP on port 8090:
    GET  /status              the phase, seconds since the first publication was due, the newest progress
    GET  /timeline            all progress so far, one entry a second (`KEYS`)
    POST /mark {"name", "broker"}   notes that a fault follows; returns the time
    POST /cease               stops publishing
    GET  /result, /account    when the load has ended; the account is one JSON line a topic (docs/how-to/loadtest.md)
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from concurrent.futures import TimeoutError as MarkTimeout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from migratory_loadtest import Load, LoadEvent, Scenario
from migratory_loadtest.records import write_records

PORT = 8090
KEYS = (
    "elapsed",
    "connected",
    "publishers",
    "oldest",
    "published",
    "acknowledged",
    "received",
    "expected",
    "reconnects",
)
"""The values of a timeline entry."""
_MARK_SECONDS = 35.0
_ACCOUNT = Path("/tmp/account.jsonl")


class LoadState:
    """The state that requests read. Only the event loop writes `event` and `timeline`."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.load: Load | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.event: LoadEvent | None = None
        self.began = 0.0  # by this machine's monotonic clock
        self.timeline: list[list[float]] = []
        self.result: bytes = b""
        self.failure = ""

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began if self.began else 0.0

    def record(self, event: LoadEvent) -> None:
        self.event = event
        if event.elapsed and not self.began:
            self.began = time.monotonic() - event.elapsed
        if not event.mark and event.phase in ("warmup", "measuring", "draining"):
            self.timeline.append([round(float(getattr(event, key)), 2) for key in KEYS])

    async def run(self) -> None:
        self.loop = asyncio.get_running_loop()
        try:
            async with Load(self.scenario, self.record) as self.load:
                result = await self.load.result()
                write_records(_ACCOUNT, self.load.records)
                self.result = result.to_json()
        except Exception as error:  # noqa: BLE001 - reported by /status
            self.failure = repr(error)
        await asyncio.Event().wait()  # serve requests until the pod is deleted

    def status(self) -> dict[str, Any]:
        event = msgspec.to_builtins(self.event) if self.event is not None else {"phase": "connecting"}
        return {**event, "elapsed": self.elapsed, "failure": self.failure, "done": bool(self.result)}

    def mark(self, name: str, broker: str | None) -> float:
        if self.load is None or self.loop is None:
            raise RuntimeError("no load yet")
        asyncio.run_coroutine_threadsafe(self.load.mark(name, broker), self.loop).result(_MARK_SECONDS)
        return self.elapsed

    def cease(self) -> None:
        if self.load is None or self.loop is None:
            raise RuntimeError("no load yet")
        self.loop.call_soon_threadsafe(self.load.stop_publishing)


class Handler(BaseHTTPRequestHandler):
    """The HTTP interface described above."""

    state: ClassVar[LoadState]

    def do_GET(self) -> None:
        state = self.state
        match self.path:
            case "/status":
                self.reply(200, json.dumps(state.status()).encode())
            case "/timeline":
                self.reply(200, json.dumps(list(state.timeline)).encode())
            case "/result" if state.result:
                self.reply(200, state.result)
            case "/account" if state.result:
                self.reply(200, _ACCOUNT.read_bytes())
            case "/result" | "/account":
                self.reply(404, b"the load has not ended")
            case _:
                self.reply(404, b"no such page")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            match self.path:
                case "/mark":
                    request = json.loads(body)
                    elapsed = self.state.mark(request["name"], request.get("broker"))
                    self.reply(200, json.dumps({"elapsed": elapsed}).encode())
                case "/cease":
                    self.state.cease()
                    self.reply(200, b"{}")
                case _:
                    self.reply(404, b"no such page")
        except (RuntimeError, ValueError, KeyError, MarkTimeout) as error:
            self.reply(500, repr(error).encode())

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log no requests: there is one every second."""


def main() -> None:
    scenario = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Scenario)
    Handler.state = LoadState(scenario)
    server = ThreadingHTTPServer(("", PORT), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asyncio.run(Handler.state.run())


if __name__ == "__main__":
    main()
