"""Wire formats, for the edge core: encoding a message into the bytes that every connection of one format gets.

There are four for WebSocket: JSON or MessagePack, plain or compressed. http.py has those of HTTP. A publication is
encoded, compressed and framed once for each format with a subscriber, however many subscribers there are. Messages are
compressed without context takeover (RFC 7692, 7.1.1 allows that to every sender), so that connections can share them
and need no deflate window here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from migratory_protocol import codec, frames
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import BrokerMessage, Message, Subscribed, TopicReceipt
from migratory_protocol.peer import Publication

MESSAGES_PER_FRAME = 500
"""The largest number of messages joined into one frame, such as the answers to a publisher: 400 KB with the longest
names."""

MIN_DEFLATE_BYTES = 128
"""Bytes of the shortest message that is compressed. Compression does not make shorter ones smaller."""


def message_of(topic: str, publication: Publication, *, replayed: bool = False, first: int = 0) -> Message:
    """Return the message with a publication. `replayed` marks it as part of a replay. `first` is the lowest sequence
    number that it stands for, if it is conflated and stands for earlier ones, else 0."""
    return Message(
        topic, publication.position, publication.payload, publication.sent, publication.time, replayed, first
    )


class Format:
    """The encoding of one wire format, shared by all its connections. It caches encoded replay messages, up to
    `replay_cache` bytes, because many clients resume from the same position.

    codec      of what clients send
    ping       the bytes that show a silent client that the connection lives
    one_way    HTTP: the client sends nothing behind its request, so no closing handshake, and no answer to a ping
    once       HTTP: the connection ends with the first publications, or when it is `answered`
    shared     several connections may have this format; False: it knows what its only connection was sent, and writes
               that before each message (`head`)
    publisher  the name under which the edge numbers what its only connection publishes, "" if the client gives one
    """

    def __init__(
        self, wire: codec.Codec, deflate: bool, replay_cache: int, *, one_way: bool = False, once: bool = False,
        shared: bool = True,
    ) -> None:  # fmt: skip
        self.codec = wire
        self.deflate = deflate
        self.one_way = one_way
        self.once = once
        self.shared = shared
        self.answered = False
        self.publisher = ""
        self.ping = frames.ping_frame()
        self.name = f"{wire.name}+deflate" if deflate else wire.name
        self._opcode = frames.BINARY if wire.binary else frames.TEXT
        self._replay_limit = replay_cache
        self._replay_bytes = 0
        self._replays: dict[tuple[str, int, int], bytes] = {}

    def frame(self, message: BrokerMessage) -> bytes:
        """Return the message as one WebSocket frame of a server, or in a format of HTTP as an event or a response."""
        return self.head(message) + self.body(message)

    def _frame_payload(self, payload: bytes) -> bytes:
        """Return one frame with an encoded message, or an array of them. It is compressed if the format is and the
        payload has `MIN_DEFLATE_BYTES` or more."""
        if self.deflate and len(payload) >= MIN_DEFLATE_BYTES:
            return frames.deflated_frame(self._opcode, payload)
        return frames.encode_frame(self._opcode, payload)

    def head(self, message: BrokerMessage) -> bytes:
        """Return what is written before the `body` of a message. In a format that is not shared it differs between
        connections. A format of WebSocket has none."""
        return b""

    def body(self, message: BrokerMessage) -> bytes:
        """Return the part of `frame` that follows `head`. All formats that are not shared and have subscriptions return
        the same bytes for a message."""
        return self._frame_payload(self.codec.encode(message))

    def frames(self, messages: Sequence[BrokerMessage]) -> bytes:
        """Return one frame per message, joined for a single write."""
        if len(messages) == 1:
            return self.frame(messages[0])
        return b"".join([self.frame(message) for message in messages])

    def frame_all(self, messages: Sequence[BrokerMessage]) -> bytes:
        """Return several messages joined into as few WebSocket frames as possible, at most `MESSAGES_PER_FRAME` in
        each."""
        encode = self.codec.encode_all
        parts = [messages[start : start + MESSAGES_PER_FRAME] for start in range(0, len(messages), MESSAGES_PER_FRAME)]
        return b"".join([self._frame_payload(encode(part)) for part in parts])

    def receipt(self, request: int, receipt: TopicReceipt, *, is_live: bool) -> bytes:
        """Return the answer to the subscribe request `request` with one receipt. `is_live`: live publications follow it
        at once, and nothing is replayed."""
        return self.frame(Subscribed(request, [receipt]))

    def close(self, code: CloseCode, text: str) -> bytes:
        """Return the bytes that tell the client of an open connection that the broker closes it, and why."""
        return frames.close_frame(code, text)

    def refusal(self, code: CloseCode, text: str, error: str) -> bytes:
        """Return the bytes that tell a client that the broker closes its connection before its `welcome`, and why.
        `error` is the error code, "" if the reason is not the client's request; a close frame does not carry it."""
        return frames.close_frame(code, text)

    def replay(self, topic: str, publications: Iterable[Publication]) -> list[bytes]:
        """Return one frame per publication, oldest first, in one part or several to be written one after the other. The
        messages are marked as replayed."""
        return [self.cached_replay(topic, publication) for publication in publications]

    def cached_replay(self, topic: str, publication: Publication) -> bytes:
        """Return the frame of a publication that is marked as replayed, from the cache if it is there; else add it. A
        cache over its limit is cleared first."""
        key = (topic, publication.epoch, publication.sequence)
        data = self._replays.get(key)
        if data is None:
            data = self.frame(message_of(topic, publication, replayed=True))
            self._replay_bytes += len(data)
            if self._replay_bytes > self._replay_limit:  # simpler than LRU: a storm of resumes refills it at once
                self._replays.clear()
                self._replay_bytes = len(data)
            self._replays[key] = data
        return data
