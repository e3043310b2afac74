"""Before a group's first record, and after its memory is gone.

SURVEY: without a record the live brokers are asked whether they hold a promise or entries; if one does, the history is
unknown and only a new one goes on. LOST: so many incarnations of the source list were replaced by newer ones that
neither n - q + 1 answers nor the owner's can ever come. A new history waits until replaced processes have fenced
themselves, and is begun under `reset` only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from migratory_protocol.peer import Survey, SurveyReply

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import ZkReply
from migratory_broker.core.logic.membership.membership import Membership
from migratory_broker.core.logic.membership.records import BROKERS, SourceEpoch
from migratory_broker.core.logic.membership.zookeeper import ZkRequests
from migratory_broker.core.logic.replication.group import GroupRegistry

REFRESH = 1.0  # seconds between two readings of the incarnations
SURVEY_TIMEOUT = 2.0


@dataclass(slots=True)
class SurveyRound:
    """A survey under way."""

    groups: list[int]
    awaited: set[str]
    asked_at: float
    found: dict[int, int] = field(default_factory=dict)  # group -> highest epoch held


class Histories:
    def __init__(self, ctx: Context, groups: GroupRegistry, zookeeper: ZkRequests, membership: Membership) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self.membership = membership
        self.groups = groups
        self.resets = 0
        self._versions: dict[str, int] = {}  # /brokers/<name>: the newest incarnation
        self._refreshed_at = float("-inf")
        self._lost_since: dict[int, tuple[int, float]] = {}  # with the epoch that was lost: another broker may go on
        self._asked: set[int] = set()  # to be surveyed with the next question
        self._clear: dict[int, float] = {}  # surveyed then: nobody holds anything; good for one attempt, soon
        self._held: dict[int, int] = {}  # surveyed: somebody holds this epoch
        self._question: SurveyRound | None = None
        self._serial = 0
        self._halted: set[int] = set()

    # ---- the first record ------------------------------------------------------------------------------------

    def bootstrap(self, number: int) -> str:
        """What is to be done about a group without a record: "first", "lost", "wait", or "" (a survey runs)."""
        if self.ctx.now - self._clear.pop(number, float("-inf")) <= SURVEY_TIMEOUT:
            return "first"
        if number in self._held:
            self._is_lost(number, self._held[number])
            return "lost"
        config, membership = self.ctx.config, self.membership
        everybody = all(
            name in membership.live and (name in self.ctx.links or name == config.name) for name in config.brokers
        )
        registered = membership.registered_at
        if not everybody and (registered is None or self.ctx.now - registered < config.bootstrap_wait):
            return "wait"
        self._asked.add(number)
        return ""

    def known_epoch(self, number: int) -> int:
        return self._held.get(number, 0)

    def survey(self) -> None:
        """Ask about all groups that were found without a record, in one question."""
        question = self._question
        if question is not None:
            if self.ctx.now - question.asked_at > SURVEY_TIMEOUT:
                self._question = None
            return
        if not self._asked:
            return
        groups, self._asked = sorted(self._asked), set()
        self._serial += 1
        question = self._question = SurveyRound(groups, set(self.ctx.links), self.ctx.now)
        for number, epoch in self.holdings(groups):
            question.found[number] = epoch
        for peer in sorted(question.awaited):
            self.ctx.send(peer, Survey(self._serial, groups))
        self._finish()

    def holdings(self, groups: list[int]) -> list[tuple[int, int]]:
        """(group, highest epoch) where this broker holds a promise or entries."""
        return [
            (number, self.groups[number].replica.promised)
            for number in groups
            if 0 <= number < len(self.groups)
            and (self.groups[number].replica.promised or self.groups[number].replica.topics)
        ]

    def survey_reply(self, peer: str, message: SurveyReply) -> None:
        question = self._question
        if question is None or message.serial != self._serial or peer not in question.awaited:
            return
        for number, epoch in message.groups:
            question.found[number] = max(epoch, question.found.get(number, 0))
        question.awaited.discard(peer)
        self._finish()

    def peer_down(self, peer: str) -> None:
        if self._question is not None and peer in self._question.awaited:
            self._question = None  # it may hold something: ask again

    def _finish(self) -> None:
        question = self._question
        if question is None or question.awaited:
            return
        self._question = None
        for number in question.groups:
            if number in question.found:
                # The candidate reads again before this counts: the record may have been written since.
                self._held[number] = max(question.found[number], self._held.get(number, 0))
            else:
                self._clear[number] = self.ctx.now

    # ---- lost histories --------------------------------------------------------------------------------------

    def lost(self, number: int, source: SourceEpoch) -> bool:
        """Whether the source list's promises can never come: told by the incarnations that ZooKeeper knows."""
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
        self._is_lost(number, source.epoch)
        return True

    def _is_lost(self, number: int, epoch: int) -> None:
        """Since now, unless that is known: each loss is waited for from its own beginning."""
        if self._lost_since.get(number, (-1, 0.0))[0] != epoch:
            self._lost_since[number] = (epoch, self.ctx.now)

    def _refresh(self) -> None:
        if self.ctx.now - self._refreshed_at < REFRESH:
            return
        self._refreshed_at = self.ctx.now
        for name in self.ctx.config.brokers:
            self._read(name)

    def _read(self, name: str) -> None:
        def then(reply: ZkReply) -> None:
            if reply.outcome == "ok" and reply.node is not None:
                self._versions[name] = max(reply.node.version, self._versions.get(name, 0))

        self.zookeeper.get(f"{BROKERS}/{name}", then)

    def may_begin(self, number: int) -> bool:
        """NEW-HISTORY-WAITS: longer than replaced processes need to fence themselves. `halt` waits for a person, and
        calls one no sooner: a member of ZooKeeper that lags may show for a while that there is no record."""
        config = self.ctx.config
        _, since = self._lost_since.get(number, (0, self.ctx.now))
        waited = self.ctx.now - since >= config.history_wait_sessions * config.session_timeout
        if config.on_history_loss == "halt":
            if waited and number not in self._halted:
                self._halted.add(number)
                self.ctx.note("error", "history_lost_halted", group=number)
            return False
        return waited

    def found(self, number: int) -> None:
        """The group goes on: nothing is lost, or a new history began."""
        self._lost_since.pop(number, None)
        self._held.pop(number, None)
        self._clear.pop(number, None)
        self._halted.discard(number)
