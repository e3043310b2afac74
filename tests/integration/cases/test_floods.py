"""Input that is cheap for a client and expensive for a broker: other clients are served meanwhile. Headers without an
end are refused."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import msgspec
import psutil
import pytest
from migratory_testing.processes import Broker
from migratory_testing.rawclient import BINARY, PING, TEXT, ConnectionEnded, RawClient, answer, frame

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

SETTINGS = {"compression": True}

READ = 262_144
"""The most bytes that a broker reads from a socket at a time."""

_P1, _P2, _P5 = 11400714785074694791, 14029467366897019727, 2870177450012600261
_ALL = 2**64 - 1


def colliding(count: int) -> list[tuple[int, int]]:
    """Return pairs of integers that all have the same hash as tuples, computed by inverting CPython's tuple hash."""
    samples: list[tuple[int, int]] = []
    first = 0
    inverse = pow(_P2, -1, 2**64)
    while len(samples) < count:
        first += 1
        lane = _P5 + first * _P2 & _ALL
        lane = (lane << 31 | lane >> 33) & _ALL
        second = (123_456_789 - lane * _P1) * inverse & _ALL
        second -= 2**64 if second >> 63 else 0
        if abs(second) < 2**61 - 1:
            samples.append((first, second))
    return samples


def colliding_map(count: int) -> bytes:
    """Return a MessagePack map of `count` entries. Its keys are arrays that become tuples with the same hash."""
    items = b"".join(msgspec.msgpack.encode(list(key)) + b"\x00" for key in colliding(count))
    return b"\xdf" + count.to_bytes(4) + items


def test_colliding_keys_have_one_hash() -> None:
    assert len({hash(key) for key in colliding(100)}) == 1


async def while_others_are_served(bystander: Any, flood: RawClient, data: bytes, times: int = 1) -> None:
    for _ in range(times):
        flood.write(data)
    for _ in range(5):
        await bystander.unharmed()


def cpu_seconds(broker: Broker) -> float:
    assert broker.process is not None
    times = psutil.Process(broker.process.pid).cpu_times()
    return float(times.user + times.system)


@pytest.mark.parametrize("place", ["position", "operation", "surplus field", "topic"])
async def test_a_map_of_colliding_keys_delays_no_other_client(broker: Broker, bystander: Any, place: str) -> None:
    """A message that contains a map of 40,000 keys with one hash costs the broker less than 5 s of CPU time, and
    other clients are served meanwhile. To build a Python dict of it would take a minute."""
    before = cpu_seconds(broker)
    giant = colliding_map(40_000)
    body = {
        "position": b"\x93\x02\x01\x91\x92\xa1t" + giant,
        "operation": b"\x91" + giant,
        "surplus field": b"\x92\x05" + giant,
        "topic": b"\x93\x04" + giant + b"\xc4\x00",
    }[place]
    client = await RawClient.join(broker, "msgpack")
    await while_others_are_served(bystander, client, frame(BINARY, body))
    assert cpu_seconds(broker) - before < 5


@pytest.mark.parametrize(
    "unit",
    [
        frame(TEXT, b"{}"),
        frame(TEXT, b'{"op":"ping"}'),
        frame(PING, b""),
        frame(TEXT, b"[" + b",".join([b"7"] * 16) + b"]"),
    ],
    ids=["bad messages", "messages", "pings", "frames of bad messages"],
)
async def test_a_flood_of_small_frames_delays_no_other_client(broker: Broker, bystander: Any, unit: bytes) -> None:
    client = await RawClient.join(broker)
    reading = asyncio.create_task(_read(client))
    await while_others_are_served(bystander, client, unit * (READ // len(unit)), times=8)
    reading.cancel()


async def _read(client: RawClient) -> None:
    try:
        while await client.reader.read(READ):
            pass
    except (ConnectionError, ConnectionEnded):
        return


async def test_frames_that_inflate_to_a_megabyte_delay_no_other_client(broker: Broker, bystander: Any) -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = (deflater.compress(b'{"op":"ping"}' + b" " * 1_000_000) + deflater.flush(zlib.Z_SYNC_FLUSH))[:-4]
    client = await RawClient.open(broker.address("clients"), deflate=True)
    client.send("connect", version=1, client="bombs")
    reading = asyncio.create_task(_read(client))
    await while_others_are_served(bystander, client, frame(TEXT, bomb, rsv1=True) * (READ // len(bomb)), times=2)
    reading.cancel()


@pytest.mark.parametrize("listener", ["clients", "admin"])
async def test_headers_without_end_are_refused(broker: Broker, bystander: Any, listener: str) -> None:
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 100) for number in range(5000))
    try:
        status, _, _ = await answer(
            broker.address(listener), b"GET /ws HTTP/1.1\r\nHost: localhost\r\n" + lines + b"\r\n"
        )
    except (ConnectionError, asyncio.IncompleteReadError):
        return  # ended while it still wrote
    assert status == 431
