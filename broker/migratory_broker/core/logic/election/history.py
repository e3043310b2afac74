"""The beginning of a group's history, for `Election`: before its first ZooKeeper record, and after the loss of so many
copies that no takeover is possible.

SURVEY: without a record the live brokers are asked whether they hold a promise or entries. If one does, the history is
unknown and only a new one can continue the group. LOST: so many incarnations of the source list were replaced by newer
ones that neither n - q + 1 answers nor the owner's can ever come. A new history waits until replaced processes have
fenced themselves, and is begun under `reset` only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from migratory_protocol.peer import Survey, SurveyReply

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import ZkReply
from migratory_broker.core.logic.membership.membership import Membership
from migratory_broker.core.logic.membership.records import BROKERS, SourceEpoch
from migratory_broker.core.logic.membership.zookeeper import ZkRequests
from migratory_broker.core.logic.replication.group import GroupRegistry

REFRESH_INTERVAL = 1.0
"""Seconds between two reads of all incarnations from ZooKeeper, while some group cannot be taken over."""

SURVEY_TIMEOUT = 2.0
"""Seconds for which a survey waits for answers, and for which a survey that found nothing permits a first record."""


@dataclass(slots=True)
class SurveyRound:
    """A running survey: the groups asked about, the peers whose answers are awaited, and the epochs reported so far."""

    groups: list[int]
    awaited: set[str]
    asked_at: float
    held: dict[int, int] = field(default_factory=dict)  # group -> highest epoch that anybody holds


class Histories:
    """The surveys before first records, and the record of lost histories with the wait before a new one."""

    def __init__(self, ctx: Context, groups: GroupRegistry, zookeeper: ZkRequests, membership: Membership) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self.membership = membership
        self.groups = groups
        self.resets = 0
        self._versions: dict[str, int] = {}  # /brokers/<name>: the newest incarnation
        self._refreshed_at = float("-inf")
        self._lost_since: dict[int, tuple[int, float]] = {}  # group -> (lost epoch, since); another broker may continue
        self._to_survey: set[int] = set()  # groups for the next round
        self._clear: dict[int, float] = {}  # group -> when a survey found nothing; valid for one attempt, soon
        self._held: dict[int, int] = {}  # group -> epoch that a survey found at some broker
        self._round: SurveyRound | None = None
        self._serial = 0
        self._halted: set[int] = set()

    # ---- the first record ------------------------------------------------------------------------------------

    def bootstrap(self, number: int) -> Literal["first", "lost", "wait", ""]:
        """Return what to do about a group without a record: write the "first", treat it as "lost" because a broker
        holds something, "wait" for brokers, or "" while a survey runs. If a survey is needed, schedule it. The result
        of a survey permits "first" once."""
        if self.ctx.now - self._clear.pop(number, float("-inf")) <= SURVEY_TIMEOUT:
            return "first"
        if number in self._held:
            self._mark_lost(number, self._held[number])
            return "lost"
        config, membership = self.ctx.config, self.membership
        complete = all(
            name in membership.live and (name in self.ctx.links or name == config.name) for name in config.brokers
        )
        registered = membership.registered_at
        if not complete and (registered is None or self.ctx.now - registered < config.bootstrap_wait):
            return "wait"
        self._to_survey.add(number)
        return ""

    def known_epoch(self, number: int) -> int:
        return self._held.get(number, 0)

    def survey(self) -> None:
        """Begin a survey of the groups for which one is scheduled: ask all linked brokers what they hold. While one
        runs, only give it up if it has taken longer than `SURVEY_TIMEOUT`."""
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
        for number, epoch in self.holdings(groups):
            survey.held[number] = epoch
        for peer in sorted(survey.awaited):
            self.ctx.send(peer, Survey(self._serial, groups))
        self._finish()

    def holdings(self, groups: list[int]) -> list[tuple[int, int]]:
        """Return (group, highest epoch) of each group of which this broker holds a promise or entries."""
        return [
            (number, self.groups[number].replica.promised)
            for number in groups
            if 0 <= number < len(self.groups)
            and (self.groups[number].replica.promised or self.groups[number].replica.topics)
        ]

    def survey_reply(self, peer: str, message: SurveyReply) -> None:
        survey = self._round
        if survey is None or message.serial != self._serial or peer not in survey.awaited:
            return
        for number, epoch in message.groups:
            survey.held[number] = max(epoch, survey.held.get(number, 0))
        survey.awaited.discard(peer)
        self._finish()

    def peer_down(self, peer: str) -> None:
        if self._round is not None and peer in self._round.awaited:
            self._round = None  # it may hold something: start over

    def _finish(self) -> None:
        survey = self._round
        if survey is None or survey.awaited:
            return
        self._round = None
        for number in survey.groups:
            if number in survey.held:
                # The candidate reads the record again before this counts: it may have been written since.
                self._held[number] = max(survey.held[number], self._held.get(number, 0))
            else:
                self._clear[number] = self.ctx.now

    # ---- lost histories --------------------------------------------------------------------------------------

    def lost(self, number: int, source: SourceEpoch) -> bool:
        """Return whether so many members of the source list were replaced by newer incarnations that enough promises
        can never come. Record when this was first seen, and remove that record when it is no longer so. Request newer
        incarnations from ZooKeeper, for later calls."""
        self._refresh()
        newest = self.membership.newest
        remaining = [
            (name, incarnation)
            for name, incarnation in source.members
            if max(self._versions.get(name, 0), newest.get(name, 0)) <= incarnation
        ]
        if source.enough(remaining):
            self._lost_since.pop(number, None)
            return False
        self._mark_lost(number, source.epoch)
        return True

    def _mark_lost(self, number: int, epoch: int) -> None:
        """Record that the group's history was lost in `epoch`, from now on, unless that is recorded already. The wait
        before a new history counts from this time."""
        if self._lost_since.get(number, (-1, 0.0))[0] != epoch:
            self._lost_since[number] = (epoch, self.ctx.now)

    def _refresh(self) -> None:
        if self.ctx.now - self._refreshed_at < REFRESH_INTERVAL:
            return
        self._refreshed_at = self.ctx.now
        for name in self.ctx.config.brokers:
            self._read(name)

    def _read(self, name: str) -> None:
        def receive(reply: ZkReply) -> None:
            if reply.outcome == "ok" and reply.node is not None:
                self._versions[name] = max(reply.node.version, self._versions.get(name, 0))

        self.zookeeper.get(f"{BROKERS}/{name}", receive)

    def may_begin(self, number: int) -> bool:
        """NEW-HISTORY-WAITS: return whether a new history may begin: the loss has lasted so long that replaced
        processes have fenced themselves. Always False under `halt`.

        Under `halt` an operator decides. The log says so only after the same wait: a ZooKeeper server that lags may
        show for a while that there is no record.
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

    def resolved(self, number: int) -> None:
        """Forget the loss, the surveys and the halt of a group that continues or whose new history began."""
        self._lost_since.pop(number, None)
        self._held.pop(number, None)
        self._clear.pop(number, None)
        self._halted.discard(number)
