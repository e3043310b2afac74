"""The runtime's ZooKeeper client with a real ensemble: every request is answered once, and sessions and watches are
restored."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import SessionExpiredError
from kazoo.protocol.states import KazooState
from migratory_broker.core.logic import events
from migratory_broker.runtime.zookeeper import REQUESTS_AT_ONCE, ZooKeeper

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


class Session:
    """A ZooKeeper client of the runtime, and the events that it reported."""

    def __init__(self, servers: str, root: str) -> None:
        self.events: list[Any] = []
        self.threads: set[int] = set()
        self.zookeeper = ZooKeeper(servers, root, 2.0, self.take, lambda *_, **__: None)  # type: ignore[arg-type]
        self.number = 0

    def take(self, event: Any) -> None:
        self.threads.add(threading.get_ident())
        self.events.append(event)

    async def until(self, condition: Callable[[], Any], limit: float = 20.0) -> Any:
        deadline = time.monotonic() + limit
        while not (result := condition()):
            assert time.monotonic() < deadline, self.events
            await asyncio.sleep(0.01)
        return result

    def sessions(self) -> list[events.ZkSession]:
        return [event for event in self.events if isinstance(event, events.ZkSession)]

    async def state(self, state: str) -> events.ZkSession:
        """Wait until the last reported state is `state`, and return the event that reported it."""

        def find() -> events.ZkSession | None:
            sessions = self.sessions()
            return sessions[-1] if sessions and sessions[-1].state == state else None

        return await self.until(find)  # type: ignore[no-any-return]

    def connected_anew(self, before: int) -> events.ZkSession | None:
        """Return the first event that reports a session (other than 0, which is none, and `before`), or None."""
        return next(
            (
                event
                for event in self.events
                if isinstance(event, events.ZkSession) and event.session not in (0, before)
            ),
            None,
        )

    async def ask(self, make: Callable[[int], Any]) -> events.ZkReply:
        self.number += 1
        effect = make(self.number)
        carried_out: dict[type, Callable[[Any], None]] = {
            events.ZkGet: self.zookeeper.get,
            events.ZkChildren: self.zookeeper.children,
            events.ZkCommit: self.zookeeper.commit,
        }
        carried_out[type(effect)](effect)
        return (await self.until(lambda: self.replies(effect.request)))[0]  # type: ignore[no-any-return]

    def replies(self, request: int) -> list[events.ZkReply]:
        return [event for event in self.events if isinstance(event, events.ZkReply) and event.request == request]

    async def commit(self, *operations: Any) -> events.ZkReply:
        return await self.ask(lambda number: events.ZkCommit(number, operations))

    async def get(self, path: str, watch: bool = False) -> events.ZkReply:
        return await self.ask(lambda number: events.ZkGet(number, path, watch))

    async def children(self, path: str, watch: bool = False) -> events.ZkReply:
        return await self.ask(lambda number: events.ZkChildren(number, path, watch))

    def changed(self, path: str) -> int:
        return self.events.count(events.ZkChanged(path))


@pytest.fixture
async def session(
    zookeepers: Any, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[Session]:
    made = Session(zookeepers.servers, f"/migratory/{request.node.name}")
    caplog.set_level(logging.DEBUG, "migratory.kazoo")  # shown where a test fails
    made.zookeeper.start()
    yield made
    assert await made.zookeeper.stop(10)
    assert made.threads == {threading.get_ident()}, "events come on the loop's thread only"


async def test_the_root_exists_before_the_session_is_reported(session: Session) -> None:
    connected = await session.state("connected")
    assert connected.session
    assert await session.get("/") == events.ZkReply(1, "ok", events.ZkNode(b"", 0, 0))


async def test_transactions_are_atomic_and_every_result_is_checked(session: Session) -> None:
    connected = await session.state("connected")
    reply = await session.commit(events.ZkCreate("/a", b"1"), events.ZkCreate("/e", b"2", ephemeral=True))
    assert (reply.outcome, reply.versions) == ("ok", (0, 0))
    reply = await session.commit(events.ZkWrite("/a", b"3", 0), events.ZkCheck("/e", 0), events.ZkCreate("/b", b""))
    assert (reply.outcome, reply.versions) == ("ok", (1, -1, 0))
    for operations, error in (
        ((events.ZkWrite("/a", b"x", 0), events.ZkCreate("/c", b"")), "BadVersionError"),
        ((events.ZkCreate("/c", b""), events.ZkCreate("/a", b"")), "NodeExistsError"),
        ((events.ZkCreate("/c", b""), events.ZkCheck("/a", 7)), "BadVersionError"),
        ((events.ZkCreate("/c", b""), events.ZkDelete("/nothing")), "NoNodeError"),
    ):
        reply = await session.commit(*operations)
        assert reply.outcome == "refused"
        assert error in reply.error
        assert (await session.get("/c")).node is None
    assert (await session.get("/a")).node == events.ZkNode(b"3", 1, 0)
    assert (await session.get("/e")).node == events.ZkNode(b"2", 0, connected.session)
    assert (await session.children("/")).children == ("a", "b", "e")
    assert (await session.commit(events.ZkDelete("/b"), events.ZkWrite("/a", b"4", -1))).versions == (-1, 2)
    assert (await session.children("/b")).children is None


async def test_a_watch_fires_once_also_for_a_node_created_later(session: Session) -> None:
    await session.state("connected")
    await session.get("/later", watch=True)
    await session.get("/later", watch=True)
    await session.children("/", watch=True)
    await session.commit(events.ZkCreate("/later", b""))
    await session.until(lambda: session.changed("/later") and session.changed("/"))
    await session.commit(events.ZkWrite("/later", b"1", -1))
    await session.get("/later", watch=True)
    assert (session.changed("/later"), session.changed("/")) == (1, 1)
    await session.commit(events.ZkDelete("/later"))
    await session.until(lambda: session.changed("/later") == 2)


async def test_an_expired_session_is_reported_and_replaced(session: Session, zookeepers: Any) -> None:
    """Case A10: after its session is ended by a second client, the ZooKeeper client reports the loss and then a new
    session; its ephemeral node is gone, its watches are reported as changed, and new nodes belong to the new
    session."""
    first = await session.state("connected")
    await session.commit(events.ZkCreate("/mine", b"", ephemeral=True), events.ZkCreate("/others", b""))
    await session.children("/others", watch=True)  # where nothing changes: the watch is lost with the session
    thief = KazooClient(zookeepers.servers, client_id=session.zookeeper._client.client_id)
    await asyncio.to_thread(thief.start)
    await asyncio.to_thread(thief.stop)
    thief.close()
    await session.until(lambda: any(getattr(event, "state", "") == "lost" for event in session.events))
    # Not merely the second time: the first session may be resumed once more between the thief's coming and its end.
    again = await session.until(lambda: session.connected_anew(first.session))
    assert again.session
    await session.until(lambda: session.changed("/others"))
    changed_at = session.events.index(events.ZkChanged("/others"))
    states = [event.state for event in session.events[:changed_at] if isinstance(event, events.ZkSession)]
    assert states[0] == states[-1] == "connected", "told when it can be read again"
    assert "suspended" in states
    assert (await session.get("/mine")).node is None
    assert (await session.commit(events.ZkCreate("/mine", b"", ephemeral=True))).outcome == "ok"
    assert (await session.get("/mine")).node == events.ZkNode(b"", 0, again.session)


@pytest.mark.parametrize("request_name", ["create_async", "get_async", "get_children_async", "exists_async"])
async def test_a_session_that_expired_on_an_open_connection_is_replaced(session: Session, request_name: str) -> None:
    """A session that a server resumed just before it learned of the session's end is replaced: the connection stays
    open, and each request is refused because the session expired. "create_async" is refused when the session starts,
    the others while it is in use."""
    if request_name != "create_async":
        first = await session.state("connected")
        await session.children("/", watch=True)
    ended = session.zookeeper._client

    def refuse(*_: Any, **__: Any) -> Any:
        result = ended.handler.async_result()
        result.set_exception(SessionExpiredError())
        return result

    setattr(ended, request_name, refuse)
    if request_name == "create_async":
        again = await session.state("connected")
        assert [event.state for event in session.events] == ["lost", "connected"]
    else:
        reply = await (
            session.children("/missing", True) if "children" in request_name else session.get("/missing", True)
        )
        assert reply.outcome == "unknown"
        again = await session.until(lambda: session.connected_anew(first.session))
        await session.until(lambda: session.changed("/"))
    assert session.zookeeper._client is not ended
    assert (await session.commit(events.ZkCreate("/other", b"", ephemeral=True))).outcome == "ok"
    assert (await session.get("/other")).node == events.ZkNode(b"", 0, again.session)


async def test_changed_servers_are_used_for_the_next_connection(zookeepers: Any) -> None:
    """The only member that a client knows leaves the ensemble, after the client has been told the others."""
    first = zookeepers.members[0]
    made = Session(first.address, "/migratory/servers")
    made.zookeeper.start()
    connected = await made.state("connected")
    made.zookeeper.set_servers(zookeepers.servers)
    assert (await made.get("/")).outcome == "ok"
    zookeepers.kill(first)
    try:
        wanted = [("connected", connected.session), ("suspended", 0), ("connected", connected.session)]
        await made.until(lambda: [(one.state, one.session) for one in made.sessions()] == wanted)
        assert (await made.get("/")).outcome == "ok"
    finally:
        first.process.start()
        await asyncio.to_thread(zookeepers.wait_ready)
        assert await made.zookeeper.stop(10)


async def test_creating_the_root_is_retried_without_an_answer(zookeepers: Any) -> None:
    """The ZooKeeper client connects although the first request to create its root node is never answered, as can
    happen when a resumed session is just being ended."""
    made = Session(zookeepers.servers, "/migratory/unanswered")
    asked = made.zookeeper._client.create_async
    silent = [made.zookeeper._client.handler.async_result()]

    def create(*arguments: Any) -> Any:
        return silent.pop() if silent else asked(*arguments)

    made.zookeeper._client.create_async = create
    made.zookeeper.start()
    assert (await made.state("connected")).session
    assert not silent
    assert await made.zookeeper.stop(10)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_client_that_gave_up_is_replaced(session: Session) -> None:
    """A kazoo client whose connection ended with a RuntimeError, after which kazoo never reconnects, is replaced by
    a new one with a new session. The interrupted request has the outcome "unknown"."""
    first = await session.state("connected")
    await session.commit(events.ZkCreate("/mine", b"", ephemeral=True))
    await session.children("/", watch=True)
    ended = session.zookeeper._client

    def mismatch(*_: Any) -> None:
        raise RuntimeError("xids do not match")

    ended._connection._read_response = mismatch
    assert (await session.get("/mine")).outcome == "unknown"
    again = await session.until(lambda: session.connected_anew(first.session))
    assert session.zookeeper._client is not ended
    await session.until(lambda: session.changed("/"))  # its watch went with it, and so it is told
    reply = await session.get("/mine")
    assert reply.node is None or reply.node.owner == first.session, "which ends by itself"
    assert (await session.commit(events.ZkCreate("/other", b"", ephemeral=True))).outcome == "ok"
    assert (await session.get("/other")).node == events.ZkNode(b"", 0, again.session)


async def test_an_unanswered_request_becomes_unknown(session: Session) -> None:
    await session.state("connected")
    client = session.zookeeper._client
    ask = client.get_async
    client.get_async = lambda *_, **__: client.handler.async_result()
    assert await session.get("/") == events.ZkReply(1, "unknown", error="no answer in time")
    client.get_async = ask
    assert (await session.get("/")).outcome == "ok"


async def test_thousands_of_requests_at_once_do_not_hold_the_loop_up(session: Session) -> None:
    """A broker with 10,000 topic groups makes as many requests at its start. Each turn of the loop sends only some, and
    all are answered, in order."""
    await session.state("connected")
    zookeeper, client = session.zookeeper, session.zookeeper._client
    at_once, get_async = [0], client.get_async

    def ask(*arguments: Any, **options: Any) -> Any:
        at_once.append(len(zookeeper._sent))
        return get_async(*arguments, **options)

    client.get_async = ask
    for number in range(1, 3001):
        zookeeper.get(events.ZkGet(number, "/", False))
    assert len(at_once) == 1 + REQUESTS_AT_ONCE, "others wait for the next turns"
    await session.until(lambda: len(session.events) == 3001, 60.0)
    replies = [event for event in session.events if isinstance(event, events.ZkReply)]
    assert [reply.request for reply in replies] == list(range(1, 3001))
    assert {reply.outcome for reply in replies} == {"ok"}
    assert (len(at_once), max(at_once)) == (3001, REQUESTS_AT_ONCE)
    assert not zookeeper._sent


async def test_waiting_requests_are_answered_when_the_connection_is_lost(session: Session) -> None:
    await session.state("connected")
    client = session.zookeeper._client
    sent: list[str] = []

    def ask(path: str, **_: Any) -> Any:
        sent.append(path)
        return client.handler.async_result()

    client.get_async = ask
    for number in range(1, 501):
        session.zookeeper.get(events.ZkGet(number, "/", False))
    session.zookeeper._changed_state(client, KazooState.SUSPENDED, 0)
    replies = [event for event in session.events if isinstance(event, events.ZkReply)]
    assert replies == [events.ZkReply(number, "unknown", error="connection lost") for number in range(1, 501)]
    assert (session.zookeeper._waiting, session.zookeeper._sent) == (deque(), set())
    assert len(sent) == REQUESTS_AT_ONCE, "those that wait are not sent over a connection that is lost"


async def test_requests_in_flight_become_unknown_when_the_connection_is_lost(session: Session, zookeepers: Any) -> None:
    await session.state("connected")
    for member in zookeepers.members:
        await asyncio.to_thread(zookeepers.kill, member)
    try:
        replies = [await session.get("/") for _ in range(3)]
        await session.state("suspended")  # it may have connected to the next member before that was killed as well
        begun = time.monotonic()
        replies.append(await session.commit(events.ZkCreate("/late", b"")))
        assert time.monotonic() - begun >= 0.05, "an answer while there is no connection comes after a while"
        assert replies[-1].outcome == "unknown"
    finally:
        for member in zookeepers.members:
            member.process.start()  # not in a thread of this test's loop, with which it would end
    await session.state("connected")
    assert (await session.get("/")).outcome == "ok"
    for number in range(1, session.number + 1):
        assert len(session.replies(number)) == 1, "every request is answered exactly once"


async def test_stop_returns_at_its_limit_without_an_answer(zookeepers: Any) -> None:
    lonely = Session("127.0.0.1:1", "/migratory/lonely")
    lonely.zookeeper.start()
    begun = time.monotonic()
    await lonely.zookeeper.stop(3.0)
    assert time.monotonic() - begun < 4
    assert lonely.events == []
