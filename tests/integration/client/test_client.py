"""The asyncio client over real sockets with a scripted broker: subscriptions, gaps, slow readers, and what the
application gets as errors, logs and callbacks."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest
from migratory_client import (
    Client,
    Closed,
    ConnectError,
    GapError,
    LinkDown,
    Message,
    Position,
    Settings,
    SubscribeError,
)
from migratory_client.core import events as ev
from migratory_protocol import messages as wire
from migratory_testing.fakebroker import QUICK, FakeBroker, Memory, take
from migratory_testing.waiting import until


@pytest.mark.parametrize(("codec", "content"), [("msgpack", b"\x00" * 2**26), ("json", b"\xff" * 2**26)])
async def test_largest_payload_of_any_cluster_is_received(broker: FakeBroker, codec: str, content: bytes) -> None:
    async with Client([broker.url], wire=codec) as client:
        stream = client.subscribe("t")
        await until(lambda: broker.live[0].topics, "subscribed")
        broker.publish("t", content)
        (received,) = await take(stream, 1)
        assert (len(received), received == content, client.reconnects) == (2**26, True, 0)


@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_published_messages_reach_the_subscription_in_order(broker: FakeBroker, codec: str) -> None:
    async with Client([broker.url], wire=codec) as client:
        stream = client.subscribe("quotes/eur")
        await until(lambda: broker.live[0].topics, "subscribed")
        assert await client.publish("quotes/eur", b"\x00\xff") == Position(1, 1)
        assert await client.publish("quotes/eur", "1.08 €") == Position(1, 2)
        assert await take(stream, 2) == [b"\x00\xff", "1.08 €".encode()]
        assert stream.positions == {"quotes/eur": Position(1, 2)}
        assert client.connected
    assert not client.connected
    await until(lambda: not broker.live, "the broker saw the client go")


async def test_iteration_ends_with_the_client(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:

        async def read() -> list[bytes]:
            return [message.payload async for message in client.subscribe("t")]

        reader = asyncio.create_task(read())
        await until(lambda: broker.live[0].topics, "subscribed")
        await client.publish("t", b"1")
    assert await reader == [b"1"]


async def test_missed_messages_arrive_once_and_in_order() -> None:
    memory = Memory()
    async with (
        FakeBroker(memory) as first,
        FakeBroker(memory, name="fake-1") as second,
        Client([first.url, second.url], settings=QUICK) as client,
    ):
        stream = client.subscribe("t")
        await until(lambda: [c for b in (first, second) for c in b.live if c.topics], "subscribed")
        here = first if first.live else second
        here.publish("t", b"1")
        assert await take(stream, 1) == [b"1"]
        await here.stop()
        for number in range(2, 6):
            memory.append("t", b"%d" % number)
        assert await take(stream, 4) == [b"2", b"3", b"4", b"5"]
        assert client.reconnects == 1


async def test_client_lost_before_its_first_message_misses_nothing(broker: FakeBroker) -> None:
    """A client whose connection is reset after the receipt and before the first message (socket.io#5538) subscribes
    again after the position of the receipt, and receives all three messages of the meantime."""
    async with Client([broker.url], settings=QUICK) as client:
        stream = client.subscribe("t")
        await until(lambda: broker.live[0].topics, "subscribed")
        await asyncio.wait_for(client.publish("u", b""), 5)  # an answer behind the receipt: it was read
        broker.live[0].reset()
        for payload in (b"1", b"2", b"3"):
            broker.memory.append("t", payload)
        assert await take(stream, 3) == [b"1", b"2", b"3"]
        (request,) = broker.connections[1].of(wire.Subscribe)
        (topic,) = request.topics
        assert isinstance(topic, wire.TopicRequest)
        assert str(topic.after) == "1:0"


@pytest.mark.parametrize("variant", ["unsubscribe", "break", "raise", "reopen"])
async def test_subscription_made_by_a_handler_resumes_after_the_handled_message(
    broker: FakeBroker, variant: str
) -> None:
    """When an application stops reading in the middle of a stream, in any of four ways (centrifuge-js#425), the next
    subscription resumes after the last message that it handled: nothing is missing or repeated."""
    payloads: list[bytes] = []
    async with Client([broker.url], settings=QUICK) as client:
        stream = client.subscribe("t")
        await until(lambda: broker.live[0].topics, "subscribed")
        for number in range(1, 6):
            broker.publish("t", b"%d" % number)

        async def handle() -> None:
            async for message in stream:
                payloads.append(message.payload)
                if message.position == (1, 5):
                    if variant == "raise":
                        raise RuntimeError("the application's own")
                    break

        with suppress(RuntimeError):
            await handle()
        if variant == "unsubscribe":
            stream.close()
        if variant == "reopen":
            await client.close()
            await client.open()
        if variant != "raise":
            stream = client.subscribe("t")
        broker.publish("t", b"6")
        payloads += await take(stream, 1)
        if variant != "raise":
            last = broker.connections[-1].of(wire.Subscribe)[-1]
            topic = last.topics[0]
            assert isinstance(topic, wire.TopicRequest)
            assert topic.after == Position(1, 5)
    assert payloads == [b"1", b"2", b"3", b"4", b"5", b"6"]


async def test_unread_messages_are_delivered_to_the_next_subscription(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        stream = client.subscribe("t")
        await until(lambda: broker.live[0].topics, "subscribed")
        for number in range(1, 6):
            broker.publish("t", b"%d" % number)
        await client.publish("u", b"")
        assert await take(stream, 2) == [b"1", b"2"]
        stream.close()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert await take(client.subscribe("t"), 3) == [b"3", b"4", b"5"]


async def test_unread_subscription_resumes_at_its_start(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        async with client.subscribe("t"):
            await until(lambda: broker.live[0].topics, "subscribed")
            broker.publish("t", b"1")
            await client.publish("u", b"")
        assert await take(client.subscribe("t"), 1) == [b"1"]


async def test_slow_reader_is_paused_and_misses_nothing(broker: FakeBroker) -> None:
    async with Client([broker.url], queue=10) as client:
        stream = client.subscribe("t", "other")
        await until(lambda: len(broker.live[0].topics) == 2, "subscribed")
        for number in range(200):
            broker.publish("t", b"%d" % number)
        await until(lambda: not broker.live[0].topics, "left the topics")
        assert len(stream._items) < 210
        assert await client.publish("u", b"") is not None  # the connection itself is not blocked
        assert await take(stream, 200) == [b"%d" % number for number in range(200)]
        assert await client.publish("other", b"still there") == Position(1, 1)
        assert await take(stream, 1) == [b"still there"]


async def test_closing_while_paused_keeps_unread_messages(broker: FakeBroker) -> None:
    async with Client([broker.url], queue=4) as client:
        stream = client.subscribe("t")
        await until(lambda: broker.live[0].topics, "subscribed")
        for number in range(1, 30):
            broker.publish("t", b"%d" % number)
        await until(lambda: not broker.live[0].topics, "left the topic")
        assert await take(stream, 1) == [b"1"]
        stream.close()
        assert await take(client.subscribe("t"), 28) == [b"%d" % number for number in range(2, 30)]


async def test_gaps_are_raised_in_order_and_the_stream_continues(broker: FakeBroker) -> None:
    for number in range(1, 10):
        broker.memory.append("t", b"%d" % number)
    broker.memory.first_cached = 6
    async with Client([broker.url]) as client:
        stream = client.subscribe("t", after=Position(1, 2))
        with pytest.raises(GapError, match="3 to 5 are missing") as caught:
            await take(stream, 1)
        assert (caught.value.code, caught.value.receipt.first, caught.value.receipt.last) == ("truncated", 3, 5)
        assert await take(stream, 4) == [b"6", b"7", b"8", b"9"]


async def test_gaps_are_passed_to_on_gap(broker: FakeBroker) -> None:
    gaps: list[ev.Receipt] = []
    receipts: list[ev.Receipt] = []
    async with Client([broker.url], on_receipt=receipts.append) as client:
        stream = client.subscribe("t", after=Position(1, 0), on_gap=gaps.append)
        broker.publish("t", b"1")
        assert await take(stream, 1) == [b"1"]
        reset = wire.TopicReceipt("t", "reset", Position(9, 4))
        broker.live[0].send(wire.Subscribed(0, [reset]), wire.Message("t", Position(9, 5), b"2"))
        assert await take(stream, 1) == [b"2"]
    assert [gap.kind for gap in gaps] == ["reset"]
    assert [receipt.kind for receipt in receipts] == ["complete", "reset"]
    assert "history" in str(GapError(gaps[0]))


async def test_refused_topic_raises_subscribe_error(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        stream = client.subscribe("a\0b", "t")
        with pytest.raises(SubscribeError, match="U\\+0000"):
            await take(stream, 1)
        assert stream.topics == ("t",)
        await client.publish("t", b"1")
        assert await take(stream, 1) == [b"1"]


async def test_newer_subscription_takes_a_topic_over(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        older = client.subscribe("t", "u")
        await until(lambda: len(broker.live[0].topics) == 2, "subscribed")
        newer = client.subscribe("t")
        with pytest.raises(SubscribeError, match="took it over"):
            await take(older, 1)
        await client.publish("t", b"1")
        await client.publish("u", b"2")
        assert await take(newer, 1) == [b"1"]
        assert await take(older, 1) == [b"2"]


async def test_arguments_of_subscribe_are_checked(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        with pytest.raises(ValueError, match="at least one topic"):
            client.subscribe()
        with pytest.raises(ValueError, match="mapping"):
            client.subscribe("a", "b", after=Position(1, 1))
        broker.memory.append("t", b"old")
        assert await take(client.subscribe("t", snapshot=True), 1) == [b"old"]
        for after in (Position(1, 0), "1:0", [1, 0], {"t": "1:0"}):
            assert await take(client.subscribe("t", after=after), 1) == [b"old"]
        with pytest.raises(ValueError, match="after is '1-0'"):
            client.subscribe("t", after="1-0")
    with pytest.raises(Closed, match=r"enter it first \(`async with Client"):
        client.subscribe("t")


async def test_close_reason_of_the_broker_is_shown(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    statuses: list[object] = []
    async with Client([broker.url], on_status=statuses.append) as client:
        client.subscribe("t")
        await until(lambda: broker.live[0].topics, "subscribed")
        await broker.live[0].close(4003, "slow consumer: 9 bytes waited")
        await until(lambda: client.reconnects and client.connected, "came back")
    (down,) = [status for status in statuses if isinstance(status, LinkDown)]
    assert (down.code, down.reason) == (4003, "slow consumer: 9 bytes waited")
    (record,) = [record for record in caplog.records if "too slow (slow consumer: 9" in record.message]
    assert record.levelname == "WARNING"


async def test_repeated_problem_is_logged_once(broker: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    await broker.stop()
    problems: list[object] = []
    settings = Settings(first_retry=0.01, backoff_cap=0.02)
    with pytest.raises(ConnectError):
        await Client([broker.url], settings=settings, open_timeout=0.5, on_status=problems.append).open()
    assert len(problems) > 3
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.message for record in warnings] == [f"connect_failed: {broker.url}: connection refused"]


async def test_exception_of_a_callback_is_reported_and_stops_nothing(broker: FakeBroker) -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    latencies: list[float | None] = []

    def note(message: Message, latency: float | None) -> None:
        latencies.append(latency)
        raise RuntimeError("the application's own")

    async with Client([broker.url], on_delivery=note) as client:
        stream = client.subscribe("t")
        await client.publish("t", b"1")
        broker.publish("t", b"2")
        assert await take(stream, 2) == [b"1", b"2"]
    assert latencies[0] is not None
    assert 0 <= latencies[0] < 5
    assert latencies[1] is None
    assert len(reported) == 2


async def test_payload_or_topic_of_another_type_raises_type_error(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        for payload in (5, None, ["a"], {"a": 1}, 1.5):
            with pytest.raises(TypeError, match="the payload is bytes, bytearray, memoryview or str, not "):
                await client.publish("t", payload)  # type: ignore[arg-type]
        for topic in (5, None, b"t"):
            with pytest.raises(TypeError, match="topic is a str, not "):
                await client.publish(topic, b"x")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="topic is a str, not "):
                client.subscribe(topic)  # type: ignore[arg-type]
        for good in (b"1", bytearray(b"2"), memoryview(b"3"), "4"):
            await client.publish("t", good)
    assert [message.payload for message in broker.memory.topics["t"]] == [b"1", b"2", b"3", b"4"]
