"""HTTP clients of a real broker with I/O processes: publications, streams, polls, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from migratory_testing.eventstream import EventStream, StreamEvent
from migratory_testing.processes import Broker
from migratory_testing.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

SETTINGS = {
    "ioProcesses": 2,
    "limits": {"heartbeat": 1.0, "handshake": 3.0, "maxPayload": 100_000},
    "origins": {"allowed": ["https://app.example.com"]},
}
LIMIT = 20.0


@pytest.fixture
async def session(broker: Broker) -> AsyncIterator[aiohttp.ClientSession]:
    base = broker.url.replace("ws://", "http://").removesuffix("/ws")
    async with aiohttp.ClientSession(base, timeout=aiohttp.ClientTimeout(LIMIT)) as running:
        yield running


async def publish(session: aiohttp.ClientSession, topic: str, data: bytes, **parameters: Any) -> tuple[int, Any]:
    params = {"topic": topic, **{name: str(value) for name, value in parameters.items()}}
    async with session.post("/v1/publish", params=params, data=data) as answer:
        return answer.status, await answer.json()


async def collect(events: AsyncIterator[StreamEvent], count: int) -> list[StreamEvent]:
    """Return the next `count` publications of a stream."""
    found: list[StreamEvent] = []
    async with asyncio.timeout(LIMIT):
        async for event in events:
            if event.name == "message":
                found.append(event)
                if len(found) == count:
                    break
    return found


async def test_a_publication_is_acknowledged_with_its_position_and_repeated_once(
    session: aiohttp.ClientSession,
) -> None:
    status, first = await publish(session, "http/publish", b"1", publisher="p", id=1)
    assert (status, first["op"], first["publisher"], first["id"]) == (200, "ack", "p", 1)
    assert await publish(session, "http/publish", b"1", publisher="p", id=1) == (200, first)
    status, other = await publish(session, "http/publish", b"2", publisher="p", id=1)
    assert (status, other["code"]) == (409, "id_reused")
    status, second = await publish(session, "http/publish", b"\xff\x00" * 50_000)
    assert status == 200
    assert [int(answer["position"].partition(":")[2]) for answer in (first, second)] == [1, 2]
    assert await publish(session, "http/publish", b"", qos=0) == (202, {"op": "accepted"})
    status, refused = await publish(session, "http/publish", b"x" * 100_001)
    assert (status, refused["code"]) == (413, "too_large")
    status, refused = await publish(session, "x" * 256, b"")
    assert (status, refused["code"]) == (400, "bad_topic")


async def test_publications_without_a_publisher_are_all_stored(session: aiohttp.ClientSession) -> None:
    """They come from both I/O processes at once, and those of one share a publisher."""
    answers = await asyncio.gather(*[publish(session, "http/unnamed", b"%d" % number) for number in range(200)])
    assert {(status, answer["op"], answer["publisher"], answer["id"]) for status, answer in answers} == {
        (200, "ack", "", 0)
    }
    assert {answer["position"].partition(":")[2] for _, answer in answers} == {str(n) for n in range(1, 201)}


async def test_several_publications_of_one_request_are_answered_together(session: aiohttp.ClientSession) -> None:
    messages = [
        {"op": "publish", "topic": "http/several", "data": str(id), "qos": 1, "publisher": "p", "id": id, "mark": 1}
        for id in (1, 2, 3)
    ]
    async with session.post("/v1/publish", json=messages) as answer:
        assert answer.status == 200
        assert [(each["op"], each["id"]) for each in await answer.json()] == [("ack", 1), ("ack", 2), ("ack", 3)]


async def test_a_stream_resumes_after_the_last_event(session: aiohttp.ClientSession) -> None:
    topic, stream = "http/stream", EventStream()
    async with session.get("/v1/stream", params={"topic": topic}) as answer:
        assert answer.headers["X-Accel-Buffering"] == "no"
        events = stream.read(answer)
        welcome, subscribed = [await anext(events) for _ in range(2)]
        assert (welcome.name, welcome.data["op"]) == ("control", "welcome")
        assert subscribed.data["topics"][0]["receipt"] == "complete"
        assert subscribed.id == subscribed.data["topics"][0]["position"]
        for number in range(3):
            assert (await publish(session, topic, b"%d" % number))[0] == 200
        seen = await collect(events, 3)
    assert [event.data["data"] for event in seen] == ["0", "1", "2"]
    assert [event.id for event in seen] == [event.data["position"] for event in seen]
    await publish(session, topic, b"3")
    async with session.get("/v1/stream", params={"topic": topic}, headers={"Last-Event-ID": stream.last_id}) as answer:
        (missed,) = await collect(stream.read(answer), 1)
    assert (missed.data["data"], missed.data["replayed"]) == ("3", True)


async def test_the_ids_of_a_stream_of_several_topics_name_all_positions(session: aiohttp.ClientSession) -> None:
    topics, stream = [f"http/topics/{number}" for number in range(3)], EventStream()
    async with session.get("/v1/stream", params=[("topic", topic) for topic in topics]) as answer:
        events = stream.read(answer)
        async with asyncio.timeout(LIMIT):
            while "" in stream.last_id.split(",") or len(stream.last_id.split(",")) < 3:
                await anext(events)
        for topic in topics:
            await publish(session, topic, b"1")
        assert len(await collect(events, 3)) == 3
    for topic in topics:
        await publish(session, topic, b"2")
    again = EventStream(stream.last_id)
    async with session.get(
        "/v1/stream", params=[("topic", topic) for topic in topics], headers={"Last-Event-ID": stream.last_id}
    ) as answer:
        missed = await collect(again.read(answer), 3)
    assert sorted((event.data["topic"], event.data["data"]) for event in missed) == [(topic, "2") for topic in topics]


async def test_a_poll_ends_with_what_came(session: aiohttp.ClientSession) -> None:
    topic, stream = "http/poll", EventStream()
    async with session.get("/v1/poll", params={"topic": topic}) as answer:  # nothing comes within a heartbeat
        events = [event async for event in stream.read(answer)]
    assert [event.data["op"] for event in events] == ["welcome", "subscribed", "close"]
    received = []
    for number in range(5):
        await publish(session, topic, b"%d" % number)
        async with session.get("/v1/poll", params={"topic": topic, "after": stream.last_id}) as answer:
            received += [event.data["data"] async for event in stream.read(answer) if event.name == "message"]
    assert received == ["0", "1", "2", "3", "4"]
    waiting = asyncio.create_task(session.get("/v1/poll", params={"topic": topic, "after": stream.last_id}))
    async with await waiting as answer:
        await publish(session, topic, b"5")
        events = [event async for event in stream.read(answer) if event.name == "message"]
    assert [event.data["data"] for event in events] == ["5"]


async def test_a_silent_stream_gets_comments(session: aiohttp.ClientSession) -> None:
    stream = EventStream()
    async with session.get("/v1/stream", params={"topic": "http/silent"}) as answer:
        async with asyncio.timeout(LIMIT):
            events = stream.read(answer)
            await anext(events), await anext(events)
            reading = asyncio.ensure_future(anext(events))
            await until(lambda: stream.comments >= 3, "three comments")
            assert not reading.done()
            reading.cancel()


async def test_streams_count_as_clients_and_are_gone_when_they_end(
    broker: Broker, session: aiohttp.ClientSession
) -> None:
    before = broker.metric("migratory_http_requests_total")
    async with session.get("/v1/stream", params={"topic": "http/count"}) as answer:
        await anext(EventStream().read(answer))
        await until(lambda: broker.metric("migratory_clients") == 1, "one client")
        await until(lambda: broker.metric("migratory_http_requests_total") == before + 1, "one request")
        answer.close()
    await until(lambda: broker.metric("migratory_clients") == 0, "no client")


async def test_only_pages_of_allowed_origins_are_answered(session: aiohttp.ClientSession) -> None:
    allowed, foreign = {"Origin": "https://app.example.com"}, {"Origin": "https://evil.example"}
    for path in ("/v1/stream", "/v1/poll", "/v1/publish", "/v1/servers"):
        async with session.options(path, headers=allowed) as answer:
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (204, "*")
        async with session.options(path, headers=foreign) as answer:
            assert (answer.status, "Access-Control-Allow-Origin" in answer.headers) == (403, False)
    for headers, expected in ((allowed, 200), (foreign, 403)):
        async with session.get("/v1/stream", params={"topic": "t"}, headers=headers) as answer:
            assert answer.status == expected
        async with session.post("/v1/publish", params={"topic": "t"}, data=b"x", headers=headers) as answer:
            assert answer.status == expected


HEAD = "Host: localhost\r\n"
HOSTILE: dict[str, tuple[str | bytes, bytes, int | None]] = {
    "two lengths": ("POST /v1/publish?topic=t HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n", b"xx", 400),
    "length and chunks": (
        "POST /v1/publish?topic=t HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n", 400,
    ),
    "chunks": ("POST /v1/publish?topic=t HTTP/1.1\r\nTransfer-Encoding: chunked\r\n", b"1\r\nx\r\n0\r\n\r\n", 411),
    "no length": ("POST /v1/publish?topic=t HTTP/1.1\r\n", b"", 411),
    "a bomb": ("POST /v1/publish?topic=t HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n", b"x", 415),
    "a large body": ("POST /v1/publish?topic=t HTTP/1.1\r\nContent-Length: 200000\r\n", b"", 413),
    "a huge length": (f"POST /v1/publish?topic=t HTTP/1.1\r\nContent-Length: {'9' * 15}\r\n", b"", 413),
    "a body of GET": ("GET /v1/stream?topic=t HTTP/1.1\r\nContent-Length: 1\r\n", b"x", 400),
    "another method": ("PUT /v1/publish?topic=t HTTP/1.1\r\nContent-Length: 1\r\n", b"x", 405),
    "an unknown parameter": ("GET /v1/stream?topic=t&token=x HTTP/1.1\r\n", b"", 400),
    "bytes that are no text": (b"GET /v1/stream?topic=t HTTP/1.1\r\nLast-Event-ID: \xff\r\n", b"", 400),
    "a URL that is no text": (b"GET /v1/stream?topic=\xff HTTP/1.1\r\n", b"", 400),
    "another host": ("GET /v1/stream?topic=t HTTP/1.1\r\nHost: evil.example\r\n", b"", 400),
    "a body that ends": ("POST /v1/publish?topic=t HTTP/1.1\r\nContent-Length: 100\r\n", b"x", None),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
async def test_malformed_and_slow_requests_are_refused(broker: Broker, name: str) -> None:
    head, body, status = HOSTILE[name]
    reader, writer = await asyncio.open_connection(*broker.address("clients"))
    writer.write((head if isinstance(head, bytes) else head.encode()) + HEAD.encode() + b"\r\n" + body)
    answer = await asyncio.wait_for(reader.read(), LIMIT)  # the broker ends the connection, without an answer at 3 s
    writer.close()
    assert (int(answer.split()[1]) if answer else None) == status, answer
    assert "Traceback" not in broker.log.read_text()


async def test_bytes_behind_a_request_are_not_taken_for_another(broker: Broker, session: aiohttp.ClientSession) -> None:
    """A second request, and frames of WebSocket: neither is handled."""
    topic = "http/smuggled"
    reader, writer = await asyncio.open_connection(*broker.address("clients"))
    writer.write(f"GET /v1/stream?topic={topic} HTTP/1.1\r\n{HEAD}\r\n".encode())
    assert await asyncio.wait_for(reader.readuntil(b'"subscribed"'), LIMIT)
    frame = json.dumps({"op": "publish", "topic": topic, "data": "smuggled"}).encode()
    writer.write(b"\x81" + bytes((0x80 | len(frame),)) + bytes(4) + frame)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(10**6), LIMIT)
    writer.close()
    second = f"POST /v1/publish?topic={topic} HTTP/1.1\r\n{HEAD}Content-Length: 1\r\n\r\n2".encode()
    reader, writer = await asyncio.open_connection(*broker.address("clients"))
    writer.write(second + second)
    answers = await asyncio.wait_for(reader.read(), LIMIT)
    writer.close()
    assert answers.count(b"HTTP/1.1 200") == 1
    status, answer = await publish(session, topic, b"last")
    assert (status, answer["position"].partition(":")[2]) == (200, "2")
