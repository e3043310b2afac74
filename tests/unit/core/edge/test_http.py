"""HTTP requests as connections of an edge: what is written to them, the ids of events, and how they end."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.events import (
    Credentials,
    Effect,
    HttpRequest,
    Lost,
    Multicast,
    Opened,
    Paused,
    RateLimits,
    Rates,
    Received,
    Resumed,
    Send,
)
from migratory_broker.core.logic.events import (
    Admission,
    DrainClients,
    Gap,
    NextPage,
    Page,
    PublishRequest,
    ServerList,
    Tick,
)
from migratory_broker.core.logic.replication.topic_log import PublisherTable
from migratory_broker.core.security.authorizer import Authorizer, SecurityConfig
from migratory_broker.core.security.rules import Rule
from migratory_broker.core.security.tokens import KeySource, TokenConfig
from migratory_protocol import frames, limits
from migratory_protocol.codec import MSGPACK
from migratory_protocol.messages import Ack, Bye, Connect, Nack, Publish, Server, Subscribe, TopicRequest
from migratory_protocol.peer import ForwardedPublication
from migratory_protocol.positions import Position
from migratory_testing.edges import Bench, publication, publications
from migratory_testing.eventstream import EventStream, StreamEvent
from migratory_testing.tokens import SECRET, sign

WALL = 1_800_000_000.0


class Request:
    """An HTTP client of a `Bench`. It has what was written to it, as bytes and as the events of its stream."""

    def __init__(self, bench: Bench, http: HttpRequest, *messages: Any, token: str | None = None) -> None:
        self.bench = bench
        self.number = len(bench.readers) + 1
        self.socket: Literal["open", "closed", "aborted"] = "open"
        self.data = b""
        bench.readers[self.number] = self  # type: ignore[assignment]
        bench.step(Opened(self.number, "msgpack", "10.0.0.1:5", token=token, http=http))
        data = b"".join(frames.binary_frame(MSGPACK.encode(each), bytes(4)) for each in (Connect(), *messages))
        bench.step(Received(self.number, data))

    def write(self, data: bytes) -> None:
        assert self.socket == "open"
        self.data += data

    @property
    def status(self) -> int:
        return int(self.data.split()[1])

    @property
    def body(self) -> Any:
        """The JSON body of the response, which must be the whole of what was written."""
        head, _, body = self.data.partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}\r\n".encode() in head
        return json.loads(body)

    @property
    def stream(self) -> EventStream:
        parser, _ = self._parse()
        return parser

    @property
    def events(self) -> list[StreamEvent]:
        return self._parse()[1]

    @property
    def ids(self) -> list[tuple[str, str]]:
        """Return the payload and the id of each publication."""
        return [(event.data["data"], event.id) for event in self.events if event.name == "message"]

    @property
    def ops(self) -> list[str]:
        return [event.data["op"] for event in self.events]

    def _parse(self) -> tuple[EventStream, list[StreamEvent]]:
        head, _, body = self.data.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        parser = EventStream()
        found = [parser.feed(line) for line in body.decode().split("\n")]
        return parser, [event for event in found if event is not None]


def subscribe(*topics: str, after: Any = None, snapshot: bool = False) -> Subscribe:
    return Subscribe(1, [TopicRequest(topic, after, snapshot) for topic in topics])


def stream(bench: Bench, *topics: str, after: Any = None, positions: tuple[tuple[str, str], ...] = ()) -> Request:
    return Request(bench, HttpRequest("stream", positions), subscribe(*topics, after=after))


def test_a_live_stream_has_a_position_from_its_receipt_on() -> None:
    bench = Bench()
    request = stream(bench, "a")
    bench.attached(bench.requests.pop(), Position(1, 7), done=True)
    assert request.ops == ["welcome", "subscribed"]
    assert request.stream.last_id == "1:7"
    bench.fanout("a", publication(8), publication(9))
    assert request.ids == [("8", "1:8"), ("9", "1:9")]
    assert b"\r\nX-Accel-Buffering: no\r\n" in request.data
    assert b"\r\nConnection: close\r\n" in request.data
    assert b"Content-Length" not in request.data
    assert [(each.metric, each.label) for each in bench.observed] == [("migratory_http_requests_total", "stream")]


def test_a_resumed_stream_has_no_position_before_what_is_replayed() -> None:
    bench = Bench()
    request = stream(bench, "a", after="1:5")
    bench.attached(bench.requests.pop(), Position(1, 7), publications=publications(6, 7), done=True)
    receipt, first, second = request.events[1:]
    assert (receipt.id, first.id, second.id) == ("", "1:6", "1:7")
    # The same with pages: the receipt comes first, and nothing with it.
    request = stream(bench, "b", after="1:5")
    bench.attached(bench.requests.pop(), Position(1, 7), publications=(), done=False)
    assert request.stream.last_id == ""
    bench.page(bench.request_of(NextPage), *publications(6, 7))
    assert request.ids == [("6", "1:6"), ("7", "1:7")]


def test_what_a_receipt_reports_as_missing_counts_as_received() -> None:
    bench = Bench()
    request = stream(bench, "a", after="1:5")
    rest = {"first": 6, "last": 8, "publications": publications(9, 9), "done": True}
    bench.attached(bench.requests.pop(), Position(1, 9), receipt="truncated", **rest)
    assert [event.id for event in request.events[1:]] == ["1:8", "1:9"]
    bench.step(Gap("a", "truncated", Position(1, 12), 10, 11))
    assert request.stream.last_id == "1:11"
    bench.step(Gap("a", "reset", Position(4, 0)))
    assert request.stream.last_id == "4:0"


def test_ids_of_several_topics_name_all_positions() -> None:
    bench = Bench()
    request = stream(bench, "a", "b", positions=(("a", ""), ("b", "1:3")))
    other = stream(bench, "a", "b", positions=(("a", "1:1"), ("b", "")))
    for attach in list(bench.requests):
        bench.attached(attach, Position(1, 4), done=True)
    bench.requests.clear()
    assert request.stream.last_id == other.stream.last_id == "1:4,1:4"
    bench.fanout("b", publication(5))
    bench.fanout("a", publication(5))
    assert request.ids == other.ids == [("5", "1:4,1:5"), ("5", "1:5,1:5")]
    bench.step(Paused(request.number))
    bench.fanout("a", publication(6))
    bench.fanout("b", publication(6))
    assert other.stream.last_id == "1:6,1:6"
    bench.step(Resumed(request.number))
    assert request.ids == other.ids
    for each in (request, other):
        bench.step(Lost(each.number))
    assert bench.edge.topics == 0


def test_replays_of_streams_with_positions_of_their_own_are_not_shared() -> None:
    bench = Bench()
    requests = [stream(bench, "a", "b", after="1:4", positions=(("a", ""), ("b", start))) for start in ("1:1", "1:2")]
    for attach in [each for each in bench.requests if each.topic == "a"]:  # type: ignore[union-attr]
        bench.attached(attach, Position(1, 5), publications=publications(5, 5), done=True)
    assert [request.stream.last_id for request in requests] == ["1:5,1:1", "1:5,1:2"]


PAYLOAD = bytes(range(256)) * 1024


def held(effects: list[Effect]) -> int:
    """Return the bytes of memory of what these effects write, each object counted once."""
    written = {id(effect.data): len(effect.data) for effect in effects if isinstance(effect, Send | Multicast)}
    return sum(written.values())


def streams_with_positions(bench: Bench, count: int, *, after: str | None = None) -> list[Request]:
    """Open streams of the topics "a" and "b", and answer for the logic that all are live after 1:4."""
    positions = (("a", after or ""), ("b", after or ""))
    streams = [stream(bench, "a", "b", after=after, positions=positions) for _ in range(count)]
    if after is None:
        for attach in bench.requests:
            bench.attached(attach, Position(1, 4), done=True)
        bench.requests.clear()
    return streams


@pytest.mark.parametrize("batch_delay", [0.0, 0.1])
def test_streams_with_positions_of_their_own_share_the_data_of_an_event(batch_delay: float) -> None:
    """Regression: each was written a copy of its own, 51 MB in one step for 200 of them, which no limit counted."""
    bench = Bench(EdgeConfig(batch_delay=batch_delay))
    streams = streams_with_positions(bench, 20)
    effects = bench.fanout("a", publication(5, PAYLOAD), publication(6, PAYLOAD))
    assert held(effects) < 3 * len(PAYLOAD)  # two events in base64, and the ids
    assert bench.edge.delivered == 40
    for each in streams[:2]:
        assert [event.id for event in each.events[-2:]] == ["1:5,1:4", "1:6,1:4"]
        assert each.events[-1].data["position"] == "1:6"


def test_streams_with_positions_of_their_own_share_the_data_of_a_replay() -> None:
    bench = Bench()
    streams = streams_with_positions(bench, 10, after="1:4")
    effects: list[Effect] = []
    for attach in [each for each in bench.requests if each.topic == "b"]:  # type: ignore[union-attr]
        bench.attached(attach, Position(1, 5), done=False)
    for request in [each for each in bench.requests if isinstance(each, NextPage)]:
        effects += bench.step(Page(0, request.reference, "b", (publication(5, PAYLOAD),), done=True))
    assert held(effects) < 2 * len(PAYLOAD)
    assert {each.stream.last_id for each in streams} == {"1:4,1:5"}


def test_queues_of_streams_with_positions_of_their_own_share_data_and_count_it() -> None:
    bench = Bench(EdgeConfig(queue_per_client=1_000_000))
    streams = streams_with_positions(bench, 3)
    for each in streams:
        bench.step(Paused(each.number))
    bench.fanout("a", publication(5, PAYLOAD))
    before = [len(each.data) for each in streams]
    queued = bench.edge.queue_bytes
    assert bench.edge.delivered == 0
    effects = [effect for each in streams[:2] for effect in bench.step(Resumed(each.number))]
    assert held(effects) < 2 * len(PAYLOAD)
    sizes = [len(each.data) - size for each, size in zip(streams, before, strict=True)]
    assert (sizes[0], sizes[1], sizes[2], bench.edge.queue_bytes) == (queued / 3, queued / 3, 0, queued / 3)
    for sequence in (6, 7):
        bench.fanout("b", publication(sequence, PAYLOAD))
    assert (streams[2].socket, streams[2].events[-1].data["code"]) == ("closed", 4003)
    assert bench.edge.queue_bytes == 0
    assert {each.stream.last_id for each in streams[:2]} == {"1:5,1:7"}


def test_the_first_event_fits_into_a_queue_that_is_smaller() -> None:
    bench = Bench(EdgeConfig(queue_per_client=1000))
    (request,) = streams_with_positions(bench, 1)
    bench.step(Paused(request.number))
    bench.fanout("a", publication(5, PAYLOAD))
    bench.step(Resumed(request.number))
    assert (request.socket, request.stream.last_id) == ("open", "1:5,1:4")


@pytest.mark.parametrize("batch_delay", [0.0, 0.1])
def test_a_poll_ends_with_the_first_publications(batch_delay: float) -> None:
    bench = Bench(EdgeConfig(batch_delay=batch_delay))
    live = [Request(bench, HttpRequest("poll"), subscribe("a")) for _ in range(2)]
    for attach in list(bench.requests):
        bench.attached(attach, Position(1, 4), done=True)
    assert [request.socket for request in live] == ["open", "open"]
    bench.fanout("a", publication(5), publication(6))
    assert [(request.ids, request.socket) for request in live] == 2 * [([("5", "1:5"), ("6", "1:6")], "closed")]
    bench.requests.clear()
    late = Request(bench, HttpRequest("poll"), subscribe("a", after="1:4"))
    bench.attached(bench.requests.pop(), Position(1, 6), publications=publications(5, 6), done=True)
    assert (late.ids, late.socket) == (live[0].ids, "closed")
    assert bench.edge.closed == {"request": 3}
    assert bench.edge.clients == bench.edge.topics == 0


def test_a_poll_whose_transport_is_full_ends_once_its_publications_are_written() -> None:
    bench = Bench()
    request = Request(bench, HttpRequest("poll"), subscribe("a"))
    bench.attached(bench.requests.pop(), Position(1, 4), done=True)
    bench.step(Paused(request.number))
    bench.fanout("a", publication(5))
    assert (request.ids, request.socket) == ([], "open")
    bench.step(Resumed(request.number))
    assert (request.ids, request.socket) == ([("5", "1:5")], "closed")


def test_a_silent_stream_gets_a_comment_each_interval_and_a_poll_ends() -> None:
    bench = Bench(EdgeConfig(heartbeat=1.0))
    request, poll = stream(bench, "a"), Request(bench, HttpRequest("poll"), subscribe("a"))
    bench.wait(3.55)
    assert (request.stream.comments, request.socket) == (3, "open")
    assert (poll.ops, poll.socket) == (["welcome", "close"], "closed")


def test_a_stream_that_reads_nothing_for_two_intervals_is_dead() -> None:
    bench = Bench(EdgeConfig(heartbeat=1.0))
    request = stream(bench, "a")
    bench.step(Paused(request.number))
    bench.wait(1.5)
    assert request.socket == "open"
    bench.wait(2.0)
    assert request.socket == "aborted"
    assert bench.edge.closed == {"heartbeat": 1}
    assert bench.edge.queue_bytes == 0


def test_streams_hear_of_drains_and_servers_and_end_without_a_closing_handshake() -> None:
    bench = Bench()
    request, publisher = stream(bench, "a"), Request(bench, HttpRequest("publish", answers=1), PUBLICATION)
    bench.step(ServerList((Server("ws://b/ws"),)))
    bench.step(DrainClients(1.0, (Server("ws://b/ws"),)))
    bench.wait(1.5)
    assert request.ops == ["welcome", "servers", "drain", "close"]
    assert request.events[-1].data["code"] == 1001
    assert request.socket == publisher.socket == "closed"
    assert publisher.status == 503
    assert publisher.body["code"] == "retry"
    assert bench.edge.closed == {"draining": 2}


def test_a_slow_stream_is_closed_at_the_limit_of_its_queue() -> None:
    bench = Bench(EdgeConfig(queue_per_client=1000))
    request = stream(bench, "a")
    bench.attached(bench.requests.pop(), Position(1, 0), done=True)
    bench.step(Paused(request.number))
    for number in range(1, 20):
        bench.fanout("a", publication(number, b"x" * 100))
    assert (request.events[-1].data["code"], request.socket) == (4003, "closed")
    assert request.stream.last_id == "1:0"  # what was dropped is sent again


PUBLICATION = Publish("a", b"x", 1, "p", 1, 1)


def test_the_answer_to_a_publication_is_the_response() -> None:
    bench = Bench()
    request = Request(bench, HttpRequest("publish", answers=1), PUBLICATION)
    assert (request.data, request.socket) == (b"", "open")
    bench.step(ServerList((Server("ws://b/ws"),)))  # no answer
    bench.answer(request, Ack("a", "p", 1, Position(1, 1)))  # type: ignore[arg-type]
    assert (request.status, request.socket) == (200, "closed")
    assert request.body == {"op": "ack", "topic": "a", "publisher": "p", "id": 1, "position": "1:1"}


@pytest.mark.parametrize(
    ("code", "status"),
    [("not_allowed", 403), ("gap", 409), ("id_reused", 409), ("too_many_topics", 429), ("retry", 503), ("bad", 400)],
)
def test_a_refused_publication_has_a_status(code: str, status: int) -> None:
    bench = Bench()
    request = Request(bench, HttpRequest("publish", answers=1), PUBLICATION)
    bench.answer(request, Nack("a", "p", 1, code, "why"))  # type: ignore[arg-type]
    assert (request.status, request.body["code"], request.socket) == (status, code, "closed")
    assert (b"Retry-After" in request.data) is (status in (429, 503))


UNNAMED = HttpRequest("publish", answers=1, publisher="of this edge")


def publish_unnamed(
    bench: Bench, topic: str = "a", *, token: str | None = None
) -> tuple[Request, ForwardedPublication]:
    """Publish without a publisher, and return the request with what the logic gets."""
    request = Request(bench, UNNAMED, Publish(topic, b"x", 1, "of this edge", 1, 1), token=token)
    (publication,) = bench.request_of(PublishRequest).publications
    return request, publication


def test_publications_without_a_publisher_share_one_with_rising_ids() -> None:
    """Regression: each had a publisher of its own, and so a row of the publishers' table for `duplicateWindow`."""
    bench = Bench()
    numbered = [publish_unnamed(bench, topic)[1] for topic in ("a", "b", "a")]
    assert [(each.publisher, each.id, each.mark) for each in numbered] == [
        ("of this edge-0", id, id) for id in (1, 2, 3)
    ]
    table = PublisherTable()
    for number in range(2, 3 * limits.ID_JUMP, limits.ID_JUMP - 1):
        bench.edge._publishing._unnamed = number
        _, publication = publish_unnamed(bench)
        assert table.judge(publication.publisher, publication.id, publication.mark) == "new"
        table.rows[publication.publisher] = (publication.id, 1, 1, b"")
    assert sorted(table.rows) == [f"of this edge-{series}" for series in range(3)]


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Ack("a", "of this edge-0", 1, Position(1, 1)), 200),
        (Nack("a", "of this edge-0", 1, "retry", "why", 0.5), 503),
    ],
)
def test_the_publisher_of_those_without_one_is_not_shown(answer: Ack | Nack, status: int) -> None:
    """A client that knew it could use up its ids."""
    bench = Bench(EdgeConfig(heartbeat=1.0))
    request, _ = publish_unnamed(bench)
    bench.answer(request, answer)  # type: ignore[arg-type]
    assert (request.status, request.body["publisher"], request.body["id"]) == (status, "", 0)
    refused = Request(bench, UNNAMED, Publish("\x00", b"x", 1, "of this edge", 1, 1))
    assert (refused.status, refused.body["publisher"], refused.body["id"]) == (400, "", 0)
    late, _ = publish_unnamed(bench)
    bench.wait(1.2)
    assert late.body["text"].endswith(
        "it is not known whether the publication was stored, and a repeated one is another one"
    )
    assert not any(b"of this edge" in each.data for each in (request, refused, late))


def test_several_publications_are_answered_once_all_are() -> None:
    bench = Bench()
    messages = [Publish("a", b"x", 1, "p", id, 1) for id in (1, 2)]
    request = Request(bench, HttpRequest("publish", answers=2, several=True), *messages)
    bench.answer(request, Ack("a", "p", 1, Position(1, 1)))  # type: ignore[arg-type]
    assert request.socket == "open"
    bench.answer(request, Nack("a", "p", 2, "gap"))  # type: ignore[arg-type]
    assert (request.status, [each["op"] for each in request.body]) == (200, ["ack", "nack"])


def test_publications_of_qos_0_are_accepted_or_refused() -> None:
    bench = Bench()
    request = Request(bench, HttpRequest("publish"), Publish("a", b"x"), Bye())
    assert (request.status, request.body, request.socket) == (202, {"op": "accepted"}, "closed")
    request = Request(bench, HttpRequest("publish"), Publish("\x00", b"x"), Bye())
    assert (request.status, request.body["code"], request.socket) == (400, "bad_topic", "closed")
    bad = Publish("\x00", b"x")
    request = Request(bench, HttpRequest("publish"), bad, bad, Bye())  # the first answer is the response
    assert (request.status, request.body["code"]) == (400, "bad_topic")


def test_a_publication_without_an_answer_ends_after_an_interval() -> None:
    bench = Bench(EdgeConfig(heartbeat=1.0))
    request = Request(bench, HttpRequest("publish", answers=1), PUBLICATION)
    bench.wait(1.2)
    assert (request.status, request.body["code"], request.socket) == (503, "retry", "closed")
    assert "repeat it with the same publisher and id" in request.body["text"]


def test_publications_of_qos_0_are_not_accepted_before_all_were_handled() -> None:
    """Regression: those that waited longer than an interval were dropped and answered 202."""
    bench = Bench(EdgeConfig(heartbeat=1.0))
    request = Request(bench, HttpRequest("publish"), Publish("a", b"x"))  # without its `bye`
    bench.wait(1.2)
    assert (request.status, request.body["code"], request.socket) == (503, "retry", "closed")
    assert b"\r\nRetry-After: 1\r\n" in request.data
    assert request.body["text"].endswith("it is not known whether all publications were accepted: send them again")


def test_publications_of_qos_0_may_wait_for_their_rate_longer_than_an_interval() -> None:
    bench = Bench(EdgeConfig(heartbeat=1.0, rates=RateLimits(Rates(publications=1))))
    request = Request(bench, HttpRequest("publish"), *[Publish("a", b"x") for _ in range(5)], Bye())
    bench.wait(2.5)
    assert (request.data, request.socket) == (b"", "open")
    bench.wait(5.0)
    assert (request.status, request.body, request.socket) == (202, {"op": "accepted"}, "closed")
    assert bench.edge.published == 5


def test_a_poll_that_waits_for_its_rate_hears_of_it() -> None:
    bench = Bench(EdgeConfig(heartbeat=1.0, rates=RateLimits(Rates(subscriptions=1))))
    poll = Request(bench, HttpRequest("poll"), *[subscribe(str(number)) for number in range(5)])
    bench.wait(2.5)
    assert (poll.socket, poll.ops[-1], poll.events[-1].data["code"]) == ("open", "error", "rate_limited")


@pytest.mark.parametrize("size", [1000, 1180, 1400])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_publication_over_the_largest_payload_or_message_is_too_large(qos: int, size: int) -> None:
    """Regression: one whose frame was over the largest message was answered 503, to be repeated for ever."""
    bench = Bench(EdgeConfig(max_payload=900, envelope=300))
    message = Publish("a" * 100, bytes(size), qos, "p" if qos else "", qos, qos)
    request = Request(bench, HttpRequest("publish", answers=qos), *([message] if qos else [message, Bye()]))
    assert (request.status, request.body["code"], request.socket) == (413, "too_large", "closed")
    assert b"Retry-After" not in request.data


def test_a_fault_of_the_client_is_no_reason_to_repeat_a_publication() -> None:
    bench = Bench()
    request = Request(bench, HttpRequest("publish", answers=2, several=True), PUBLICATION)
    bench.step(Received(request.number, b"\xff"))
    assert (request.status, request.body["code"], request.socket) == (400, "bad_message", "closed")


def test_a_broker_that_takes_no_clients_ends_streams_and_refuses_publications() -> None:
    bench = Bench(open=False)
    bench.step(Admission(False, "fenced"))
    request, publisher = stream(bench, "a"), Request(bench, HttpRequest("publish", answers=1), PUBLICATION)
    assert (request.ops, request.socket) == (["close"], "closed")
    assert (publisher.status, publisher.body["code"]) == (503, "retry")


def test_a_rate_is_no_answer() -> None:
    bench = Bench(EdgeConfig(heartbeat=5.0, rates=RateLimits(Rates(publications=1))))
    messages = [Publish("a", b"x", 1, "p", id, 1) for id in (1, 2, 3)]
    request = Request(bench, HttpRequest("publish", answers=3, several=True), *messages)
    bench.wait(3.0)
    assert request.data == b""
    bench.answer(request, *[Ack("a", "p", id, Position(1, id)) for id in (1, 2, 3)])  # type: ignore[arg-type]
    assert request.status == 200


def secured(*more: Rule) -> Bench:
    config = TokenConfig((KeySource(("HS256",)),), audience="migratory", leeway=0.0)
    rules = (Rule(("quotes/**",), ("subscribe",), claims={"role": ("reader",)}), *more)
    bench = Bench(EdgeConfig(heartbeat=50.0), Authorizer(SecurityConfig(config, rules)))
    bench.step(Credentials((SECRET.encode(),)))
    bench.step(Tick(WALL))
    return bench


def credential(seconds: float = 300.0, **claims: Any) -> str:
    return sign({"sub": "ann", "role": "reader", "aud": "migratory", "exp": WALL + seconds, **claims})


@pytest.mark.parametrize(
    ("token", "code"),
    [(None, "unauthenticated"), ("wrong", "unauthenticated"), (credential(seconds=-1.0), "token_expired")],
)
@pytest.mark.parametrize("kind", ["stream", "poll", "publish"])
def test_a_request_without_an_accepted_token_is_answered_401(kind: Any, token: str | None, code: str) -> None:
    bench = secured()
    message = PUBLICATION if kind == "publish" else subscribe("quotes/a")
    request = Request(bench, HttpRequest(kind, answers=1), message, token=token)
    assert (request.status, request.body["op"], request.body["code"]) == (401, "error", code)
    assert request.socket == "closed"
    assert b"\r\nWWW-Authenticate: Bearer\r\n" in request.data
    assert bench.requests == []


def test_publications_without_a_publisher_have_one_for_each_subject() -> None:
    bench = secured(Rule(("a",), ("publish",)))
    request, publication = publish_unnamed(bench, token=credential())
    assert publication.publisher == "of this edge-0\0ann"
    bench.answer(request, Ack("a", publication.publisher, 1, Position(1, 1)))  # type: ignore[arg-type]
    assert (request.status, request.body["publisher"]) == (200, "")


def test_a_stream_has_the_rights_of_its_token_until_it_expires_or_is_revoked() -> None:
    bench = secured()
    request = Request(bench, HttpRequest("stream"), subscribe("quotes/a", "other"), token=credential(2.0))
    revoked = Request(bench, HttpRequest("stream"), subscribe("quotes/a"), token=credential(jti="1"))
    publisher = Request(bench, HttpRequest("publish", answers=1), PUBLICATION, token=credential())
    assert (publisher.status, publisher.body["code"]) == (403, "not_allowed")
    assert request.events[1].data["topics"][0]["code"] == "not_allowed"
    bench.step(Credentials((SECRET.encode(),), revoked=b'{"tokens": ["1"]}'))
    assert (revoked.ops[-2:], revoked.events[-1].data["code"]) == (["error", "close"], 4001)
    bench.wait(2.5)
    assert (request.ops[-2:], request.events[-1].data["code"]) == (["token_expiring", "close"], 4002)
    assert request.socket == revoked.socket == "closed"
