"""The cost of a client's bytes for the loop of a broker. Bytes 0 and 1 select format, compression and repetitions
of a frame; the rest is a script that builds its content, so that few bytes describe a megabyte.

Oracles: no step of the edge, and no input in all its steps, costs more than a bound. Cost is counted, never timed:
`operations` are beginnings and ends of calls, decoded messages and topics, and `BYTES_PER_OPERATION` bytes that C code
passes over. The same input has the same cost on every machine.

The search shrinks all limits before it imports this module (`search.shrink_limits`), so that a costly input takes a
fraction of a millisecond. Repetitions and bounds shrink with them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from cProfile import Profile
from typing import Any, Literal

from migratory_broker.core.edge import Edge, EdgeConfig
from migratory_broker.core.edge.events import Lost, More, Opened, Received
from migratory_broker.core.logic.events import Admission
from migratory_protocol import frames, limits
from migratory_protocol.codec import JSON, MSGPACK, Codec
from migratory_protocol.errors import BadMessage
from migratory_protocol.messages import Connect

from migratory_fuzz.labels import seen
from migratory_fuzz.reader import Reader

SHAPE = "bytes"
SKIP = 2
MAX_LEN = 300
TOKENS = (
    b"\x93\x02\x01", b"\x93\x03\x01", b"\x91\xa0", b"\x92\xa0\x90", b'{"op":"subscribe","request":1,"topics":[',
    b'{"topic":""},', b'"op":"unsubscribe"', b'"after":[', b"\\ud800",
)  # fmt: skip

SCALE = 4096 // limits.MESSAGES

STEP_LIMIT = 5000 + 205_000 // SCALE
"""The most operations of one step: some 30 ms. A step that examines thousands of messages for a bad one needs most of
them."""

INPUT_LIMIT = 5000 + 600_000 // SCALE
"""The most operations in all steps together, for each frame of an input, whatever it holds. A publication needs 70 to
be handled."""

BYTES_PER_OPERATION = 64
"""Bytes that C code copies, skips or inflates in the time of an operation, some 0.1 us."""

_JSON, _DEFLATE = 1, 2
_MASK = b"\x37\xfa\x21\x3d"
_CONFIG = EdgeConfig(messages_per_turn=1000 // SCALE, attaches_per_client=256 // SCALE)
_ARRAY = 0x80
"""A bit in the length of a unit. If it is set, a MessagePack array's header with the number of the unit's
repetitions comes first."""


def run(data: bytes) -> None:
    steps = check(data)
    seen(f"cost {max(steps).bit_length()} of {len(steps)}")


def check(data: bytes) -> list[int]:
    """Return the operations of each step of an edge for the input. Raises AssertionError above a bound."""
    steps = measure(data)
    assert max(steps) <= STEP_LIMIT, f"a step of {max(steps)} operations, the bound is {STEP_LIMIT}"
    bound = INPUT_LIMIT * repetitions(data)
    assert sum(steps) <= bound, f"an input of {sum(steps)} operations, the bound is {bound}"
    return steps


def measure(data: bytes) -> list[int]:
    """Return the operations of each step of an edge for the input."""
    flags = data[0] if data else 0
    codec: Codec = JSON if flags & _JSON else MSGPACK
    content = expand(data[2:])
    opcode = frames.BINARY if codec.binary else frames.TEXT
    deflate = bool(flags & _DEFLATE)
    packed = frames.compress(content, 1) if deflate else content
    wire = frames.encode_frame(opcode, packed, _MASK, rsv1=deflate) * repetitions(data)
    return _steps(wire, codec, deflate)


def repetitions(data: bytes) -> int:
    """Return the number of frames of an input, 1 to 8."""
    return 1 + (data[1] & 7 if len(data) > 1 else 0)


def expand(script: bytes) -> bytes:
    """Return the content of a frame: units of up to 63 bytes, each behind its length and the number of its repetitions,
    2 ** (n / 8) for a byte n below 168, fewer with smaller limits."""
    source = Reader(script)
    parts: list[bytes] = []
    size = 0
    while source.left and size < limits.MESSAGE:
        length = source.byte()
        count = min(max(1, int(2 ** (source.byte() % 168 / 8)) // SCALE), limits.MESSAGE)
        unit = source.take(length & 0x3F)
        count = min(count, max(0, limits.MESSAGE - size - 5) // len(unit)) if unit else 0
        if length & _ARRAY:
            parts.append(b"\xdd" + count.to_bytes(4))
        parts.append(unit * count)
        size += len(parts[-1])
    return b"".join(parts)[: limits.MESSAGE]


class _Meter:
    """A count of operations. The profiler looks at its timer at the beginning and the end of every call."""

    def __init__(self) -> None:
        self._next = itertools.count().__next__
        self._profiler = Profile(self._next, 1.0, False, True)
        self._seen = 1
        self.added = 0

    def measure(self, call: Callable[[Any, float], Any], event: Any) -> tuple[Any, int]:
        """Return the result and the operations of `call(event, 0.0)`."""
        self.added = 0
        self._profiler.enable()
        try:
            result = call(event, 0.0)
        finally:
            self._profiler.disable()
            self._profiler.clear()
        before, self._seen = self._seen, self._next() + 1
        return result, self._seen - before + self.added

    def decode(self, decode: Callable[[bytes | bytearray], Any], data: bytes | bytearray) -> Any:
        """Decode a frame and return its messages. Count its bytes and what it holds, also when decoding fails."""
        self.added += len(data) // BYTES_PER_OPERATION
        try:
            messages = decode(data)
        except BadMessage as error:
            self.added += _items(error.frame)
            raise
        self.added += _items(messages)
        return messages


def _items(messages: Any) -> int:
    return sum(1 + len(getattr(message, "topics", ())) for message in messages)


_meter = _Meter()
_edge = Edge(_CONFIG)
_edge.step(Admission(True), 0.0)
_numbers = itertools.count(1)


def _steps(wire: bytes, codec: Codec, deflate: bool) -> list[int]:
    number = next(_numbers)
    name: Literal["json", "msgpack"] = "json" if codec is JSON else "msgpack"
    connect = frames.encode_frame(
        frames.BINARY if codec.binary else frames.TEXT, codec.encode(Connect(client="c")), _MASK
    )
    _edge.step(Opened(number, name, "", deflate), 0.0)
    _edge.step(Received(number, connect), 0.0)
    decode = codec.decode_client
    codec.decode_client = lambda data: _meter.decode(decode, data)  # type: ignore[method-assign]
    operations: list[int] = []
    events: list[Any] = [Received(number, wire)]
    try:
        while events:
            effects, count = _meter.measure(_edge.step, events.pop())
            operations.append(count)
            events += [effect for effect in effects if type(effect) is More]
        operations[0] += len(wire) // BYTES_PER_OPERATION
    finally:
        del codec.decode_client
        _edge.step(Lost(number), 0.0)
    return operations


def _unit(unit: bytes, count_code: int = 0, array: bool = False) -> bytes:
    return bytes((len(unit) | (_ARRAY if array else 0), count_code)) + unit


def seeds() -> Iterator[bytes]:
    most = 167
    subscribe, unsubscribe = _unit(b"\x93\x02\x01"), _unit(b"\x93\x03\x01")
    packed = [
        subscribe + _unit(unit, most, True)
        for unit in (b"\x91\xa0", b"\x92\xa0\x90", b"\x92\xa0\x80", b"\x92\xa0\x91\x90", b"\x92\xa0\xd4\x01\x01")
    ]
    packed += [unsubscribe + _unit(b"\xa0", most, True), _unit(b"\x91\x05", most, True), _unit(b"\x91\x63", 40, True)]
    packed += [subscribe + _unit(b"\x92\xa0\x90", 95, True), unsubscribe + _unit(b"\xa1x", 96, True)]
    packed += [_unit(b"\x91\x63", 95, True)]
    packed += [_unit(b"\x93\x02\x01\x91\x92\xa0\x90", 96, True), _unit(b"\x93\x04\xa1t\xc4\x00", 96, True)]
    names = _unit(b'{"op":"unsubscribe","request":1,"topics":[')
    topics = _unit(b'{"op":"subscribe","request":1,"topics":[')
    text = [
        names + _unit(b'"",', most) + _unit(b'""]}'),
        names + _unit(b'"",', 95) + _unit(b'"\\ud800"]}'),
        topics + _unit(b'{"topic":""},', most) + _unit(b'{"topic":""}]}'),
        topics + _unit(b'{"topic":"","after":[]},', 95) + _unit(b'{"topic":""}]}'),
        _unit(b"[") + _unit(b'{"op":"ping"},', 95) + _unit(b'{"op":"bye"}]'),
        _unit(b"[") + _unit(b'{"op":"publish","topic":"t","data":""},', 95) + _unit(b'{"op":"x"}]'),
        _unit(b"[") + _unit(b'{"op":"x"},', 95) + _unit(b'{"op":"x"}]'),
        _unit(b'{"op":"ping"') + _unit(b" ", most) + _unit(b"}"),
    ]
    for flag, scripts in ((0, packed), (_JSON, text)):
        for script in scripts:
            for mode, again in ((0, 0), (_DEFLATE, 0), (0, 7)):
                yield bytes((flag | mode, again)) + script
