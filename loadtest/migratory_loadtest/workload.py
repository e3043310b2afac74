"""The publications of a run: computes when each one is due, and the content of its payload.

The generator is an open loop: a publication is sent when it is due, whatever happened to the earlier ones, and its
latency counts from the moment it was due. A broker or a generator that stalls therefore cannot hide the stall
("coordinated omission").
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from hashlib import blake2b, shake_128
from typing import NamedTuple

LATE_SECONDS = 0.05
"""Seconds after its due time above which a send counts as late. Well above the jitter of an idle event loop."""
LATE_SHARE = 0.01
"""Share of late sends above which the generator itself was too slow for its latencies to be judged."""

# ---- schedule ---------------------------------------------------------------------------------------------------


class ScheduledSend(NamedTuple):
    """A publication and its due time.

    `at` is in seconds since the start of the run; `number` counts per topic from 1.
    """

    at: float
    topic: int
    number: int


class SendSchedule:
    """The send times of a publisher's topics: `count` publications for each topic, `rate` per topic and second, each
    topic at its offset in the period. `scheduled`, `sent` and `late` are numbers of publications; `late` are those sent
    more than `LATE_SECONDS` after they were due.

    :param offsets: for each topic its first due time, in seconds since the start.
    """

    def __init__(self, offsets: Mapping[int, float], rate: float, count: int) -> None:
        self._order = sorted((offset, topic) for topic, offset in offsets.items())
        self._period = 1.0 / rate
        self._rounds = count if self._order else 0
        self._round = 0
        self._index = 0
        self.scheduled = len(self._order) * count
        self.sent = 0
        self.late = 0
        self.max_delay = 0.0
        """The longest time between due and sent, in seconds."""

    def next_due(self) -> float | None:
        """Return the due time of the next publication, in seconds since the start, or None after the last."""
        if self._round >= self._rounds:
            return None
        return self._round * self._period + self._order[self._index][0]

    def stop(self) -> None:
        """Drop all publications that are not sent yet. They do not count as scheduled any more."""
        self._rounds = self._round
        self.scheduled = self.sent

    def pop_due(self, elapsed: float) -> ScheduledSend | None:
        """Remove and return the next publication if it is due `elapsed` seconds after the start, else return None.

        Call it until it returns None, then again at `next_due()`. The caller must send the publication at once, because
        delays are counted here.
        """
        at = self.next_due()
        if at is None or at > elapsed:
            return None
        due = ScheduledSend(at, self._order[self._index][1], self._round + 1)
        self._index += 1
        if self._index == len(self._order):
            self._index = 0
            self._round += 1
        self.sent += 1
        delay = elapsed - at
        self.max_delay = max(self.max_delay, delay)
        self.late += delay > LATE_SECONDS
        return due


def is_generator_late(sent: int, late: int) -> bool:
    """Return whether the load generator itself distorted the latencies: more than `LATE_SHARE` of the `sent`
    publications were `late`."""
    return late > LATE_SHARE * sent


# ---- payload ----------------------------------------------------------------------------------------------------

_HEADER = struct.Struct(">IIQQ")
MIN_PAYLOAD_BYTES = _HEADER.size + 8
"""The smallest payload: the header and enough filler bytes to make contents unique."""


class PayloadHeader(NamedTuple):
    """The first bytes of a payload, big endian: publisher u32, topic u32, number u64 (per topic, from 1), due_ns u64.

    `due_ns` is the due time in nanoseconds of the machine's monotonic clock, which all its processes have in common.
    """

    publisher: int
    topic: int
    number: int
    due_ns: int


def build_payload(size: int, seed: int, header: PayloadHeader) -> bytes:
    """Return a payload of `size` bytes: the header, then bytes that follow from seed, topic and number.

    :param size: at least `MIN_PAYLOAD_BYTES`.
    """
    filler = shake_128(b"%d/%d/%d" % (seed, header.topic, header.number)).digest(size - _HEADER.size)
    return _HEADER.pack(*header) + filler


def parse_header(payload: bytes) -> PayloadHeader | None:
    """Return the header of a payload, or None for a payload shorter than `MIN_PAYLOAD_BYTES`. Of a payload that this
    program did not make, the values have no meaning."""
    if len(payload) < MIN_PAYLOAD_BYTES:
        return None
    return PayloadHeader(*_HEADER.unpack_from(payload))


def payload_digest(payload: bytes) -> str:
    """Return the 8-byte BLAKE2b hash of a payload in hex, by which records and the verifier identify payloads."""
    return blake2b(payload, digest_size=8).hexdigest()
