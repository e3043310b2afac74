"""Fuzz target of three running brokers: peers' messages that decode but need not keep to any rule.

Each byte makes one choice of `migratory_testing.hostile`, which also publishes, waits and restarts brokers. Oracles: no
broker stops or raises an exception, each message between brokers can be encoded and decoded, each refusal has a reason
that the metrics know and a text "message: rule", and the status can always be encoded.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from migratory_broker.core.logic.events import RefusePeer, Stop
from migratory_broker.core.logic.status import describe_logic
from migratory_broker.runtime.admin.metrics import PEER_REASONS
from migratory_testing.brokers import Cluster
from migratory_testing.hostile import HostilePeer

from migratory_fuzz.labels import seen, seen_error
from migratory_fuzz.reader import Reader

SHAPE = "bytes"
SKIP = 0
MAX_LEN = 600
TOKENS = ()

_ATTACKS = 15


def run(data: bytes) -> None:
    source = Reader(data)
    cluster = Cluster(min_copies=1 + source.byte() % 2).up(1.5)
    cluster.publish("a", "t", "x", id=1)
    peer = HostilePeer(cluster, source.choose)
    for _ in range(_ATTACKS):
        if not source.left:
            break
        peer.attack()
    cluster.run(0.5)
    for broker in cluster.brokers.values():
        assert not broker.of(Stop)
        for refusal in broker.of(RefusePeer):
            assert refusal.reason in PEER_REASONS
            assert ": " in refusal.text
            seen_error(refusal.text)
        for effect in broker.effects:
            seen(f"{type(effect).__name__} {getattr(effect, 'event', '')}")
        msgspec.json.encode(describe_logic(broker.logic), enc_hook=str)


def seeds() -> Iterator[bytes]:
    for kind in range(19):
        for first in range(3):
            yield bytes((1, 0, first, kind % 2, 0, kind)) + bytes(range(first, 60))
