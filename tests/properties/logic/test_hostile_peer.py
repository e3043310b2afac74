"""A peer that says anything its types allow ends its link, never the process."""

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
    """`Cluster` encodes and decodes what brokers send, so that nothing hostile is passed on either."""
    cluster = Cluster().up()
    cluster.publish("a", "t", "x", id=1)
    peer = HostilePeer(cluster, lambda values: data.draw(st.sampled_from(values)))
    for _ in range(data.draw(st.integers(1, 12))):
        peer.attack()
    cluster.run(1.0)
    for name in cluster.running():
        msgspec.json.encode(describe_logic(cluster.logic(name)))
