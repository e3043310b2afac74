"""A simulated client detects refusals that no broker may give here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from migratory_protocol import frames
from migratory_protocol.messages import Nack
from migratory_simulation.clients import Client
from migratory_simulation.external_checker import Key, Violation
from migratory_simulation.options import draw_options
from migratory_simulation.plans import Plan
from migratory_simulation.world import World


@pytest.fixture
def publisher() -> Client:
    """Return a connected client that has published, of a cluster that has run without faults."""
    drawn = draw_options(16, "short")
    world = World(replace(drawn, plan=Plan(drawn.plan.safe, ()), topic_idle=0.0))
    world.run()
    return next(client for client in world.clients if any(client.last_id.values()) and not client.misused)


def refuse(publisher: Client, key: Key, code: str) -> None:
    """Let the client receive a refusal of a publication."""
    (link,) = publisher.links.values()
    assert link.connection is not None
    answer = link.codec.encode(Nack(key.topic, key.publisher, key.id, code, "no"))
    opcode = frames.BINARY if link.codec.binary else frames.TEXT
    publisher.connection_data(link.connection, frames.encode_frame(opcode, answer))


def publish(publisher: Client) -> Key:
    """Publish, and return the publication, which waits for its answer."""
    topic = next(topic for topic, last in publisher.last_id.items() if last)
    publisher.publish(topic)
    return publisher.waiting[topic][-1]


@pytest.mark.parametrize(
    ("tokens", "text"), [(0, "is refused: not_allowed"), (1, "is refused after it was sent before: .*not_allowed")]
)
def test_refusal_is_a_violation_also_where_the_publication_was_sent_before(
    publisher: Client, tokens: int, text: str
) -> None:
    key = publish(publisher)
    publisher.core.publisher.access += tokens
    with pytest.raises(Violation, match=f"invariant 7: .* {text}"):
        refuse(publisher, key, "not_allowed")


def test_unknown_outcome_is_a_violation_unless_the_publication_is_committed(publisher: Client) -> None:
    key = publish(publisher)
    with pytest.raises(Violation, match=r"invariant 6: .* is refused as unknown, but was never committed"):
        refuse(publisher, key, "outcome_unknown")
    issued = [Key(key.publisher, key.topic, number) for number in range(1, key.id)]
    stored = next(other for other in issued if publisher.world.internal.is_committed(other))
    publisher.waiting[key.topic].insert(0, stored)
    refuse(publisher, stored, "outcome_unknown")
    assert publisher.unknown == {key, stored}
