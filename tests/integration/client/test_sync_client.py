"""The blocking client: publishing and subscribing, its use by several threads, in callbacks and in forked processes,
and errors. No thread is left."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import pytest
from migratory_client import Closed, ConnectError, Position, PublishError, Settings, SyncClient
from migratory_testing.fakebroker import FakeBroker
from migratory_testing.waiting import poll, until

T = TypeVar("T")


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as running:
        yield running
    assert not [thread for thread in threading.enumerate() if thread.name == "migratory-client"]


async def script(work: Callable[[], T]) -> T:
    """Run a blocking function in a thread while the scripted broker runs, and return its result; raise TimeoutError
    after 20 s."""
    return await asyncio.wait_for(asyncio.to_thread(work), 20)


async def test_blocking_client_publishes_and_subscribes(broker: FakeBroker) -> None:
    broker.memory.append("t", b"old")

    def work() -> list[bytes]:
        with SyncClient([broker.url]) as client:
            stream = client.subscribe("t", snapshot=True)
            assert client.publish("t", "1") == Position(1, 2)
            futures = [client.submit("t", b"%d" % number) for number in range(2, 5)]
            assert [future.result(5) for future in futures] == [Position(1, number) for number in range(3, 6)]
            payloads = []
            for message in stream:
                payloads.append(message.payload)
                if len(payloads) == 4:
                    break
            with pytest.raises(PublishError):
                client.publish("\0", b"")
            return payloads

    assert await script(work) in ([b"old", b"1", b"2", b"3"], [b"1", b"2", b"3", b"4"])


async def test_next_with_timeout_loses_nothing(broker: FakeBroker) -> None:
    def work() -> bytes:
        with SyncClient([broker.url]) as client, client.subscribe("t") as stream:
            assert (stream.topics, client.connected, client.reconnects) == (("t",), True, 0)
            with pytest.raises(TimeoutError, match=r"no message of t within 0.05 s; no message is lost, call again"):
                stream.next(timeout=0.05)
            client.publish("t", b"1")
            message = stream.next(timeout=5)
            assert message is not None
        assert stream.positions == {"t": Position(1, 1)}
        assert (stream.topics, client.connected) == ((), False)
        return message.payload

    assert await script(work) == b"1"


async def test_timeout_error_of_on_gap_is_unchanged(broker: FakeBroker) -> None:
    for number in range(5):
        broker.memory.append("t", b"%d" % number)
    broker.memory.first_cached = 3

    def own(receipt: object) -> None:
        raise TimeoutError("the application's")

    def work() -> None:
        with SyncClient([broker.url]) as client:
            stream = client.subscribe("t", after="1:0", on_gap=own)
            with pytest.raises(TimeoutError, match="the application's"):
                stream.next(timeout=5)

    await script(work)


async def test_iteration_ends_when_another_thread_closes(broker: FakeBroker) -> None:
    client = SyncClient([broker.url])
    client_open = asyncio.to_thread(client.open)
    await client_open

    stream = client.subscribe("t")
    payloads: list[bytes] = []

    def read() -> None:
        with stream:
            payloads.extend(message.payload for message in stream)

    reading = asyncio.create_task(asyncio.to_thread(read))
    await script(lambda: client.publish("t", b"1"))
    await until(lambda: payloads == [b"1"], "read")
    await script(client.close)
    await asyncio.wait_for(reading, 10)
    assert payloads == [b"1"]
    assert stream.next() is None, "closed between two messages: the end"
    assert client.closed
    with pytest.raises(Closed):
        client.publish("t", b"2")
    await script(client.close)


async def test_failed_open_leaves_no_thread(broker: FakeBroker) -> None:
    await broker.stop()

    def work() -> None:
        with pytest.raises(ConnectError), SyncClient([broker.url], open_timeout=0.2, settings=Settings()):
            pass

    await script(work)


async def test_unclosed_client_ends_with_the_interpreter(broker: FakeBroker) -> None:
    code = (
        "from migratory_client import SyncClient\n"
        f"client = SyncClient([{broker.url!r}]); client.open(); client.open()\n"
        "print(client.publish('t', 'x'))\n"
    )
    result = await script(lambda: subprocess.run([sys.executable, "-c", code], capture_output=True, check=True))
    assert result.stdout == b"1:1\n"
    assert result.stderr == b""
    await until(lambda: not broker.live, "said goodbye")


async def test_payload_or_topic_of_another_type_raises_type_error(broker: FakeBroker) -> None:
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


async def test_blocking_call_in_a_callback_raises(broker: FakeBroker) -> None:
    """A blocking call in a callback, which runs in the client's own thread, raises RuntimeError, and `submit` works
    there. Regression: `publish` in a callback blocked the client for ever, including `close`."""

    def work() -> None:
        raised: list[str] = []
        later: list[Future[Position | None]] = []

        def note(message: object, latency: float | None) -> None:
            for call in (lambda: client.publish("u", b""), lambda: client.subscribe("u"), client.close):
                try:
                    call()
                except RuntimeError as error:
                    raised.append(str(error))
            later.append(client.submit("u", b"1"))

        client = SyncClient([broker.url], on_delivery=note)
        with client, client.subscribe("t") as stream:
            client.publish("t", b"1")
            assert stream.next(timeout=5) is not None
            assert later[0].result(5) == Position(1, 1)
            assert client.publish("t", b"2") == Position(1, 2)
        assert len(raised) >= 3
        assert all("not allowed in the client's own thread" in text for text in raised)

    await script(work)


async def test_several_threads_share_a_subscription(broker: FakeBroker) -> None:
    def work() -> None:
        with SyncClient([broker.url]) as client, ThreadPoolExecutor(3) as threads:
            stream = client.subscribe("t")
            received: list[bytes] = []

            def read() -> None:
                for message in stream:
                    received.append(message.payload)

            readers = [threads.submit(read) for _ in range(3)]
            for number in range(9):
                client.publish("t", b"%d" % number)
            poll(lambda: len(received) >= 9, "every message has a reader")
            stream.close()
            for reader in readers:
                reader.result(5)
        assert sorted(received) == [b"%d" % number for number in range(9)]

    await script(work)


async def test_call_during_close_raises_closed(broker: FakeBroker) -> None:
    async def for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def work() -> None:
        client = SyncClient([broker.url])
        client.open()
        with ThreadPoolExecutor(1) as threads:
            calling = threads.submit(client._run, for_ever())
            assert begun.wait(5)
            client.close()
            assert isinstance(calling.exception(5), Closed)

    begun = threading.Event()
    await script(work)


async def test_client_is_closed_in_a_forked_process_and_can_be_opened(broker: FakeBroker) -> None:
    """A forked child process sees the client as closed, can open it again and publishes with it, as does the parent.
    Regression: the child has no client thread, and its calls and its end waited for ever."""
    code = (
        "import os, sys\n"
        "from migratory_client import Closed, SyncClient\n"
        f"client = SyncClient([{broker.url!r}]); client.open()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try:\n"
        "        client.publish('t', 'x')\n"
        "    except Closed as error:\n"
        "        client.close()\n"
        "        client.open()\n"
        "        print('child', client.publish('t', 'x'), flush=True)\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print('parent', client.publish('t', 'x'))\n"
    )
    result = await script(
        lambda: subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=15)
    )
    assert result.stdout.splitlines() == [b"child 1:1", b"parent 1:2"]
    assert result.stderr == b""
