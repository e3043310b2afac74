"""Benchsub: a client with one topic that keeps an exact account of what it was given.

Subscribers of a topic in one worker share a `Transcript`: the distinct deliveries, in the order in which they were
first seen. A delivery that is the next of the transcript, as nearly all are, costs one comparison and no memory.
"""

from __future__ import annotations

import random
import time

from migratory_client.core import events as ev
from migratory_protocol.messages import Message
from migratory_protocol.positions import Position

from migratory_loadtest.account import Entry, Notice, SubscriberAccount
from migratory_loadtest.client import LoadClient, World
from migratory_loadtest.meter import WARMUP, Meter
from migratory_loadtest.payload import digest, parse


class Transcript:
    """The distinct deliveries of one topic. Entry i has `positions[i]`, `payloads[i]`, was due at `due[i]` and belongs
    to the window `windows[i]`."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.positions: list[Position] = []
        self.payloads: list[bytes] = []
        self.due: list[int] = []
        self.windows: list[str] = []
        self._places: dict[tuple[Position, bytes], int] = {}

    def place(self, expected: int, message: Message, meter: Meter) -> int:
        """Where this delivery stands; most often at `expected`."""
        position, payload = message.position, message.payload
        if (
            expected < len(self.positions)
            and self.positions[expected] == position
            and self.payloads[expected] == payload
        ):
            return expected
        key = (position, payload)
        found = self._places.get(key)
        if found is None:
            found = self._places[key] = len(self.positions)
            content = parse(payload)
            self.positions.append(position)
            self.payloads.append(payload)
            self.due.append(content.due_ns if content else 0)
            self.windows.append(meter.window(content.due_ns) if content else WARMUP)
        return found

    def entries(self) -> list[Entry]:
        return [
            Entry(position, digest(payload)) for position, payload in zip(self.positions, self.payloads, strict=True)
        ]


class Subscriber(LoadClient):
    """`runs` are [first, end) of the transcript, each of one broker."""

    __slots__ = ("_brokers", "_ends", "_next", "_notices", "_starts", "number", "start", "transcript")

    def __init__(
        self, world: World, name: str, chance: random.Random, token: str | None, number: int, transcript: Transcript
    ) -> None:
        super().__init__(world, name, chance, token)
        self.number = number
        self.transcript = transcript
        self.start: Position | None = None
        self._next = 0
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._brokers: list[str] = []
        self._notices: list[Notice] = []
        self.step(ev.SubscribeTopic(transcript.topic))

    def on_deliver(self, effect: ev.Deliver) -> None:
        now = time.monotonic_ns()
        transcript, meter = self.transcript, self.world.meter
        message = effect.message
        place = transcript.place(self._next, message, meter)
        if not self._starts or place != self._next or self._brokers[-1] != self.broker:
            self._end_run()
            self._starts.append(place)
            self._brokers.append(self.broker)
        self._next = place + 1
        meter.delivered(transcript.windows[place], self.broker, message.replayed, (now - transcript.due[place]) / 1e9)

    def on_receipt(self, effect: ev.Receipt) -> None:
        if self.start is None:
            self.start = effect.position
        if effect.kind == "hole":
            # The broker told of no gap: a fault that the verifier names as lost.
            self._trouble(f"{effect.topic}: {effect.first}..{effect.last} did not come, and no receipt told of it")
        elif effect.kind != "complete" and effect.position is not None and effect.resumed:
            self._notices.append(Notice(effect.kind, effect.position, effect.first, effect.last))
            missing = effect.last - effect.first + 1 if effect.kind == "truncated" else 0
            self.world.meter.gaps[self.broker] += missing

    def on_answer(self, effect: ev.Acknowledged | ev.PublishFailed) -> None:
        raise AssertionError("a subscriber does not publish")

    def account(self, transcript: int) -> SubscriberAccount:
        ends = [*self._ends, self._next] if self._starts else []
        runs = list(zip(self._starts, ends, strict=True))
        return SubscriberAccount(self.number, self.start, transcript, runs, list(self._brokers), list(self._notices))

    def _end_run(self) -> None:
        if self._starts:
            self._ends.append(self._next)
