"""Requests for very many topics: a window of attaches at the logic, in pieces; what ends the connection meanwhile.

What waits behind them is in test_inbox.py.
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


def waiting(bench: Bench) -> list[str]:
    """The topics that the logic was asked for since the last call."""
    return [attach.topic for attach in bench.asked(Attach)]


def serve(bench: Bench) -> list[str]:
    """The logic answers one by one until it was asked for nothing more: all topics in the order in which it was. What
    it is asked to publish stays."""
    served = []
    while found := [asked for asked in bench.requests if isinstance(asked, Attach)]:
        assert len(found) <= bench.edge._config.attaches_per_client
        bench.requests.remove(found[0])
        served.append(found[0].topic)
        bench.attached(found[0], NOTHING)
    return served


def answered(reader: Reader) -> list[str]:
    return [receipt.topic for message in reader.take(Subscribed) for receipt in message.topics]


class TestWindow:
    def test_no_more_than_the_window_is_under_way_and_each_answer_brings_another(
        self, bench: Bench, reader: Reader
    ) -> None:
        reader.say(request())
        first, *others = bench.asked(Attach)
        assert [first.topic, *(attach.topic for attach in others)] == TOPICS[:WINDOW]
        assert bench.edge.status()["replays"] == WINDOW
        bench.attached(first, NOTHING)
        (fourth,) = bench.asked(Attach)
        assert fourth.topic == TOPICS[WINDOW]
        for attach in (*others, fourth):
            bench.attached(attach, NOTHING)
        assert serve(bench) == TOPICS[4:]
        assert answered(reader) == TOPICS
        assert (bench.edge.subscriptions, bench.edge.status()["replays"], bench.held) == (8, 0, set())

    def test_it_is_that_of_the_connection_whatever_the_requests_are(self, bench: Bench, reader: Reader) -> None:
        reader.say(*(request(number, [topic]) for number, topic in enumerate(TOPICS, 1)))
        assert serve(bench) == TOPICS
        assert [message.request for message in reader.take(Subscribed)] == list(range(1, 9))

    def test_other_connections_have_their_own(self, bench: Bench, reader: Reader) -> None:
        reader.say(request())
        bench.client().say(request())
        assert waiting(bench) == TOPICS[:WINDOW] * 2

    def test_what_is_not_wanted_any_more_counts_until_its_answer(self, bench: Bench, reader: Reader) -> None:
        reader.say(request(1, TOPICS[:WINDOW]), Unsubscribe(2, TOPICS[:WINDOW]), request(3, ["u"]))
        assert bench.edge.subscriptions == 0
        asked = bench.asked(Attach)
        assert [attach.topic for attach in asked] == TOPICS[:WINDOW]
        bench.attached(asked[0], NOTHING)
        assert serve(bench) == ["u"]
        assert reader.received == [
            Unsubscribed(2, TOPICS[:WINDOW]),
            Subscribed(3, [TopicReceipt("u", "complete", NOTHING)]),
        ]

    def test_a_refusal_of_the_logic_brings_the_next_as_well(self, bench: Bench, reader: Reader) -> None:
        reader.say(request())
        for attach in bench.asked(Attach):
            bench.attached(attach, Position(0, 0), receipt="reset", code="too_many_topics", text="full")
        assert waiting(bench) == TOPICS[WINDOW : 2 * WINDOW]
        assert bench.edge.subscriptions == WINDOW

    def test_the_first_pages_under_way_are_one_page(self) -> None:
        bench = Bench(EdgeConfig(attaches_per_client=2, page=1000))
        bench.client().say(request())
        assert [attach.max_bytes for attach in bench.asked(Attach)] == [500, 500]

    def test_the_limit_is_looked_at_before_for_the_whole_request(self) -> None:
        bench = Bench(EdgeConfig(attaches_per_client=2, subscriptions_per_client=7))
        reader = bench.client()
        reader.say(request())
        (error,) = reader.take(Error)
        assert (error.code, error.request) == ("too_many_subscriptions", 1)
        assert (bench.requests, bench.edge.subscriptions, bench.held) == ([], 0, set())
        reader.say(request(2, TOPICS[:7]))
        assert serve(bench) == TOPICS[:7]

    def test_very_many_names_are_not_even_looked_at(self) -> None:
        """A megabyte of short ones that no topic can have kept the edge for a second, and twenty went back."""
        bench = Bench(EdgeConfig(attaches_per_client=2, subscriptions_per_client=7))
        reader = bench.client()
        bad = [f"\x00{number}" for number in range(10)]
        reader.say(request(1, bad))
        (error,) = reader.received
        assert isinstance(error, Error)
        assert (error.code, error.request) == ("too_many_subscriptions", 1)
        assert error.text == "10 topics in one request; the limit of subscriptions is 7 per client"
        reader.say(request(2, bad[:9]))
        assert answered(reader) == bad[:9]

    def test_refusals_leave_in_pieces_and_wait_for_a_transport_that_is_full(self, bench: Bench, reader: Reader) -> None:
        bad = [f"\x00{number}" for number in range(5)]
        bench.put_off = True
        reader.say(request(1, [*bad, "a", "b"]), Ping())
        assert answered(reader) == bad[:WINDOW]
        reader.pause()
        (more,) = bench.more
        bench.more.clear()
        bench.step(more)
        assert bench.edge.queue_bytes == 0
        assert (waiting(bench), bench.held) == ([], {reader.number})
        bench.put_off = False
        reader.resume()
        assert serve(bench) == ["a", "b"]
        assert [type(message) for message in reader.received] == [Subscribed, Subscribed, Pong, Subscribed]
        assert (answered(reader), bench.held) == ([*bad[WINDOW:], "a", "b"], set())

    def test_a_full_transport_stops_it_and_a_small_request_is_begun_all_the_same(
        self, bench: Bench, reader: Reader
    ) -> None:
        reader.pause()
        reader.say(request())
        for attach in bench.asked(Attach):
            bench.attached(attach, NOTHING)
        assert bench.requests == []
        reader.resume()
        assert serve(bench) == TOPICS[WINDOW:]
        assert answered(reader) == TOPICS


class TestRepeated:
    def test_it_is_answered_in_pieces_of_a_window_with_the_others_in_between(
        self, bench: Bench, reader: Reader
    ) -> None:
        reader.say(request())
        serve(bench)
        reader.received.clear()
        bench.put_off = True
        reader.say(request(2))
        assert bench.more == [More(reader.number)]
        assert bench.held == {reader.number}
        assert answered(reader) == TOPICS[:WINDOW]
        bench.step(bench.more.pop())
        assert answered(reader) == TOPICS[WINDOW : 2 * WINDOW]
        bench.step(bench.more.pop())
        assert answered(reader) == TOPICS[2 * WINDOW :]
        assert (bench.more, bench.held, bench.requests) == ([], set(), [])

    def test_sent_again_before_it_was_carried_out(self, bench: Bench, reader: Reader) -> None:
        reader.say(request(1), request(2))
        assert serve(bench) == TOPICS
        found = [(message.request, receipt.topic) for message in reader.take(Subscribed) for receipt in message.topics]
        assert sorted(found) == [(number, topic) for number in (1, 2) for topic in TOPICS]
        bench.fan("t7", *publications(1, 1))
        assert reader.sequences("t7") == [1]
        assert bench.edge.subscriptions == len(TOPICS)


class TestBehind:
    def test_another_long_request_behind_it_waits_in_turn(self, bench: Bench, reader: Reader) -> None:
        more = [f"u{number}" for number in range(8)]
        reader.say(request(1), request(2, more), Publish("t", b"1"))
        reader.say(request(3, ["v"]), Publish("t", b"2"))
        assert serve(bench) == [*TOPICS, *more, "v"]
        assert [asked.payload for asked in bench.published()] == [b"1", b"2"]
        assert bench.held == set()

    def test_one_that_is_found_in_what_waited_unread(self, bench: Bench, reader: Reader) -> None:
        more = [f"u{number}" for number in range(8)]
        reader.say(request(1))
        reader.say(request(2, more))
        reader.say(Publish("t", b"1"))
        assert serve(bench) == [*TOPICS, *more]
        assert [asked.payload for asked in bench.published()] == [b"1"]
        assert bench.held == set()

    def test_frames_that_are_cut_anywhere(self, bench: Bench, reader: Reader) -> None:
        data = b"".join(reader.frame(message) for message in (request(1), Publish("t", b"1"), Publish("t", b"2")))
        for at in range(0, len(data), 7):
            reader.raw(data[at : at + 7])
        assert serve(bench) == TOPICS
        assert [asked.payload for asked in bench.published()] == [b"1", b"2"]

    def test_who_is_worked_off_is_alive_though_its_socket_is_held(self) -> None:
        bench = Bench(EdgeConfig(attaches_per_client=1, heartbeat=1.0))
        reader = bench.client()
        reader.say(request())
        for _ in TOPICS:
            bench.wait(0.9)
            bench.attached(bench.requests.pop(0), NOTHING)
        assert answered(reader) == TOPICS
        assert reader.close_code is None
        assert bench.edge.clients == 1


class TestEndings:
    """Whatever ends the connection meanwhile: nothing more is asked for, and late answers are answers to nobody."""

    def ended(self, bench: Bench) -> None:
        assert (bench.edge.subscriptions, bench.edge.topics, bench.edge.clients, bench.held) == (0, 0, 0, set())
        late = bench.asked(Attach)
        assert [attach.topic for attach in late] == TOPICS[:WINDOW]
        for attach in late:
            bench.attached(attach, NOTHING)
        assert bench.requests == []
        assert bench.edge.status()["replays"] == 0

    def test_the_socket_is_lost(self, bench: Bench, reader: Reader) -> None:
        reader.say(request())
        bench.step(Lost(reader.number))
        self.ended(bench)

    def test_the_broker_is_fenced(self, bench: Bench, reader: Reader) -> None:
        reader.say(request())
        bench.step(Admission(False, "fenced"))
        assert reader.close_code == 4004
        self.ended(bench)

    def test_no_sign_of_life(self) -> None:
        bench = Bench(EdgeConfig(attaches_per_client=WINDOW, heartbeat=1.0))
        reader = bench.client()
        reader.say(request())
        bench.wait(2.5)
        assert reader.socket == "aborted"
        self.ended(bench)

    def test_more_for_one_that_waits_for_nothing(self, bench: Bench, reader: Reader) -> None:
        assert bench.step(More(reader.number)) == []

    def test_a_drain_is_told_and_the_request_goes_on(self, bench: Bench, reader: Reader) -> None:
        reader.say(request())
        bench.step(DrainClients(5.0, ()))
        assert len(reader.take(Drain)) == 1
        assert serve(bench) == TOPICS
        bench.wait(5.1)
        assert reader.close_code == 1001

    def test_bye_and_a_close_frame_come_last(self, bench: Bench) -> None:
        for ending, code in ((Bye(), 1000), (None, 1000)):
            reader = bench.client()
            reader.say(request())
            reader.say(Publish("t", b"still counts"))
            reader.raw(frames.close_frame(1000, "", MASK) if ending is None else reader.frame(ending))
            assert reader.close_code is None
            serve(bench)
            assert reader.close_code == code
            assert len(bench.published()) == 1
            assert bench.held == set()

    def test_a_close_frame_in_the_same_read_as_bye(self, bench: Bench, reader: Reader) -> None:
        data = reader.frame(request()) + reader.frame(Bye()) + frames.close_frame(1000, "", MASK)
        reader.raw(data)
        serve(bench)
        assert (reader.close_code, reader.socket) == (1000, "closed")

    def test_what_came_whole_before_a_mistake_counts(self, bench: Bench, reader: Reader) -> None:
        reader.raw(reader.frame(request()) + reader.frame(Publish("t", b"1")) + b"\xff\xff")
        assert reader.close_code is None
        assert serve(bench) == TOPICS
        assert len(bench.published()) == 1
        assert reader.close_code == 1002


def test_the_socket_is_held_once_for_all_that_waits(bench: Bench, reader: Reader) -> None:
    effects = reader.say(request(1), request(2, ["u"]))
    assert [effect for effect in effects if isinstance(effect, Hold)] == [Hold(reader.number, True)]
    assert bench.step(Received(reader.number, reader.frame(Ping()))) == []
    assert not any(isinstance(effect, Close) for effect in effects)
