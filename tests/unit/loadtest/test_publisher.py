"""The publishing client's record of each publication: acknowledged, refused, or neither."""

from __future__ import annotations

import random
import time

import pytest
from migratory_client.core import events as ev
from migratory_client.core.settings import Settings
from migratory_loadtest.client import WorkerContext
from migratory_loadtest.histogram import bucket_bounds
from migratory_loadtest.meter import Meter
from migratory_loadtest.publisher import LoadPublisher
from migratory_loadtest.records import DeliveryRecord, SubscriberRecord, TopicRecord
from migratory_loadtest.scenario import Scenario
from migratory_loadtest.verifier import Verification, verify
from migratory_protocol.codec import MSGPACK
from migratory_protocol.messages import Server
from migratory_protocol.positions import Position


async def failed_and_delivered(code: str) -> tuple[TopicRecord, Verification]:
    """Return the record of a publication that failed with `code` and was delivered, and what the verifier says."""
    context = WorkerContext(MSGPACK, (Server("ws://b/ws"),), Settings(), Meter(bucket_bounds(), 1.0))
    scenario = Scenario(servers=("ws://b/ws",), topics=1, subscribers=1, rate=0.001, duration=2000.0)
    publisher = LoadPublisher(context, "p", random.Random(1), scenario, 0, {0: "bench/0"}, {0: 1})
    publisher.core.step(ev.Open(), 0.0)  # nobody carries out its effect: there is no broker
    first = publisher.schedule.next_due()
    assert first is not None
    publisher.send_due(time.monotonic_ns() - round((first + 1.0) * 1e9))
    (publication,) = publisher.pending.values()
    publisher.on_answer(ev.PublishFailed(publication, code, "text"))
    assert (publisher.pending, publisher.failed) == ({}, 1)
    (record,) = publisher.final_records().values()
    record.transcripts = [[DeliveryRecord(Position(1, 1), publication.digest)]]
    record.subscribers = [SubscriberRecord(0, Position(1, 0), 0, [(0, 1)], ["broker-0"])]
    return record, verify([record])


@pytest.mark.parametrize("code", ["timeout", "closed", "unauthenticated", "outcome_unknown"])
async def test_publication_with_an_unknown_outcome_may_be_delivered(code: str) -> None:
    record, verification = await failed_and_delivered(code)
    assert (len(record.unanswered), record.failed) == (1, [])
    assert (verification.unknown, verification.unexpected, verification.failed) == (1, 0, 0)


@pytest.mark.parametrize("code", ["not_allowed", "too_large", "id_reused"])
async def test_refused_publication_must_not_be_delivered(code: str) -> None:
    record, verification = await failed_and_delivered(code)
    assert (record.unanswered, len(record.failed)) == ([], 1)
    assert (verification.unknown, verification.unexpected, verification.failed) == (0, 1, 1)
