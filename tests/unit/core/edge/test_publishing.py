"""Publishing: the edge forwards publications to the logic, passes its answers on, and refuses bad publications."""

from __future__ import annotations

from typing import Literal

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.logic.events import Attach, PublishRequest
from migratory_protocol.frames import FrameParser
from migratory_protocol.messages import Ack, Error, Nack, Publish, Subscribe, TopicRequest
from migratory_protocol.peer import ForwardedPublication
from migratory_protocol.positions import Position
from migratory_testing.edges import Bench


def test_qos_1_publication_is_forwarded_and_answered() -> None:
    bench = Bench()
    reader = bench.client()
    reader.send(Publish("t", b"", 1, "p", 7, 5, 12.5))
    assert bench.request_of(PublishRequest) == PublishRequest(
        0, reader.number, [ForwardedPublication("t", b"", 1, "p", 7, 5, 12.5)]
    )
    bench.answer(reader, Ack("t", "p", 7, Position(3, 9)))
    assert reader.take(Ack) == [Ack("t", "p", 7, Position(3, 9))]
    bench.answer(reader, Ack("t", "p", 7, None))
    assert reader.take(Ack) == [Ack("t", "p", 7, None)]
    assert bench.edge.published == 1


def test_qos_0_publication_has_no_answer() -> None:
    bench = Bench()
    reader = bench.client()
    reader.send(Publish("t", b"x", sent=1.5))
    assert bench.published() == [ForwardedPublication("t", b"x", 0, "", 0, 0, 1.5)]
    assert reader.received == []


@pytest.mark.parametrize(
    "refusal",
    [
        Nack("t", "p", 1, "gap"),
        Nack("t", "p", 1, "retry", "no coordinator", 0.2),
        Nack("t", "p", 1, "id_reused", "another payload"),
    ],
)
def test_refusal_of_the_logic_is_sent_to_the_client(refusal: Nack) -> None:
    bench = Bench()
    reader = bench.client()
    reader.send(Publish("t", b"", 1, "p", 1, 1))
    bench.answer(reader, refusal)
    assert reader.take(Nack) == [refusal]


@pytest.mark.parametrize("wire", ["json", "msgpack"])
@pytest.mark.parametrize("deflate", [False, True])
def test_publications_of_one_read_are_one_request_and_one_answer_frame(
    wire: Literal["json", "msgpack"], deflate: bool
) -> None:
    bench = Bench(EdgeConfig(messages_per_read=250))
    reader = bench.client(wire=wire, deflate=deflate)
    reader.writes.clear()
    for first in range(1, 701, 100):
        reader.send(*(Publish("t", b"", 1, "p", number, 1) for number in range(first, first + 100)))
        request = bench.request_of(PublishRequest)
        assert [publication.id for publication in request.publications] == list(range(first, first + 100))
    answers: list[Ack | Nack] = [Ack("t", "p", number, Position(1, number)) for number in range(1, 701)]
    answers[-1] = Nack("t", "p", 700, "gap")
    bench.answer(reader, *answers)
    assert reader.received == answers
    (written,) = reader.writes
    assert len(FrameParser("client", 2**20, deflate).feed(written)) == 2  # a frame holds at most 500


def test_subscribe_between_publications_keeps_its_order() -> None:
    bench = Bench()
    reader = bench.client()
    reader.send(
        Publish("t", b"1", 1, "p", 1, 1),
        Publish("t", b"2", 1, "p", 2, 1),
        Subscribe(1, [TopicRequest("t")]),
        Publish("t", b"3", 1, "p", 3, 1),
    )
    first, attach, last = bench.requests
    assert isinstance(first, PublishRequest)
    assert isinstance(attach, Attach)
    assert isinstance(last, PublishRequest)
    assert [publication.id for publication in first.publications] == [1, 2]
    assert [publication.id for publication in last.publications] == [3]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Publish("a\x00b", b"", 1, "p", 1, 1), "bad_topic"),
        (Publish("t", b"x" * 9, 1, "p", 1, 1), "too_large"),
        (Publish("t", b"", 1, "p" * 5, 1, 1), "bad_message"),
        (Publish("t", b"", 1, "p\0", 1, 1), "bad_message"),
    ],
)
@pytest.mark.parametrize("qos", [0, 1])
def test_bad_publication_is_refused_and_the_next_accepted(message: Publish, code: str, qos: int) -> None:
    bench = Bench(EdgeConfig(max_payload=8, max_name=4))
    reader = bench.client()
    message = Publish(message.topic, message.payload, qos, message.publisher, message.id, message.mark)
    reader.send(message, Publish("t", b"x" * 8, 1, "pppp", 2, 2))  # payload and publisher have the largest size
    assert [request.id for request in bench.published()] == [2]
    if qos:
        (nack,) = reader.take(Nack)
        assert (nack.code, nack.topic, nack.publisher, nack.id) == (code, message.topic, message.publisher, 1)
        assert nack.retry_after is None
    else:
        (error,) = reader.take(Error)
        assert (error.code, error.topic, error.closes) == (code, message.topic, False)
    assert bench.edge.published == 1


def test_invalid_ids_are_refused_by_name() -> None:
    bench = Bench()
    reader = bench.client(wire="json")
    for fields in ('"id":0,"mark":0,"publisher":"p"', '"id":1,"mark":1', '"id":1.5'):
        reader.send_text('{"op":"publish","topic":"t","data":"x","qos":1,' + fields + "}")
        (error,) = reader.take(Error)
        assert (error.topic, error.closes) == ("t", False)
    reader.send_text('{"op":"publish","topic":"t","data":"x","qos":1,"id":3,"mark":4,"publisher":"p"}')
    (nack,) = reader.take(Nack)
    assert (nack.topic, nack.publisher, nack.id, nack.code) == ("t", "p", 3, "bad_message")
    reader.send_text('{"op":"publish","topic":"t","data":"x","qos":2}')
    assert "qos" in reader.take(Error)[0].text
    assert bench.requests == []


def test_unanswered_publications_are_limited() -> None:
    bench = Bench(EdgeConfig(publishes_per_client=2))
    reader, other = bench.client(), bench.client()
    reader.send(*(Publish("t", b"", 1, "p", number, 1) for number in (1, 2, 3)), Publish("t", b""))
    assert [request.id for request in bench.published()] == [1, 2, 0]
    (nack,) = reader.take(Nack)
    assert (nack.id, nack.code, nack.retry_after) == (3, "retry", 0.1)
    other.send(Publish("t", b"", 1, "q", 1, 1))
    assert len(bench.published()) == 1
    bench.answer(reader, Ack("t", "p", 1, Position(1, 1)))
    reader.send(Publish("t", b"", 1, "p", 3, 2))
    assert len(bench.published()) == 1


def test_answers_are_queued_while_paused() -> None:
    bench = Bench()
    reader = bench.client()
    reader.send(Publish("t", b"", 1, "p", 1, 1))
    reader.pause()
    bench.answer(reader, Ack("t", "p", 1, Position(1, 1)))
    assert reader.received == []
    reader.resume()
    assert reader.take(Ack) == [Ack("t", "p", 1, Position(1, 1))]
