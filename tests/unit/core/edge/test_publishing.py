"""Publications on their way in, and the answers on their way back. A bad one harms only its sender."""

from __future__ import annotations

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.logic.events import PublishAnswer, PublishRequest
from migratory_protocol.messages import Ack, Error, Nack, Publish
from migratory_protocol.positions import Position
from migratory_testing.edges import Bench


def test_qos_1_is_asked_and_answered() -> None:
    bench = Bench()
    reader = bench.client()
    reader.say(Publish("t", b"", 1, "p", 7, 5, 12.5))
    assert bench.ask(PublishRequest) == PublishRequest(0, reader.number, "t", b"", 1, "p", 7, 5, 12.5)
    bench.step(PublishAnswer(0, reader.number, "t", "p", 7, position=Position(3, 9)))
    assert reader.take(Ack) == [Ack("t", "p", 7, Position(3, 9))]
    bench.step(PublishAnswer(0, reader.number, "t", "p", 7))
    assert reader.take(Ack) == [Ack("t", "p", 7, None)]
    assert bench.edge.published == 1


def test_qos_0_gets_no_answer() -> None:
    bench = Bench()
    reader = bench.client()
    reader.say(Publish("t", b"x", sent=1.5))
    assert bench.ask(PublishRequest) == PublishRequest(0, reader.number, "t", b"x", 0, sent=1.5)
    assert reader.received == []


@pytest.mark.parametrize(
    ("code", "text", "wait", "expected"),
    [
        ("gap", "", 0.0, Nack("t", "p", 1, "gap")),
        ("retry", "no coordinator", 0.2, Nack("t", "p", 1, "retry", "no coordinator", 0.2)),
        ("id_reused", "another payload", 0.0, Nack("t", "p", 1, "id_reused", "another payload")),
    ],
)
def test_refusals_of_the_logic(code: str, text: str, wait: float, expected: Nack) -> None:
    bench = Bench()
    reader = bench.client()
    reader.say(Publish("t", b"", 1, "p", 1, 1))
    bench.step(PublishAnswer(0, reader.number, "t", "p", 1, code, None, text, wait))
    assert reader.take(Nack) == [expected]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Publish("a\x00b", b"", 1, "p", 1, 1), "bad_topic"),
        (Publish("t", b"x" * 9, 1, "p", 1, 1), "too_large"),
        (Publish("t", b"", 1, "p" * 5, 1, 1), "bad_message"),
    ],
)
@pytest.mark.parametrize("qos", [0, 1])
def test_a_bad_publication_is_refused_and_the_next_is_taken(message: Publish, code: str, qos: int) -> None:
    bench = Bench(EdgeConfig(max_payload=8, max_name=4))
    reader = bench.client()
    message = Publish(message.topic, message.payload, qos, message.publisher, message.id, message.mark)
    reader.say(message, Publish("t", b"x" * 8, 1, "p", 2, 2))
    assert [request.id for request in bench.asked(PublishRequest)] == [2]
    if qos:
        (nack,) = reader.take(Nack)
        assert (nack.code, nack.topic, nack.publisher, nack.id) == (code, message.topic, message.publisher, 1)
        assert nack.retry_after is None
    else:
        (error,) = reader.take(Error)
        assert (error.code, error.topic, error.closes) == (code, message.topic, False)
    assert bench.edge.published == 1


def test_wrong_ids_are_refused_by_name() -> None:
    bench = Bench()
    reader = bench.client(wire="json")
    for fields in ('"id":0,"mark":0,"publisher":"p"', '"id":3,"mark":4,"publisher":"p"', '"id":1,"mark":1', '"id":1.5'):
        reader.text('{"op":"publish","topic":"t","data":"x","qos":1,' + fields + "}")
        (error,) = reader.take(Error)
        assert (error.topic, error.closes) == ("t", False)
    reader.text('{"op":"publish","topic":"t","data":"x","qos":2}')
    assert "qos" in reader.take(Error)[0].text
    assert bench.requests == []


def test_unanswered_publications_are_bounded() -> None:
    bench = Bench(EdgeConfig(publishes_per_client=2))
    reader, other = bench.client(), bench.client()
    reader.say(*(Publish("t", b"", 1, "p", number, 1) for number in (1, 2, 3)), Publish("t", b""))
    assert [request.id for request in bench.asked(PublishRequest)] == [1, 2, 0]
    (nack,) = reader.take(Nack)
    assert (nack.id, nack.code, nack.retry_after) == (3, "retry", 0.1)
    other.say(Publish("t", b"", 1, "q", 1, 1))
    assert len(bench.asked(PublishRequest)) == 1
    bench.step(PublishAnswer(0, reader.number, "t", "p", 1, position=Position(1, 1)))
    reader.say(Publish("t", b"", 1, "p", 3, 2))
    assert len(bench.asked(PublishRequest)) == 1


def test_answers_wait_behind_what_waits() -> None:
    bench = Bench()
    reader = bench.client()
    reader.say(Publish("t", b"", 1, "p", 1, 1))
    reader.pause()
    bench.step(PublishAnswer(0, reader.number, "t", "p", 1, position=Position(1, 1)))
    assert reader.received == []
    reader.resume()
    assert reader.take(Ack) == [Ack("t", "p", 1, Position(1, 1))]
