"""Random messages of a peer, of which every one decodes: no broker stops or raises an exception."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from migratory_broker.core.logic.status import describe_logic
from migratory_testing.brokers import Cluster
from migratory_testing.hostile import HostilePeer


@settings(max_examples=150)
@given(st.data())
def test_no_sequence_of_messages_ends_a_broker(data: Any) -> None:
    """No broker stops, raises an exception, sends a message that cannot be encoded and decoded (`Cluster` does both to
    each message), or has a status that cannot be encoded."""
    cluster = Cluster().up()
    cluster.publish("a", "t", "x", id=1)
    peer = HostilePeer(cluster, lambda values: data.draw(st.sampled_from(values)))
    for _ in range(data.draw(st.integers(1, 12))):
        peer.attack()
    cluster.run(1.0)
    assert cluster.running() == list(cluster.names)
    for name in cluster.names:
        msgspec.json.encode(describe_logic(cluster.logic(name)))
