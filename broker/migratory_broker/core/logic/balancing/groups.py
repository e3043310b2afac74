"""What the owner of activated epochs does unasked: list who caught up, unlist who is gone, hand groups over.

A few groups at a time: each change of a list is a short pause of its group.
"""

from __future__ import annotations

from math import inf

from migratory_protocol.peer import BrokerId, HandOver

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.election.election import Election
from migratory_broker.core.logic.membership.gossip import GossipMap
from migratory_broker.core.logic.membership.membership import Membership
from migratory_broker.core.logic.replication.group import GroupRegistry
from migratory_broker.core.logic.replication.term import Term

SOON, LONGEST = 8, 16
"""Times `balance_every`: what comes back within `SOON` had no use, and `LONGEST` is the longest rest behind that."""


class GroupBalancer:
    def __init__(
        self, ctx: Context, groups: GroupRegistry, membership: Membership, election: Election, gossip: GossipMap
    ) -> None:
        self.ctx = ctx
        self.membership = membership
        self.election = election
        self.gossip = gossip
        self.groups = groups
        self._wanted_since: dict[int, float] = {}
        self._handed: dict[int, tuple[float, str]] = {}  # group -> (when, the successor named)
        self._given: dict[int, float] = {}  # group -> when it was handed to another, not long ago
        self._balanced_at = float("-inf")
        self._rest = ctx.config.balance_every  # from one group that is moved for balance to the next

    def tick(self) -> None:
        if not (self.election.zookeeper.connected and self.membership.registered):
            return
        terms = self.groups.active_terms()
        self._relist(terms)
        self._look_back({number for number, _ in terms})
        if self.ctx.draining:
            self._drain(terms)
        else:
            self._even_out(terms)

    # ---- lists -----------------------------------------------------------------------------------------------

    def _relist(self, terms: list[tuple[int, Term]]) -> None:
        """LISTED-AFTER-CATCHING-UP, and a list without members that are gone."""
        listed = {broker for _, term in terms for broker in term.record.members}
        gone = {broker for broker in listed if self.membership.gone(broker)}
        changing: int | None = None
        for number, term in terms:
            if gone.isdisjoint(term.record.members) and not term.followers.caught_up():
                self._wanted_since.pop(number, None)
                continue
            members = self.wanted(term)
            if set(members) == set(term.record.members) or len(members) < self.ctx.config.min_copies:
                self._wanted_since.pop(number, None)
                continue
            since = self._wanted_since.setdefault(number, self.ctx.now)
            standing = self.election.standings[number]
            if changing is None:
                changing = self._changing()
            if (
                self.ctx.now - since < self.ctx.config.relist_delay
                or changing >= self.ctx.config.relist_at_once
                or standing.busy
                or standing.resigned
                or standing.absent_since is not None
                or number in self._handed
            ):
                continue
            changing += 1
            del self._wanted_since[number]
            self.election.renew(number, term, members)

    def _changing(self) -> int:
        """Groups whose list this broker is about to change, or was asked to."""
        return sum(
            standing.busy or (group.term is not None and group.term.phase in ("syncing", "activating"))
            for group, standing in zip(self.groups, self.election.standings, strict=True)
        )

    def wanted(self, term: Term) -> list[BrokerId]:
        stay = [broker for broker in term.record.members if not self.membership.gone(broker)]
        return sorted({*stay, *term.followers.caught_up()})

    # ---- hand-over -------------------------------------------------------------------------------------------

    def _successor(self, term: Term, below: float) -> str:
        """The ready listed member with the fewest groups, "" if there is none with fewer than `below`."""
        counts = self.gossip.counts()
        for _, name in self._handed.values():
            counts[name] = counts.get(name, 0) + 1
        fit = [
            (counts.get(name, 0), name)
            for name, incarnation in term.record.members
            if self.ctx.links.get(name) == incarnation
            and (member := self.membership.live.get(name)) is not None
            and member.ready
            and not member.draining
        ]
        count, name = min(fit, default=(0, ""))
        return name if count < below else ""

    def _look_back(self, mine: set[int]) -> None:
        """A hand-over that its successor did not take in time, or that came back soon, was a pause of the
        group for nothing; more of them keep a busy broker busy. Each doubles the wait before the next."""
        config, now = self.ctx.config, self.ctx.now
        failed = 0
        for number, (at, _) in list(self._handed.items()):
            if number not in mine:
                del self._handed[number]
                self._given[number] = at
            elif now - at >= config.progress_timeout:
                del self._handed[number]
                failed += 1
        for number, at in list(self._given.items()):
            if number in mine:
                del self._given[number]
                failed += 1
            elif now - at >= SOON * config.balance_every:
                del self._given[number]
                self._rest = config.balance_every
        if failed:
            self._rest = min(2 * self._rest, LONGEST * config.balance_every)

    def _drain(self, terms: list[tuple[int, Term]]) -> None:
        for number, term in terms:
            if len(self._handed) >= self.ctx.config.hand_over_at_once:
                return
            if number not in self._handed and not self.election.standings[number].busy:
                self._hand(number, term, inf)

    def _even_out(self, terms: list[tuple[int, Term]]) -> None:
        """One group at a time, only while all configured brokers are ready, until no two differ by more than one. Each
        goes to a broker that has fewer afterwards than this one had: so it ends, also while the one with fewest can't
        be reached."""
        config, live = self.ctx.config, self.membership.live
        if self.ctx.now - self._balanced_at < self._rest or self._handed:
            return
        if not all(name in live and live[name].ready and not live[name].draining for name in config.brokers):
            return
        counts = self.gossip.counts()
        least = min(counts.get(name, 0) for name in config.brokers)
        if len(terms) - least < 2:
            return
        self._balanced_at = self.ctx.now
        for number, term in terms:
            if not self.election.standings[number].busy and self._hand(number, term, len(terms) - 1):
                return

    def _hand(self, number: int, term: Term, below: float) -> bool:
        successor = self._successor(term, below)
        if not successor:
            return False
        self._handed[number] = (self.ctx.now, successor)
        self.ctx.note("info", "hands_over", group=number, epoch=term.epoch, to=successor)
        self.ctx.send(successor, HandOver(number, term.record.history, term.epoch))
        return True
