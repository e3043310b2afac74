"""The asyncio client over real sockets: publishing, lost answers and cancellation."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from migratory_client import (
    Client,
    Closed,
    NotConnected,
    Position,
    PublishError,
    PublishTimeout,
    Settings,
    TooManyWaiting,
)
from migratory_protocol import messages as wire
from migratory_testing.fakebroker import QUICK, FakeBroker
from migratory_testing.waiting import until


def test_timer_in_the_past_works_on_uvloop() -> None:
    """A publication whose deadline has passed before its timer is set ends with PublishTimeout on uvloop, where
    `call_at` then returns a plain handle instead of a timer handle."""

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


async def test_a_publication_survives_a_lost_acknowledgement(broker: FakeBroker) -> None:
    """Pitfall 16: a publication that is stored before the connection is reset, and not acknowledged, is sent again
    and gets its old position; it is stored once."""
    broker.answers = False
    async with Client([broker.url], settings=QUICK) as client:
        publishing = asyncio.ensure_future(client.publish("t", b"1"))
        await until(lambda: broker.memory.topics.get("t"), "stored")
        broker.answers = True
        broker.live[0].reset()
        assert await asyncio.wait_for(publishing, 10) == Position(1, 1)
        assert [message.payload for message in broker.memory.topics["t"]] == [b"1"]


async def test_pending_publications_keep_their_order(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        futures = [client.submit("t", b"%d" % number) for number in range(500)]
        assert await asyncio.gather(*futures) == [Position(1, number) for number in range(1, 501)]
        assert [message.payload for message in broker.memory.topics["t"]] == [b"%d" % n for n in range(500)]


@pytest.mark.parametrize("wire_kind", ["msgpack", "json"])
async def test_publications_of_one_turn_share_a_frame(broker: FakeBroker, wire_kind: str) -> None:
    async with Client([broker.url], wire=wire_kind) as client:
        await client.publish("t", b"alone")
        link = broker.live[0]
        before = len(link.frames)
        futures = [client.submit(f"t{number % 3}", b"%d" % number) for number in range(100)]
        await asyncio.gather(*futures)
        assert link.frames[before:] == [100]
        assert [message.payload for message in link.of(wire.Publish)[1:]] == [b"%d" % n for n in range(100)]
        await client.publish("t", b"alone again")
        assert link.frames[before:] == [100, 1]


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
        await until(lambda: not client.connected, "noticed")
        with pytest.raises(NotConnected):
            await client.publish("t", b"4", qos=0)
    with pytest.raises(Closed):
        await client.publish("t", b"5")


async def test_cancelled_publication_is_given_up(broker: FakeBroker) -> None:
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


async def test_close_waits_for_answers_and_fails_the_others(broker: FakeBroker) -> None:
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
