"""Changes of the member lists and coordinators of the groups that this broker coordinates, for `Logic`: brokers that
caught up are listed, brokers that are gone are unlisted, groups are handed over.

Only a few groups are changed at a time: each change of a list is a short pause of its group. Idle topics are removed in
the same way, by another epoch with the same list.
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

RETURN_WINDOW = 8
"""Multiple of `balance_every`: a hand-over failed if this broker coordinates the group again within this time."""

MAX_PAUSE_FACTOR = 16
"""Multiple of `balance_every`: the longest pause between hand-overs for balance, after hand-overs that failed."""


REMOVALS_PER_TIMEOUT = 8
"""The largest number of epochs of a group that remove idle topics in one `topic_idle_timeout`. Each is a short pause of
the group."""

IDLE_TICKS = 20
"""Ticks in which every group's topics are examined once for idle ones: 2 s, a twentieth of the groups each tick."""


class GroupBalancer:
    """The changes of lists and coordinators that this broker starts by itself, in the groups that it coordinates, and
    the removal of their idle topics."""

    def __init__(
        self, ctx: Context, groups: GroupRegistry, membership: Membership, election: Election, gossip: GossipMap
    ) -> None:
        self.ctx = ctx
        self.groups = groups
        self.membership = membership
        self.election = election
        self.gossip = gossip
        self._wanted_since: dict[int, float] = {}  # group -> since when another list is wanted
        self._handing_over: dict[int, tuple[float, str]] = {}  # group -> (when, the successor)
        self._handed_over: dict[int, float] = {}  # group -> when, within the return window
        self._balanced_at = float("-inf")
        self._pause = ctx.config.balance_every  # between two groups that are moved for balance
        self._ticks = 0

    def tick(self) -> None:
        """Begin the changes that are due: of lists, for idle topics, and hand-overs, in a drain of all groups and
        otherwise for balance. Judge the earlier hand-overs. Nothing before the registration or without ZooKeeper."""
        if not (self.election.zookeeper.connected and self.membership.registered):
            return
        terms = self.groups.active_terms()
        self._relist(terms)
        self._remove_idle_topics(terms)
        self._judge_hand_overs({number for number, _ in terms})
        if self.ctx.draining:
            self._drain(terms)
        else:
            self._balance(terms)

    # ---- lists -----------------------------------------------------------------------------------------------

    def _relist(self, terms: list[tuple[int, Term]]) -> None:
        """LISTED-AFTER-CATCHING-UP: write the next record, with another list, for groups in which a learner caught up
        or a member is gone, once that has been wanted for `relist_delay`. Not more than `relist_at_once` groups change
        at a time. Nothing for a group in which fewer than `min_copies` brokers would be listed."""
        listed = {broker for _, term in terms for broker in term.record.members}
        gone = {broker for broker in listed if self.membership.gone(broker)}
        changing: int | None = None
        for number, term in terms:
            if gone.isdisjoint(term.record.members) and not term.followers.caught_up():
                self._wanted_since.pop(number, None)
                continue
            members = self.wanted_members(term)
            if set(members) == set(term.record.members) or len(members) < self.ctx.config.min_copies:
                self._wanted_since.pop(number, None)
                continue
            since = self._wanted_since.setdefault(number, self.ctx.now)
            if changing is None:
                changing = self._changing()
            if (
                self.ctx.now - since < self.ctx.config.relist_delay
                or changing >= self.ctx.config.relist_at_once
                or not self._may_renew(number)
            ):
                continue
            changing += 1
            del self._wanted_since[number]
            self.election.renew(number, term, members)

    def _may_renew(self, number: int) -> bool:
        """Return whether this broker may write the next record of a group that it coordinates: no request about the
        record or the ephemeral is under way, both exist in ZooKeeper as far as is known, this broker has not resigned,
        and no hand-over is pending.

        While ZooKeeper lacks the record, the term's version of it is of other data, and may be that of another record.
        """
        state = self.election.states[number]
        absent = state.absent_since is not None or state.unrecorded
        return not (state.busy or state.resigned or absent or number in self._handing_over)

    def _remove_idle_topics(self, terms: list[tuple[int, Term]]) -> None:
        """REMOVED-WITH-EPOCH: in groups that have idle topics, write the next record with the same list. The epoch that
        begins removes them. At most `REMOVALS_PER_TIMEOUT` such epochs of a group begin in one `topic_idle_timeout`.

        CALM-FIRST: nothing while the cluster is not calm. An older broker, which would not know what to do, is of
        another revision.
        """
        self._ticks += 1
        timeout = self.ctx.config.topic_idle_timeout
        if not self.ctx.calm:
            return
        for number, term in terms:
            if (
                number % IDLE_TICKS == self._ticks % IDLE_TICKS
                and self.ctx.now - term.started >= timeout / REMOVALS_PER_TIMEOUT
                and self._may_renew(number)
                and term.replica.idle_topics()
                and self._changing() < self.ctx.config.relist_at_once
            ):
                self.election.renew(number, term, list(term.record.members))

    def _changing(self) -> int:
        """Return the number of groups that this broker is changing: a request to ZooKeeper about the group is pending,
        or its term is not activated yet but has adopted the logs."""
        return sum(
            state.busy or (group.term is not None and group.term.phase in ("syncing", "activating"))
            for group, state in zip(self.groups, self.election.states, strict=True)
        )

    def wanted_members(self, term: Term) -> list[BrokerId]:
        """Return the member list that the term's group should have, sorted: members that are not gone, and learners
        that caught up."""
        remaining = [broker for broker in term.record.members if not self.membership.gone(broker)]
        return sorted({*remaining, *term.followers.caught_up()})

    # ---- hand-over -------------------------------------------------------------------------------------------

    def _successor(self, term: Term, below: float) -> str:
        """Return the name of the broker to hand the term's group to: the linked member, ready and not draining, that
        coordinates the fewest groups; of several the first by name. "" if none coordinates fewer than `below`. Pending
        hand-overs count for their successors."""
        counts = self.gossip.counts()
        for _, name in self._handing_over.values():
            counts[name] = counts.get(name, 0) + 1
        candidates = [
            (counts.get(name, 0), name)
            for name, incarnation in term.record.members
            if self.ctx.links.get(name) == incarnation
            and (member := self.membership.live.get(name)) is not None
            and member.ready
            and not member.draining
        ]
        count, name = min(candidates, default=(0, ""))
        return name if count < below else ""

    def _judge_hand_overs(self, led: set[int]) -> None:
        """Judge each hand-over whose outcome is clear, forget it, and double the pause between hand-overs for balance
        if any failed. One failed if the successor did not take over within the progress timeout, or the group came back
        within the return window. A hand-over that lasted for the window resets the pause.

        A hand-over that failed was a pause of its group for nothing, and more of them would load a busy broker further.
        `led`: the groups that this broker coordinates now.
        """
        config, now = self.ctx.config, self.ctx.now
        failed = 0
        for number, (at, _) in list(self._handing_over.items()):
            if number not in led:
                del self._handing_over[number]
                self._handed_over[number] = at
            elif now - at >= config.progress_timeout:
                del self._handing_over[number]
                failed += 1
        for number, at in list(self._handed_over.items()):
            if number in led:
                del self._handed_over[number]
                failed += 1
            elif now - at >= RETURN_WINDOW * config.balance_every:
                del self._handed_over[number]
                self._pause = config.balance_every
        if failed:
            self._pause = min(2 * self._pause, MAX_PAUSE_FACTOR * config.balance_every)

    def _drain(self, terms: list[tuple[int, Term]]) -> None:
        """Hand groups over until none is left, not more than `hand_over_at_once` at a time. A group without a possible
        successor is tried again at the next tick."""
        for number, term in terms:
            if len(self._handing_over) >= self.ctx.config.hand_over_at_once:
                return
            if number not in self._handing_over and not self.election.states[number].busy:
                self._hand_over(number, term, inf)

    def _balance(self, terms: list[tuple[int, Term]]) -> None:
        """Hand one group over if all configured brokers are ready and none drains, no hand-over is pending, the pause
        is over, and this broker coordinates at least two groups more than the configured broker with the fewest.

        The successor then has at most as many groups as this broker keeps. So balancing ends, even while the broker
        with the fewest cannot be reached.
        """
        config, live = self.ctx.config, self.membership.live
        if self.ctx.now - self._balanced_at < self._pause or self._handing_over:
            return
        if not all(name in live and live[name].ready and not live[name].draining for name in config.brokers):
            return
        counts = self.gossip.counts()
        fewest = min(counts.get(name, 0) for name in config.brokers)
        if len(terms) - fewest < 2:
            return
        self._balanced_at = self.ctx.now
        for number, term in terms:
            if not self.election.states[number].busy and self._hand_over(number, term, len(terms) - 1):
                return

    def _hand_over(self, number: int, term: Term, below: float) -> bool:
        """Ask the `_successor` of a group, by a `HandOver`, to take it over. Return whether there is one: of the
        members that may succeed, one that coordinates fewer than `below` groups. The term goes on until the successor's
        epoch is promised."""
        successor = self._successor(term, below)
        if not successor:
            return False
        self._handing_over[number] = (self.ctx.now, successor)
        self.ctx.note("info", "group_handed_over", group=number, epoch=term.epoch, to=successor)
        self.ctx.send(successor, HandOver(number, term.record.history, term.epoch))
        return True
