"""A client of event streams over HTTP, which knows only what the standard says of them: events, ids, `Last-Event-ID`.

It parses as browsers do (https://html.spec.whatwg.org/multipage/server-sent-events.html). An event that is cut off by
the end of the stream is dropped, together with its id.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import aiohttp


class StreamEvent(NamedTuple):
    """An event: its name ("message" if it has none), its data, parsed as JSON, and the stream's id after it."""

    name: str
    data: Any
    id: str


class EventStream:
    """The parser of one stream's lines. `last_id` is what a browser sends when it connects again. `comments` counts
    comment lines."""

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id
        self.comments = 0
        self._id = last_id
        self._name = "message"
        self._data: list[str] = []

    def feed(self, line: str) -> StreamEvent | None:
        """Consume a line without its end. Return the event that it completes, or None. Raise AssertionError at a field
        that the standard does not know."""
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            self.last_id = self._id
            name, data, self._name, self._data = self._name, self._data, "message", []
            return StreamEvent(name, json.loads("\n".join(data)), self.last_id) if data else None
        match field:
            case "":
                self.comments += 1
            case "id":
                self._id = value
            case "event":
                self._name = value
            case "data":
                self._data.append(value)
            case "retry":
                assert value.isdigit()
            case _:
                raise AssertionError(f"an unknown field: {line!r}")
        return None

    async def read(self, answer: aiohttp.ClientResponse) -> AsyncIterator[StreamEvent]:
        """Yield the events of a response until it ends. Raise AssertionError first if it is no event stream with status
        200."""
        assert answer.status == 200, await answer.text()
        assert answer.content_type == "text/event-stream"
        self._id, self._name, self._data = self.last_id, "message", []
        async for line in answer.content:
            if line.endswith(b"\n") and (event := self.feed(line.decode().removesuffix("\n"))) is not None:
                yield event
