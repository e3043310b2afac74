"""The program of a load pod: `python load_program.py SCENARIO` with the load generator of the image.

It publishes until it is asked to stop, or the scenario's duration is over, and serves HTTP on port 8090:
    GET  /status     the newest progress (`LoadEvent`), the seconds `now` (as its `elapsed`), `failure`, and `done`
    GET  /timeline   all progress so far, one entry a second
    POST /mark {"name", "broker"}   notes that a fault follows
    POST /cease      stops publishing
    GET  /result, /account   when the load has ended; the account is one JSON line a topic (docs/how-to/loadtest.md)
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import msgspec
from aiohttp import web
from migratory_loadtest import Load, LoadEvent, LoadResult, Scenario
from migratory_loadtest.records import write_records

PORT = 8090
ACCOUNT = Path("/tmp/account.jsonl")


class LoadProgram:
    """The load generator in a pod, and the pages that it serves."""

    def __init__(self, scenario: Scenario) -> None:
        self.load = Load(scenario, self.record)
        self.began = 0.0  # of the first publication, by the monotonic clock
        self.timeline: list[LoadEvent] = []
        self.results: dict[str, bytes] = {}
        self.failure = ""

    def record(self, event: LoadEvent) -> None:
        if event.elapsed:
            self.began = time.monotonic() - event.elapsed
        if not event.mark:
            self.timeline.append(event)

    async def run(self) -> None:
        """Serve the pages and run the load. Continue to serve after its end until the pod is deleted."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/status", self.status),
                web.get("/{page:timeline|result|account}", self.pages),
                web.post("/mark", self.mark),
                web.post("/cease", self.cease),
            ]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, port=PORT).start()
        try:
            async with self.load:
                self.finish(await self.load.result())
        except Exception as error:  # noqa: BLE001 - reported by /status
            self.failure = repr(error)
        await asyncio.Event().wait()

    def finish(self, result: LoadResult) -> None:
        write_records(ACCOUNT, self.load.records)
        self.results = {"result": result.to_json(), "account": ACCOUNT.read_bytes()}

    async def status(self, _: web.Request) -> web.Response:
        event = msgspec.to_builtins(self.timeline[-1]) if self.timeline else {"phase": "connecting"}
        now = time.monotonic() - self.began if self.began else 0.0
        return web.json_response({**event, "now": now, "failure": self.failure, "done": bool(self.results)})

    async def pages(self, request: web.Request) -> web.Response:
        page = request.match_info["page"]
        if page == "timeline":
            return web.Response(body=msgspec.json.encode(self.timeline))
        if page not in self.results:
            raise web.HTTPNotFound(text="the load has not ended")
        return web.Response(body=self.results[page])

    async def mark(self, request: web.Request) -> web.Response:
        wanted = msgspec.json.decode(await request.read())
        await self.load.mark(wanted["name"], wanted["broker"])
        return web.json_response({})

    async def cease(self, _: web.Request) -> web.Response:
        self.load.stop_publishing()
        return web.json_response({})


if __name__ == "__main__":
    asyncio.run(LoadProgram(msgspec.json.decode(sys.argv[1], type=Scenario)).run())
