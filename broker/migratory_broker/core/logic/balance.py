"""What the owner of activated epochs does unasked: list who caught up, unlist who is gone, hand groups over.

A few groups at a time: each change of a list is a short pause of its group.
"""

from __future__ import annotations

from math import inf

from migratory_protocol.peer import Broker, HandOver

from migratory_broker.core.logic.candidacy import Candidacy
from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.gossip import Gossip
from migratory_broker.core.logic.group import Group
from migratory_broker.core.logic.membership import Membership
from migratory_broker.core.logic.reign import Reign

SOON, LONGEST = 8, 16
"""Times `balance_every`: what comes back within `SOON` had no use, and `LONGEST` is the longest rest behind that."""


class Balance:
    def __init__(self, ctx: Context, membership: Membership, candidacy: Candidacy, gossip: Gossip) -> None:
        self.ctx = ctx
        self.membership = membership
        self.candidacy = candidacy
        self.gossip = gossip
        self.groups: list[Group] = []
        self._wanted_since: dict[int, float] = {}
        self._handed: dict[int, tuple[float, str]] = {}  # group -> (when, the successor named)
        self._given: dict[int, float] = {}  # group -> when it was handed to another, not long ago
        self._balanced_at = float("-inf")
        self._rest = ctx.config.balance_every  # from one group that is moved for balance to the next

    def tick(self) -> None:
        if not (self.candidacy.zookeeper.connected and self.membership.registered):
            return
        reigns = [
            (group.number, group.reign) for group in self.groups if group.reign is not None and group.reign.active
        ]
        self._relist(reigns)
        self._look_back({number for number, _ in reigns})
        if self.ctx.draining:
            self._drain(reigns)
        else:
            self._even_out(reigns)

    # ---- lists -----------------------------------------------------------------------------------------------

    def _relist(self, reigns: list[tuple[int, Reign]]) -> None:
        """LISTED-AFTER-CATCHING-UP, and a list without members that are gone."""
        listed = {broker for _, reign in reigns for broker in reign.record.members}
        gone = {broker for broker in listed if self.membership.gone(broker)}
        changing: int | None = None
        for number, reign in reigns:
            if gone.isdisjoint(reign.record.members) and not reign.followers.caught_up():
                self._wanted_since.pop(number, None)
                continue
            members = self.wanted(reign)
            if set(members) == set(reign.record.members) or len(members) < self.ctx.config.min_copies:
                self._wanted_since.pop(number, None)
                continue
            since = self._wanted_since.setdefault(number, self.ctx.now)
            standing = self.candidacy.standings[number]
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
            self.candidacy.renew(number, reign, members)

    def _changing(self) -> int:
        """Groups whose list this broker is about to change, or was asked to."""
        return sum(
            standing.busy or (group.reign is not None and group.reign.phase in ("syncing", "activating"))
            for group, standing in zip(self.groups, self.candidacy.standings, strict=True)
        )

    def wanted(self, reign: Reign) -> list[Broker]:
        stay = [broker for broker in reign.record.members if not self.membership.gone(broker)]
        return sorted({*stay, *reign.followers.caught_up()})

    # ---- hand-over -------------------------------------------------------------------------------------------

    def _successor(self, reign: Reign, below: float) -> str:
        """The ready listed member with the fewest groups, "" if there is none with fewer than `below`."""
        counts = self.gossip.counts()
        for _, name in self._handed.values():
            counts[name] = counts.get(name, 0) + 1
        fit = [
            (counts.get(name, 0), name)
            for name, incarnation in reign.record.members
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

    def _drain(self, reigns: list[tuple[int, Reign]]) -> None:
        for number, reign in reigns:
            if len(self._handed) >= self.ctx.config.hand_over_at_once:
                return
            if number not in self._handed and not self.candidacy.standings[number].busy:
                self._hand(number, reign, inf)

    def _even_out(self, reigns: list[tuple[int, Reign]]) -> None:
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
        if len(reigns) - least < 2:
            return
        self._balanced_at = self.ctx.now
        for number, reign in reigns:
            if not self.candidacy.standings[number].busy and self._hand(number, reign, len(reigns) - 1):
                return

    def _hand(self, number: int, reign: Reign, below: float) -> bool:
        successor = self._successor(reign, below)
        if not successor:
            return False
        self._handed[number] = (self.ctx.now, successor)
        self.ctx.note("info", "hands_over", group=number, epoch=reign.epoch, to=successor)
        self.ctx.send(successor, HandOver(number, reign.record.history, reign.epoch))
        return True
