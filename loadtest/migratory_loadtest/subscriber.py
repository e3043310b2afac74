"""The subscribing client (Benchsub of the paper), which has one topic and records every delivery.

The subscribers of a topic in one worker have one `Transcript` together. A delivery that is the next of the transcript,
as nearly all are, costs one comparison and no memory.
"""

from __future__ import annotations

import random
import time

from migratory_client.core import events as ev
from migratory_protocol.messages import Message
from migratory_protocol.positions import Position

from migratory_loadtest.client import LoadClient, WorkerContext
from migratory_loadtest.meter import WARMUP, Meter
from migratory_loadtest.records import DeliveryRecord, GapRecord, SubscriberRecord
from migratory_loadtest.workload import parse_header, payload_digest


class Transcript:
    """The distinct deliveries of one topic, in the order in which they were first seen.

    Delivery i has `positions[i]` and `payloads[i]`, was due at `due[i]` (monotonic nanoseconds) and belongs to the
    measurement window `windows[i]`.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.positions: list[Position] = []
        self.payloads: list[bytes] = []
        self.due: list[int] = []
        self.windows: list[str] = []
        self._indexes: dict[tuple[Position, bytes], int] = {}

    def index_of(self, expected: int, message: Message, meter: Meter) -> int:
        """Return the index of a delivery in the transcript: of the entry with the same position and payload. Add the
        delivery if it is new.

        :param expected: the most probable index, the one after the subscriber's previous delivery.
        :param meter: tells the measurement window of a new delivery.
        """
        position, payload = message.position, message.payload
        if (
            expected < len(self.positions)
            and self.positions[expected] == position
            and self.payloads[expected] == payload
        ):
            return expected
        key = (position, payload)
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = len(self.positions)
            header = parse_header(payload)
            self.positions.append(position)
            self.payloads.append(payload)
            self.due.append(header.due_ns if header else 0)
            self.windows.append(meter.window(header.due_ns) if header else WARMUP)
        return index

    def deliveries(self) -> list[DeliveryRecord]:
        """Return all deliveries of the transcript for the run record, in order, with digests of their payloads."""
        return [
            DeliveryRecord(position, payload_digest(payload))
            for position, payload in zip(self.positions, self.payloads, strict=True)
        ]


class LoadSubscriber(LoadClient):
    """A simulated client that subscribes to one topic and records every delivery.

    Its deliveries are ranges ("runs") of the transcript, each delivered by one broker. `start` is the position of its
    first receipt, None before.
    """

    __slots__ = ("_brokers", "_ends", "_gaps", "_next", "_starts", "number", "start", "transcript")

    def __init__(
        self,
        context: WorkerContext,
        name: str,
        rng: random.Random,
        token: str | None,
        number: int,
        transcript: Transcript,
    ) -> None:
        super().__init__(context, name, rng, token)
        self.number = number
        self.transcript = transcript
        self.start: Position | None = None
        self._next = 0
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._brokers: list[str] = []
        self._gaps: list[GapRecord] = []
        self.step(ev.SubscribeTopic(transcript.topic))

    def on_deliver(self, effect: ev.Deliver) -> None:
        """Record a delivery: extend the current run, or begin a new one if the delivery is not the next of the
        transcript or comes from another broker. Measure its latency from its due time."""
        now = time.monotonic_ns()
        transcript, meter = self.transcript, self.context.meter
        message = effect.message
        index = transcript.index_of(self._next, message, meter)
        if not self._starts or index != self._next or self._brokers[-1] != self.broker:
            self._end_run()
            self._starts.append(index)
            self._brokers.append(self.broker)
        self._next = index + 1
        meter.delivered(transcript.windows[index], self.broker, message.replayed, (now - transcript.due[index]) / 1e9)

    def on_receipt(self, effect: ev.Receipt) -> None:
        """Record the start of the subscription at the first receipt, and later each gap that a broker reports. A hole,
        which no broker reported, becomes an error."""
        if self.start is None:
            self.start = effect.position
        if effect.kind == "hole":
            # The broker reported no gap, so the verifier will report these as lost.
            self._report_error(f"{effect.topic}: {effect.first}..{effect.last} were not delivered, without a receipt")
        elif effect.kind != "complete" and effect.position is not None and effect.resumed:
            self._gaps.append(GapRecord(effect.kind, effect.position, effect.first, effect.last))
            missing = effect.last - effect.first + 1 if effect.kind == "truncated" else 0
            self.context.meter.gaps[self.broker] += missing

    def on_answer(self, effect: ev.Acknowledged | ev.PublishFailed) -> None:
        raise AssertionError("a subscriber does not publish")

    def record(self, transcript: int) -> SubscriberRecord:
        """Return the record of all deliveries to this subscriber, and of the gaps that brokers reported to it.

        :param transcript: the index of this subscriber's transcript in the topic's record.
        """
        ends = [*self._ends, self._next] if self._starts else []
        runs = list(zip(self._starts, ends, strict=True))
        return SubscriberRecord(self.number, self.start, transcript, runs, list(self._brokers), list(self._gaps))

    def _end_run(self) -> None:
        """End the current run, if there is one, after the last delivery."""
        if self._starts:
            self._ends.append(self._next)
