"""The budget of an edge: the memory that its clients take, by kind, each against a limit of its own.

| kind | what counts | at its limit |
| --- | --- | --- |
| input | incomplete messages, requests, and what was sent after them (inbox.py) | close the largest holders |
| subscriptions | subscriptions, their topics, and permissions of tokens | refuse one that exceeds what is free |
| queues | bytes queued for paused connections (delivery.py) | close the longest queues |

This module counts subscriptions. The limits are separate, so that no kind takes the room of another, and their sum
bounds what clients can make an edge hold. The runtime counts handshakes in the same way, which end before a connection
has an edge. Nothing is counted for a delivery that a connection takes at once.
"""

from __future__ import annotations

from migratory_broker.core.edge.state import ClientConnection
from migratory_broker.core.security.authorizer import ClientAccess
from migratory_broker.core.security.tokens import PERMISSIONS

TOPIC_BYTES = 1024
"""Bytes of a topic with a subscriber, besides its name: its tables, and the name's objects. As measured with Python
3.11 (tests/unit/core/edge/test_budget.py)."""

SUBSCRIPTION_BYTES = 100
"""Bytes of a subscription to such a topic: its places in the tables of the topic and of the connection."""

RETRY_AFTER = 5.0
"""Seconds after which a client may repeat a subscription that was refused: others may have left by then."""


class SubscriptionBudget:
    """The estimated bytes of all subscriptions of an edge, their topics, and the permissions of its clients' tokens,
    against a limit. `count` (of subscriptions) and `bytes` are for /metrics.

    A client may hold as many bytes as are free, and no more. So one client gets half of the limit at most, two get a
    third each, and however many take what they can, some is left for a client that has none (dynamic thresholds:
    Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998).

    Each `add` is taken back with a `remove`.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.count = 0
        self.bytes = 0
        self._own_bytes = 0

    def add_topic(self, name: str) -> None:
        self.bytes += topic_bytes(name)

    def remove_topic(self, name: str) -> None:
        self.bytes -= topic_bytes(name)

    def add_subscription(self) -> None:
        self.count += 1
        self.bytes += SUBSCRIPTION_BYTES

    def remove_subscription(self) -> None:
        self.count -= 1
        self.bytes -= SUBSCRIPTION_BYTES

    def remove_access(self, connection: ClientConnection) -> None:
        """Stop counting the permissions of a connection that is gone. Its access stays set."""
        self.bytes -= _own_bytes(connection.access)
        self._own_bytes -= _own_bytes(connection.access)

    def set_access(self, connection: ClientConnection, access: ClientAccess | None) -> str | None:
        """Set the access of a connection, count its permissions in place of those before, and return None. If its own
        permissions take more bytes than are free without those before, change nothing and return the reason to refuse
        it."""
        added = _own_bytes(access) - _own_bytes(connection.access)
        free = self._limit - self.bytes
        if added > max(0, free):
            return (
                f"limit of memory of all clients' subscriptions: {max(0, free)} of {self._limit} bytes are free, and "
                f"the token's permissions (claim {PERMISSIONS}) take {_own_bytes(access)}"
            )
        connection.access = access
        self.bytes += added
        self._own_bytes += added
        return None

    def refusal(self, connection: ClientConnection, name: str, *, is_new: bool) -> str | None:
        """Return the reason to refuse the connection a subscription to the topic `name`, None if it may have it. It may
        if all that it would then hold, by the mean size of a subscription, is not more than what is free now. `is_new`:
        the topic has no subscriber yet. Nothing is counted."""
        cost = SUBSCRIPTION_BYTES + (topic_bytes(name) if is_new else 0)
        free = self._limit - self.bytes
        subscriptions = self.bytes - self._own_bytes
        held = len(connection.topics) * subscriptions // max(1, self.count)  # by the mean: exact sums would take long
        held += _own_bytes(connection.access)
        if held + cost <= free:
            return None
        return (
            f"limit of memory of all clients' subscriptions: {max(0, free)} of {self._limit} bytes are free, and this "
            f"client has {held}"
        )


def _own_bytes(access: ClientAccess | None) -> int:
    return 0 if access is None else access.own_bytes


def topic_bytes(name: str) -> int:
    """Return the bytes that count for a topic that has a subscriber, without its subscriptions."""
    return TOPIC_BYTES + len(name) * (1 if name.isascii() else 4)
