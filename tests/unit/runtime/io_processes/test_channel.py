"""Batches between a broker's process and an I/O process: framing, order, the process to which an effect goes, and
limits of what waits and what is read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, get_args

import pytest
from migratory_broker.core.edge.events import Credentials, Detach, LogicRequest
from migratory_broker.core.logic.events import Attach, EdgeEffect, EdgeMessage, Fanout, Note
from migratory_broker.runtime.framing import Deframer, FrameTooLong, length_prefix
from migratory_broker.runtime.io_processes import channel as channels
from migratory_broker.runtime.io_processes.channel import Channel
from migratory_broker.runtime.io_processes.messages import ROUTES, Beat, FromIo, ToIo, decoder, encode
from migratory_protocol.peer import Publication
from migratory_protocol.positions import Position
from migratory_testing.waiting import until


class Kept:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, part: memoryview) -> None:
        self.bodies.append(bytes(part))


class TestFraming:
    def test_the_deframer_restores_messages_however_they_are_cut(self) -> None:
        bodies = [b"", b"a", b"b" * 300, b"c"]
        stream = b"".join(length_prefix(body) + body for body in bodies)
        for size in (1, 2, 3, 7, 300, len(stream)):
            receiver = Kept()
            deframer = Deframer(300)
            for start in range(0, len(stream), size):
                deframer.feed(stream[start : start + size], receiver)
            assert receiver.bodies == bodies

    def test_the_deframer_raises_for_a_message_over_the_limit(self) -> None:
        with pytest.raises(FrameTooLong, match="a message of 301 bytes is announced"):
            Deframer(300).feed(length_prefix(b"x" * 301), lambda part: None)

    def test_the_deframer_passes_on_exceptions_of_the_receiver(self) -> None:
        def refuse(part: memoryview) -> None:
            raise LookupError(bytes(part))

        with pytest.raises(LookupError):
            Deframer(10).feed(length_prefix(b"x") + b"x" + length_prefix(b"y"), refuse)


class TestCrossing:
    def test_every_event_between_the_cores_can_be_sent_over_the_channel(self) -> None:
        """Every event between the cores is an EdgeMessage; one of another form could not be distinguished on
        arrival."""
        for kind in (*get_args(ToIo), *get_args(FromIo)):
            assert issubclass(kind, EdgeMessage), kind

    def test_the_channel_delivers_messages_unchanged(self) -> None:
        sent = [
            Fanout("t", (Publication(3, 2**62 - 1, b"\x00\xff", "p", 7, 1.5), Publication(3, 2**62, b""))),
            Beat(),
        ]
        back = [Attach(1, 2, "t", Position(1, 2), True), Detach(1, "t"), Note("info", "x", {"a": [1, None, "b"]})]
        for messages, union in ((sent, ToIo), (back, FromIo)):
            body = b"\xdd" + len(messages).to_bytes(4) + b"".join(map(encode, messages))
            assert decoder(union).decode(body) == messages

    def test_routes_follow_the_fields_of_an_effect(self) -> None:
        assert set(ROUTES) == {*get_args(EdgeEffect), Credentials}
        routes = {kind.__name__: route for kind, route in ROUTES.items()}
        known = {
            "Fanout": "topic",
            "Gap": "topic",
            "Attached": "one",
            "Page": "one",
            "Admission": "all",
            "ServerList": "all",
            "Credentials": "all",
        }
        assert known.items() <= routes.items()
        assert {kind for kind in get_args(LogicRequest) if "edge" not in kind.__struct_fields__} == set()


class End:
    """A channel and the messages that it received. With `late` the test acknowledges batches itself."""

    def __init__(self, union: Any, late: bool) -> None:
        self.batches: list[tuple[list[Any], int]] = []
        self.events: list[str] = []
        self._late = late
        self.channel = Channel(
            decoder(union), self._take, lambda: self.events.append("lost"), lambda: self.events.append("flows")
        )

    def _take(self, messages: list[Any], size: int) -> None:
        self.batches.append((messages, size))
        if not self._late:
            self.channel.acknowledge(size)

    @property
    def messages(self) -> list[Any]:
        return [message for messages, _ in self.batches for message in messages]


@pytest.fixture
async def ends() -> AsyncIterator[Callable[..., Any]]:
    made: list[End] = []

    async def make(late: bool = False) -> tuple[End, End]:
        loop = asyncio.get_running_loop()
        for sock, union in zip(socket.socketpair(), (FromIo, ToIo), strict=True):
            sock.setblocking(False)
            end = End(union, late)
            await loop.create_unix_connection(partial(getattr, end, "channel"), sock=sock)
            made.append(end)
        return made[-2], made[-1]

    yield make
    for end in made:
        end.channel.close()


def fanout(number: int, size: int = 10) -> Fanout:
    return Fanout("t", (Publication(1, number, b"x" * size),))


async def test_messages_of_one_turn_are_one_batch(ends: Any) -> None:
    broker, io = await ends()
    broker.channel.flush()
    for number in range(1, 4):
        broker.channel.put(encode(fanout(number)))
    assert io.batches == []
    broker.channel.flush()
    await until(lambda: io.batches)
    assert io.messages == [fanout(1), fanout(2), fanout(3)]
    assert (len(io.batches), broker.channel.batches) == (1, 1)


async def test_a_long_turn_is_sent_as_several_batches_in_order(ends: Any) -> None:
    broker, io = await ends()
    sent = [fanout(number, channels.MAX_OPEN_BATCH // 3) for number in range(1, 9)]
    for socket_ in sent:
        broker.channel.put(encode(socket_))
    broker.channel.flush()
    await until(lambda: len(io.messages) == len(sent))
    assert io.messages == sent
    assert len(io.batches) == 3


async def test_unacknowledged_batches_stop_the_sender(ends: Any) -> None:
    broker, io = await ends(late=True)
    number = 0
    while not broker.channel.full or number < 40:
        number += 1
        broker.channel.put(encode(fanout(number, 500_000)))
        broker.channel.flush()
        await asyncio.sleep(0)
        assert number < 400, "all of it is taken, and nothing was worked off"
    await until(lambda: sum(size for _, size in io.batches) > channels.MAX_UNREAD_BYTES)
    held = sum(size for _, size in io.batches)
    assert held < channels.MAX_UNREAD_BYTES + 2 * channels.MAX_OPEN_BATCH
    assert "flows" not in broker.events
    while len(io.messages) < number:
        for _, size in io.batches[:]:
            io.channel.acknowledge(size)
        taken, io.batches = io.messages, [([message], 0) for message in io.messages]
        known = len(taken)
        await until(lambda known=known: len(io.messages) > known or known == number)  # type: ignore[misc]
    assert [message.publications[0].sequence for message in io.messages] == list(range(1, number + 1))
    assert not broker.channel.full
    await until(lambda: "flows" in broker.events)


async def test_the_channel_reports_the_end_of_the_other_side_once(ends: Any) -> None:
    broker, io = await ends()
    broker.channel.put(encode(Beat()))
    broker.channel.close()
    await until(lambda: io.events == ["lost"] and broker.events == ["lost"])
    for end in (broker, io):
        end.channel.put(encode(Beat()))
        end.channel.flush()
        assert end.channel.closed
        assert end.channel.waiting == 0
