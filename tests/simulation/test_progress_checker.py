"""The progress checker detects epochs that are refused, terms that are given up, records that are written again and
clients that are asked to leave without a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from migratory_broker.core.logic.events import Attach, DrainClients, Note, ZkCheck, ZkCommit, ZkDelete, ZkWrite
from migratory_broker.core.logic.membership.records import COORDINATORS, GROUPS, encode
from migratory_broker.core.logic.serving.answers import PendingAnswer
from migratory_broker.core.logic.serving.resume import WaitingSubscription
from migratory_protocol.messages import Ack
from migratory_protocol.peer import EpochRefused
from migratory_simulation.external_checker import Violation
from migratory_simulation.options import draw_options
from migratory_simulation.plans import Plan
from migratory_simulation.process import Process
from migratory_simulation.world import World

EPHEMERAL = f"{COORDINATORS}/0"
RECORD = f"{GROUPS}/0"


@pytest.fixture
def coordinator() -> Process:
    """Return the coordinator of group 0 of a cluster that has run without faults."""
    drawn = draw_options(16, "short")
    world = World(replace(drawn, plan=Plan(True, ()), topic_idle=0.0))
    world.run()
    process = world.internal.process_of(world.internal.latest[0].owner)
    assert process is not None
    return process


def test_refusal_without_a_higher_promise_is_a_violation(coordinator: Process) -> None:
    epoch = coordinator.replica(0).promised
    coordinator.progress.refuses(EpochRefused(0, epoch, epoch + 1))
    coordinator.progress.refuses(EpochRefused(0, epoch + 5, epoch))  # of a record that nobody wrote
    with pytest.raises(Violation, match=f"refuses epoch {epoch} of group 0, though it promised no higher one"):
        coordinator.progress.refuses(EpochRefused(0, epoch, epoch))


def test_ephemeral_of_an_active_term_is_deleted_only_after_resigning(coordinator: Process) -> None:
    lets_go = ZkCommit(1, (ZkCheck(RECORD, 3), ZkDelete(EPHEMERAL, 0)))
    coordinator.progress.commits(ZkCommit(1, (ZkDelete(EPHEMERAL, 0),)))  # with all data that was rolled back
    with pytest.raises(Violation, match="deletes its ephemeral of group 0"):
        coordinator.progress.commits(lets_go)
    coordinator.progress.noted(Note("warning", "resigned", {"group": 0}))
    coordinator.progress.commits(lets_go)
    coordinator.progress.noted(Note("info", "record_written", {"group": 0}))
    with pytest.raises(Violation, match="deletes its ephemeral of group 0"):
        coordinator.progress.commits(lets_go)


def test_record_is_written_again_only_without_progress(coordinator: Process) -> None:
    term = coordinator.logic.groups[0].term
    assert term is not None
    members = list(term.record.members)

    def writes(listed: list[tuple[str, int]]) -> None:
        following = term.record.next(coordinator.identity, listed, term.record.copies)
        coordinator.progress.commits(ZkCommit(1, (ZkWrite(RECORD, encode(following), 1),)))

    now, timeout = coordinator.local_now(), coordinator.logic.config.progress_timeout
    coordinator.progress.committed_at[0] = now - timeout / 2
    writes(members[1:])  # another list
    with pytest.raises(Violation, match=r"writes the record of group 0 again, .* after a commit"):
        writes(members)
    coordinator.progress.committed_at[0] = now - timeout
    writes(members)
    coordinator.progress.committed_at[0] = now
    term.outbid = term.epoch + 1
    writes(members)


def test_clients_are_asked_to_leave_after_the_hand_over(coordinator: Process) -> None:
    asks = DrainClients(3.0, ())
    coordinator.progress.drains(4.0)
    with pytest.raises(Violation, match="asks its clients to leave before it has handed over group"):
        coordinator.progress.drains_clients(asks)
    coordinator.offset += 1.0  # a quarter of the period later
    coordinator.progress.drains_clients(asks)


def test_publication_without_an_answer_in_time_is_a_violation(coordinator: Process) -> None:
    key = ("t0", "somebody", 1)
    coordinator.logic.answers.add(key, PendingAnswer("", 0.0, ()), b"")
    coordinator.progress.ticked()
    coordinator.offset += coordinator.logic.config.publish_wait
    coordinator.progress.ticked()
    coordinator.offset += 0.1
    with pytest.raises(Violation, match="has not answered the publication"):
        coordinator.progress.ticked()
    coordinator.progress.answered([Ack(*key, None)])
    coordinator.progress.ticked()  # it was sent again, and waits anew


def test_takeover_that_is_left_alone_is_a_violation(coordinator: Process) -> None:
    term = coordinator.logic.groups[0].term
    assert term is not None
    term.phase, term.started = "preparing", coordinator.local_now() - coordinator.logic.config.progress_timeout
    coordinator.progress.ticked()
    term.started -= 0.1
    with pytest.raises(Violation, match=f"does nothing about its epoch {term.epoch}"):
        coordinator.progress.ticked()
    coordinator.logic.zookeeper.connected = False
    coordinator.progress.ticked()


def test_subscription_that_waits_without_end_is_a_violation(coordinator: Process) -> None:
    begun = coordinator.local_now() - coordinator.logic.config.resume_limit
    waiting = WaitingSubscription(Attach(0, 1, "t0", None), begun, begun)
    coordinator.logic.resume.waiting[0] = {"t0": [waiting]}
    coordinator.progress.ticked()
    coordinator.offset += 0.1
    with pytest.raises(Violation, match="lets a subscription to t0 wait for more than"):
        coordinator.progress.ticked()
