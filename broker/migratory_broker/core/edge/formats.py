"""Wire formats: how a message becomes the bytes that every connection of one kind gets.

There are four: JSON or MessagePack, plain or compressed. A publication is encoded, compressed and framed once in each
format that somebody listens in, however many listen. Compressed messages are written without a context from one to the
next (RFC 7692, 7.1.1: a sender may always do so): that is why they can be shared, and why a connection that has
negotiated compression costs no window here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from migratory_protocol import codec, frames
from migratory_protocol.messages import BrokerMessage, Message
from migratory_protocol.peer import Publication

TOGETHER = 500  # messages in a frame: answers to a publisher, at most 400 KB of them with the longest names
SHORTEST = 128  # bytes: shorter messages don't get smaller by compression


class Format:
    """One per wire format; connections share it. Encoded replays are kept, as many clients resume from one place."""

    def __init__(self, wire: codec.Codec, deflate: bool, kept: int) -> None:
        self.codec = wire
        self.deflate = deflate
        self.name = f"{wire.name}+deflate" if deflate else wire.name
        self._opcode = frames.BINARY if wire.binary else frames.TEXT
        self._kept = kept
        self._size = 0
        self._replays: dict[tuple[str, int, int], bytes] = {}

    def frame(self, message: BrokerMessage) -> bytes:
        """The message as one WebSocket frame of a server."""
        return self._framed(self.codec.encode(message))

    def _framed(self, payload: bytes) -> bytes:
        if self.deflate and len(payload) >= SHORTEST:
            return frames.deflated_frame(self._opcode, payload)
        return frames.encode_frame(self._opcode, payload)

    def frame_all(self, messages: Sequence[BrokerMessage]) -> bytes:
        """Several messages, in as few frames as they fit into."""
        encode = self.codec.encode_all
        parts = [messages[start : start + TOGETHER] for start in range(0, len(messages), TOGETHER)]
        return b"".join([self._framed(encode(part)) for part in parts])

    def live(self, topic: str, publications: Sequence[Publication]) -> bytes:
        """A frame for each publication, joined: one write."""
        if len(publications) == 1:
            return self._publication(topic, publications[0], replayed=False)
        return b"".join([self._publication(topic, publication, replayed=False) for publication in publications])

    def conflated(self, topic: str, publication: Publication, first: int) -> bytes:
        """As `live`, of one that stands for all from the sequence number `first` on (0: for itself alone)."""
        return self._publication(topic, publication, replayed=False, first=first)

    def replay(self, topic: str, publications: Iterable[Publication]) -> bytes:
        """As `live`, marked as replayed."""
        return b"".join([self._replayed(topic, publication) for publication in publications])

    def _replayed(self, topic: str, publication: Publication) -> bytes:
        key = (topic, publication.epoch, publication.sequence)
        data = self._replays.get(key)
        if data is None:
            data = self._publication(topic, publication, replayed=True)
            self._size += len(data)
            if self._size > self._kept:  # simpler than an order of use: a storm of resumes fills it again at once
                self._replays.clear()
                self._size = len(data)
            self._replays[key] = data
        return data

    def _publication(self, topic: str, publication: Publication, *, replayed: bool, first: int = 0) -> bytes:
        return self.frame(
            Message(
                topic, publication.position, publication.payload, publication.sent, publication.time, replayed, first
            )
        )


class Formats:
    """The formats of one edge, made when the first connection asks for one."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._formats: dict[tuple[str, bool], Format] = {}

    def get(self, wire: Literal["json", "msgpack"], deflate: bool) -> Format:
        found = self._formats.get((wire, deflate))
        if found is None:
            found = Format(codec.JSON if wire == "json" else codec.MSGPACK, deflate, self._kept)
            self._formats[wire, deflate] = found
        return found
