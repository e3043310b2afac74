"""What receiver and publisher share: orders from stdin without blocking, answers to stdout, their own CPU time."""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

import msgspec
from msgspec import Struct

from benchmarks.orders import Failed, Order, line

_ORDER = msgspec.json.Decoder(Order)


def setup(kind: type[Any]) -> Any:
    """The first line of stdin."""
    return msgspec.json.decode(_blocking_line(), type=kind)


def _blocking_line() -> bytes:
    data = b""
    while not data.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            raise SystemExit(0)
        data += more
    return data


class Orders:
    """`read` when stdin is readable; None at its end."""

    def __init__(self) -> None:
        self._data = b""

    def read(self) -> list[Order] | None:
        data = os.read(0, 65536)
        if not data:
            return None
        *lines, self._data = (self._data + data).split(b"\n")
        return [_ORDER.decode(one) for one in lines]


def answer(message: Struct) -> None:
    sys.stdout.buffer.write(line(message))
    sys.stdout.buffer.flush()


def fail(text: str) -> None:
    answer(Failed(text))
    raise SystemExit(1)


def spent() -> tuple[float, float]:
    """CPU seconds of this process: user, system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime
