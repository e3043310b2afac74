"""Misuse of the asyncio client by an application: a call either works or raises an error that says what is wrong, and
no task is left. Also clients that are shared by tasks, loops and forked processes."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from migratory_client import Client, Closed, ConnectError, Position, SubscribeError
from migratory_client.core import events as ev
from migratory_protocol import messages as wire
from migratory_testing.fakebroker import QUICK, FakeBroker, take
from migratory_testing.waiting import until


async def test_cancelled_close_leaves_no_task(broker: FakeBroker) -> None:
    broker.answers = False
    client = Client([broker.url])
    await client.open()
    waiting = client.submit("t", b"")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.close(flush=60.0)
    with pytest.raises(Closed):
        await waiting
    await until(lambda: not broker.live, "hung up")
    assert not client.connected


async def test_second_close_without_flush_ends_the_first(broker: FakeBroker) -> None:
    broker.answers = False
    client = Client([broker.url])
    await client.open()
    waiting = client.submit("t", b"")
    patient = asyncio.create_task(client.close(flush=60.0))
    await asyncio.sleep(0)
    await client.close(flush=0.0)
    async with asyncio.timeout(5):
        await patient
    with pytest.raises(Closed):
        await waiting


async def test_close_during_open_ends_the_open() -> None:
    async with FakeBroker() as broker:
        broker.mute = True
        client = Client([broker.url], open_timeout=None)
        opening = [asyncio.create_task(client.open()) for _ in range(2)]
        await until(lambda: broker.live, "dialled")
        await client.close()
        for task in opening:
            with pytest.raises(Closed, match="while it was being opened"):
                await asyncio.wait_for(task, 5)
        broker.mute = False
        async with client:
            assert await client.publish("t", b"") == Position(1, 1)


async def test_concurrent_opens_share_a_connection(broker: FakeBroker) -> None:
    client = Client([broker.url])
    first = asyncio.create_task(client.open())
    await asyncio.sleep(0)
    await client.open()
    assert client.connected
    await first
    await client.close()
    assert len(broker.connections) == 1


async def test_open_of_a_client_that_lost_its_broker_waits_for_another_one() -> None:
    """A second `open` returns at once while a broker serves the client, and otherwise when one serves it again.
    Regression: it returned at once on a client that had ever been connected."""
    async with FakeBroker() as broker, Client([broker.url], settings=QUICK, open_timeout=None) as client:
        await client.open()
        await _lose_broker(client, broker)
        opening = asyncio.create_task(client.open())
        await until(lambda: broker.live, "dialled")
        assert not opening.done()
        broker.mute = False
        broker.live[0].reset()
        async with asyncio.timeout(30):
            await opening
        assert client.connected
        await client.publish("t", b"")


async def test_open_of_a_client_that_finds_no_broker_again_raises_and_leaves_it_open() -> None:
    async with FakeBroker() as broker, Client([broker.url], settings=QUICK, open_timeout=None) as client:
        await _lose_broker(client, broker)
        client._open_timeout = 0.1  # not for the first connection, which a busy machine may delay
        with pytest.raises(ConnectError, match=r"no broker within 0\.1 s"):
            await client.open()
        broker.mute = False
        for connection in broker.live:
            connection.reset()
        await until(lambda: client.connected, "the client went on trying")


async def _lose_broker(client: Client, broker: FakeBroker) -> None:
    """End the client's connection, and let the broker answer no further one."""
    broker.mute = True
    broker.live[0].reset()
    await until(lambda: not client.connected and not broker.live, "lost")


async def test_cancelled_second_open_does_not_close() -> None:
    async with FakeBroker() as broker:
        broker.mute = True
        client = Client([broker.url], open_timeout=None)
        first = asyncio.create_task(client.open())
        await until(lambda: broker.live, "dialled")
        second = asyncio.create_task(client.open())
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        assert not first.done()
        await client.close()
        with pytest.raises(Closed):
            await first


async def test_two_tasks_share_one_subscription(broker: FakeBroker) -> None:
    """Three tasks that read one subscription share its messages: each message goes to one of them, each task gets
    its messages in order, and all end when the subscription is closed. Regression: a task's wait replaced another
    one's, which then never ended."""
    async with Client([broker.url]) as client:
        stream = client.subscribe("t")

        async def read() -> list[bytes]:
            return [message.payload async for message in stream]

        readers = [asyncio.create_task(read()) for _ in range(3)]
        await until(lambda: broker.live[0].topics, "subscribed")
        for number in range(9):
            await client.publish("t", b"%d" % number)
        stream.close()
        async with asyncio.timeout(5):
            shares = [await reader for reader in readers]
    assert sorted(payload for share in shares for payload in share) == [b"%d" % number for number in range(9)]
    assert all(share == sorted(share) for share in shares)


async def test_every_taken_over_topic_raises(broker: FakeBroker) -> None:
    """A subscription whose topics are taken over by newer subscriptions raises one SubscribeError for each topic,
    and then ends. Regression: only the last topic raised."""
    async with Client([broker.url]) as client:
        stream = client.subscribe("a", "b", "c")
        client.subscribe("a", "b")
        client.subscribe("c")
        for topic in ("a", "b", "c"):
            with pytest.raises(SubscribeError, match=f"^{topic}: a newer subscription"):
                await asyncio.wait_for(anext(stream), 5)
        assert await anext(stream, None) is None


async def test_cancelled_waits_leave_no_waiter(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        stream = client.subscribe("t")
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await anext(stream)
        assert not stream._waiters
        await client.publish("t", b"1")
        assert await take(stream, 1) == [b"1"]


async def test_use_from_another_thread_or_loop_raises(broker: FakeBroker) -> None:
    async with Client([broker.url]) as client:
        stream = client.subscribe("t")
        await until(lambda: broker.live[0].topics, "subscribed")

        def elsewhere() -> None:
            for use in (lambda: client.submit("t", b""), lambda: client.subscribe("u"), stream.close):
                with pytest.raises(RuntimeError, match="belongs to the event loop that opened it"):
                    use()
            for call in (client.publish("t", b""), client.open(), client.close(), anext(stream)):
                with pytest.raises(RuntimeError, match="belongs to the event loop that opened it"):
                    asyncio.run(_run(call))

        await asyncio.to_thread(elsewhere)
        assert await client.publish("t", b"1") == Position(1, 1)
        assert await take(stream, 1) == [b"1"]


async def _run(call: Any) -> None:
    await call


@contextmanager
def broker_elsewhere() -> Iterator[FakeBroker]:
    """Yield a fake broker that runs in a thread with an event loop of its own, for tests that run several loops one
    after the other."""
    running: list[FakeBroker] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with FakeBroker() as broker:
            running.append(broker)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield running[0]
    finally:
        over.set()
        thread.join()


def test_ended_loop_closes_the_client() -> None:
    """A client that was open when its event loop ended counts as closed in the next loop, and can be opened again
    there. Regression: the second loop waited for ever."""
    with broker_elsewhere() as broker:
        client = Client([broker.url])

        async def first() -> Any:
            await client.open()
            stream = client.subscribe("t")
            await client.publish("t", b"1")
            assert await take(stream, 1) == [b"1"]
            return stream

        async def second(old: Any) -> None:
            assert await anext(old, None) is None
            with pytest.raises(Closed):
                client.submit("t", b"")
            async with client, asyncio.timeout(10):
                assert await client.publish("t", b"2") == Position(1, 2)
                assert await take(client.subscribe("t"), 1) == [b"2"]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # aiohttp's session was not closed, indeed
            asyncio.run(second(asyncio.run(first())))
            gc.collect()


def test_client_is_usable_between_runs_of_its_loop(broker_url: str) -> None:
    loop = asyncio.new_event_loop()
    client = Client([broker_url])
    loop.run_until_complete(client.open())
    stream = client.subscribe("t")  # between two runs of the loop
    future = client.submit("t", b"1")
    assert loop.run_until_complete(asyncio.wait_for(future, 5)) == Position(1, 1)
    stream.close()
    loop.run_until_complete(client.close())
    loop.close()


@pytest.fixture
def broker_url() -> Iterator[str]:
    with broker_elsewhere() as broker:
        yield broker.url


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"servers": "ws://a/ws"}, TypeError, r"a list of URLs, not one str: write \['ws://a/ws'\]"),
        ({"servers": [None]}, TypeError, "a server is a URL as str, not NoneType"),
        ({"servers": [b"ws://a"]}, TypeError, "a server is a URL as str, not bytes"),
        ({"servers": ["127.0.0.1:8800"]}, ValueError, "'127.0.0.1:8800': a URL that begins with ws://"),
        ({"servers": ["a", "b", "c", "d", "e"]}, ValueError, "'c'.*, and 2 more"),
        ({"servers": []}, ValueError, "no usable server: give at least one"),
        ({"servers": ["ws://a"], "queue": 0}, ValueError, "queue is 0"),
        ({"servers": ["ws://a"], "token": b"secret"}, TypeError, "the token is a str or a function"),
    ],
)
def test_arguments_of_another_type_raise(arguments: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        Client(**arguments)


async def test_token_function_without_a_str_is_reported(broker: FakeBroker) -> None:
    """`open` raises ConnectError when the token function returns None, and no `connect` is sent. Regression: `None`
    was sent as the token "None"."""
    with pytest.raises(ConnectError, match="a token is a str, not NoneType"):
        await Client([broker.url], token=lambda: None, open_timeout=0.3).open()  # type: ignore[arg-type, return-value]
    assert not any(connection.of(wire.Connect) for connection in broker.connections)


async def test_pending_token_requests_do_not_accumulate(broker: FakeBroker) -> None:
    times: list[float] = []

    async def slow() -> str:
        times.append(time.monotonic())
        if len(times) == 4:
            return "at last"
        await asyncio.Event().wait()
        return ""

    settings = QUICK.__class__(first_retry=0.01, backoff_cap=0.02, connect_timeout=0.1)
    down: list[object] = []
    async with Client([broker.url], token=slow, settings=settings, on_status=down.append) as client:
        assert len(times) == 4
        assert not client._driver._token_tasks
    assert sum(isinstance(status, ev.Problem) for status in down) == 3


@pytest.mark.parametrize("opened", [False, True], ids=["closed before the fork", "open before the fork"])
async def test_forked_process_publishes_under_a_new_identity(broker: FakeBroker, opened: bool) -> None:
    """A parent and a forked child process publish with one client made before the fork, and all four publications
    are stored. Regression: both had one identity, so that the broker took publications of one as repeats of the
    other's."""
    code = (
        "import asyncio, os, sys, warnings\n"
        "from migratory_client import Client\n"
        f"client = Client([{broker.url!r}])\n"
        "loop = asyncio.new_event_loop()\n"
        f"if {opened}: loop.run_until_complete(client.open())\n"
        "async def work(name):\n"
        "    async with client:\n"
        "        for _ in range(2): await client.publish('t', name)\n"
        "child = os.fork()\n"
        "if child:\n"
        "    loop.run_until_complete(work('parent'))\n"
        "    sys.exit(os.waitpid(child, 0)[1])\n"
        "asyncio.run(work('child'))\n"
        "os._exit(0)\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=subprocess.PIPE)
    _, errors = await asyncio.wait_for(process.communicate(), 20)
    assert (process.returncode, errors) == (0, b"")
    payloads = [message.payload for message in broker.memory.topics["t"]]
    assert sorted(payloads) == [b"child", b"child", b"parent", b"parent"]
