"""The configuration of an edge: invalid limits are refused with their names."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_protocol import limits

LIMITS = [f.name for f in fields(EdgeConfig) if f.type in ("int", "float") and f.name != "incarnation"]


@pytest.mark.parametrize("name", LIMITS)
def test_limit_below_its_minimum_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        replace(EdgeConfig(), **{name: -1})  # type: ignore[arg-type]


def test_defaults_are_the_protocol_limits() -> None:
    config = EdgeConfig()
    assert config.max_message == limits.MESSAGE
    assert (config.max_payload, config.envelope, config.max_topic) == (limits.PAYLOAD, limits.ENVELOPE, limits.TOPIC)
    assert (config.subscriptions_per_client, config.queue_per_client) == (limits.SUBSCRIPTIONS, limits.QUEUE)
    assert (config.handshake, config.heartbeat) == (limits.HANDSHAKE, limits.HEARTBEAT)
    assert EdgeConfig(max_payload=0).max_message == limits.ENVELOPE
