"""The blocking client, `SyncClient`, for scripts without an event loop: `Client`, run by an event loop in a thread of
its own."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self, TypeVar

from migratory_protocol.messages import Message, Server
from migratory_protocol.positions import Position

from migratory_client import errors
from migratory_client.arguments import Payload, PositionLike, as_bytes
from migratory_client.client import Client
from migratory_client.core import events as ev
from migratory_client.core.events import Cause
from migratory_client.subscription import Subscription

T = TypeVar("T")


class SyncSubscription:
    """A blocking iterator of `Message`, created by `SyncClient.subscribe`. Iterating raises GapError and SubscribeError
    as `Subscription` does, and may continue after them. It ends when the subscription or the client is closed. `with`
    closes it."""

    def __init__(self, client: SyncClient, inner: Subscription) -> None:
        self._client = client
        self._inner = inner

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        message = self.next()
        if message is None:
            raise StopIteration
        return message

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that this subscription still has, as in `Subscription.topics`."""
        return self._inner.topics

    @property
    def positions(self) -> dict[str, Position]:
        """The position that the application has reached in each topic, as in `Subscription.positions`, also after
        `close`."""
        return self._inner.positions

    def next(self, timeout: float | None = None) -> Message | None:
        """Return the next message, or None when the subscription has ended or its client is closed. Raise TimeoutError
        when none arrived within `timeout` seconds (None: wait without a limit); no message is lost by that. Raise
        GapError and SubscribeError as `Subscription` does, and RuntimeError in the client's own thread."""
        try:
            return self._client._run(self._next(timeout))
        except errors.Closed:
            return None  # closed by another thread between two messages: the stream ends, as for waiting threads

    async def _next(self, seconds: float | None) -> Message | None:
        """Return the next message, or None at the end of the stream. Raise TimeoutError, with the topics in its text,
        when none arrived within `seconds`."""
        try:
            async with asyncio.timeout(seconds) as limit:
                return await anext(self._inner, None)
        except TimeoutError:
            if not limit.expired():
                raise  # raised by the application's `on_gap`
            topics = ", ".join(self.topics[:3]) + (", ..." if len(self.topics) > 3 else "")
            raise TimeoutError(f"no message of {topics} within {seconds:g} s; no message is lost, call again") from None

    def close(self) -> None:
        """Unsubscribe from all topics and end the iteration, as `Subscription.close` does. Raise Closed when the client
        is closed, and RuntimeError in the client's own thread."""
        self._client._run(_call(self._inner.close))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._client.closed:
            self.close()


class SyncClient:
    """A client with blocking methods, and the constructor arguments of `Client`.

        with SyncClient(["ws://127.0.0.1:8800/ws"]) as client:
            client.publish("quotes/eur", "1.0842")
            for message in client.subscribe("quotes/eur"):
                ...

    Several threads may use it. Callbacks run in the client's own thread, where a blocking method raises RuntimeError,
    because the thread would wait for itself; `submit` does not block. In a forked process, which does not have the
    thread, the client is closed. The client is closed by `close`, by leaving the `with` block, and at the latest when
    the interpreter ends. The thread ends when the client is closed.
    """

    def __init__(self, servers: Iterable[str | Server], **options: Any) -> None:
        self._client = Client(servers, **options)
        self._lock = threading.Lock()  # guards the two below; never held while waiting
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def closed(self) -> bool:
        """True while the client is closed: before `open`, after `close`, and in a forked process."""
        return self._thread is None or not self._thread.is_alive()

    @property
    def connected(self) -> bool:
        """True while a broker serves this client. While it is False, an open client reconnects by itself."""
        return self._client.connected

    @property
    def reconnects(self) -> int:
        """The number of changes of broker since the client was created, for any cause."""
        return self._client.reconnects

    @property
    def reconnect_causes(self) -> dict[Cause, int]:
        """The number of changes of broker by cause: `broken`, `drained` or `moved`, as in `Client.reconnect_causes`."""
        return self._client.reconnect_causes

    def open(self) -> None:
        """Start the client's thread, unless it runs already, and connect as `Client.open` does. Raise what that raises;
        if this call started the thread, no thread is left then. Raise RuntimeError in the client's own thread."""
        with self._lock:
            opens = self.closed
            if opens:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run_loop, args=(self._loop,), name="migratory-client", daemon=True
                )
                self._thread.start()
                atexit.register(self.close)
        try:
            self._run(self._client.open())
        except BaseException:
            if opens:
                self.close(flush=0.0)
            raise

    def close(self, flush: float = 5.0) -> None:
        """Wait up to `flush` seconds for answers to publications, disconnect, and end the client's thread.
        Subscriptions end, and `publish`, `submit` and `subscribe` raise Closed until the next `open`. Nothing happens
        if the client is closed. Raise RuntimeError in the client's own thread."""
        self._check_thread()
        with self._lock:
            was_closed = self.closed
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            atexit.unregister(self.close)
        if was_closed or loop is None or thread is None:
            return
        closing = asyncio.run_coroutine_threadsafe(self._client.close(flush), loop)
        try:
            closing.result()
        finally:
            closing.cancel()  # after a Ctrl-C: disconnect without waiting
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(flush=5.0 if kind is None else 0.0)

    def publish(self, topic: str, payload: Payload, *, qos: int = 1) -> Position | None:
        """Publish and wait for the answer. Return and raise what `Client.publish` does. Raise RuntimeError in the
        client's own thread."""
        return self._run(self._client.publish(topic, payload, qos=qos))

    def submit(self, topic: str, payload: Payload, *, qos: int = 1) -> Future[Position | None]:
        """Publish like `publish`, but return at once, with a future of the answer for use in threads. Calls from one
        thread keep their order. Raise Closed, and TypeError for another kind of topic or payload. All other errors are
        the future's, also ValueError for another `qos`."""
        return self._start(self._client.publish(topic, as_bytes(topic, payload), qos=qos))

    def subscribe(
        self,
        *topics: str,
        after: PositionLike | Mapping[str, PositionLike] | None = None,
        snapshot: bool = False,
        fresh: bool = False,
        on_gap: Callable[[ev.Receipt], None] | None = None,
    ) -> SyncSubscription:
        """Return a blocking stream of the topics' publications. The arguments and errors are those of
        `Client.subscribe`; `on_gap` is called in the client's own thread. Raise RuntimeError when called in that
        thread."""

        def subscribe() -> Subscription:
            return self._client.subscribe(*topics, after=after, snapshot=snapshot, fresh=fresh, on_gap=on_gap)

        return SyncSubscription(self, self._run(_call(subscribe)))

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the event loop until it is stopped. Then cancel the calls that other threads still wait for, and close
        the loop."""
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            unfinished = asyncio.all_tasks(loop)  # calls that other threads still wait for
            for task in unfinished:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*unfinished, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _start(self, call: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `call` in the client's thread, and return a future of its result. Raise Closed if the client is
        closed."""
        with self._lock:
            if self._loop is not None and not self.closed:
                return asyncio.run_coroutine_threadsafe(call, self._loop)
        call.close()
        raise errors.Closed

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run `call` in the client's thread, wait, and return its result or raise its error. Raise Closed if the client
        is closed, also meanwhile, and RuntimeError in the client's own thread. An exception in the waiting thread, such
        as a Ctrl-C, cancels the call."""
        try:
            self._check_thread()
        except RuntimeError:
            call.close()
            raise
        future = self._start(call)
        try:
            return future.result()
        except CancelledError:
            raise errors.Closed from None  # the thread ended before the call did
        except BaseException:  # also a Ctrl-C in the waiting thread: the call ends with it
            future.cancel()
            raise

    def _check_thread(self) -> None:
        """Raise RuntimeError when called in the client's own thread, where a blocking method would wait for itself."""
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "blocking methods are not allowed in the client's own thread, which runs callbacks and token "
                "functions; use submit, or another thread"
            )


async def _call(function: Callable[[], T]) -> T:
    return function()
