"""Checks that a broker delays its clients and groups only with a reason, and raises `Violation` when it does not.

What a broker gives up without a reason breaks no order: another broker takes over or the client tries again, so that
only time is lost. The checks are made where the logic decides, or after its ticks, from what the broker knew then. So
they hold however slow a run is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from migratory_broker.core.logic.events import DrainClients, Note, ZkCheck, ZkCommit, ZkCreate, ZkDelete, ZkWrite
from migratory_broker.core.logic.membership.records import COORDINATORS, GROUPS, decode_group
from migratory_protocol.messages import Ack, Nack
from migratory_protocol.peer import EpochRefused

from migratory_simulation.external_checker import Violation

if TYPE_CHECKING:
    from migratory_simulation.process import Process

SLACK = 0.001
"""Seconds of tolerance for rounding of virtual times."""


class ProgressChecker:
    """The refusals, resignations and requests to clients of one broker process, checked against what it holds."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.committed_at: dict[int, float] = {}  # group -> when its coordinator, this broker, last committed
        self._resigned: set[int] = set()  # groups from which it resigned since it wrote their record
        self._unanswered: dict[tuple[str, str, int], float] = {}  # publications, since when at the latest
        self._drains: tuple[float, float] | None = None  # moment and period of the first request to drain

    def _fail(self, text: str) -> None:
        raise Violation(7, f"{self._process.label} {text}")

    def noted(self, note: Note) -> None:
        """Record that this broker wrote a group's record, or resigned from the group."""
        if note.event == "record_written":
            self._resigned.discard(int(str(note.fields["group"])))
        elif note.event == "resigned":
            self._resigned.add(int(str(note.fields["group"])))

    def refuses(self, refusal: EpochRefused) -> None:
        """Check PROMISE: an epoch of this replica's own history is refused only for a higher promise. Raise Violation
        otherwise."""
        term = self._process.world.internal.epochs.get((refusal.group, refusal.epoch))
        same = term is not None and term.record.history == self._process.replica(refusal.group).history
        if same and refusal.promised <= refusal.epoch:
            self._fail(f"refuses epoch {refusal.epoch} of group {refusal.group}, though it promised no higher one")

    def commits(self, request: ZkCommit) -> None:
        """Check LET-GO and PROGRESS in a transaction that the broker requests: an activated term is given up only after
        this broker resigned, and its record is written again, with the same list, only when nothing was committed for a
        progress timeout. Raise Violation otherwise."""
        operations = request.operations
        created = {operation.path for operation in operations if isinstance(operation, ZkCreate)}
        checked = {operation.path for operation in operations if isinstance(operation, ZkCheck)}
        for operation in operations:
            folder, _, name = operation.path.rpartition("/")
            if folder == COORDINATORS and isinstance(operation, ZkDelete):
                if operation.path not in created and f"{GROUPS}/{name}" in checked:  # else all rolled-back data goes
                    self._gives_up(int(name))
            elif folder == GROUPS and isinstance(operation, ZkWrite):
                self._rewrites(int(name), operation.data)

    def _gives_up(self, group: int) -> None:
        """Check that a broker that deletes its ephemeral of a group which it coordinates has resigned. Raise Violation
        otherwise."""
        term = self._process.logic.groups[group].term
        if term is not None and term.active and group not in self._resigned:
            self._fail(f"deletes its ephemeral of group {group}, which it coordinates, and has not resigned")

    def _rewrites(self, group: int, data: bytes) -> None:
        """Check that a coordinator writes its group's record again with the same list only when nothing was committed
        for a progress timeout. Raise Violation otherwise. Where idle topics are removed, check nothing."""
        process, record = self._process, decode_group(data)
        term = process.logic.groups[group].term
        removes = process.world.options.topic_idle > 0.0  # idle topics leave with an epoch of the same list
        if term is None or not term.active or term.outbid or removes or record.activated:
            return
        if record.owner != term.record.owner or set(record.members) != set(term.record.members):
            return
        silent = process.local_now() - self.committed_at.get(group, 0.0)
        if record.copies == term.record.copies and silent < process.logic.config.progress_timeout - SLACK:
            self._fail(f"writes the record of group {group} again, {silent:.2f} s after a commit")

    def answered(self, answers: Iterable[Ack | Nack]) -> None:
        """Record that publications are answered."""
        for answer in answers:
            self._unanswered.pop((answer.topic, answer.publisher, answer.id), None)

    def ticked(self) -> None:
        """Check, after each tick of the logic, that no wait with a limit is over: of publications for their answer, of
        subscriptions for their receipt, and of takeovers that ZooKeeper does not delay. Raise Violation otherwise."""
        logic, now = self._process.logic, self._process.local_now()
        for key in logic.answers.pending:
            if now - self._unanswered.setdefault(key, now) > logic.config.publish_wait + SLACK:
                self._fail(f"has not answered the publication {key} within {logic.config.publish_wait:.2f} s")
        for topics in logic.resume.waiting.values():
            for topic, waiting in topics.items():
                if now - min(one.begun for one in waiting) > logic.config.resume_limit + SLACK:
                    self._fail(f"lets a subscription to {topic} wait for more than {logic.config.resume_limit:.2f} s")
        if logic.zookeeper.connected and logic.membership.registered:
            for group, state in zip(logic.groups, logic.election.states, strict=True):
                term = group.term
                if term is None or term.active or term.phase == "over" or state.busy or now < state.not_before:
                    continue
                if now - term.started > logic.config.progress_timeout + SLACK and state.unsure is None:
                    self._fail(f"does nothing about its epoch {term.epoch}, which is not activated in time")

    def drains(self, period: float) -> None:
        """Record the first request to drain, with its period in seconds."""
        if self._drains is None:
            self._drains = (self._process.local_now(), period)

    def drains_clients(self, effect: DrainClients) -> None:
        """Check DRAIN-ORDER: clients are asked to leave when the groups are handed over, or after a quarter of the
        period. Raise Violation otherwise."""
        process = self._process
        began, period = self._drains or (0.0, 0.0)
        if process.local_now() - began >= period / 4 - SLACK:
            return
        for group, record in process.world.internal.latest.items():
            replica = process.replica(group)
            if record.activated and tuple(record.owner) == process.identity and replica.promised == record.epoch:
                self._fail(f"asks its clients to leave before it has handed over group {group}: {effect}")
