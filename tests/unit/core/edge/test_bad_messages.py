"""Bad input of clients: the edge answers with a close code or an error, and still handles the valid messages beside
it."""

from __future__ import annotations

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_protocol import frames
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import (
    Error,
    Nack,
    Ping,
    Pong,
    Publish,
)
from migratory_testing.edges import MASK, Bench


class TestBadInput:
    def test_unmasked_frame_closes_with_1002_behind_earlier_messages(self) -> None:
        bench = Bench()
        reader = bench.client()
        reader.send_bytes(reader.frame(Ping()) + b"\x82\x00" + reader.frame(Ping()))
        assert reader.take(Pong) == [Pong()]
        assert reader.close_code == CloseCode.PROTOCOL_ERROR
        assert bench.edge.closed == {"protocol": 1}
        reader.send_bytes(reader.frame(Ping()))
        assert reader.received == []

    def test_message_over_the_limit_closes_with_1009(self) -> None:
        bench = Bench(EdgeConfig(max_payload=1000, envelope=100))
        fits, over = bench.client(), bench.client()
        padding = 1100 - len(fits.codec.encode(Publish("t" * 40, b"\x00" * 1000)))
        message = Publish("t" * (40 + padding), b"\x00" * 1000)
        assert len(fits.codec.encode(message)) == 1100
        fits.send(message)
        assert fits.close_code is None
        assert len(bench.requests) == 1
        over.send_bytes(frames.encode_frame(frames.BINARY, b"\x00" * 1101, MASK)[:20])
        assert over.close_code == CloseCode.TOO_LARGE
        assert bench.edge.closed == {"too_large": 1}
        assert len(bench.requests) == 1

    @pytest.mark.parametrize("wire", ["json", "msgpack"])
    def test_frame_of_wrong_kind_closes_with_1003(self, wire: str) -> None:
        bench = Bench()
        reader = bench.client(wire=wire)  # type: ignore[arg-type]
        opcode = frames.BINARY if wire == "json" else frames.TEXT
        reader.send_bytes(frames.encode_frame(opcode, b'{"op":"ping"}', MASK))
        assert reader.close_code == CloseCode.UNSUPPORTED_DATA
        assert f"migratory.v1.{wire}" in reader.close_reason

    def test_text_that_is_not_utf8_closes_with_1007(self) -> None:
        bench = Bench()
        reader = bench.client(wire="json")
        reader.send_bytes(frames.encode_frame(frames.TEXT, b'{"op":"\xff"}', MASK))
        assert reader.close_code == CloseCode.INVALID_TEXT

    def test_unreadable_frame_closes_with_4000(self) -> None:
        bench = Bench()
        reader = bench.client(wire="json")
        reader.send_text("hello")
        (error,) = reader.take(Error)
        assert error.closes
        assert reader.close_code == CloseCode.BAD_MESSAGE

    def test_bad_message_is_refused_and_its_neighbours_accepted(self) -> None:
        bench = Bench()
        reader = bench.client(wire="json")
        reader.send_text('[{"op":"ping"},{"op":"fly"},{"op":"subscribe","request":"x","topics":[]},{"op":"ping"}]')
        assert [type(message) for message in reader.received] == [Pong, Error, Error, Pong]
        first, second = reader.take(Error)
        assert "fly" in first.text
        assert "request" in second.text
        assert reader.close_code is None

    @pytest.mark.parametrize("wire", ["json", "msgpack"])
    def test_bad_qos_1_publication_is_answered_by_a_nack_that_names_it(self, wire: str) -> None:
        """A bad QoS 1 publication is answered by a nack with its topic, publisher and id; a bad QoS 0 publication by
        an error. Regression: the answer named only the topic, so that the publisher waited until its timeout."""
        bench = Bench()
        reader = bench.client(wire=wire)  # type: ignore[arg-type]
        reader.send(
            Publish("t", b"x", 1, "p", 7, 8), Publish("t", b"x", 1, "p", 7, 7, -1.0), Publish("t", b"x", sent=-1.0)
        )
        sent = "publish.sent: Expected `float` >= 0.0"
        assert reader.received == [
            Nack("t", "p", 7, "bad_message", "publish.mark: expected 1 to 7: the lowest unanswered id, at most `id`"),
            Nack("t", "p", 7, "bad_message", sent),
            Error("bad_message", sent, topic="t"),
        ]

    @pytest.mark.parametrize(
        "publication",
        [
            Publish("t", b"x", 1, "", 7, 8),
            Publish("t", b"x", 1, "p", 0, 0),
            Publish("t", b"x", 1, 5, 7, 8),  # type: ignore[arg-type]
            Publish(5, b"x", 1, "p", 7, 7),  # type: ignore[arg-type]
            Publish("t", b"x", 1, "p", 2**53, 1),
            Publish("t", b"x", 2, "p", 7, 7),
        ],
    )
    def test_bad_publication_that_names_no_message_is_answered_by_an_error(self, publication: Publish) -> None:
        bench = Bench()
        reader = bench.client()
        reader.send(publication)
        (error,) = reader.received
        assert isinstance(error, Error)
        assert error.code == "bad_message"

    def test_compressed_message_is_accepted_when_negotiated(self) -> None:
        bench = Bench()
        reader = bench.client(wire="json", deflate=True)
        reader.send_bytes(frames.deflated_frame(frames.TEXT, b'{"op":"ping"}', MASK))
        assert reader.take(Pong)
        plain = bench.client(wire="json")
        plain.send_bytes(frames.deflated_frame(frames.TEXT, b'{"op":"ping"}', MASK))
        assert plain.close_code == CloseCode.PROTOCOL_ERROR
