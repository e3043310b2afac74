"""Which client of this broker makes how many topics. Topics are never forgotten, so one client that makes up a name for
every publication would take all that the cluster may have, and others could make none.

A client is its connection: what it calls itself proves nothing. That stops a program that goes wrong, not one that
means harm and comes back over many connections: those are bounded by `max_topics` and by who may connect.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from migratory_broker.core.logic.context import Context

Client = tuple[int, int]  # edge, connection

REMEMBERED = 10_000
"""Clients that made a topic, those that did it last: about 200 bytes each. A forgotten one begins anew."""

UNDER_WAY = 100_000
"""Topics that are being made. One that is passed over counts for good, and twice if it is not here soon."""


class Makers:
    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self._made: OrderedDict[Client, int] = OrderedDict()  # who made one last is last
        self._under_way: OrderedDict[str, tuple[float, Client]] = OrderedDict()  # topic -> until when; in that order
        self._histories = 0
        self._told_at = float("-inf")

    def admit(self, topic: str, client: Client) -> str:
        """Of a topic that is not here: "" when the client may make it, else why not."""
        if self._histories != self.ctx.histories:  # topics are gone, and made again by those who have them
            self._histories = self.ctx.histories
            self._made.clear()
        if topic in self._under_way:
            return ""
        limit = self.ctx.config.topics_per_client
        made = self._made.get(client, 0)
        if made >= limit:
            self._tell(client, limit)
            return (
                f"this client has made {made} topics, its limit (topicsPerClient); topics that exist are taken from it"
            )
        self._made[client] = made + 1
        self._made.move_to_end(client)
        if len(self._made) > REMEMBERED:
            self._made.popitem(last=False)
        self._under_way[topic] = (self.ctx.now + self.ctx.config.publish_wait, client)
        if len(self._under_way) > UNDER_WAY:
            self._under_way.popitem(last=False)
        return ""

    def tick(self, exists: Callable[[str], bool]) -> None:
        """What came to nothing in time is given back to its client."""
        over = []
        for topic, (until, client) in self._under_way.items():
            if until > self.ctx.now:
                break
            over.append((topic, client))
        for topic, client in over:
            del self._under_way[topic]
            made = self._made.get(client, 0)
            if made and not exists(topic):
                self._made[client] = made - 1
                if made == 1:
                    del self._made[client]

    def _tell(self, client: Client, limit: int) -> None:
        """Publications with QoS 0 have no answer: the log has a line of it, one in ten seconds."""
        if self.ctx.now - self._told_at >= 10.0:
            self._told_at = self.ctx.now
            self.ctx.note("warning", "too_many_topics_of_one_client", edge=client[0], connection=client[1], limit=limit)
