"""The synchronous face: same behaviour, and no thread left."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import pytest
from migratory_client import Closed, ConnectError, Position, PublishError, Settings, SyncClient
from migratory_testing.fakebroker import FakeBroker, eventually

T = TypeVar("T")


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as running:
        yield running
    assert not [thread for thread in threading.enumerate() if thread.name == "migratory-client"]


async def script(work: Callable[[], T]) -> T:
    """Run a blocking script while the fake broker goes on."""
    return await asyncio.wait_for(asyncio.to_thread(work), 20)


async def test_a_script(broker: FakeBroker) -> None:
    broker.memory.append("t", b"old")

    def work() -> list[bytes]:
        with SyncClient([broker.url]) as client:
            stream = client.subscribe("t", snapshot=True)
            assert client.publish("t", "1") == Position(1, 2)
            futures = [client.submit("t", b"%d" % number) for number in range(2, 5)]
            assert [future.result(5) for future in futures] == [Position(1, number) for number in range(3, 6)]
            seen = []
            for message in stream:
                seen.append(message.payload)
                if len(seen) == 4:
                    break
            with pytest.raises(PublishError):
                client.publish("\0", b"")
            return seen

    assert await script(work) in ([b"old", b"1", b"2", b"3"], [b"1", b"2", b"3", b"4"])


async def test_waiting_a_bounded_time_loses_nothing(broker: FakeBroker) -> None:
    def work() -> bytes:
        with SyncClient([broker.url]) as client, client.subscribe("t") as stream:
            with pytest.raises(TimeoutError):
                stream.next(timeout=0.05)
            client.publish("t", b"1")
            message = stream.next(timeout=5)
            assert message is not None
            return message.payload

    assert await script(work) == b"1"


async def test_iteration_ends_when_another_thread_closes(broker: FakeBroker) -> None:
    client = SyncClient([broker.url])
    client_open = asyncio.to_thread(client.open)
    await client_open

    def read() -> list[bytes]:
        with client.subscribe("t") as stream:
            return [message.payload for message in stream]

    reading = asyncio.create_task(asyncio.to_thread(read))
    await eventually(lambda: broker.live[0].topics, "subscribed")
    await script(lambda: client.publish("t", b"1"))
    await script(client.close)
    assert await asyncio.wait_for(reading, 10) == [b"1"]
    assert client.closed
    with pytest.raises(Closed):
        client.publish("t", b"2")
    await script(client.close)


async def test_a_client_that_finds_no_broker_leaves_no_thread(broker: FakeBroker) -> None:
    await broker.stop()

    def work() -> None:
        with pytest.raises(ConnectError), SyncClient([broker.url], open_timeout=0.2, settings=Settings()):
            pass

    await script(work)


async def test_a_client_that_was_never_closed_ends_with_the_interpreter(broker: FakeBroker) -> None:
    code = (
        "from migratory_client import SyncClient\n"
        f"client = SyncClient([{broker.url!r}]); client.open(); client.open()\n"
        "print(client.publish('t', 'x'))\n"
    )
    result = await script(lambda: subprocess.run([sys.executable, "-c", code], capture_output=True, check=True))
    assert result.stdout == b"1:1\n"
    assert result.stderr == b""
    await eventually(lambda: not broker.live, "said goodbye")


async def test_another_kind_of_payload_or_topic_is_a_type_error(broker: FakeBroker) -> None:
    def work() -> None:
        with SyncClient([broker.url]) as client:
            with pytest.raises(TypeError, match="the payload is bytes, bytearray, memoryview or str, not int"):
                client.publish("t", 5)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="the payload is bytes, bytearray, memoryview or str, not NoneType"):
                client.submit("t", None)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="topic is a str, not bytes"):
                client.publish(b"t", b"x")  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="topic is a str, not int"):
                client.subscribe(5)  # type: ignore[arg-type]
            changing = bytearray(b"x")
            future = client.submit("t", changing)
            changing[0] = 0
            future.result(5)

    await script(work)
    assert [message.payload for message in broker.memory.topics["t"]] == [b"x"]
