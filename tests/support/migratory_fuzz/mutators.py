"""Mutators that keep the form of an input: flipped bytes alone seldom get past a decoder.

`values` decodes JSON or MessagePack, changes one value and encodes it again; `lines` repeats, drops, swaps and splices
lines. Both leave about half of all changes to the fuzzer's own `mutate`, which may change any byte.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec

Mutate = Callable[[bytes, int], bytes]
Mutator = Callable[[bytes, int, int], bytes]

_ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**63 - 1, 2**64 - 1, -(2**63), 0.5, 1e308, "", "a", "1:2", "\x00",
    "\N{SNOWMAN}", b"", b"\xff", [], {}, [[]], "complete", "retry", "publish", "t", [1, 2], ["a", 1],
)  # fmt: skip


def values(skip: int, mutate: Mutate) -> Mutator:
    """Return a mutator of encoded values, which leaves the first `skip` bytes to `mutate`."""

    def change(data: bytes, most: int, seed: int) -> bytes:
        chance = random.Random(seed)
        front, body = data[:skip], data[skip:]
        if chance.random() < 0.4 or len(data) < skip:
            return mutate(data, most)
        for read, write in ((msgspec.msgpack.decode, _msgpack), (json.loads, _json)):
            try:
                value = read(body)
                changed: bytes = write(_changed(value, chance))
            except (ValueError, TypeError, OverflowError, RecursionError, msgspec.MsgspecError):
                continue
            return (front + changed)[:most]
        return mutate(data, most)

    return change


def _msgpack(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _changed(value: Any, chance: random.Random, depth: int = 0) -> Any:
    if isinstance(value, list | dict) and value and chance.random() < 0.85 and depth < 12:
        key = chance.choice(list(value)) if isinstance(value, dict) else chance.randrange(len(value))
        what = chance.random()
        if what < 0.7:
            value[key] = _changed(value[key], chance, depth + 1)
        elif what < 0.8:
            del value[key]
        elif isinstance(value, list):
            value.insert(key, value[chance.randrange(len(value))] if what < 0.95 else chance.choice(_ODD))
        else:
            value[chance.choice(list(value)) + "x" * chance.randrange(2)] = chance.choice(_ODD)
        return value
    if chance.random() < 0.5:
        return chance.choice(_ODD)
    if type(value) is int:
        return value + chance.choice((-1, 1, 255, 2**32))
    if isinstance(value, str | bytes):
        at = chance.randrange(len(value) + 1)
        middle: Any = chance.choice(("x", "\x7f", "é", "0")) * chance.choice((1, 1, 40, 300))
        return value[:at] + (middle if isinstance(value, str) else middle.encode()) + value[at:]
    return [value] if chance.random() < 0.5 else chance.choice(_ODD)


def lines(skip: int, mutate: Mutate) -> Mutator:
    """Return a mutator of lines, which leaves the first `skip` bytes to `mutate`."""

    def change(data: bytes, most: int, seed: int) -> bytes:
        chance = random.Random(seed)
        found = data[skip:].splitlines(keepends=True)
        if chance.random() < 0.5 or len(found) < 2:
            return mutate(data, most)
        one, other = chance.randrange(len(found)), chance.randrange(len(found))
        match chance.randrange(5):
            case 0:
                del found[one]
            case 1:
                found.insert(one, found[other])
            case 2:
                found[one], found[other] = found[other], found[one]
            case 3:  # with the value of another line
                name, colon, _ = found[one].partition(b":")
                found[one] = name + colon + found[other].partition(b":")[2]
            case _:
                found[one] = mutate(found[one], 200)
        return (data[:skip] + b"".join(found))[:most]

    return change
