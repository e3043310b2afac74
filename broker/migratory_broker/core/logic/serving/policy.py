"""Permissions and quotas of clients.

`Authorizer` is the interface of permission checks, of which this release has only one that allows everything.
`TopicQuota` limits the topics that one client may create.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from migratory_protocol.peer import ForwardedPublication

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import Attach

ClientId = tuple[int, int]
"""A client's connection: number of the edge, and the edge's own reference."""

MAX_TRACKED_CLIENTS = 10_000
"""Clients whose created topics are counted, the most recent creators, at about 200 bytes each. The count of a client
beyond it starts again at 0."""

MAX_TOPICS_BEING_CREATED = 100_000
"""Topics whose creation is under way. An older one beyond it is charged for good, even if it was never created."""

QUOTA_LOG_INTERVAL = 10.0
"""Seconds between two log lines about clients over their quota. A QoS 0 publication has no answer, so that the log is
its only trace; the limit keeps one client from filling it."""


class Authorizer(Protocol):
    """Permission checks. Both methods return the reason for a refusal, or "" when the request is allowed."""

    def publish(self, edge: int, reference: int, publication: ForwardedPublication) -> str: ...

    def attach(self, event: Attach) -> str: ...


class AllowAll:
    """The authorizer of this release: every request is allowed."""

    def publish(self, edge: int, reference: int, publication: ForwardedPublication) -> str:
        return ""

    def attach(self, event: Attach) -> str:
        return ""


class TopicQuota:
    """The number of topics that each client created, limited by `topics_per_client`.

    Topics are never deleted, so one client that publishes under a new name each time would use up `max_topics` and keep
    all others from creating any. A client is its connection, because the name that it gives proves nothing. The quota
    stops a faulty program. An attacker who reconnects is limited by `max_topics` and by access control.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._created: OrderedDict[ClientId, int] = OrderedDict()  # the latest creator last
        self._pending: OrderedDict[str, tuple[float, ClientId]] = OrderedDict()  # topic -> deadline, in its order
        self._histories = 0
        self._logged_at = float("-inf")

    def admit(self, topic: str, client: ClientId) -> str:
        """Charge `client` for a topic that does not exist yet. Return "", or the reason why it may not create it."""
        if self._histories != self.ctx.histories:
            # A new history has no topics: publishers create theirs again and must not be charged twice.
            self._histories = self.ctx.histories
            self._created.clear()
        if topic in self._pending:
            return ""
        limit = self.ctx.config.topics_per_client
        created = self._created.get(client, 0)
        if created >= limit:
            self._log_refusal(client, limit)
            return (
                f"this client has created {created} topics, the limit is {limit} (topicsPerClient); "
                f"publish to topics that exist"
            )
        self._created[client] = created + 1
        self._created.move_to_end(client)
        if len(self._created) > MAX_TRACKED_CLIENTS:
            self._created.popitem(last=False)
        self._pending[topic] = (self.ctx.now + self.ctx.config.publish_wait, client)
        if len(self._pending) > MAX_TOPICS_BEING_CREATED:
            self._pending.popitem(last=False)
        return ""

    def tick(self, exists: Callable[[str], bool]) -> None:
        """Refund the quota for topics that were not created in time."""
        expired = []
        for topic, (deadline, client) in self._pending.items():
            if deadline > self.ctx.now:
                break
            expired.append((topic, client))
        for topic, client in expired:
            del self._pending[topic]
            created = self._created.get(client, 0)
            if created and not exists(topic):
                self._created[client] = created - 1
                if created == 1:
                    del self._created[client]

    def _log_refusal(self, client: ClientId, limit: int) -> None:
        if self.ctx.now - self._logged_at >= QUOTA_LOG_INTERVAL:
            self._logged_at = self.ctx.now
            self.ctx.note("warning", "topic_quota_exceeded", edge=client[0], connection=client[1], limit=limit)
