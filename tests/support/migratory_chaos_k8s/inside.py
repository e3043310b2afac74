"""The load, as it runs in its pod: `python inside.py SCENARIO.json`. It is brought there by a ConfigMap, and uses the
standard library and the load generator of the image, no more.

It goes on until it is told to end, and answers on port 8090:
    GET  /status              the phase, seconds since the first publication was due, the newest progress
    GET  /timeline            all progress so far, one entry a second (`KEYS`)
    POST /mark {"name", "broker"}   a fault is about to come; answers with the time
    POST /cease               nothing more is published
    GET  /result, /account    once there are; the account is one JSON line a topic (docs/loadtest.md)
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from concurrent.futures import TimeoutError as NotInTime
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
"""Of an entry of the timeline."""
_ANSWER = 35.0
_ACCOUNT = Path("/tmp/account.jsonl")


class Inside:
    """What all requests look at. `event` and `timeline` are written by the event loop alone."""

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

    def take(self, event: LoadEvent) -> None:
        self.event = event
        if event.elapsed and not self.began:
            self.began = time.monotonic() - event.elapsed
        if not event.mark and event.phase in ("warmup", "measuring", "draining"):
            self.timeline.append([round(float(getattr(event, key)), 2) for key in KEYS])

    async def run(self) -> None:
        self.loop = asyncio.get_running_loop()
        try:
            async with Load(self.scenario, self.take) as self.load:
                result = await self.load.result()
                write_records(_ACCOUNT, self.load.records)
                self.result = result.to_json()
        except Exception as error:  # noqa: BLE001 - told to whoever asks: nobody sees this process end
            self.failure = repr(error)
        await asyncio.Event().wait()  # answers until the pod is deleted

    def status(self) -> dict[str, Any]:
        event = msgspec.to_builtins(self.event) if self.event is not None else {"phase": "connecting"}
        return {**event, "elapsed": self.elapsed, "failure": self.failure, "done": bool(self.result)}

    def mark(self, name: str, broker: str | None) -> float:
        if self.load is None or self.loop is None:
            raise RuntimeError("no load yet")
        asyncio.run_coroutine_threadsafe(self.load.mark(name, broker), self.loop).result(_ANSWER)
        return self.elapsed

    def cease(self) -> None:
        if self.load is None or self.loop is None:
            raise RuntimeError("no load yet")
        self.loop.call_soon_threadsafe(self.load.stop_publishing)


class Answers(BaseHTTPRequestHandler):
    inside: ClassVar[Inside]

    def do_GET(self) -> None:
        inside = self.inside
        match self.path:
            case "/status":
                self.say(200, json.dumps(inside.status()).encode())
            case "/timeline":
                self.say(200, json.dumps(list(inside.timeline)).encode())
            case "/result" if inside.result:
                self.say(200, inside.result)
            case "/account" if inside.result:
                self.say(200, _ACCOUNT.read_bytes())
            case "/result" | "/account":
                self.say(404, b"not yet")
            case _:
                self.say(404, b"no such page")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            match self.path:
                case "/mark":
                    asked = json.loads(body)
                    elapsed = self.inside.mark(asked["name"], asked.get("broker"))
                    self.say(200, json.dumps({"elapsed": elapsed}).encode())
                case "/cease":
                    self.inside.cease()
                    self.say(200, b"{}")
                case _:
                    self.say(404, b"no such page")
        except (RuntimeError, ValueError, KeyError, NotInTime) as error:
            self.say(500, repr(error).encode())

    def say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests come every second: nothing to write down."""


def main() -> None:
    scenario = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Scenario)
    Answers.inside = Inside(scenario)
    server = ThreadingHTTPServer(("", PORT), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    asyncio.run(Answers.inside.run())


if __name__ == "__main__":
    main()
