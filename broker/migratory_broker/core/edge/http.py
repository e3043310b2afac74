"""The formats of HTTP, for the edge core: streams of Server-Sent Events, long polls and answers to publications.
`Formats` holds all formats of an edge, those of WebSocket included.

An HTTP request is a connection of the edge whose client sends nothing more. The runtime translates the request into
`connect` with `subscribe` or `publish`, and the answer is written here in place of WebSocket frames. Everything else is
the same: limits, queues, receipts, replays, `drain`. The body of a stream ends with the connection, so that a proxy
that speaks HTTP/1.0 can forward it.

The id of an event is the position to resume from: of the event's topic, or of all topics of the request. What a receipt
reports as missing counts as received.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Final, Literal

import msgspec
from migratory_protocol import codec, errors
from migratory_protocol.errors import FATAL, CloseCode
from migratory_protocol.messages import Ack, BrokerMessage, Error, Message, Nack, Subscribed, TopicReceipt, Welcome
from migratory_protocol.peer import Publication
from migratory_protocol.positions import Position
from msgspec.structs import replace

from migratory_broker.core.edge.events import HttpRequest
from migratory_broker.core.edge.formats import Format

STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store, no-transform\r\n"
    b"X-Accel-Buffering: no\r\nX-Content-Type-Options: nosniff\r\nAccess-Control-Allow-Origin: *\r\n"
    b"Connection: close\r\n\r\nretry: 1000\n"
)
"""The head of a stream, for every client. A page whose Origin is not allowed was refused before, and no cookie counts,
so that any page that gets an answer may read it. `retry`: milliseconds after which an EventSource connects again."""

STATUS: Final = {
    errors.UNAUTHENTICATED: 401,
    errors.TOKEN_EXPIRED: 401,
    errors.NOT_ALLOWED: 403,
    errors.TOO_LARGE: 413,
    errors.ID_REUSED: 409,
    errors.ID_TOO_HIGH: 409,
    errors.OUTCOME_UNKNOWN: 409,
    errors.GAP: 409,
    errors.TOO_MANY_TOPICS: 429,
    errors.OVERLOADED: 503,
    errors.RETRY: 503,
}
"""HTTP's status for an error code; 400 for all others."""

FINAL_ERRORS: Final = {
    CloseCode.NOT_ALLOWED: errors.NOT_ALLOWED,
    CloseCode.TOO_LARGE: errors.TOO_LARGE,
    CloseCode.UNAUTHENTICATED: errors.UNAUTHENTICATED,
}
"""The error code for a close code of `FATAL`; `bad_message` for its others."""


def respond(status: int, body: object) -> bytes:
    """Return a whole HTTP response with this status and a JSON body, after which the connection closes. `body` is
    encoded, or is JSON already if it is bytes."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    extra = {401: "WWW-Authenticate: Bearer\r\n", 429: "Retry-After: 1\r\n", 503: "Retry-After: 1\r\n"}
    return (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data) + 1}\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
        f"Access-Control-Allow-Origin: *\r\n{extra.get(status, '')}Connection: close\r\n\r\n"
    ).encode() + data + b"\n"  # fmt: skip


def _refuse(error: str, text: str) -> bytes:
    """Return the HTTP response to a request that is refused with this error code; `text` gives the reason."""
    return respond(STATUS.get(error, 400), codec.JSON.encode(Error(error, text)))


def _error_of(code: CloseCode) -> str:
    """Return the error code for a close code: `retry` unless the same request fails everywhere (the codes in
    `FATAL`)."""
    return FINAL_ERRORS.get(code, errors.BAD_MESSAGE) if code in FATAL else errors.RETRY


class EventFormat(Format):
    """Server-Sent Events. A publication is an event without a name; every other message is an event `control`. The id
    is the position of the event's topic, if the event brings the client to a position.

    :param once: the stream ends with the first publications (long poll).
    """

    def __init__(self, replay_cache: int, once: bool, *, shared: bool = True) -> None:
        super().__init__(codec.MSGPACK, False, replay_cache, one_way=True, once=once, shared=shared)
        self.name = "poll" if once else "events"
        self.ping = b":\n\n"

    def head(self, message: BrokerMessage) -> bytes:
        """Return what is written before the event of a message: the id of a publication or of a receipt that reports a
        gap, the head of the response before `welcome`, and else nothing."""
        if isinstance(message, Message):
            return self._id(message.topic, message.position)
        if isinstance(message, Subscribed):
            return b"".join([self._continues_at(receipt) for receipt in message.topics][-1:])
        return STREAM_HEAD if isinstance(message, Welcome) else b""

    def body(self, message: BrokerMessage) -> bytes:
        """Return the message as one event with JSON data, without an id."""
        event = b"" if isinstance(message, Message) else b"event: control\n"
        return b"".join((event, b"data: ", codec.JSON.encode(message), b"\n\n"))

    def receipt(self, request: int, receipt: TopicReceipt, *, is_live: bool) -> bytes:
        """Return the receipt as one event. It has an id if it reports a gap, and, as the topic's current position, if
        it is `complete` and nothing is replayed."""
        data = self.frame(Subscribed(request, [receipt]))
        if is_live and receipt.receipt == "complete" and receipt.position is not None:
            return self._id(receipt.topic, receipt.position) + data
        return data

    def close(self, code: CloseCode, text: str) -> bytes:
        """Return the event that says that the broker ends the stream, and why. The client has got the head of the
        response before."""
        data = msgspec.json.encode({"op": "close", "code": int(code), "reason": text})
        return b"event: control\ndata: " + data + b"\n\n"

    def refusal(self, code: CloseCode, text: str, error: str) -> bytes:
        """Return an HTTP error for a request that fails everywhere, or has an expired token. For any other, return a
        stream that ends at once: an EventSource connects again after it, and not after an error."""
        if code in FATAL or code == CloseCode.TOKEN_EXPIRED:
            return _refuse(error, text)
        return STREAM_HEAD + self.close(code, text)

    def _continues_at(self, receipt: TopicReceipt) -> bytes:
        """Return the id of a receipt that reports a gap: the position of the last missing publication, or after a
        `reset` the topic's current position. b"" for any other receipt."""
        if receipt.position is None or receipt.receipt in (None, "complete"):
            return b""
        if receipt.receipt == "truncated":
            return self._id(receipt.topic, Position(receipt.position.epoch, receipt.last))
        return self._id(receipt.topic, receipt.position)

    def _id(self, topic: str, position: Position) -> bytes:
        return f"id: {position}\n".encode()


class BodyFormat(EventFormat):
    """The encoding of an event without its id, shared by all streams whose ids name several topics."""

    def head(self, message: BrokerMessage) -> bytes:
        return b""


class PositionsFormat(EventFormat):
    """The events of one stream whose ids name the positions of all its topics.

    :param positions: the topics in the order of the ids, with the positions from which they resume, "" for none. It is
        updated with each event that has an id.
    :param bodies: the format that encodes the events without their ids, shared with the other streams of this kind.
    """

    def __init__(self, once: bool, positions: dict[str, str], bodies: BodyFormat) -> None:
        super().__init__(1, once, shared=False)
        self._positions = positions
        self._bodies = bodies

    def replay(self, topic: str, publications: Iterable[Publication]) -> list[bytes]:
        """Return the events of replayed publications, each as two parts: its id, and its other bytes, which are cached
        for all streams of this kind."""
        parts: list[bytes] = []
        for publication in publications:
            parts += (self._id(topic, publication.position), self._bodies.cached_replay(topic, publication))
        return parts

    def _id(self, topic: str, position: Position) -> bytes:
        self._positions[topic] = str(position)
        return f"id: {','.join(self._positions.values())}\n".encode()


class AnswerFormat(Format):
    """The HTTP response to a request that publishes, of one connection. Nothing else is sent to that client.

    :param answers: the number of `ack` and `nack` that are awaited: one for each publication of QoS 1.
    :param several: whether the response is a list.
    :param publisher: the name under which the edge numbers the publication, which is not in the response; "" if the
        client gave one.
    """

    def __init__(self, answers: int, several: bool, publisher: str) -> None:
        super().__init__(codec.MSGPACK, False, 1, one_way=True, once=True, shared=False)
        self.name = "publish"
        self.publisher = publisher
        self._awaited = answers
        self._several = several
        self._answers: list[Ack | Nack | Error] = []

    def frame(self, message: BrokerMessage) -> bytes:
        return self.frame_all([message])

    def frame_all(self, messages: Sequence[BrokerMessage]) -> bytes:
        """Return the response once all awaited answers are there, b"" before and after that. Only `ack`, `nack` and
        errors other than `rate_limited` are answers; with QoS 0 an error is the whole response."""
        if self.answered:
            return b""
        self._answers += [
            message
            for message in messages
            if isinstance(message, (Ack, Nack)) or (isinstance(message, Error) and message.code != errors.RATE_LIMITED)
        ]
        if len(self._answers) < max(1, self._awaited):
            return b""
        self.answered = True
        if self._several:
            return respond(200, codec.JSON.encode_all(self._answers))
        answer = self._answers[0]
        if self.publisher and not isinstance(answer, Error):
            answer = replace(answer, publisher="", id=0)
        return respond(200 if isinstance(answer, Ack) else STATUS.get(answer.code, 400), codec.JSON.encode(answer))

    def close(self, code: CloseCode, text: str) -> bytes:
        """Return the response to a request that ends without one: 202 if the code is normal and no answers are awaited,
        so that publications of QoS 0 were all handled; a client's error for a code of `FATAL`; else 503, whose text
        says what the client knows of its publications. b"" after a response."""
        if self.answered:
            return b""
        self.answered = True
        if code == CloseCode.NORMAL and not self._awaited:
            return respond(202, {"op": "accepted"})
        if code in FATAL:
            return _refuse(_error_of(code), text)
        if self.publisher:
            text = f"{text}; it is not known whether the publication was stored, and a repeated one is another one"
        elif self._awaited:
            text = (
                f"{text}; it is not known whether the publication was stored: repeat it with the same publisher and id"
            )
        else:
            text = f"{text}; it is not known whether all publications were accepted: send them again"
        return _refuse(errors.RETRY, text)

    def refusal(self, code: CloseCode, text: str, error: str) -> bytes:
        """Return the HTTP error for a request that is refused before its `welcome`. Without an error code it is that of
        the close code."""
        self.answered = True
        return _refuse(error or _error_of(code), text)


class Formats:
    """The wire formats of one edge. Formats that connections share are created for the first connection that needs
    them."""

    def __init__(self, replay_cache: int) -> None:
        self._replay_cache = replay_cache
        self._formats: dict[tuple[str, bool], Format] = {}
        self._bodies = BodyFormat(replay_cache, once=False)

    def get(self, wire: Literal["json", "msgpack"], deflate: bool) -> Format:
        """Return the format of WebSocket connections with this subprotocol, compressed with `deflate`. All of one kind
        share it."""
        format = self._formats.get((wire, deflate))
        if format is None:
            format = Format(codec.JSON if wire == "json" else codec.MSGPACK, deflate, self._replay_cache)
            self._formats[wire, deflate] = format
        return format

    def get_http(self, request: HttpRequest) -> Format:
        """Return the format of an HTTP request: one of its own for a publication and where the ids name several topics,
        else the one that all streams, or all polls, share."""
        if request.kind == "publish":
            return AnswerFormat(request.answers, request.several, request.publisher)
        once = request.kind == "poll"
        if request.positions:
            return PositionsFormat(once, dict(request.positions), self._bodies)
        format = self._formats.get((request.kind, False))
        if format is None:
            format = self._formats[request.kind, False] = EventFormat(self._replay_cache, once)
        return format
