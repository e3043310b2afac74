"""ZooKeeper, as the logic sees it: the only file that imports kazoo.

kazoo calls back on threads of its own; every callback here only posts to the loop. Nothing waits in a listener, and
no call of kazoo's is a blocking one, but for `stop`, which has a thread and a time limit of its own. Every request is
answered exactly once: as `unknown` when the connection went while it was under way or no answer comes in time, and a
while later as `unknown` when there is no connection, so that a logic that asks again at once can't spin.

A server that is just ending a session may leave a request unanswered and answer the next. kazoo then gives up for
good, without a word but for its log: so another client, with another session, takes its place.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent
from kazoo.retry import KazooRetry

from migratory_broker.core.logic import events
from migratory_broker.runtime.logs import Log

_UNKNOWN = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, OperationTimeoutError)

OFFLINE_DELAY = 0.1
"""Seconds until a request is answered that came while there was no connection."""
ENSURE_AGAIN = 1.0
"""Seconds until a node of the root is asked for once more that no answer came for."""
ANEW = 0.5
"""Seconds until another client takes the place of one that has given up."""
UNANSWERED = 2
"""Session timeouts until a request is `unknown` though the connection is there: with a server that is merely slow, that
is gone long before."""


class ZooKeeper:
    """`post` takes the events for the logic. All methods are for the loop's thread.

    `root` is created when missing and stands before every path of the logic's.
    """

    def __init__(
        self, servers: str, root: str, session_timeout: float, post: Callable[[events.Event], None], log: Log
    ) -> None:
        self._servers = servers
        self._root = root
        self._post = post
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._session_timeout = session_timeout
        self._client = self._new_client()
        self._connected = False
        self._session = 0
        self._ensuring: list[str] | None = None  # what of the root an answer is awaited for
        self._generation = 0  # counts changes of state, so that a late answer about an older one is known as such
        self._outstanding: dict[int, asyncio.TimerHandle] = {}  # with what ends the wait for each
        self._watches: dict[tuple[str, str], Callable[[WatchedEvent], None]] = {}
        self._lost_watches: dict[str, None] = {}
        self._closed = False
        self.first_connected = asyncio.Event()

    def _new_client(self) -> KazooClient:
        library = logging.getLogger("migratory.kazoo")
        library.setLevel(logging.ERROR)  # its state changes are told by our own lines
        client = KazooClient(
            hosts=self._servers,
            timeout=self._session_timeout,
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=1.0),
            logger=library,
        )
        client.add_listener(partial(self._on_state, client))
        return client

    @property
    def connected(self) -> bool:
        return self._connected

    def start(self) -> None:
        """Begin to connect; `ZkSession` tells when a session is there."""
        self._client.start_async()

    async def stop(self, limit: float) -> bool:
        """End the session, so that its ephemerals go at once. Whether that was done within `limit` seconds."""
        self._closed = True
        done = asyncio.Event()

        def stop() -> None:
            try:
                _end(self._client)
            finally:
                self._to_loop(done.set)

        threading.Thread(target=stop, name="zookeeper-stop", daemon=True).start()
        try:
            async with asyncio.timeout(limit):
                await done.wait()
        except TimeoutError:
            return False
        return True

    # ---- the logic's effects ---------------------------------------------------------------------------------------

    def get(self, effect: events.ZkGet) -> None:
        if self._begin(effect.request):
            watch = self._watch("data", effect.path) if effect.watch else None
            result = self._client.get_async(self._full(effect.path), watch=watch)
            result.rawlink(partial(self._later, self._got, effect))

    def children(self, effect: events.ZkChildren) -> None:
        if self._begin(effect.request):
            watch = self._watch("children", effect.path) if effect.watch else None
            result = self._client.get_children_async(self._full(effect.path), watch=watch)
            result.rawlink(partial(self._later, self._listed, effect))

    def commit(self, effect: events.ZkCommit) -> None:
        if not self._begin(effect.request):
            return
        transaction = self._client.transaction()
        for operation in effect.operations:
            path = self._full(operation.path)
            if isinstance(operation, events.ZkCreate):
                transaction.create(path, operation.data, ephemeral=operation.ephemeral)
            elif isinstance(operation, events.ZkWrite):
                transaction.set_data(path, operation.data, operation.version)
            elif isinstance(operation, events.ZkDelete):
                transaction.delete(path, operation.version)
            else:
                transaction.check(path, operation.version)
        transaction.commit_async().rawlink(partial(self._later, self._committed, effect))

    def _begin(self, request: int) -> bool:
        later = self._loop.call_later
        if self._connected:
            self._outstanding[request] = later(UNANSWERED * self._session_timeout, self._unanswered, request)
        else:
            self._outstanding[request] = later(OFFLINE_DELAY, self._unknown, request, "there is no connection")
        return self._connected

    def _full(self, path: str) -> str:
        return self._root + path if path != "/" else self._root

    def _watch(self, kind: str, path: str) -> Callable[[WatchedEvent], None]:
        # the same object for the same watch: kazoo keeps one then, however often it is left
        return self._watches.setdefault((kind, path), partial(self._on_watch, path))

    # ---- on kazoo's threads: only post -----------------------------------------------------------------------------

    def _to_loop(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            # the loop has ended, so nobody waits for this any more
            if not self._closed:
                raise

    def _later(self, call: Callable[..., None], effect: object, result: Any) -> None:
        self._to_loop(call, effect, result)

    def _on_state(self, client: KazooClient, state: str) -> None:
        client_id = client.client_id if state == KazooState.CONNECTED else None
        self._to_loop(self._changed_state, client, state, client_id[0] if client_id else 0)
        if client.client_state == KeeperState.CLOSED:  # it ends only when it is told to, or can't go on
            self._to_loop(self._given_up, client)

    def _on_watch(self, path: str, event: WatchedEvent) -> None:
        self._to_loop(self._watched, path, event.type == EventType.NONE)

    # ---- on the loop -----------------------------------------------------------------------------------------------

    def _changed_state(self, client: KazooClient, state: str, session: int) -> None:
        if self._closed or client is not self._client:
            return
        self._generation += 1
        self._log("info", "zookeeper_state", state=state.lower(), session=f"{session:x}")
        if state == KazooState.CONNECTED:
            self._session = session
            self._ensure(self._generation, self._parents())
            return
        self._connected = False
        for request in sorted(self._outstanding):
            self._unknown(request, "the connection went")
        self._post(events.ZkSession("suspended" if state == KazooState.SUSPENDED else "lost"))

    def _given_up(self, client: KazooClient) -> None:
        if self._closed or client is not self._client:
            return
        self._log("error", "zookeeper_client_closed")
        self._client = self._new_client()
        self._loop.call_later(ANEW, self._start_anew, client)

    def _start_anew(self, ended: KazooClient) -> None:
        threading.Thread(target=_end, args=(ended,), name="zookeeper-close", daemon=True).start()
        if not self._closed:
            self._client.start_async()

    def _parents(self) -> list[str]:
        parts = self._root.strip("/").split("/")
        return ["/" + "/".join(parts[: end + 1]) for end in range(len(parts))]

    def _ensure(self, generation: int, missing: list[str]) -> None:
        """Create the root, one node at a time, then tell the logic that there is a session."""
        if generation != self._generation or self._closed:
            return
        if missing:
            self._ensuring = missing
            result = self._client.create_async(missing[0], b"")
            result.rawlink(partial(self._later, self._ensured, (generation, missing)))
            # A server that resumes a session which is just being ended was seen to answer with no path; kazoo takes
            # that for no answer at all.
            self._loop.call_later(ENSURE_AGAIN, self._ensure_again, generation, missing)
            return
        self._connected = True
        self.first_connected.set()
        self._post(events.ZkSession("connected", self._session))
        lost, self._lost_watches = self._lost_watches, {}
        for path in lost:
            self._post(events.ZkChanged(path))

    def _ensure_again(self, generation: int, missing: list[str]) -> None:
        if self._ensuring is missing:
            self._ensure(generation, missing)

    def _ensured(self, step: tuple[int, list[str]], result: Any) -> None:
        generation, missing = step
        if self._ensuring is not missing:
            return  # the other one of two that asked for the same was answered
        self._ensuring = None
        error = result.exception
        if error is None or isinstance(error, NodeExistsError):
            self._ensure(generation, missing[1:])
        elif not isinstance(error, _UNKNOWN):
            self._log("error", "zookeeper_refused", path=missing[0], reason=repr(error))
            self._loop.call_later(1.0, self._ensure, generation, missing)

    def _watched(self, path: str, lost: bool) -> None:
        if self._closed:
            return
        if not lost:
            self._post(events.ZkChanged(path))
        elif self._connected:
            # the connection was back before this came
            self._post(events.ZkChanged(path))
        else:
            self._lost_watches[path] = None

    def _got(self, effect: events.ZkGet, result: Any) -> None:
        error = result.exception
        if error is None:
            data, stat = result.value
            self._answer(events.ZkReply(effect.request, "ok", events.ZkNode(data, stat.version, stat.ephemeralOwner)))
        elif isinstance(error, NoNodeError):
            self._missing(effect, partial(self._got, effect))
        else:
            self._failed(effect.request, error)

    def _listed(self, effect: events.ZkChildren, result: Any) -> None:
        error = result.exception
        if error is None:
            self._answer(events.ZkReply(effect.request, "ok", children=tuple(sorted(result.value))))
        elif isinstance(error, NoNodeError):
            self._missing(effect, partial(self._listed, effect))
        else:
            self._failed(effect.request, error)

    def _missing(self, effect: events.ZkGet | events.ZkChildren, again: Callable[[Any], None]) -> None:
        """There is no such node; a read leaves no watch then, so an `exists` must."""
        if not effect.watch:
            self._answer(events.ZkReply(effect.request, "ok"))
        elif effect.request in self._outstanding:
            result = self._client.exists_async(self._full(effect.path), watch=self._watch("data", effect.path))
            result.rawlink(partial(self._later, self._looked, effect))

    def _looked(self, effect: events.ZkGet | events.ZkChildren, result: Any) -> None:
        if result.exception is not None:
            self._failed(effect.request, result.exception)
        elif result.value is None:
            self._answer(events.ZkReply(effect.request, "ok"))
        elif effect.request in self._outstanding:  # it came in between
            self._outstanding.pop(effect.request).cancel()
            (self.get if isinstance(effect, events.ZkGet) else self.children)(effect)  # type: ignore[arg-type]

    def _committed(self, effect: events.ZkCommit, result: Any) -> None:
        if result.exception is not None:
            self._failed(effect.request, result.exception)
            return
        # kazoo gives exceptions as results: each has to be looked at
        errors = [type(one).__name__ for one in result.value if isinstance(one, Exception)]
        if errors or len(result.value) != len(effect.operations):
            self._answer(events.ZkReply(effect.request, "refused", error=", ".join(errors) or "incomplete answer"))
            return
        versions = []
        for operation, one in zip(effect.operations, result.value, strict=True):
            if isinstance(operation, events.ZkCreate):
                versions.append(0)
            else:
                versions.append(one.version if isinstance(operation, events.ZkWrite) else -1)
        self._answer(events.ZkReply(effect.request, "ok", versions=tuple(versions)))

    def _failed(self, request: int, error: BaseException) -> None:
        if isinstance(error, _UNKNOWN):
            self._unknown(request, type(error).__name__)
        else:
            self._log("error", "zookeeper_refused", request=request, reason=repr(error))
            self._answer(events.ZkReply(request, "refused", error=type(error).__name__))

    def _unanswered(self, request: int) -> None:
        self._log("warning", "zookeeper_request_timeout", request=request)
        self._unknown(request, "no answer came")

    def _unknown(self, request: int, reason: str) -> None:
        self._answer(events.ZkReply(request, "unknown", error=reason))

    def _answer(self, reply: events.ZkReply) -> None:
        timer = self._outstanding.pop(reply.request, None)
        if timer is not None and not self._closed:
            timer.cancel()
            self._post(reply)


def _end(client: KazooClient) -> None:
    """Blocks: for a thread of its own."""
    try:
        client.stop()
        client.close()
    except (KazooException, OSError) as error:
        logging.getLogger("migratory.kazoo").error("stopping: %r", error)
