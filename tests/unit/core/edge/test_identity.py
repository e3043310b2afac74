"""Tokens and permissions: the edge calls the authorizer for every connect, subscribe and publish."""

from __future__ import annotations

from migratory_broker.core.edge.admission import Denial, Grant
from migratory_protocol import frames
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import (
    Connect,
    Error,
    Publish,
    Subscribe,
    Subscribed,
    TopicRequest,
    Welcome,
)
from migratory_testing.edges import MASK, Bench, publication


class Guard:
    """A test authorizer: a token is "name", or "name:seconds" with the seconds until it expires. It refuses clients
    without a token."""

    def connect(self, client: str, token: str | None, remote: str) -> Grant | Denial:
        if not token:
            return Denial(f"{client} brought no token")
        name, _, seconds = token.partition(":")
        return Grant(name, float(seconds) if seconds else None)

    def subscribe(self, identity: str, topic: str) -> bool:
        return topic.startswith(identity)

    def publish(self, identity: str, topic: str, publisher: str) -> bool:
        return topic.startswith(identity) and publisher in ("", identity)


class TestIdentity:
    def test_client_without_token_is_refused(self) -> None:
        bench = Bench(authorizer=Guard())
        reader = bench.open()
        reader.send(Connect(client="eve"))
        (error,) = reader.take(Error)
        assert (error.code, error.text, error.closes) == ("unauthenticated", "eve brought no token", True)
        assert reader.close_code == CloseCode.UNAUTHENTICATED
        assert bench.edge.clients == 0

    def test_subscribe_and_publish_need_permission(self) -> None:
        bench = Bench(authorizer=Guard())
        reader = bench.open()
        reader.send(Connect(token="ann"))
        reader.send(Subscribe(1, [TopicRequest("bob/1")]), Publish("bob/1", b""), Publish("ann/1", b"", 1, "bob", 1, 1))
        assert bench.requests == []
        assert reader.take(Subscribed)[0].topics[0].code == "not_allowed"
        reader.send(Subscribe(1, [TopicRequest("ann/1")]), Publish("ann/1", b"", 1, "ann", 1, 1))
        assert len(bench.requests) == 2

    def test_client_is_closed_when_its_token_expires(self) -> None:
        bench = Bench(authorizer=Guard())
        reader = bench.open()
        reader.send(Connect(token="ann:30"))
        reader.subscribe_live("ann/1")
        for _ in range(6):
            bench.wait(5.0)
            reader.send_bytes(frames.pong_frame(b"", MASK))
        bench.wait(0.2)
        assert reader.close_code == CloseCode.TOKEN_EXPIRED
        assert bench.edge.closed == {"token_expired": 1}
        assert bench.fanout("ann/1", publication(1)) == []

    def test_second_connect_renews_the_token(self) -> None:
        bench = Bench(authorizer=Guard())
        reader = bench.open()
        reader.send(Connect(token="ann:30"))
        bench.wait(12.0)
        reader.send(Connect(token="ann:60"))
        assert len(reader.take(Welcome)) == 2
        assert bench.edge.clients == 1
        for _ in range(5):
            bench.wait(10.0)
            reader.send_bytes(frames.pong_frame(b"", MASK))
        assert reader.close_code is None
        reader.send(Connect())
        assert reader.close_code == CloseCode.UNAUTHENTICATED
        assert bench.edge.clients == 0
