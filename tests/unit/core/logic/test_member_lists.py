"""Learners, the lists that they join, and broken links (docs/concepts/replication.md, "Restarts, links and drains")."""

from __future__ import annotations

from migratory_broker.core.logic.events import (
    Admission,
    Attached,
    Gap,
    PeerReceived,
)
from migratory_broker.core.logic.status import describe_logic
from migratory_protocol.peer import (
    Accept,
    Activated,
    Inventory,
    Prepare,
    Sync,
    TopicEntries,
)
from migratory_protocol.positions import Position
from migratory_testing.brokers import Cluster


def members(cluster: Cluster, group: int = 0) -> list[tuple[str, int]]:
    return sorted((name, incarnation) for name, incarnation in cluster.record(group).members)


def test_restarted_broker_learns_and_is_listed_after_catching_up() -> None:
    """LISTED-AFTER-CATCHING-UP: a restarted broker accepts no clients and is not listed until it has the log; then a
    record lists it, it accepts clients, and the coordinator is the same."""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    victim, other = cluster.others()
    for number in range(1, 6):
        cluster.publish(other, "t", str(number), id=number)
    cluster.crash(victim)
    cluster.run(3.0)
    assert victim not in dict(members(cluster))  # a list without a member that is gone
    cluster.hold = lambda sender, receiver, message: isinstance(message, Sync) and receiver == victim
    cluster.start(victim)
    cluster.run(2.0)
    assert cluster[victim].of(Admission) == [Admission(False, "learning")]
    assert victim not in dict(members(cluster))
    cluster.release()
    cluster.run(1.0)
    reference = cluster.publish(other, "t", "6", id=6)
    assert cluster.answers[reference].code == ""
    cluster.run(4.0)
    assert (victim, 2) in members(cluster)
    assert cluster[victim].of(Admission)[-1] == Admission(True)
    log = cluster.logic(victim).groups[0].replica.topics["t"]
    assert (log.committed, log.table.rows["p"][0]) == (6, 6)
    assert not cluster[victim].of(Gap)
    assert cluster.coordinator() == coordinator


def test_learner_commits_live_traffic_by_the_mark() -> None:
    cluster = Cluster(relist_delay=1000.0).up()
    victim, other = cluster.others()
    cluster.crash(victim)
    cluster.run(1.0)
    cluster.start(victim)
    cluster.run(2.0)
    for number in range(1, 4):
        cluster.publish(other, "t", str(number), id=number)
    cluster.run(0.1)
    group = cluster.logic(victim).groups[0]
    assert not group.replica.listed
    assert not group.member
    assert group.replica.topics["t"].committed == 3
    assert victim not in {name for (name, _) in members(cluster)} or (victim, 1) in members(cluster)
    assert describe_logic(cluster.logic(victim))["roles"] == {
        "coordinator": 0,
        "candidate": 0,
        "member": 0,
        "learner": 1,
        "none": 0,
    }


def test_relisting_skips_promises_and_numbers_until_the_owner_promises() -> None:
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    victim, other = cluster.others()
    epoch = cluster.record().epoch
    cluster.crash(victim)
    cluster.run(3.0)
    assert cluster.record().epoch == epoch + 1
    assert cluster.coordinator() == coordinator
    assert cluster.record().source is not None
    assert not [message for _, _, message in cluster.sent if isinstance(message, Prepare)]
    syncs = [message for _, to, message in cluster.sent if isinstance(message, Sync) and message.epoch == epoch + 1]
    assert syncs
    assert all(not message.whole and message.topics == [] for message in syncs)  # streamed to: it keeps what it has
    reference = cluster.publish(other, "t", "x", id=1)
    assert cluster.answers[reference].position == Position(epoch + 1, 1)


def test_uncommitted_suffix_survives_a_relisting() -> None:
    cluster = Cluster(progress_timeout=30.0).up()
    coordinator = cluster.coordinator()
    victim, other = cluster.others()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    cluster.publish(coordinator, "t", "x", id=1)
    cluster.crash(victim)
    cluster.run(3.0)
    cluster.release()
    cluster.run(1.0)
    assert cluster.delivered(other, "t") == [(1, "x")]
    assert cluster.delivered(coordinator, "t") == [(1, "x")]
    assert cluster.logic(other).groups[0].replica.topics["t"].entries[0].epoch < cluster.record().epoch


def test_restarted_broker_counts_as_failed_until_listed_again() -> None:
    """BY-INCARNATION: a broker that restarts so fast that no broker noticed its end is not listed at first, and is
    listed with its new incarnation later."""
    cluster = Cluster().up()
    victim, other = cluster.others()
    cluster.publish(other, "t", "x", id=1)
    cluster.restart(victim)
    cluster.run(1.0)
    assert (victim, 2) not in members(cluster)
    cluster.run(5.0)
    assert (victim, 2) in members(cluster)
    assert cluster.logic(victim).membership.ready


def test_restarted_owner_does_not_resume_its_epoch() -> None:
    """A restarted coordinator does not lead its group again while the ephemeral node of its old session exists,
    because the record names its old incarnation. When the session ends, a takeover lists it."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    session = cluster[old].session
    cluster.crash(old, expire=False)
    cluster.start(old)
    cluster.run(2.0)
    assert cluster.logic(old).groups[0].term is None
    assert cluster.store.nodes["/coordinators/0"].owner == session
    cluster.store.expire(session)
    cluster.run(6.0)
    assert cluster.record().activated
    assert (old, 2) in members(cluster)


def test_repaired_link_carries_only_what_is_missing() -> None:
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    member, _other = cluster.others()
    cluster.publish(coordinator, "t", "1", id=1)
    cluster.cut(coordinator, member)
    for number in (2, 3):
        cluster.publish(coordinator, "t", str(number), id=number)
    cluster.publish(coordinator, "u", "1", id=1)
    epoch = cluster.record().epoch
    cluster.sent.clear()
    cluster.heal()
    cluster.run(0.5)
    assert cluster.record().epoch == epoch
    assert cluster.delivered(member, "t") == [(1, "1"), (2, "2"), (3, "3")]
    assert cluster.delivered(member, "u") == [(1, "1")]
    (sync,) = [message for _, to, message in cluster.sent if isinstance(message, Sync) and to == member]
    parts = [(part.topic, [entry.sequence for entry in part.entries]) for part in sync.topics]
    assert parts == [("t", [2, 3]), ("u", [1])]


def test_evicted_entries_are_reported_as_truncated() -> None:
    """GAP-TOLD: a member that missed entries which the coordinator has evicted reports them as truncated to its live
    subscribers, and delivers the later ones."""
    cluster = Cluster(messages_per_topic=3, min_age=0.0).up()
    coordinator = cluster.coordinator()
    member, _ = cluster.others()
    cluster.publish(coordinator, "t", "1", id=1)
    cluster.cut(coordinator, member)
    for number in range(2, 9):
        cluster.publish(coordinator, "t", str(number), id=number)
    cluster.heal()
    cluster.run(0.5)
    epoch = cluster.record().epoch
    assert cluster[member].of(Gap) == [Gap("t", "truncated", Position(epoch, 5), 2, 5)]
    assert cluster.delivered(member, "t") == [(1, "1"), (6, "6"), (7, "7"), (8, "8")]


def test_missing_entry_is_requested_once() -> None:
    """ACCEPT: a member that lacks an entry before a new one delivers nothing, requests the missing entries once, and
    then delivers all in order. (A link loses nothing; this is a second safeguard.)"""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    member, _ = cluster.others()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept) and receiver == member
    cluster.publish(coordinator, "t", "1", id=1)
    cluster.held.clear()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Inventory)
    cluster.publish(coordinator, "t", "2", id=2)
    cluster.publish(coordinator, "t", "3", id=3)
    assert len(cluster[member].notes("entry_missing")) == 1
    assert cluster.delivered(member, "t") == []
    cluster.release()
    cluster.run(0.1)
    assert cluster.delivered(member, "t") == [(1, "1"), (2, "2"), (3, "3")]


def test_known_entry_changes_nothing() -> None:
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    member, _ = cluster.others()
    cluster.publish(coordinator, "t", "1", id=1)
    replica = cluster.logic(member).groups[0].replica
    again = Accept(0, replica.history, replica.synced, [TopicEntries("t", [replica.topics["t"].entries[0]])], [], [])
    cluster.step(member, PeerReceived(coordinator, (again,)))
    assert replica.topics["t"].last == 1


def test_accept_implies_the_activation() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    _member, _ = cluster.others()
    cluster.publish(old, "t", "1", id=1)
    cluster.hold = lambda sender, receiver, message: isinstance(message, Activated)
    cluster.crash(old)
    cluster.run(1.0)
    new = cluster.coordinator()
    (follower,) = [name for name in (cluster.names) if name not in (old, new)]
    assert not cluster.logic(follower).groups[0].replica.view.activated  # type: ignore[union-attr]
    cluster.publish(new, "t", "2", id=2)
    assert cluster.delivered(follower, "t") == [(1, "1"), (2, "2")]


def test_activation_that_an_accept_implies_answers_waiting_subscriptions() -> None:
    """Regression: only the message of the activation did. A subscription to another topic waited for the next regular
    try, up to a second."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    cluster.publish(old, "t", "1", id=1)
    epoch = cluster.record().epoch
    cluster.hold = lambda sender, receiver, message: isinstance(message, Activated)
    cluster.crash(old)
    cluster.run(1.0)
    new = cluster.coordinator()
    (follower,) = [name for name in (cluster.names) if name not in (old, new)]
    assert cluster.attach(follower, "u", (epoch, 5)) is None  # the new epoch may still have that entry
    reference = cluster.publish(new, "t", "2", id=2)
    assert cluster.answers[reference].code == ""
    (attached,) = cluster[follower].of(Attached)
    assert (attached.topic, attached.receipt) == ("u", "reset")


def test_sync_that_does_not_fit_is_requested_again() -> None:
    """When a sync's totals (`topics_total`, `lasts_total`) do not fit the member's log, the member requests a sync
    again and ends with the complete log."""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    member, _ = cluster.others()
    cluster.publish(coordinator, "t", "1", id=1)
    group = cluster.logic(coordinator).groups[0]
    assert group.term is not None
    replica = cluster.logic(member).groups[0].replica
    replica.drop([replica.topics["t"]])
    group.term.followers.add_streaming(member)
    for effect in cluster.logic(coordinator).ctx.effects[-1:]:
        cluster._execute(cluster[coordinator], effect)
    cluster.settle()
    assert cluster[member].notes("sync_requested_again")
    assert replica.topics["t"].committed == 1
