"""Promises, merge, Sync and activation, and what each of them must not do (docs/concepts/replication.md,
"Takeover")."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.events import Flush, PeerReceived
from migratory_broker.core.logic.membership.records import GroupRecord, SourceEpoch
from migratory_protocol.peer import (
    Accept,
    Accepted,
    Activated,
    EpochRefused,
    InventoryRequest,
    PeerMessage,
    Prepare,
    Promise,
    Sync,
    Synced,
)
from migratory_protocol.positions import Position
from migratory_testing.brokers import Cluster


def test_acknowledged_publications_survive_their_coordinator() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    contact = cluster.others()[0]
    for number in range(1, 6):
        cluster.publish(contact, "t", str(number), id=number)
    epoch = cluster.record().epoch
    cluster.crash(old)
    cluster.run(4.0)
    new = cluster.coordinator()
    assert new != old
    assert cluster.record().epoch > epoch
    reference = cluster.publish(contact, "t", "6", id=6)
    assert cluster.answers[reference].position == Position(cluster.logic(new).groups[0].replica.synced, 6)
    log = cluster.logic(new).groups[0].replica.topics["t"]
    assert [entry.epoch for entry in log.entries] == [epoch] * 5 + [cluster.logic(new).groups[0].replica.synced]


def test_source_is_activated() -> None:
    """SOURCE-IS-ACTIVATED: the next record's source is the record before it if that one was activated; otherwise it
    is the source of that one."""
    activated = GroupRecord(7, 1, 3, ("a", 1), [("a", 1), ("b", 1)], 2, activated=True, source=None)
    following = activated.next(("b", 1), [("b", 1), ("c", 1)], 2)
    assert following.source == SourceEpoch(3, [("a", 1), ("b", 1)], 2, ("a", 1))
    after = following.next(("c", 1), [("b", 1), ("c", 1)], 2)
    assert after.source == following.source
    assert (after.epoch, after.history, after.first) == (5, 7, 1)


@pytest.mark.parametrize(
    ("answered", "enough"),
    [
        ([("b", 1), ("c", 1)], True),
        ([("b", 1)], False),
        ([("a", 1)], True),  # the owner's own: its store is in every quorum
        ([("a", 2), ("b", 2), ("c", 2)], False),  # BY-INCARNATION
        ([("b", 1), ("d", 1)], False),
    ],
)
def test_takeover_quorum(answered: list[tuple[str, int]], enough: bool) -> None:
    """TAKEOVER-QUORUM: with n members and minCopies q, answers of n - q + 1 members of the source list, in the
    listed incarnations, are enough for a takeover, and so is that of the source's owner alone."""
    source = SourceEpoch(3, [("a", 1), ("b", 1), ("c", 1)], 2, ("a", 1))
    assert source.enough(answered) is enough


def test_adopted_suffix_is_committed_only_by_activation() -> None:
    """ACTIVATION-COMMITS: an entry that only one member held is adopted in a takeover, is delivered by the other
    members only after the activation, and has its old epoch and publisher."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    first, second = cluster.others()
    cluster.hold = lambda sender, receiver, message: (
        isinstance(message, Accepted) or (isinstance(message, Accept) and receiver == second)
    )
    cluster.publish(old, "t", "x", id=1)
    assert cluster.delivered(first, "t") == [(1, "x")]  # it has told its clients, and the coordinator does not know
    cluster.hold = lambda sender, receiver, message: isinstance(message, Synced)
    cluster.held.clear()
    cluster.crash(old)
    cluster.run(1.0)
    assert cluster.record().activated is False
    assert cluster.delivered(second, "t") == []
    cluster.release()
    cluster.run(4.0)
    assert cluster.record().activated is True
    assert cluster.delivered(second, "t") == [(1, "x")]
    assert cluster.delivered(first, "t") == [(1, "x")]
    assert cluster.logic(second).groups[0].replica.topics["t"].entries[0].epoch == cluster.record().first
    again = cluster.publish(second, "t", "x", id=1)
    assert cluster.answers[again].position == Position(cluster.record().first, 1)  # the table came with the log


def test_promise_counts_with_its_last_part() -> None:
    """TAKEOVER-MERGE: a promise that comes in several parts counts only with its last part; until then the record is
    not activated, and afterwards all members have all entries."""
    cluster = Cluster(("a", "b", "c", "d", "e"), min_copies=3, part_bytes=300).up()
    old = cluster.coordinator()
    members = cluster.others()
    reserve = members[-1]
    cluster.cut(old, reserve)  # it lags behind: its answer is short
    for other in members[:-1]:
        cluster.cut(other, reserve)
    for number in range(1, 8):
        cluster.publish(old, "t", "x" * 100, id=number)
    assert cluster.logic(old).groups[0].replica.topics["t"].committed == 7
    cluster.hold = lambda sender, receiver, message: isinstance(message, Promise) and bool(message.topics)
    cluster.crash(old)
    cluster.zookeeper(False, *members[:-1])
    cluster.heal()
    cluster.run(8.0)
    assert cluster.record().owner[0] == reserve
    assert not cluster.record().activated
    parts = [message for _, _, message in cluster.sent if isinstance(message, Promise)]
    assert any(not part.last for part in parts)
    cluster.release()
    cluster.zookeeper(True, *members)
    cluster.run(10.0)
    for name in members:
        log = cluster.logic(name).groups[0].replica.topics["t"]
        assert (log.committed, len(log.entries)) == (7, 7)


@pytest.mark.interpreted
def test_member_refuses_lower_epochs_after_its_promise() -> None:
    """PROMISE: after its promise of an epoch a member stores no new entry and refuses Accept, InventoryRequest,
    Prepare and Sync of a lower epoch, naming the promised one."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    member = cluster.others()[0]
    group = cluster.logic(member).groups[0]
    replica = group.replica
    epoch = replica.synced
    before = cluster.publish(old, "t", "x", id=1)
    assert cluster.answers[before].code == ""
    cluster.logic(member).ctx.effects = []
    group.prepare(old, Prepare(0, replica.history, epoch + 5, epoch, True, []))
    assert replica.promised == epoch + 5
    log = replica.topics["t"]
    cluster.publish(old, "t", "y", id=2)
    assert log.last == 1
    sent: list[PeerMessage] = []
    cluster.logic(member).ctx.send = lambda peer, message: sent.append(message)  # type: ignore[method-assign]
    group.accept(old, Accept(0, replica.history, epoch, [], [], []))
    group.inventory_request(old, InventoryRequest(0, replica.history, epoch + 1))
    group.prepare(old, Prepare(0, replica.history, epoch + 4, epoch, True, []))
    view = replica.view
    assert view is not None
    members = list(view.members)
    sync = Sync(0, replica.history, replica.first, epoch + 1, 1, view.owner, members, 2, False, True, True, [], 0, 0)
    group.sync(old, sync)
    assert [type(message) for message in sent] == [EpochRefused] * 4
    assert {message.promised for message in sent if isinstance(message, EpochRefused)} == {epoch + 5}
    assert replica.synced == epoch


def test_refused_coordinator_stops_streaming_to_that_member() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    term = cluster.logic(old).groups[0].term
    assert term is not None
    member = cluster.others()[0]
    cluster.logic(old).groups[0].refused(member, EpochRefused(0, term.epoch, term.epoch + 1))
    assert term.followers.by_name[member].refused
    cluster.logic(old).groups[0].refused("nobody", EpochRefused(0, term.epoch, term.epoch + 1))
    cluster.publish(old, "t", "x", id=1)
    assert cluster.delivered(member, "t") == []


def test_coordinator_stops_numbering_when_it_promises() -> None:
    cluster = Cluster().up()
    old, contact = cluster.coordinator(), cluster.others()[0]
    group = cluster.logic(old).groups[0]
    replica = group.replica
    cluster.publish(old, "t", "x", id=1)
    cluster.step(old, Flush())
    group.prepare(contact, Prepare(0, replica.history, replica.synced + 1, replica.synced, True, []))
    assert group.term is None
    assert not group.member or replica.promised == replica.synced + 1
    reference = cluster.publish(old, "t", "y", id=2)
    assert cluster.answers[reference].code == "retry"


def test_sync_cuts_a_longer_tail() -> None:
    """SYNC-WHOLE: a former coordinator that comes back loses the entries that no other broker adopted, with their
    rows in the publisher table, and gets those of its successor."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    _one, _two = cluster.others()
    cluster.publish(old, "t", "1", publisher="p", id=1)
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    for number in (2, 3, 4):
        cluster.publish(old, "t", f"lost {number}", publisher="p", id=number)
    cluster.publish(old, "never", "lost", publisher="p", id=1)
    cluster.held.clear()
    cluster.hold = lambda sender, receiver, message: False
    cluster.isolate(old)  # alive, with a tail that no other broker has
    cluster.store.expire(cluster[old].session)
    cluster.zookeeper(False, old)
    cluster.run(3.0)
    (new,) = [name for name in cluster.coordinators() if name != old]
    for number in (2, 3):
        reference = cluster.publish(new, "t", f"other {number}", publisher="q", id=number)
        assert cluster.answers[reference].code == ""
    cluster.heal()
    cluster.zookeeper(True, old)
    cluster.expire(old)
    cluster.run(5.0)
    log = cluster.logic(old).groups[0].replica.topics["t"]
    assert [entry.payload for entry in log.entries] == [b"1", b"other 2", b"other 3"]
    assert log.table.rows["p"][0] == 1
    assert "never" not in cluster.logic(old).groups[0].replica.topics
    assert cluster.delivered(old, "t") == [(1, "1"), (2, "other 2"), (3, "other 3")]


def test_promise_not_synced_to_the_source_is_ignored() -> None:
    """TAKEOVER-MERGE: a former coordinator with the longest log, which was not synced since, becomes candidate and
    adopts the others' entries instead of its own."""
    cluster = Cluster(("a", "b", "c", "d", "e"), min_copies=2).up()
    old = cluster.coordinator()
    cluster.publish(old, "t", "1", id=1)
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    for number in range(2, 9):
        cluster.publish(old, "t", f"lost {number}", id=number)
    cluster.held.clear()
    cluster.hold = lambda sender, receiver, message: False
    cluster.isolate(old)
    cluster.store.expire(cluster[old].session)
    cluster.zookeeper(False, old)
    cluster.run(3.0)
    (new,) = [name for name in cluster.coordinators() if name != old]
    for number in (2, 3):
        cluster.publish(new, "t", f"kept {number}", publisher="q", id=number, mark=number)
    cluster.run(3.0)  # re-listed without the one that is gone
    assert old not in [name for name, _ in cluster.record().members]
    # Now the old one is back, and the only one that can write a record for a while.
    cluster.hold = lambda sender, receiver, message: isinstance(message, (InventoryRequest, Sync)) and receiver == old
    cluster.heal()
    cluster.expire(old)
    cluster.zookeeper(True, old)
    cluster.run(0.5)
    cluster.crash(new)
    for name in cluster.names:
        if name not in (old, new):
            cluster.zookeeper(False, name)
    cluster.run(15.0)
    assert cluster.coordinator() == old
    log = cluster.logic(old).groups[0].replica.topics["t"]
    assert [entry.payload for entry in log.entries] == [b"1", b"kept 2", b"kept 3"]


def test_activation_needs_q_synced_members() -> None:
    """ACTIVATE-QUORUM: a record is not activated, and publications get `retry`, until the candidate and minCopies -
    1 others have confirmed."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Synced)
    cluster.crash(old)
    cluster.run(1.5)
    assert not cluster.record().activated
    reference = cluster.publish(cluster.running()[0], "t", "x", id=1)
    assert cluster.answers[reference].code == "retry"
    cluster.hold = lambda sender, receiver, message: False
    cluster.run(8.0)
    assert cluster.record().activated


def test_confirmations_of_another_snapshot_or_broker_do_not_count() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Synced)
    cluster.crash(old)
    cluster.run(1.0)
    (name,) = [n for n in cluster.names if n != old and cluster.logic(n).groups[0].term is not None]
    term = cluster.logic(name).groups[0].term
    assert term is not None
    (other,) = [n for n in cluster.names if n not in (old, name)]
    follower = term.followers.by_name[other]
    term.confirmed(other, Synced(0, term.record.history, term.epoch, follower.serial + 1))
    term.confirmed(other, Synced(0, term.record.history, term.epoch + 1, follower.serial))
    term.confirmed("nobody", Synced(0, term.record.history, term.epoch, 1))
    assert term.phase == "syncing"


def test_candidate_numbers_nothing_before_activation() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Synced)
    cluster.crash(old)
    cluster.run(1.0)
    candidate = cluster.record().owner[0]
    term = cluster.logic(candidate).groups[0].term
    assert term is not None
    assert term.phase == "syncing"
    reference = cluster.publish(candidate, "t", "x", id=1)
    assert cluster.answers[reference].code == "retry"
    assert "t" not in cluster.logic(candidate).groups[0].replica.topics
    cluster.release()
    reference = cluster.publish(candidate, "t", "x", id=1)
    assert cluster.answers[reference].code == ""


@pytest.mark.interpreted
def test_messages_of_another_history_are_refused() -> None:
    cluster = Cluster().up()
    coordinator, member = cluster.coordinator(), cluster.others()[0]
    group = cluster.logic(member).groups[0]
    replica = group.replica
    sent: list[PeerMessage] = []
    cluster.logic(member).ctx.send = lambda peer, message: sent.append(message)  # type: ignore[method-assign]
    group.accept(coordinator, Accept(0, replica.history + 1, replica.synced, [], [], []))
    assert isinstance(sent[0], EpochRefused)
    group.activated(coordinator, Activated(0, replica.history + 1, replica.synced))
    group.accept(coordinator, Accept(0, replica.history, replica.synced + 1, [], [], []))
    group.accept("nobody", Accept(0, replica.history, replica.synced, [], [], []))
    assert len(sent) == 1
    group.prepare(coordinator, Prepare(0, replica.history + 1, replica.synced + 1, 5, True, []))
    assert isinstance(sent[1], Promise)
    assert (sent[1].synced, sent[1].topics) == (0, [])


def test_promise_of_a_member_never_synced_adds_nothing() -> None:
    """TAKEOVER-MERGE: the promise of a member that was never synced to the source epoch counts for the quorum
    without a log, and both brokers end with the synced log's entries."""
    cluster = Cluster(relist_delay=100.0).up()
    old = cluster.coordinator()
    candidate, behind = cluster.others()
    cluster.publish(old, "t", "1", id=1)
    epoch = cluster.record().epoch
    source = epoch + 1
    cluster.hold = lambda sender, receiver, message: (
        isinstance(message, (InventoryRequest, Sync, Accept)) and (receiver == behind or message.epoch == epoch)
    )
    reference = cluster.publish(old, "t", "2", id=2)
    cluster.run(3.0)  # it cannot commit, and writes another record
    assert (cluster.record().epoch, cluster.record().activated) == (source, True)
    assert (behind, 1) in cluster.record().members
    assert cluster.answers[reference].position == Position(epoch, 2)
    assert cluster.logic(behind).groups[0].replica.synced < source
    cluster.zookeeper(False, behind)
    cluster.crash(old)
    cluster.held.clear()
    cluster.hold = lambda sender, receiver, message: False
    cluster.run(4.0)
    assert cluster.coordinator() == candidate
    promises = [message for _, message in cluster.messages(behind, Promise)]
    assert [(promise.synced < source, promise.topics) for promise in promises] == [(True, [])]
    for name in (candidate, behind):
        assert [entry.payload for entry in cluster.logic(name).groups[0].replica.topics["t"].entries] == [b"1", b"2"]


def test_repeated_activation_notice_commits_nothing() -> None:
    """ACTIVATION-COMMITS: a second notice of the activation commits no entry that was numbered since; confirmations of
    its copies do."""
    cluster = Cluster(("a", "b", "c", "d", "e"), min_copies=3).up()
    coordinator, member = cluster.coordinator(), cluster.others()[0]
    cluster.hold = lambda sender, receiver, message: receiver == coordinator and isinstance(message, Accepted)
    cluster.publish(coordinator, "t", "1", id=1)
    replica = cluster.logic(member).groups[0].replica
    cluster.give(member, PeerReceived(coordinator, (Activated(0, replica.history, replica.synced),)))
    cluster.settle()
    assert (replica.topics["t"].last, replica.topics["t"].committed) == (1, 0)
    cluster.release()
    assert replica.topics["t"].committed == 1
