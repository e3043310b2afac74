"""Requests for very many topics: the edge carries them out in pieces, with a limited number of pending attaches.

test_inbox.py tests the messages after such a request.
"""

from __future__ import annotations

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.events import Close, Hold, Lost, More, Received
from migratory_broker.core.logic.events import Admission, Attach, DrainClients
from migratory_protocol import frames
from migratory_protocol.messages import (
    Bye,
    Drain,
    Error,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Subscribed,
    TopicReceipt,
    TopicRequest,
    Unsubscribe,
    Unsubscribed,
)
from migratory_protocol.positions import Position
from migratory_testing.edges import MASK, NOTHING, Bench, Reader, publications

WINDOW = 3
TOPICS = [f"t{number}" for number in range(8)]


@pytest.fixture
def bench() -> Bench:
    return Bench(EdgeConfig(attaches_per_client=WINDOW))


@pytest.fixture
def reader(bench: Bench) -> Reader:
    return bench.client()


def request(number: int = 1, topics: list[str] = TOPICS) -> Subscribe:
    return Subscribe(number, [TopicRequest(topic) for topic in topics])


def new_topics(bench: Bench) -> list[str]:
    """Remove all collected requests of the edge, and return the topics of the attaches among them."""
    return [attach.topic for attach in bench.requests_of(Attach)]


def serve(bench: Bench) -> list[str]:
    """Answer all attaches one by one, checking that no more are pending than allowed. Return their topics in order,
    and leave publications in `bench.requests`."""
    served = []
    while attaches := [request for request in bench.requests if isinstance(request, Attach)]:
        assert len(attaches) <= bench.edge._config.attaches_per_client
        bench.requests.remove(attaches[0])
        served.append(attaches[0].topic)
        bench.attached(attaches[0], NOTHING)
    return served


def answered(reader: Reader) -> list[str]:
    return [receipt.topic for message in reader.take(Subscribed) for receipt in message.topics]


class TestWindow:
    def test_attaches_are_limited_and_each_answer_frees_a_place(self, bench: Bench, reader: Reader) -> None:
        reader.send(request())
        first, *others = bench.requests_of(Attach)
        assert [first.topic, *(attach.topic for attach in others)] == TOPICS[:WINDOW]
        assert bench.edge.status()["replays"] == WINDOW
        bench.attached(first, NOTHING)
        (fourth,) = bench.requests_of(Attach)
        assert fourth.topic == TOPICS[WINDOW]
        for attach in (*others, fourth):
            bench.attached(attach, NOTHING)
        assert serve(bench) == TOPICS[4:]
        assert answered(reader) == TOPICS
        assert (bench.edge.subscriptions, bench.edge.status()["replays"], bench.held) == (8, 0, set())

    def test_window_is_shared_by_requests_of_a_connection(self, bench: Bench, reader: Reader) -> None:
        reader.send(*(request(number, [topic]) for number, topic in enumerate(TOPICS, 1)))
        assert serve(bench) == TOPICS
        assert [message.request for message in reader.take(Subscribed)] == list(range(1, 9))

    def test_each_connection_has_its_own_window(self, bench: Bench, reader: Reader) -> None:
        reader.send(request())
        bench.client().send(request())
        assert new_topics(bench) == TOPICS[:WINDOW] * 2

    def test_cancelled_attach_counts_until_its_answer(self, bench: Bench, reader: Reader) -> None:
        reader.send(request(1, TOPICS[:WINDOW]), Unsubscribe(2, TOPICS[:WINDOW]), request(3, ["u"]))
        assert bench.edge.subscriptions == 0
        attaches = bench.requests_of(Attach)
        assert [attach.topic for attach in attaches] == TOPICS[:WINDOW]
        bench.attached(attaches[0], NOTHING)
        assert serve(bench) == ["u"]
        assert reader.received == [
            Unsubscribed(2, TOPICS[:WINDOW]),
            Subscribed(3, [TopicReceipt("u", "complete", NOTHING)]),
        ]

    def test_refusal_of_the_logic_frees_a_place(self, bench: Bench, reader: Reader) -> None:
        reader.send(request())
        for attach in bench.requests_of(Attach):
            bench.attached(attach, Position(0, 0), receipt="reset", code="too_many_topics", text="full")
        assert new_topics(bench) == TOPICS[WINDOW : 2 * WINDOW]
        assert bench.edge.subscriptions == WINDOW

    def test_pending_first_pages_share_one_page(self) -> None:
        bench = Bench(EdgeConfig(attaches_per_client=2, page=1000))
        bench.client().send(request())
        assert [attach.max_bytes for attach in bench.requests_of(Attach)] == [500, 500]

    def test_limit_is_checked_for_the_whole_request_first(self) -> None:
        bench = Bench(EdgeConfig(attaches_per_client=2, subscriptions_per_client=7))
        reader = bench.client()
        reader.send(request())
        (error,) = reader.take(Error)
        assert (error.code, error.request) == ("too_many_subscriptions", 1)
        assert (bench.requests, bench.edge.subscriptions, bench.held) == ([], 0, set())
        reader.send(request(2, TOPICS[:7]))
        assert serve(bench) == TOPICS[:7]

    def test_request_with_too_many_names_is_refused_unchecked(self) -> None:
        """A request with many more names than a client may have subscriptions is refused as a whole with one error,
        because checking a megabyte of invalid short names would take a second; with a few more, each name is
        answered."""
        bench = Bench(EdgeConfig(attaches_per_client=2, subscriptions_per_client=7))
        reader = bench.client()
        bad = [f"\x00{number}" for number in range(10)]
        reader.send(request(1, bad))
        (error,) = reader.received
        assert isinstance(error, Error)
        assert (error.code, error.request) == ("too_many_subscriptions", 1)
        assert error.text == "10 topics in one request; the limit of subscriptions is 7 per client"
        reader.send(request(2, bad[:9]))
        assert answered(reader) == bad[:9]

    def test_refusals_are_sent_in_pieces_and_wait_while_paused(self, bench: Bench, reader: Reader) -> None:
        bad = [f"\x00{number}" for number in range(5)]
        bench.defer_more = True
        reader.send(request(1, [*bad, "a", "b"]), Ping())
        assert answered(reader) == bad[:WINDOW]
        reader.pause()
        (more,) = bench.more
        bench.more.clear()
        bench.step(more)
        assert bench.edge.queue_bytes == 0
        assert (new_topics(bench), bench.held) == ([], {reader.number})
        bench.defer_more = False
        reader.resume()
        assert serve(bench) == ["a", "b"]
        assert [type(message) for message in reader.received] == [Subscribed, Subscribed, Pong, Subscribed]
        assert (answered(reader), bench.held) == ([*bad[WINDOW:], "a", "b"], set())

    def test_pause_stops_a_request_but_begins_a_small_one(self, bench: Bench, reader: Reader) -> None:
        reader.pause()
        reader.send(request())
        for attach in bench.requests_of(Attach):
            bench.attached(attach, NOTHING)
        assert bench.requests == []
        reader.resume()
        assert serve(bench) == TOPICS[WINDOW:]
        assert answered(reader) == TOPICS


class TestRepeated:
    def test_repeated_request_is_answered_in_pieces_between_others(self, bench: Bench, reader: Reader) -> None:
        reader.send(request())
        serve(bench)
        reader.received.clear()
        bench.defer_more = True
        reader.send(request(2))
        assert bench.more == [More(reader.number)]
        assert bench.held == {reader.number}
        assert answered(reader) == TOPICS[:WINDOW]
        bench.step(bench.more.pop())
        assert answered(reader) == TOPICS[WINDOW : 2 * WINDOW]
        bench.step(bench.more.pop())
        assert answered(reader) == TOPICS[2 * WINDOW :]
        assert (bench.more, bench.held, bench.requests) == ([], set(), [])

    def test_request_repeated_while_pending_is_answered(self, bench: Bench, reader: Reader) -> None:
        reader.send(request(1), request(2))
        assert serve(bench) == TOPICS
        answers = [
            (message.request, receipt.topic) for message in reader.take(Subscribed) for receipt in message.topics
        ]
        assert sorted(answers) == [(number, topic) for number in (1, 2) for topic in TOPICS]
        bench.fanout("t7", *publications(1, 1))
        assert reader.sequences("t7") == [1]
        assert bench.edge.subscriptions == len(TOPICS)


class TestBehind:
    def test_second_long_request_waits_for_the_first(self, bench: Bench, reader: Reader) -> None:
        more = [f"u{number}" for number in range(8)]
        reader.send(request(1), request(2, more), Publish("t", b"1"))
        reader.send(request(3, ["v"]), Publish("t", b"2"))
        assert serve(bench) == [*TOPICS, *more, "v"]
        assert [publication.payload for publication in bench.published()] == [b"1", b"2"]
        assert bench.held == set()

    def test_request_in_the_backlog_is_carried_out_in_order(self, bench: Bench, reader: Reader) -> None:
        more = [f"u{number}" for number in range(8)]
        reader.send(request(1))
        reader.send(request(2, more))
        reader.send(Publish("t", b"1"))
        assert serve(bench) == [*TOPICS, *more]
        assert [publication.payload for publication in bench.published()] == [b"1"]
        assert bench.held == set()

    def test_backlog_of_frames_cut_anywhere_is_read(self, bench: Bench, reader: Reader) -> None:
        data = b"".join(reader.frame(message) for message in (request(1), Publish("t", b"1"), Publish("t", b"2")))
        for at in range(0, len(data), 7):
            reader.send_bytes(data[at : at + 7])
        assert serve(bench) == TOPICS
        assert [publication.payload for publication in bench.published()] == [b"1", b"2"]

    def test_client_with_held_socket_stays_alive(self) -> None:
        bench = Bench(EdgeConfig(attaches_per_client=1, heartbeat=1.0))
        reader = bench.client()
        reader.send(request())
        for _ in TOPICS:
            bench.wait(0.9)
            bench.attached(bench.requests.pop(0), NOTHING)
        assert answered(reader) == TOPICS
        assert reader.close_code is None
        assert bench.edge.clients == 1


class TestEndings:
    """When the connection ends, the edge requests no more topics and ignores late answers."""

    def ended(self, bench: Bench) -> None:
        assert (bench.edge.subscriptions, bench.edge.topics, bench.edge.clients, bench.held) == (0, 0, 0, set())
        late = bench.requests_of(Attach)
        assert [attach.topic for attach in late] == TOPICS[:WINDOW]
        for attach in late:
            bench.attached(attach, NOTHING)
        assert bench.requests == []
        assert bench.edge.status()["replays"] == 0

    def test_lost_socket_ends_a_pending_request(self, bench: Bench, reader: Reader) -> None:
        reader.send(request())
        bench.step(Lost(reader.number))
        self.ended(bench)

    def test_fencing_ends_a_pending_request(self, bench: Bench, reader: Reader) -> None:
        reader.send(request())
        bench.step(Admission(False, "fenced"))
        assert reader.close_code == 4004
        self.ended(bench)

    def test_heartbeat_ends_a_pending_request(self) -> None:
        bench = Bench(EdgeConfig(attaches_per_client=WINDOW, heartbeat=1.0))
        reader = bench.client()
        reader.send(request())
        bench.wait(2.5)
        assert reader.socket == "aborted"
        self.ended(bench)

    def test_more_without_backlog_is_ignored(self, bench: Bench, reader: Reader) -> None:
        assert bench.step(More(reader.number)) == []

    def test_drain_leaves_a_pending_request(self, bench: Bench, reader: Reader) -> None:
        reader.send(request())
        bench.step(DrainClients(5.0, ()))
        assert len(reader.take(Drain)) == 1
        assert serve(bench) == TOPICS
        bench.wait(5.1)
        assert reader.close_code == 1001

    def test_bye_and_close_frame_wait_for_the_request(self, bench: Bench) -> None:
        for ending, code in ((Bye(), 1000), (None, 1000)):
            reader = bench.client()
            reader.send(request())
            reader.send(Publish("t", b"still counts"))
            reader.send_bytes(frames.close_frame(1000, "", MASK) if ending is None else reader.frame(ending))
            assert reader.close_code is None
            serve(bench)
            assert reader.close_code == code
            assert len(bench.published()) == 1
            assert bench.held == set()

    def test_close_frame_in_the_same_read_as_bye(self, bench: Bench, reader: Reader) -> None:
        data = reader.frame(request()) + reader.frame(Bye()) + frames.close_frame(1000, "", MASK)
        reader.send_bytes(data)
        serve(bench)
        assert (reader.close_code, reader.socket) == (1000, "closed")

    def test_messages_before_a_protocol_error_are_handled(self, bench: Bench, reader: Reader) -> None:
        reader.send_bytes(reader.frame(request()) + reader.frame(Publish("t", b"1")) + b"\xff\xff")
        assert reader.close_code is None
        assert serve(bench) == TOPICS
        assert len(bench.published()) == 1
        assert reader.close_code == 1002


def test_socket_is_held_once_for_the_whole_backlog(bench: Bench, reader: Reader) -> None:
    effects = reader.send(request(1), request(2, ["u"]))
    assert [effect for effect in effects if isinstance(effect, Hold)] == [Hold(reader.number, True)]
    assert bench.step(Received(reader.number, reader.frame(Ping()))) == []
    assert not any(isinstance(effect, Close) for effect in effects)
