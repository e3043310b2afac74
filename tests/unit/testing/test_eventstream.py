from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from migratory_testing.eventstream import EventStream


def answer(*lines: bytes) -> Any:
    async def content() -> AsyncIterator[bytes]:
        for line in lines:
            yield line

    return SimpleNamespace(status=200, content_type="text/event-stream", content=content())


async def test_an_event_that_is_cut_off_is_dropped_with_its_id_name_and_data() -> None:
    stream = EventStream()
    cut = answer(b"id: 1:1\n", b'data: "a"\n', b"\n", b"id: 1:2\n", b"event: control\n", b'data: "b"\n', b"data:")
    assert [event async for event in stream.read(cut)] == [("message", "a", "1:1")]
    assert stream.last_id == "1:1"
    again = answer(b'data: "c"\n', b"\n")
    assert [event async for event in stream.read(again)] == [("message", "c", "1:1")]
