"""The receipt checker detects unjustified receipts, and the internal checker detects publishers that are forgotten
too early."""

from __future__ import annotations

from dataclasses import replace

import pytest
from migratory_broker.core.logic.events import Attach, Attached, Gap
from migratory_protocol.positions import Position
from migratory_simulation.external_checker import Violation
from migratory_simulation.options import draw_options
from migratory_simulation.plans import Plan
from migratory_simulation.process import Process
from migratory_simulation.world import World

WINDOW = 36.0


@pytest.fixture(scope="module")
def world() -> World:
    """Return a finished run of a cluster without faults, in which nothing was evicted and no publisher forgotten."""
    drawn = draw_options(16, "short")
    roomy = replace(drawn, messages_per_topic=1000, min_age=0.0, max_age=600.0, max_bytes=1_000_000)
    quiet = World(replace(roomy, plan=Plan(drawn.plan.safe, ()), duplicate_window=WINDOW))
    quiet.run()
    return quiet


def test_truncation_of_cached_publications_is_a_violation(world: World) -> None:
    process, topic = world.running()[0], world.options.topics[0]
    here = process.logic.groups[world.external.group_of[topic]].replica.position(topic)
    process.receipts.truncated(Gap(topic, "truncated", here, 1, 0))
    with pytest.raises(Violation, match=f"1..2 of {topic} as gone; its cache begins behind 0"):
        process.receipts.truncated(Gap(topic, "truncated", here, 1, 2))


def test_reset_of_a_client_that_could_resume_is_a_violation(world: World) -> None:
    process, topic = world.running()[0], world.options.topics[0]
    replica = process.logic.groups[world.external.group_of[topic]].replica
    here = replica.position(topic)
    assert here.sequence > 1
    reset = Attached(0, 7, topic, "reset", here)

    def answered(after: Position | None, answer: Attached = reset) -> None:
        process.receipts.asks(Attach(0, 7, topic, after))
        process.receipts.attached(answer)

    for after in (here, Position(replica.first, 0)):
        with pytest.raises(Violation, match=f"resets a client at {topic} {after}"):
            answered(after)
    answered(None)
    answered(Position(here.epoch, here.sequence + 1))  # ahead of this broker
    answered(Position(here.epoch + 1, here.sequence))  # of an entry that is another one here
    answered(here, Attached(0, 7, topic, "complete", here))
    process.receipts.attached(reset)  # of which nothing was asked


def a_publisher(world: World) -> tuple[Process, Process, str, str]:
    """Return the coordinator and another broker of group 0, one of its topics, and a publisher in the topic's table."""
    record = world.internal.latest[0]
    owner = world.internal.process_of(record.owner)
    assert owner is not None
    other = next(process for process in world.running() if process is not owner)
    log = next(iter(owner.logic.groups[0].replica.topics.values()))
    return owner, other, log.name, next(iter(log.table.rows))


def forgets(world: World, process: Process, topic: str) -> None:
    replica = process.logic.groups[0].replica
    world.internal.check_forgotten(process, 0, (replica.promised, replica.synced), replica.topics[topic])


def test_coordinator_that_forgets_a_publisher_too_early_is_a_violation(world: World) -> None:
    owner, _, topic, publisher = a_publisher(world)
    rows = owner.logic.groups[0].replica.topics[topic].table.rows
    forgets(world, owner, topic)
    row = rows.pop(publisher)
    try:
        with pytest.raises(Violation, match=f"forgets {publisher} in {topic}"):
            forgets(world, owner, topic)
        owner.offset += WINDOW + 1.0  # its clock says that the window is over
        forgets(world, owner, topic)
    finally:
        owner.offset -= WINDOW + 1.0
        rows[publisher] = row


def test_member_that_forgets_before_its_coordinator_is_a_violation(world: World) -> None:
    owner, other, topic, publisher = a_publisher(world)
    rows = other.logic.groups[0].replica.topics[topic].table.rows
    forgets(world, other, topic)
    row = rows.pop(publisher)
    theirs = owner.logic.groups[0].replica.topics[topic].table.rows
    try:
        with pytest.raises(Violation, match=f"has forgotten .'{publisher}'. in {topic}"):
            forgets(world, other, topic)
        removed = theirs.pop(publisher)
        forgets(world, other, topic)
        theirs[publisher] = removed
    finally:
        rows[publisher] = row
