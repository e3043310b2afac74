"""SUSPECT: the brokers that are presumed dead before their ZooKeeper sessions end, for `Election`.

A broker is suspected when the link to it broke and there is evidence: a new connection was refused, or most live
brokers have not heard it for half the fencing time. No broker that this one hears may have a link to it. Promises fence
a coordinator that lives: a wrong suspicion costs a takeover and loses nothing. An incarnation that was suspected
wrongly is trusted for a time, each time for longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from migratory_protocol.peer import BrokerId

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.membership.membership import Membership

EVIDENCE_SESSIONS = 2.0
"""Session timeouts after the break of a link for which evidence counts. By then ZooKeeper has ended the session of a
broker that is dead."""

TRUST_SESSIONS = 15.0
"""Session timeouts (60 s by default) for which a broker is not suspected after a suspicion that proved wrong. Each
further one doubles the time."""

MAX_DOUBLINGS = 6
"""Times that the wait after a wrong suspicion is doubled: up to an hour by default."""

Evidence = Literal["refused", "silent"]
"""Strong: a new connection was refused. Weak: most live brokers have not heard the broker for a time."""


@dataclass(slots=True)
class Suspect:
    """An incarnation of a broker to which the last link was, and the evidence against it. Times are of the logic's
    clock."""

    incarnation: int
    broken_at: float  # when the link broke
    linked: bool = False  # a new link to this incarnation stands
    evidence_at: float | None = None  # since when there is evidence
    wrong: int = 0  # suspicions of this incarnation that proved wrong
    trusted_until: float = 0.0


class Suspicions:
    """The evidence against each other broker. One incarnation of each name is remembered: that of the last link that
    broke."""

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
        """Handle a link to this incarnation. If there is evidence against it, it was suspected wrongly: drop the
        evidence and trust it for a time, which doubles with each further wrong suspicion, `MAX_DOUBLINGS` times at
        most. Evidence against an earlier incarnation stays."""
        suspect = self._suspects.get(peer)
        if suspect is None or suspect.incarnation != incarnation:
            return
        suspect.linked = True
        if suspect.evidence_at is not None:
            self._drop(suspect)
            span = TRUST_SESSIONS * 2 ** min(suspect.wrong, MAX_DOUBLINGS) * self.ctx.config.session_timeout
            suspect.wrong += 1
            suspect.trusted_until = self.ctx.now + span
            self.ctx.note("warning", "suspected_wrongly", peer=peer, incarnation=incarnation, trusted_seconds=span)

    def peer_down(self, peer: str, incarnation: int) -> None:
        """Remember the incarnation at the other end of a link that broke, in place of another one of its name, whose
        evidence is dropped. It may be suspected from now on."""
        suspect = self._suspects.get(peer)
        if suspect is not None and suspect.incarnation == incarnation:
            suspect.linked, suspect.broken_at = False, self.ctx.now
        else:
            if suspect is not None:
                self._drop(suspect)
            self._suspects[peer] = Suspect(incarnation, self.ctx.now)

    def refused(self, peer: str, incarnation: int) -> None:
        """Record as evidence that an incarnation refuses connections. Nothing unless the last link to its name was to
        it and broke, while it is trusted, and if there is evidence already."""
        suspect = self._suspects.get(peer)
        if suspect is not None and suspect.incarnation == incarnation and peer not in self.ctx.links:
            self._suspect(peer, suspect, "refused")

    def tick(self) -> None:
        """Record as evidence that a broker whose link broke is silent, unless it is trusted. Drop the evidence against
        a broker whose link broke `EVIDENCE_SESSIONS` ago: ZooKeeper's session decides from then on."""
        limit = self.ctx.now - EVIDENCE_SESSIONS * self.ctx.config.session_timeout
        for peer, suspect in self._suspects.items():
            if suspect.linked:
                continue
            if suspect.broken_at < limit:
                self._drop(suspect)
            elif suspect.evidence_at is None and self._silent(peer):
                self._suspect(peer, suspect, "silent")

    def since(self, broker: BrokerId) -> float | None:
        """Return the time since which there is evidence against `broker`, an incarnation. None if there is none, or if
        a linked peer whose last heartbeat is recent has a link to it.

        Brokers send a heartbeat as soon as a link breaks, and one that was not heard for three heartbeats says nothing
        about now.
        """
        name, incarnation = broker
        suspect = self._suspects.get(name)
        if suspect is None or suspect.incarnation != incarnation or suspect.evidence_at is None:
            return None
        if any(state.links_to(broker) for state in self.membership.recent_heartbeats()):
            return None
        return suspect.evidence_at

    def _silent(self, peer: str) -> bool:
        """Return whether more than half of the live brokers do not hear `peer`; `peer` is one of the live ones. False
        if it is not live, or this broker has heard it within `silence` seconds.

        Those that do not hear it are this broker, and each linked one whose last heartbeat is recent and does not name
        `peer` as heard within half the fencing time.
        """
        membership = self.membership
        if peer not in membership.live or peer in membership.heard_within(self.ctx.config.silence):
            return False
        silent = 1 + sum(peer not in state.heard for state in membership.recent_heartbeats())
        return 2 * silent > len(membership.live)

    def _suspect(self, peer: str, suspect: Suspect, evidence: Evidence) -> None:
        """Record and log evidence against a broker. Nothing while it is trusted, and if there is evidence already."""
        if suspect.evidence_at is None and self.ctx.now >= suspect.trusted_until:
            suspect.evidence_at = self.ctx.now
            self._evidence += 1
            self.ctx.note("warning", "broker_suspected", peer=peer, incarnation=suspect.incarnation, evidence=evidence)

    def _drop(self, suspect: Suspect) -> None:
        """Drop the evidence against a broker, if there is any. It stays remembered."""
        if suspect.evidence_at is not None:
            suspect.evidence_at = None
            self._evidence -= 1
