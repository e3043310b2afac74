"""The reasons for which this broker must stop serving clients because others may continue without it, checked by
`Logic`.

Fencing bounds staleness and waiting. No other rule relies on it, except that a new history is begun only after every
replaced process has fenced itself (docs/concepts/replication.md). All times are of this broker's monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.membership.gossip import GossipMap
from migratory_broker.core.logic.membership.membership import Membership
from migratory_broker.core.logic.membership.zookeeper import ZkRequests


class Fencing:
    """The three conditions for which a broker fences itself: it is alone, cut off from a coordinator, or isolated from
    ZooKeeper and a listed broker."""

    def __init__(self, ctx: Context, zookeeper: ZkRequests, membership: Membership, gossip: GossipMap) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self.membership = membership
        self.gossip = gossip
        self._ready_since: float | None = None

    def reason(self, listed: Callable[[], set[str]]) -> str:
        """Return why this broker must be fenced now, "" if it need not be. It need not be while it is not ready, and
        for the fencing time (`fencing`) after it became ready. `listed` returns the names of all brokers on the member
        lists of the groups."""
        if not self.membership.ready:
            self._ready_since = None
            return ""  # it has no clients, and nothing to acknowledge
        if self._ready_since is None:
            self._ready_since = self.ctx.now
        if self.ctx.now - self._ready_since < self.ctx.config.fencing:
            return ""  # the others have had no time to say that they are members
        return self._alone() or self._cut_off() or self._isolated(listed)

    def _alone(self) -> str:
        """FENCE-ALONE: return a reason if fewer than `min_copies` - 1 other brokers that are members of every group
        were heard within the fencing time, else ""."""
        config = self.ctx.config
        heard = self.membership.members_heard_within(config.fencing)
        if len(heard) >= config.min_copies - 1:
            return ""
        return f"heard from {len(heard)} other members in {config.fencing} s"

    def _cut_off(self) -> str:
        """FENCE-CUT: return a reason if this broker has not heard a coordinator for the fencing time, and another
        broker, by a heartbeat of the last three heartbeat intervals, hears that coordinator. Otherwise return "". A
        coordinator that no broker hears is in takeover, and is no reason.

        A broker that was restarted has the fencing time to be heard here. The groups that its earlier incarnation
        coordinated are in takeover, and links to it and ZooKeeper's news of it reach one broker sooner than another.
        """
        config, now, membership = self.ctx.config, self.ctx.now, self.membership
        silent = [
            name
            for name, at in membership.heard.items()
            if now - max(at, membership.appeared_at(name)) > config.fencing
        ]
        for name in sorted(self.gossip.counts().keys() & silent) if silent else ():
            for peer, state in membership.peers.items():
                if now - state.heard_at <= 3 * config.heartbeat and name in state.heard:
                    return f"{peer} hears the coordinator {name}, this broker does not"
        return ""

    def _isolated(self, listed: Callable[[], set[str]]) -> str:
        """FENCE-ISOLATED: under `reset`, return a reason if neither this broker nor any that it hears has heard
        ZooKeeper for `isolation_sessions` session timeouts, and some listed broker is not heard. Otherwise return "".
        Heard is a broker of which a message came within the fencing time. The listed broker may have been replaced, and
        a new history may begin."""
        config, now = self.ctx.config, self.ctx.now
        limit = config.isolation_sessions * config.session_timeout
        if config.on_history_loss != "reset" or self.zookeeper.age() <= limit:
            return ""
        heard = set(self.membership.heard_within(config.fencing))
        for peer in heard:
            state = self.membership.peers.get(peer)
            if state is not None and now - state.zookeeper_heard_at <= limit:
                return ""
        missing = sorted(listed() - heard - {config.name})
        return f"no broker here hears ZooKeeper, and {missing[0]} is not heard" if missing else ""
