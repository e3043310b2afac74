"""Run records of load runs ("accounts", as `migratory bench run --account` writes them), for tests: built by hand,
damaged on purpose, and counted again without the product's code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from migratory_loadtest.records import DeliveryRecord, PublicationRecord, SubscriberRecord, TopicRecord
from migratory_protocol.positions import Position


def perfect(topic: str = "bench/0", subscribers: int = 3, publications: int = 6) -> TopicRecord:
    """Return the run record of a topic with one publisher, whose publications were all acknowledged and delivered to
    every subscriber, each once and in order."""
    entries = [DeliveryRecord(Position(1, number), f"{topic}#{number}") for number in range(1, publications + 1)]
    sent = [PublicationRecord(entry.digest, 0, entry.position.sequence, entry.position) for entry in entries]
    return TopicRecord(
        topic=topic,
        acknowledged=sent,
        transcripts=[entries],
        subscribers=[
            SubscriberRecord(number, Position(1, 0), 0, [(0, publications)], ["broker-0"])
            for number in range(subscribers)
        ],
    )


def rewrite(
    account: TopicRecord, place: int, change: Callable[[list[DeliveryRecord]], list[DeliveryRecord]]
) -> SubscriberRecord:
    """Replace the deliveries of the subscriber at index `place` with the list that `change` makes of them. Return the
    subscriber. Those of other subscribers stay."""
    subscriber = account.subscribers[place]
    changed = change(list(account.deliveries(subscriber)))
    account.transcripts.append(changed)
    subscriber.transcript = len(account.transcripts) - 1
    subscriber.runs = [(0, len(changed))]
    return subscriber


def drop(account: TopicRecord, place: int, delivery: int) -> Position:
    """Remove the delivery at index `delivery` from the subscriber at index `place`. Return its position."""
    position = list(account.deliveries(account.subscribers[place]))[delivery].position
    rewrite(account, place, lambda entries: entries[:delivery] + entries[delivery + 1 :])
    return position


def double(account: TopicRecord, place: int, delivery: int) -> Position:
    """Repeat the delivery at index `delivery` of the subscriber at index `place`. Return its position."""
    position = list(account.deliveries(account.subscribers[place]))[delivery].position
    rewrite(account, place, lambda entries: entries[: delivery + 1] + entries[delivery:])
    return position


def swap(account: TopicRecord, place: int, delivery: int) -> Position:
    """Exchange the delivery at index `delivery` of the subscriber at index `place` with the next one. Return the
    position of the delivery that now comes too late."""
    position = list(account.deliveries(account.subscribers[place]))[delivery].position

    def change(entries: list[DeliveryRecord]) -> list[DeliveryRecord]:
        first, second = entries[delivery : delivery + 2]
        return [*entries[:delivery], second, first, *entries[delivery + 2 :]]

    rewrite(account, place, change)
    return position


def recount(path: Path) -> dict[str, int]:
    """Return the totals of a run record's file over all topics, counted from plain JSON and sets without the product's
    code."""
    names = "acknowledged expected delivered received lost duplicates reordered unexpected unknown"
    totals = dict.fromkeys(names.split(), 0)
    for line in path.read_text().splitlines():
        topic = json.loads(line)
        acknowledged = {digest: position for digest, _, _, position in topic["acknowledged"]}
        unanswered = {sent[0] for sent in topic["unanswered"]}
        totals["acknowledged"] += len(topic["acknowledged"])
        for subscriber in topic["subscribers"]:
            start = subscriber["start"]
            owed = {
                digest
                for digest, position in acknowledged.items()
                if start is not None and (position is None or tuple(position) > tuple(start))
            }
            got = []
            for first, end in subscriber["runs"]:
                got += topic["transcripts"][subscriber["transcript"]][first:end]
            once, seen = [], set()
            for entry in got:
                if entry[1] not in seen:
                    seen.add(entry[1])
                    once.append(entry)
            totals["received"] += len(got)
            totals["expected"] += len(owed)
            totals["delivered"] += sum(digest in seen for digest in owed)
            totals["lost"] += sum(digest not in seen for digest in owed)
            totals["duplicates"] += len(got) - len(seen)
            wanted = [entry for entry in once if entry[1] in owed or entry[1] in unanswered]
            totals["unexpected"] += len(once) - len(wanted)
            totals["unknown"] += sum(entry[1] not in owed for entry in wanted)
            highest = tuple(start or (0, 0))
            for position, _ in wanted:
                if tuple(position) <= highest:
                    totals["reordered"] += 1
                highest = max(highest, tuple(position))
    return totals
