"""SUSPECT: which brokers are taken to be dead before their ZooKeeper sessions end, for `Election`.

A broker is suspected when its link to this broker broke, a new connection to it was refused, and no broker that this
one hears has a link to it. Promises fence a coordinator that lives: a wrong suspicion costs a takeover and loses
nothing. An incarnation that was suspected wrongly is trusted for a while, each time for longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from migratory_protocol.peer import BrokerId

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.membership.membership import Membership

EVIDENCE_SESSIONS = 2.0
"""Session timeouts for which evidence counts. By then ZooKeeper has ended the session of a broker that is dead."""

TRUST_SESSIONS = 15.0
"""Session timeouts (60 s by default) for which a broker is not suspected after a suspicion that proved wrong. Each
further one doubles the time."""

MAX_DOUBLINGS = 6
"""Times that the wait after a wrong suspicion is doubled: up to an hour by default."""


@dataclass(slots=True)
class Suspect:
    """An incarnation to which the last link broke, and the evidence against it. Times are of the logic's clock."""

    incarnation: int
    refused_at: float | None = None  # a new connection was refused
    wrong: int = 0  # suspicions of this incarnation that proved wrong
    trusted_until: float = 0.0


class Suspicions:
    """The evidence against each other broker. One incarnation of each name is remembered: that of the last link."""

    def __init__(self, ctx: Context, membership: Membership) -> None:
        self.ctx = ctx
        self.membership = membership
        self._suspects: dict[str, Suspect] = {}
        self._evidence = 0  # suspects with evidence

    @property
    def any(self) -> bool:
        """True while there is evidence against some broker."""
        return self._evidence > 0

    def peer_up(self, peer: str, incarnation: int) -> None:
        """Drop the evidence against an incarnation to which a link stands again, and trust it for a time. Evidence
        against an earlier one stays."""
        suspect = self._suspects.get(peer)
        if suspect is None or suspect.incarnation != incarnation:
            return
        if suspect.refused_at is not None:
            self._drop(suspect)
            span = TRUST_SESSIONS * 2 ** min(suspect.wrong, MAX_DOUBLINGS) * self.ctx.config.session_timeout
            suspect.wrong += 1
            suspect.trusted_until = self.ctx.now + span
            self.ctx.note("warning", "suspected_wrongly", peer=peer, incarnation=incarnation, trusted_seconds=span)

    def peer_down(self, peer: str, incarnation: int) -> None:
        """Remember the incarnation at the other end of a link that broke. It may be suspected from now on."""
        suspect = self._suspects.get(peer)
        if suspect is not None and suspect.incarnation != incarnation:
            self._drop(suspect)
            suspect = None
        if suspect is None:
            self._suspects[peer] = Suspect(incarnation)

    def refused(self, peer: str, incarnation: int) -> None:
        """Record that an incarnation refuses connections. Nothing unless the last link was to it and broke, and nothing
        while it is trusted."""
        suspect = self._suspects.get(peer)
        if suspect is None or suspect.incarnation != incarnation or peer in self.ctx.links:
            return
        if suspect.refused_at is None and self.ctx.now >= suspect.trusted_until:
            suspect.refused_at = self.ctx.now
            self._evidence += 1
            self.ctx.note("warning", "broker_suspected", peer=peer, incarnation=incarnation)

    def tick(self) -> None:
        """Drop evidence that is so old that ZooKeeper's session decides."""
        if self._evidence:
            limit = self.ctx.now - EVIDENCE_SESSIONS * self.ctx.config.session_timeout
            for suspect in self._suspects.values():
                if suspect.refused_at is not None and suspect.refused_at < limit:
                    self._drop(suspect)

    def since(self, broker: BrokerId) -> float | None:
        """Return the time since which `broker` refuses connections, None if it is not suspected.

        A broker that this one hears and that has a link to the suspect contradicts. Brokers send a heartbeat as soon
        as a link breaks, and one that was not heard for three heartbeats says nothing about now.
        """
        name, incarnation = broker
        suspect = self._suspects.get(name)
        if suspect is None or suspect.incarnation != incarnation or suspect.refused_at is None:
            return None
        limit = self.ctx.now - 3 * self.ctx.config.heartbeat
        for peer in self.ctx.links:
            state = self.membership.peers.get(peer)
            if state is not None and state.heard_at >= limit and state.links_to(broker):
                return None
        return suspect.refused_at

    def _drop(self, suspect: Suspect) -> None:
        if suspect.refused_at is not None:
            suspect.refused_at = None
            self._evidence -= 1
