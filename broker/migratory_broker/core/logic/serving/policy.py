"""Quotas of clients, for `publishing.py`: `TopicQuota` limits the topics that one client may create. Permissions are
the edge's to check."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from migratory_broker.core.logic.context import Context

ClientId = tuple[int, int]
"""A client's connection: the number of its edge, and its number in that edge."""

MAX_TRACKED_CLIENTS = 10_000
"""The largest number of clients whose created topics are counted, at about 200 bytes each. Beyond it the count of the
client that created a topic longest ago is dropped, and starts again at 0."""

MAX_TOPICS_BEING_CREATED = 100_000
"""The largest number of topics whose creation is watched. Beyond it the oldest is not refunded to its client, even if
it is never created."""

QUOTA_LOG_INTERVAL = 10.0
"""Seconds between two log lines about clients over their quota. The log is the only sign of a refused QoS 0
publication, because that has no answer; the limit keeps one client from filling it."""


class TopicQuota:
    """The number of topics that each client created, limited by `topics_per_client`.

    Topics go only after `topic_idle_timeout`, so one client that publishes under a new name each time would use up
    `max_topics` and keep all others from creating any. A client is its connection, because the name that it gives
    proves nothing. The quota stops a faulty program. An attacker who reconnects is limited by `max_topics` and by
    access control. All counts begin again `topic_idle_timeout` after they began, and when a group begins another
    history: the topics are then used, removed or created again.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._created: OrderedDict[ClientId, int] = OrderedDict()  # the latest creator last
        self._pending: OrderedDict[str, tuple[float, ClientId]] = OrderedDict()  # topic -> deadline, in its order
        self._histories = 0
        self._began_at = ctx.now  # when the counts began
        self._logged_at = float("-inf")

    def admit(self, topic: str, client: ClientId) -> str:
        """Count a topic that does not exist yet against the quota of `client`, and return "". If its creation is under
        way already, for whichever client, count nothing and return "". If the quota is used up, count nothing, log
        that (at most one line in `QUOTA_LOG_INTERVAL`), and return the reason why the client may not create it."""
        now, timeout = self.ctx.now, self.ctx.config.topic_idle_timeout
        if self._histories != self.ctx.histories or (timeout and now - self._began_at >= timeout):
            # Publishers create again what is gone, and must not be charged twice. A new history has no topics.
            self._histories, self._began_at = self.ctx.histories, now
            self._created.clear()
            self._pending.clear()  # charged to counts that are gone
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
        """Subtract the topics from their clients' counts that were not created within `publish_wait`. `exists` returns
        whether a topic exists."""
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
        """Log that a client is over its quota, at most one line in `QUOTA_LOG_INTERVAL` for all clients."""
        if self.ctx.now - self._logged_at >= QUOTA_LOG_INTERVAL:
            self._logged_at = self.ctx.now
            self.ctx.note("warning", "topic_quota_exceeded", edge=client[0], connection=client[1], limit=limit)
