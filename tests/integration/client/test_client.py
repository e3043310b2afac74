"""The asyncio client over real sockets, against a broker that does exactly what a test says."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import uvloop
from migratory_client import (
    Client,
    Closed,
    ConnectError,
    GapError,
    Message,
    NotConnected,
    Position,
    PublishError,
    PublishTimeout,
    Settings,
    SubscribeError,
    TooManyWaiting,
)
from migratory_client import events as ev
from migratory_protocol import messages as wire
from migratory_testing.fakebroker import FakeBroker, Memory, eventually

QUICK = Settings(first_retry=0.05, ack_timeout=0.2)


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    yield
    gc.collect()  # what is left and unreferenced warns, and a warning is an error
    left = {task for task in asyncio.all_tasks() if task.get_name().startswith("migratory")}
    assert not left, f"tasks left behind: {left}"


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as running:
        yield running


async def take(subscription: AsyncIterator[Message], count: int) -> list[bytes]:
    async with asyncio.timeout(10):
        return [(await anext(subscription)).payload for _ in range(count)]


def test_on_uvloop_a_moment_that_has_passed_is_no_timer() -> None:
    """uvloop answers `call_at` for the past with a plain handle: a time-out may be over when it is set."""

    async def publish() -> None:
        async with FakeBroker() as broker:
            broker.answers = False
            async with Client([broker.url], settings=Settings(publish_timeout=1e-9, ack_timeout=1e-9)) as client:
                futures = [client.submit("quotes/eur", str(number)) for number in range(3)]
                async with asyncio.timeout(10):
                    for future in futures:
                        with pytest.raises(PublishTimeout):
                            await future

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(publish())


@pytest.mark.parametrize("codec", ["msgpack", "json"])
async def test_publish_and_subscribe(broker: FakeBroker, codec: str) -> None:
    async with Client([broker.url], wire=codec) as client:
        stream = client.subscribe("quotes/eur")
        await eventually(lambda: broker.live[0].topics, "subscribed")
        assert await client.publish("quotes/eur", b"\x00\xff") == Position(1, 1)
        assert await client.publish("quotes/eur", "1.08 €") == Position(1, 2)
        assert await take(stream, 2) == [b"\x00\xff", "1.08 €".encode()]
        assert stream.positions == {"quotes/eur": Position(1, 2)}
        assert client.connected
    assert not client.connected
    await eventually(lambda: not broker.live, "the broker saw the client go")


async def test_iteration_ends_with_the_client(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:

        async def read() -> list[bytes]:
            return [message.payload async for message in client.subscribe("t")]

        reader = asyncio.create_task(read())
        await eventually(lambda: broker.live[0].topics, "subscribed")
        await client.publish("t", b"1")
    assert await reader == [b"1"]


async def test_what_was_missed_while_away_comes_once_and_in_order() -> None:
    memory = Memory()
    async with (
        FakeBroker(memory) as first,
        FakeBroker(memory, name="fake-1") as second,
        Client([first.url, second.url], settings=QUICK) as client,
    ):
        stream = client.subscribe("t")
        await eventually(lambda: [c for b in (first, second) for c in b.live if c.topics], "subscribed")
        here = first if first.live else second
        await here.publish("t", b"1")
        assert await take(stream, 1) == [b"1"]
        await here.stop()
        for number in range(2, 6):
            memory.append("t", b"%d" % number)
        assert await take(stream, 4) == [b"2", b"3", b"4", b"5"]
        assert client.reconnects == 1


async def test_a_client_dropped_before_its_first_message_misses_nothing(broker: FakeBroker) -> None:
    """socket.io#5538, over sockets: the broker resets the connection."""
    async with Client([broker.url], settings=QUICK) as client:
        stream = client.subscribe("t")
        await eventually(lambda: broker.live[0].topics, "subscribed")
        await asyncio.wait_for(client.publish("u", b""), 5)  # an answer behind the receipt: it was read
        broker.live[0].reset()
        for payload in (b"1", b"2", b"3"):
            broker.memory.append("t", payload)
        assert await take(stream, 3) == [b"1", b"2", b"3"]
        (request,) = broker.connections[1].of(wire.Subscribe)
        assert [str(item.after) for item in request.topics] == ["1:0"]


@pytest.mark.parametrize("variant", ["unsubscribe", "break", "raise", "reopen"])
async def test_resubscribing_while_a_message_is_handled(broker: FakeBroker, variant: str) -> None:
    """centrifuge-js#425."""
    seen: list[bytes] = []
    async with Client([broker.url], settings=QUICK) as client:
        stream = client.subscribe("t")
        await eventually(lambda: broker.live[0].topics, "subscribed")
        for number in range(1, 6):
            await broker.publish("t", b"%d" % number)

        async def handle() -> None:
            async for message in stream:
                seen.append(message.payload)
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
        await broker.publish("t", b"6")
        seen += await take(stream, 1)
        if variant != "raise":
            last = broker.connections[-1].of(wire.Subscribe)[-1]
            assert list(last.topics[0].after) == [1, 5]
    assert seen == [b"1", b"2", b"3", b"4", b"5", b"6"]


async def test_messages_that_were_not_taken_come_again_to_the_next_subscription(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        stream = client.subscribe("t")
        await eventually(lambda: broker.live[0].topics, "subscribed")
        for number in range(1, 6):
            await broker.publish("t", b"%d" % number)
        await client.publish("u", b"")
        assert await take(stream, 2) == [b"1", b"2"]
        stream.close()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert await take(client.subscribe("t"), 3) == [b"3", b"4", b"5"]


async def test_nothing_taken_at_all_still_goes_on_at_the_beginning(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        async with client.subscribe("t"):
            await eventually(lambda: broker.live[0].topics, "subscribed")
            await broker.publish("t", b"1")
            await client.publish("u", b"")
        assert await take(client.subscribe("t"), 1) == [b"1"]


async def test_a_slow_reader_is_paused_and_misses_nothing(broker: FakeBroker) -> None:
    async with Client([broker.url], queue=10) as client:
        stream = client.subscribe("t", "other")
        await eventually(lambda: len(broker.live[0].topics) == 2, "subscribed")
        for number in range(200):
            await broker.publish("t", b"%d" % number)
        await eventually(lambda: not broker.live[0].topics, "left the topics")
        assert len(stream._items) < 210
        assert await client.publish("u", b"") is not None  # the connection itself is not blocked
        assert await take(stream, 200) == [b"%d" % number for number in range(200)]
        assert await client.publish("other", b"still there") == Position(1, 1)
        assert await take(stream, 1) == [b"still there"]


async def test_closing_while_paused_keeps_what_was_not_taken(broker: FakeBroker) -> None:
    async with Client([broker.url], queue=4) as client:
        stream = client.subscribe("t")
        await eventually(lambda: broker.live[0].topics, "subscribed")
        for number in range(1, 30):
            await broker.publish("t", b"%d" % number)
        await eventually(lambda: not broker.live[0].topics, "left the topic")
        assert await take(stream, 1) == [b"1"]
        stream.close()
        assert await take(client.subscribe("t"), 28) == [b"%d" % number for number in range(2, 30)]


async def test_gaps_are_raised_in_their_place_and_the_stream_goes_on(broker: FakeBroker) -> None:
    for number in range(1, 10):
        broker.memory.append("t", b"%d" % number)
    broker.memory.first_cached = 6
    async with Client([broker.url]) as client:
        stream = client.subscribe("t", after=Position(1, 2))
        with pytest.raises(GapError, match="3 to 5 are missing") as caught:
            await take(stream, 1)
        assert (caught.value.code, caught.value.receipt.first, caught.value.receipt.last) == ("truncated", 3, 5)
        assert await take(stream, 4) == [b"6", b"7", b"8", b"9"]


async def test_gaps_may_be_handed_to_a_function(broker: FakeBroker) -> None:
    gaps: list[ev.Receipt] = []
    receipts: list[ev.Receipt] = []
    async with Client([broker.url], on_receipt=receipts.append) as client:
        stream = client.subscribe("t", after=Position(1, 0), on_gap=gaps.append)
        await broker.publish("t", b"1")
        assert await take(stream, 1) == [b"1"]
        lost = wire.TopicReceipt("t", "reset", Position(9, 4))
        await broker.live[0].send(wire.Subscribed(0, [lost]), wire.Message("t", Position(9, 5), b"2"))
        assert await take(stream, 1) == [b"2"]
    assert [gap.kind for gap in gaps] == ["reset"]
    assert [receipt.kind for receipt in receipts] == ["complete", "reset"]
    assert "history" in str(GapError(gaps[0]))


async def test_a_refused_topic_is_an_error_of_that_topic(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        stream = client.subscribe("a\0b", "t")
        with pytest.raises(SubscribeError, match="U\\+0000"):
            await take(stream, 1)
        assert stream.topics == ("t",)
        await client.publish("t", b"1")
        assert await take(stream, 1) == [b"1"]


async def test_a_newer_subscription_takes_a_topic_over_and_the_older_one_is_told(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        older = client.subscribe("t", "u")
        await eventually(lambda: len(broker.live[0].topics) == 2, "subscribed")
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
        assert await take(client.subscribe("t", after={"t": Position(1, 0)}), 1) == [b"old"]
    with pytest.raises(Closed):
        client.subscribe("t")


# ---- publishing ------------------------------------------------------------------------------------------------


async def test_a_publication_survives_a_lost_acknowledgement(broker: FakeBroker) -> None:
    """Pitfall 16: stored, answer lost, connection reset; the repeat has the same id and gets the old position."""
    broker.answers = False
    async with Client([broker.url], settings=QUICK) as client:
        publishing = asyncio.ensure_future(client.publish("t", b"1"))
        await eventually(lambda: broker.memory.topics.get("t"), "stored")
        broker.answers = True
        broker.live[0].reset()
        assert await asyncio.wait_for(publishing, 10) == Position(1, 1)
        assert [message.payload for message in broker.memory.topics["t"]] == [b"1"]


async def test_many_publications_under_way_keep_their_order(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        futures = [client.submit("t", b"%d" % number) for number in range(500)]
        assert await asyncio.gather(*futures) == [Position(1, number) for number in range(1, 501)]
        assert [message.payload for message in broker.memory.topics["t"]] == [b"%d" % n for n in range(500)]


async def test_publish_errors_are_typed(broker: FakeBroker) -> None:
    settings = Settings(publish_timeout=0.2, max_waiting=1)
    async with Client([broker.url], settings=settings) as client:
        with pytest.raises(PublishError, match="control character") as refused:
            await client.publish("a\0b", b"")
        assert refused.value.code == "bad_topic"
        with pytest.raises(ValueError, match="qos"):
            await client.publish("t", b"", qos=2)
        broker.answers = False
        waiting = client.submit("t", b"1")
        with pytest.raises(TooManyWaiting):
            await client.publish("t", b"2")
        with pytest.raises(PublishTimeout, match="may still appear"):
            await waiting
        assert await client.publish("t", b"3", qos=0) is None
        await broker.stop()
        await eventually(lambda: not client.connected, "noticed")
        with pytest.raises(NotConnected):
            await client.publish("t", b"4", qos=0)
    with pytest.raises(Closed):
        await client.publish("t", b"5")


async def test_cancelling_gives_up(broker: FakeBroker) -> None:
    broker.answers = False
    async with Client([broker.url]) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.publish("t", b"1")
        assert client._core.publisher.waiting == 0
        broker.answers = True
        await client.publish("t", b"2")
        marks = [(item.id, item.mark) for item in broker.live[0].of(wire.Publish)]
        assert marks[-1] == (2, 2)


async def test_leaving_waits_for_answers_and_then_says_what_had_none(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        future = client.submit("t", b"1")
    assert await future == Position(1, 1)
    broker.answers = False
    async with Client([broker.url]) as client:
        future = client.submit("t", b"2")
        await client.close(flush=0.1)
    with pytest.raises(Closed, match="may still appear"):
        await future
    await client.close()


# ---- connections -----------------------------------------------------------------------------------------------


async def test_no_broker_is_a_connect_error_that_names_the_reason() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        client = Client([f"ws://127.0.0.1:{taken.getsockname()[1]}/ws"], open_timeout=0.3)
        with pytest.raises(ConnectError, match=r"no broker within 0\.3 s: ws://127"):
            await client.open()
        with pytest.raises(Closed):
            client.submit("t", b"")


async def test_opening_may_be_cancelled() -> None:
    async with FakeBroker() as broker:
        broker.mute = True
        client = Client([broker.url], open_timeout=None)
        opening = asyncio.create_task(client.open())
        await eventually(lambda: broker.live, "dialled")
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await eventually(lambda: not broker.live, "hung up")


async def test_a_black_hole_is_noticed_within_two_intervals() -> None:
    """Pitfall 11: the broker keeps the connection and says nothing."""
    memory = Memory()
    async with FakeBroker(memory, heartbeat=0.3) as first, FakeBroker(memory, name="fake-1", heartbeat=0.3) as second:
        statuses: list[tuple[float, object]] = []

        def note(status: object) -> None:
            statuses.append((time.monotonic(), status))

        async with Client([first.url, second.url], settings=QUICK, on_status=note):
            here, there = (first, second) if first.live else (second, first)
            here.mute = True
            muted = time.monotonic()
            await eventually(lambda: there.live, "moved")
            (down,) = [moment for moment, status in statuses if isinstance(status, ev.LinkDown)]
            assert down - muted <= 0.6 + 0.2
            await eventually(lambda: not here.live, "the dead link is closed")


def test_on_uvloop_a_dead_link_is_ended_as_well() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_a_black_hole_is_noticed_within_two_intervals())


async def test_a_drain_moves_the_client_without_a_break() -> None:
    memory = Memory()
    async with (
        FakeBroker(memory) as first,
        FakeBroker(memory, name="fake-1") as second,
        Client([first.url, second.url], settings=QUICK) as client,
    ):
        stream = client.subscribe("t")
        await eventually(lambda: [c for b in (first, second) for c in b.live if c.topics], "subscribed")
        here, there = (first, second) if first.live else (second, first)
        await here.publish("t", b"1")
        await here.live[0].send(wire.Drain(0.2, [wire.Server(there.url)]))
        await eventually(lambda: there.live and there.live[0].topics, "arrived")
        await there.publish("t", b"2")
        assert await take(stream, 2) == [b"1", b"2"]
        await eventually(lambda: not here.live, "left")
        assert here.connections[0].received[-1] == wire.Bye()
        assert here.connections[0].connection.close_code == 1000
        assert client.reconnects == 1


async def test_tokens_are_fetched_for_every_connect(broker: FakeBroker) -> None:
    tokens = iter(["old", "new"])

    async def fetch() -> str:
        return next(tokens)

    async with Client([broker.url], token=fetch, settings=QUICK) as client:
        await broker.live[0].close(4002, "token expired")
        await eventually(lambda: len(broker.live) == 1 and client.connected, "connected again")
        greetings = [connection.of(wire.Connect)[0] for connection in broker.connections]
        assert [greeting.token for greeting in greetings] == ["old", "new"]


async def test_a_token_that_cannot_be_had_and_one_that_is_refused() -> None:
    async with FakeBroker() as broker:
        broker.refuses_token = lambda token: token != "right"

        def fail() -> str:
            raise OSError("the token service is away")

        with pytest.raises(ConnectError, match="the token service is away"):
            await Client([broker.url], token=fail, open_timeout=0.3).open()
        with pytest.raises(ConnectError, match="4001"):
            await Client([broker.url], token="wrong", open_timeout=0.3).open()
        async with Client([broker.url], token="right"):
            pass


async def test_closing_while_a_token_is_fetched_leaves_nothing() -> None:
    async with FakeBroker() as broker:

        async def never() -> str:
            await asyncio.Event().wait()
            return ""

        with pytest.raises(ConnectError):
            await Client([broker.url], token=never, open_timeout=0.2).open()


async def test_a_server_that_speaks_something_else_is_not_taken() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ConnectError, match="503"):
            await Client([f"ws://127.0.0.1:{port}/ws"], open_timeout=0.3).open()


@pytest.mark.parametrize("frame", ["text", b"\xc1"])
async def test_a_broker_that_sends_nonsense_is_left(broker: FakeBroker, frame: str | bytes) -> None:
    problems: list[ev.LinkDown] = []

    def note(status: object) -> None:
        if isinstance(status, ev.LinkDown):
            problems.append(status)

    async with Client([broker.url], settings=QUICK, on_status=note) as client:
        await broker.live[0].connection.send(frame)
        await eventually(lambda: len(broker.connections) == 2 and client.connected, "connected again")
        assert "the broker sent" in problems[0].reason


async def test_an_exhausted_list_is_tried_until_a_server_comes_up() -> None:
    """nats.rb#87: 50 of 51 refuse, then the last one goes for a while as well."""
    broker = FakeBroker()
    await broker.start()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        dead = [f"ws://127.0.0.1:{taken.getsockname()[1]}/{number}" for number in range(50)]
        servers = [*dead, f" {broker.url}/ ", broker.url, "ws://:0"]
        random.Random(7).shuffle(servers)
        problems: list[object] = []
        settings = Settings(first_retry=0.01, backoff_cap=0.5)
        async with Client(servers, settings=settings, on_status=problems.append) as client:
            assert client.connected
            bad = [item for item in problems if isinstance(item, ev.Problem) and item.code == "bad_server"]
            assert len(bad) == 1
            stream = client.subscribe("t")
            await eventually(lambda: broker.live[0].topics, "subscribed")
            await client.publish("t", b"1")
            assert await take(stream, 1) == [b"1"]
            await broker.stop()
            await eventually(lambda: client._core.servers.rounds >= 3, "three rounds", within=20)
            broker.memory.append("t", b"2")
            await broker.start()
            assert await take(stream, 1) == [b"2"]
    await broker.stop()


async def test_what_a_callback_raises_stops_nothing_and_is_not_hidden(broker: FakeBroker) -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    latencies: list[float | None] = []

    def note(message: Message, latency: float | None) -> None:
        latencies.append(latency)
        raise RuntimeError("the application's own")

    async with Client([broker.url], on_delivery=note) as client:
        stream = client.subscribe("t")
        await client.publish("t", b"1")
        await broker.publish("t", b"2")
        assert await take(stream, 2) == [b"1", b"2"]
    assert latencies[0] is not None
    assert 0 <= latencies[0] < 5
    assert latencies[1] is None
    assert len(reported) == 2


async def test_a_client_may_be_opened_again(broker: FakeBroker) -> None:
    client = Client([broker.url])
    for number in range(3):
        async with client:
            await client.open()
            assert await client.publish("t", b"") == Position(1, number + 1)
    ids = [item.id for connection in broker.connections for item in connection.of(wire.Publish)]
    assert ids == [1, 2, 3]


async def test_another_kind_of_payload_or_topic_is_a_type_error(broker: FakeBroker) -> None:
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
