"""Groups without a ZooKeeper record, and histories that are lost, for `Election`: whether to write a group's first
record, to restore the one that ZooKeeper lost, or to begin a new history.

SURVEY: without a record the linked brokers are asked what they hold of the group. If nobody holds a promise or a copy,
the first record is written. Otherwise ZooKeeper has lost the record, which is restored from the copies (RESTORE-COUNT,
RESTORE-SOURCE); with too few of them the history is lost. A record is restored again if the epoch that it was restored
from never was activated, and no copy of that is left (RESTORE-AGAIN). LOST, with a record: so many incarnations of the
source list were replaced by newer ones that neither n - q + 1 answers nor the owner's can ever come. A new history
waits until replaced processes have fenced themselves, and is begun under `reset` only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from migratory_protocol.peer import BrokerId, HeldCopy, Survey, SurveyReply

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import ZkReply
from migratory_broker.core.logic.membership.epochs import EPOCH_SLACK
from migratory_broker.core.logic.membership.membership import Membership
from migratory_broker.core.logic.membership.records import BROKERS, SourceEpoch, incarnation_in
from migratory_broker.core.logic.membership.zookeeper import ZkRequests
from migratory_broker.core.logic.replication.group import GroupRegistry

REFRESH_INTERVAL = 1.0
"""Seconds between two reads of all incarnations from ZooKeeper, while some group cannot be taken over."""

SURVEY_TIMEOUT = 2.0
"""Seconds for which a survey waits for answers, and after its end for which its result may be used."""


@dataclass(slots=True)
class SurveyRound:
    """A survey that is running or has ended: the groups asked about, the peers whose answers are awaited, and the
    promises, copies and clocks reported so far. `asked_at` and `ended_at` are of the logic's clock."""

    groups: list[int]
    awaited: set[str]
    asked_at: float
    promised: dict[int, dict[BrokerId, int]] = field(default_factory=dict)  # group -> highest epoch, by broker
    copies: dict[int, dict[BrokerId, HeldCopy]] = field(default_factory=dict)  # group -> its copies, by broker
    answered: list[BrokerId] = field(default_factory=list)  # this broker included
    clock: int = 0  # the wall clock that is furthest ahead, in milliseconds
    ended_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """The decision about a group without a record, or with a restored one that cannot be continued: write its "first"
    one, "restore" it from the copies of the brokers, treat its history as "lost", or "wait". `reason` says why, for
    "lost" and "wait". `known` is the highest epoch that a broker has promised, `clock` the least epoch of the record to
    write. `copy` and `source` are for "restore": the copy that the record continues, and the record's source."""

    action: Literal["first", "restore", "lost", "wait"]
    reason: str = ""
    known: int = 0
    clock: int = 0
    copy: HeldCopy | None = None
    source: SourceEpoch | None = None


class Histories:
    """The surveys of groups without a record, and the lost histories, each with the time since which it is lost.
    `resets` counts the new histories that this broker began in place of lost ones."""

    def __init__(self, ctx: Context, groups: GroupRegistry, zookeeper: ZkRequests, membership: Membership) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self.membership = membership
        self.groups = groups
        self.resets = 0
        self._newest: dict[str, int] = {}  # the highest incarnation in /brokers/<name>, by name
        self._refreshed_at = float("-inf")
        self._lost_since: dict[int, tuple[int, float]] = {}  # group -> (lost epoch, since when)
        self._to_survey: set[int] = set()  # groups for the next round
        self._results: dict[int, SurveyRound] = {}  # group -> the last survey; for one attempt
        self._round: SurveyRound | None = None
        self._serial = 0
        self._halted: set[int] = set()

    # ---- the first record ------------------------------------------------------------------------------------

    def bootstrap(self, number: int, refuted: SourceEpoch | None = None) -> Unrecorded | None:
        """Return the decision about a group without a record by a survey that has just ended. Return "wait" while
        configured brokers are missing, but not for longer after the registration than `bootstrap_wait` and
        `history_wait_sessions` session timeouts, whichever is more. Otherwise schedule a survey and return None: ask
        again until it has ended. `refuted`: the source of the group's restored record, which never was activated
        (RESTORE-AGAIN), None without such a record."""
        result = self._results.pop(number, None)
        if result is not None and self.ctx.now - result.ended_at <= SURVEY_TIMEOUT:
            return self._judge(number, result, refuted)
        config, registered = self.ctx.config, self.membership.registered_at
        # What other brokers may have held before ZooKeeper lost its data is fenced by then.
        longest = max(config.bootstrap_wait, config.history_wait_sessions * config.session_timeout)
        if self._missing() and (registered is None or self.ctx.now - registered < longest):
            return Unrecorded("wait", "waiting for brokers before the first record")
        self._to_survey.add(number)
        return None

    def _missing(self) -> list[str]:
        """Return the names of the configured brokers that have no ephemeral, or, but for this broker, no link to this
        one."""
        config, live = self.ctx.config, self.membership.live
        return [
            name for name in config.brokers if name not in live or not (name in self.ctx.links or name == config.name)
        ]

    def _judge(self, number: int, survey: SurveyRound, refuted: SourceEpoch | None) -> Unrecorded:
        """Return the decision about a group by a survey that has just ended. Note that the history is lost if it is.
        `refuted` is as in `bootstrap`."""
        promised = survey.promised.get(number)
        if not promised:
            return Unrecorded("first", clock=survey.clock)
        known = max(promised.values())
        copies = survey.copies.get(number, {})
        # RESTORE-COUNT: of an epoch to which no member of its list is synced, nothing was committed
        listed = [other for broker, other in copies.items() if broker in other.members]
        if not listed:
            return self._unknown(number, known, survey)
        copy = max(listed, key=lambda copy: copy.synced)
        newest = {broker: other for broker, other in copies.items() if other.synced == copy.synced}
        members = [broker for broker in survey.answered if broker in copy.members]
        names = {*self.ctx.config.brokers, *(name for name, _ in copy.members)}
        activated = any(other.activated for other in newest.values())
        # RESTORE-COUNT: no later epoch was activated without a promise of one of these
        unpromised = [broker for broker in members if promised.get(broker, 0) <= copy.synced]
        is_last = activated and copy.owner in unpromised and len(unpromised) >= copy.copies
        if len(names) - len(members) > copy.copies - 1 and not is_last:
            # RESTORE-COUNT: a later epoch may have been activated, and its copies be among the others
            return self._unknown(number, known, survey)
        if refuted is not None and any(
            other.synced >= refuted.epoch for broker, other in copies.items() if broker in refuted.members
        ):
            return Unrecorded("wait", "waiting for the promise of a broker that holds the log of the last epoch")
        if refuted is None and any(other.leads and broker != self.ctx.me for broker, other in newest.items()):
            return Unrecorded("wait", "ZooKeeper lost its record; its coordinator restores it")
        # RESTORE-SOURCE: a member of a later epoch, which was activated, may follow a still later one as a learner
        synced = max(copies[broker].synced for broker in members if broker in copies)
        source = SourceEpoch(synced, copy.members, copy.copies, copy.owner)
        return Unrecorded("restore", known=known, clock=survey.clock, copy=copy, source=source)

    def _unknown(self, number: int, known: int, survey: SurveyRound) -> Unrecorded:
        """Return the decision "wait" if configured brokers that did not answer may hold copies. Otherwise note that the
        history is lost, and return "lost"."""
        missing = sorted(set(self.ctx.config.brokers).difference(name for name, _ in survey.answered))
        if missing:
            return Unrecorded("wait", f"ZooKeeper lost its record; waiting for the copy of {', '.join(missing)}")
        self._mark_lost(number, known)
        reason = "history unknown: ZooKeeper lost its record, and too few brokers hold copies"
        return Unrecorded("lost", reason, known, survey.clock)

    def survey(self) -> None:
        """Begin a survey of the groups for which one is scheduled: ask all linked brokers what they hold. While one
        runs, only give it up if it has taken longer than `SURVEY_TIMEOUT`. Without any linked broker it ends at
        once."""
        survey = self._round
        if survey is not None:
            if self.ctx.now - survey.asked_at > SURVEY_TIMEOUT:
                self._round = None
            return
        if not self._to_survey:
            return
        groups, self._to_survey = sorted(self._to_survey), set()
        self._serial += 1
        survey = self._round = SurveyRound(groups, set(self.ctx.links), self.ctx.now)
        self._add(survey, self.ctx.me, self.holdings(0, groups))
        for peer in sorted(survey.awaited):
            self.ctx.send(peer, Survey(self._serial, groups))
        self._finish()

    def holdings(self, serial: int, groups: list[int]) -> SurveyReply:
        """Return the answer to the survey `serial`: the promises and copies that this broker holds of these groups, and
        its wall clock. Groups that do not exist are left out."""
        asked = [self.groups[number] for number in groups if 0 <= number < len(self.groups)]
        held = [
            (group.number, group.replica.promised) for group in asked if group.replica.promised or group.replica.topics
        ]
        copies = []
        for group in asked:
            replica, view, term = group.replica, group.replica.view, group.term
            if view is not None:
                leads = term is not None and term.active and not self.ctx.draining
                copies.append(
                    HeldCopy(
                        group.number,
                        replica.history,
                        replica.first,
                        view.epoch,
                        view.owner,
                        list(view.members),
                        view.copies,
                        view.activated,
                        leads,
                    )
                )
        return SurveyReply(serial, held, copies, max(int(self.ctx.wall * 1000), 0))

    def survey_reply(self, peer: str, message: SurveyReply) -> None:
        """Add a peer's answer to the running survey, and end that with the last answer. Ignore the answer to another
        survey, or of a peer that is not awaited."""
        survey = self._round
        if survey is None or message.serial != self._serial or peer not in survey.awaited:
            return
        self._add(survey, (peer, self.ctx.links[peer]), message)
        survey.awaited.discard(peer)
        self._finish()

    def _add(self, survey: SurveyRound, broker: BrokerId, reply: SurveyReply) -> None:
        """Add a broker's answer to a survey. A clock that is more than `EPOCH_SLACK` ahead of the own one does not
        count, and is logged."""
        survey.answered.append(broker)
        ahead = reply.clock - int(self.ctx.wall * 1000)
        if ahead <= EPOCH_SLACK:
            survey.clock = max(survey.clock, reply.clock)
        else:
            self.ctx.note("warning", "clocks_differ", broker=broker[0], seconds=ahead / 1000)
        for number, epoch in reply.groups:
            survey.promised.setdefault(number, {})[broker] = epoch
        for copy in reply.copies:
            survey.copies.setdefault(copy.group, {})[broker] = copy

    def peer_down(self, peer: str) -> None:
        """Give up the running survey if it waits for `peer`, which may hold something. The candidates then schedule
        another one."""
        if self._round is not None and peer in self._round.awaited:
            self._round = None  # the peer may hold something: start over

    def _finish(self) -> None:
        """End the running survey if no answer is awaited, and keep it as the result for its groups."""
        survey = self._round
        if survey is None or survey.awaited:
            return
        self._round = None
        survey.ended_at = self.ctx.now
        for number in survey.groups:
            self._results[number] = survey  # the candidate reads again first: a record may have been written since

    def forget_surveys(self) -> None:
        """Forget all surveys, also scheduled ones: ZooKeeper was away, and groups without a copy then may have some
        now."""
        self._results.clear()
        self._to_survey.clear()
        self._round = None

    # ---- lost histories --------------------------------------------------------------------------------------

    def lost(self, number: int, source: SourceEpoch) -> bool:
        """Return whether so many members of the source list were replaced by newer incarnations that enough promises
        can never come. Note since when, and forget that when it is no longer so. Request the newest incarnations from
        ZooKeeper, for later calls, once in `REFRESH_INTERVAL`."""
        self._refresh()
        newest = self.membership.newest
        remaining = [
            (name, incarnation)
            for name, incarnation in source.members
            if max(self._newest.get(name, 0), newest.get(name, 0)) <= incarnation
        ]
        if source.enough(remaining):
            self._lost_since.pop(number, None)
            return False
        self._mark_lost(number, source.epoch)
        return True

    def _mark_lost(self, number: int, epoch: int) -> None:
        """Note that the group's history is lost since now, as of its last epoch `epoch`, unless a loss as of this epoch
        is noted already. The wait before a new history counts from this time."""
        if self._lost_since.get(number, (-1, 0.0))[0] != epoch:
            self._lost_since[number] = (epoch, self.ctx.now)

    def _refresh(self) -> None:
        """Request the newest incarnation of each configured broker from ZooKeeper, unless that was done less than
        `REFRESH_INTERVAL` ago."""
        if self.ctx.now - self._refreshed_at < REFRESH_INTERVAL:
            return
        self._refreshed_at = self.ctx.now
        for name in self.ctx.config.brokers:
            self._read(name)

    def _read(self, name: str) -> None:
        """Request the incarnation in a broker's node. It is recorded when it is higher than the last one that was
        read."""

        def receive(reply: ZkReply) -> None:
            if reply.outcome == "ok" and reply.node is not None:
                incarnation = incarnation_in(reply.node.data, reply.node.version)
                self._newest[name] = max(incarnation, self._newest.get(name, 0))

        self.zookeeper.get(f"{BROKERS}/{name}", receive)

    def may_begin(self, number: int) -> bool:
        """NEW-HISTORY-WAITS: return whether a new history may begin: the loss has lasted so long that replaced
        processes have fenced themselves. Always False under `halt`, and for a history that is not noted as lost.

        Under `halt` an operator decides. That is logged once until the loss is over, and only after the same wait: a
        ZooKeeper server that lags may show for a while that there is no record.
        """
        config = self.ctx.config
        _, since = self._lost_since.get(number, (0, self.ctx.now))
        waited = self.ctx.now - since >= config.history_wait_sessions * config.session_timeout
        if config.on_history_loss == "halt":
            if waited and number not in self._halted:
                self._halted.add(number)
                self.ctx.note("error", "history_lost_halted", group=number)
            return False
        return waited

    def is_lost(self, number: int) -> bool:
        """Return whether the group's history is noted as lost now."""
        return number in self._lost_since

    def resolved(self, number: int) -> None:
        """Forget the loss, the survey's result and the halt of a group that continues or whose new history began."""
        self._lost_since.pop(number, None)
        self._results.pop(number, None)
        self._halted.discard(number)
