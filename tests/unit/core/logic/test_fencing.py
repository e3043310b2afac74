"""Fencing, and what is no reason to fence (docs/concepts/replication.md, "Fencing")."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.events import Admission, DrainRequest, PeerReceived
from migratory_protocol.peer import Accept, Heartbeat
from migratory_testing.brokers import Cluster
from msgspec import structs


def test_fence_alone() -> None:
    """FENCE-ALONE: fewer than q - 1 other members heard: no acknowledgements, clients go elsewhere."""
    cluster = Cluster().up()
    cluster.run(2.0)
    coordinator = cluster.coordinator()
    cluster.isolate(coordinator)
    waiting = cluster.publish(coordinator, "t", "x", id=1)
    cluster.run(4.5)
    assert cluster.fenced() == [coordinator]
    assert cluster[coordinator].of(Admission)[-1] == Admission(False, "fenced")
    assert cluster.answers[waiting].code == "retry"
    refused = cluster.publish(coordinator, "t", "y", id=2)
    assert cluster.answers[refused].code == "retry"
    cluster.heal()
    cluster.run(6.0)
    assert cluster.fenced() == []
    assert cluster[coordinator].of(Admission)[-1] == Admission(True)


@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_links_broken_for_less_than_the_fencing_time_fence_no_broker(seconds: float) -> None:
    """All links break at once and stand again before the next heartbeat: the last heartbeats still count."""
    cluster = Cluster().up()
    cluster.run(10.0)
    cluster.isolate(cluster.others()[0])
    cluster.run(seconds)
    cluster.heal()
    cluster.run(3.0)
    assert not any(cluster[name].notes("fenced") for name in cluster.names)


def test_draining_broker_that_is_cut_off_closes_its_clients_at_once() -> None:
    """Its drain period may be long, and the links to its clients may hold while the cluster is out of reach."""
    cluster = Cluster().up()
    cluster.run(10.0)
    name = cluster.coordinator()
    cluster.give(name, DrainRequest(600.0))
    cluster.run(1.0)
    assert cluster[name].of(Admission)[-1] == Admission(False, "draining")
    cluster.isolate(name)
    cluster.run(4.5)
    assert cluster.fenced() == [name]
    assert cluster[name].of(Admission)[-1] == Admission(False, "drained")  # 1001: it leaves in any case
    cluster.heal()
    cluster.run(6.0)
    assert cluster[name].of(Admission)[-1] == Admission(False, "draining")


def test_fenced_broker_keeps_memory_promises_and_votes() -> None:
    cluster = Cluster(("a", "b", "c")).up()
    cluster.run(2.0)
    cluster.publish("a", "t", "x", id=1)
    coordinator = cluster.coordinator()
    replica = cluster.logic(coordinator).groups[0].replica
    promised = replica.promised
    cluster.isolate(coordinator)
    cluster.run(5.0)
    assert replica.topics["t"].committed == 1
    assert replica.promised == promised
    assert cluster.logic(coordinator).incarnation == 1


def test_fenced_contact_sends_no_acknowledgement() -> None:
    """FENCED-SILENT: not even for what commits while it is fenced, and its coordinator numbers nothing for others."""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    contact = cluster.others()[0]
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept) and receiver == contact
    reference = cluster.publish(contact, "t", "x", id=1)
    cluster.logic(contact).ctx.fenced = True
    cluster.release()
    assert cluster.answers[reference].code == "retry"
    cluster.logic(contact).ctx.fenced = False
    cluster.logic(coordinator).ctx.fenced = True
    other = cluster.publish(contact, "t", "y", id=2)
    assert cluster.answers[other].code == "retry"


def test_fence_cut() -> None:
    """FENCE-CUT: cut off from a live coordinator that others hear."""
    cluster = Cluster().up()
    cluster.run(2.0)
    coordinator = cluster.coordinator()
    contact, _ = cluster.others()
    cluster.cut(coordinator, contact)
    cluster.run(5.0)
    assert contact in cluster.fenced()
    assert "hears the coordinator" in str(cluster[contact].notes("fenced")[0].fields["reason"])


def test_dead_coordinator_fences_no_broker() -> None:
    cluster = Cluster().up()
    cluster.run(2.0)
    old = cluster.coordinator()
    cluster.crash(old, expire=False)
    cluster.run(4.0)
    cluster.store.expire(cluster[old].session)
    cluster.run(8.0)
    assert cluster.fenced() == []
    assert all(not cluster[name].notes("fenced") for name in cluster.running())


def silent_coordinator() -> tuple[Cluster, str, str, str]:
    """Return a cluster whose coordinator ended longer ago than the fencing time, the coordinator, the broker that stays
    cut off from it, and the broker that will hear it again."""
    cluster = Cluster().up()
    cluster.run(2.0)
    old = cluster.coordinator()
    contact, other = cluster.others()
    cluster.crash(old, expire=False)
    cluster.run(4.5)
    cluster.cut(old, contact)
    return cluster, old, contact, other


def test_restarted_coordinator_has_the_fencing_time_to_be_heard() -> None:
    """One broker hears it again and another does not yet: what it coordinated is in takeover."""
    cluster, old, contact, other = silent_coordinator()
    cluster.start(old)
    cluster.run(2.5)
    assert old in cluster.logic(contact).membership.peers[other].heard
    assert not cluster[contact].notes("fenced")
    cluster.heal()
    cluster.run(8.0)
    assert cluster.fenced() == []
    assert not cluster[contact].notes("fenced")


@pytest.mark.parametrize("says_incarnations", [True, False])
def test_incarnation_named_only_by_a_peer_delays_fencing(says_incarnations: bool) -> None:
    """A heartbeat names it sooner than ZooKeeper. An older broker's heartbeat names no incarnation, so that its
    coordinator may have been there all the time."""
    cluster, old, contact, other = silent_coordinator()
    cluster.unread = lambda broker, path: broker == contact and path == f"/members/{old}"
    cluster.start(old)
    if not says_incarnations:
        way = (other, contact)
        cluster.hold = lambda sender, receiver, message: isinstance(message, Heartbeat) and (sender, receiver) == way
    cluster.run(0.2)
    for _ in range(3):
        for _, _, message in cluster.held:
            cluster.give(contact, PeerReceived(other, (structs.replace(message, incarnations=[]),)))
        cluster.held.clear()
        cluster.run(0.5)
    logic = cluster.logic(contact)
    assert logic.membership.newest[old] == 1
    assert old in logic.membership.peers[other].heard
    assert bool(cluster[contact].notes("fenced")) != says_incarnations
    cluster.run(4.5)
    assert cluster[contact].notes("fenced")  # that it came back is no excuse for ever


def test_zookeeper_away_fences_no_broker() -> None:
    """q connected members continue safely as long as ZooKeeper is away."""
    cluster = Cluster().up()
    cluster.zookeeper(False)
    for number in range(1, 13):
        cluster.run(5.0)
        reference = cluster.publish("a", "t", str(number), id=number)
        assert cluster.answers[reference].code == ""
    assert cluster.fenced() == []
    cluster.zookeeper(True)
    cluster.run(6.0)
    assert cluster.record().activated


def test_fence_isolated_under_reset() -> None:
    """FENCE-ISOLATED: no broker here hears ZooKeeper, and a listed member is missing, which may have been replaced."""
    cluster = Cluster().up()
    cluster.run(2.0)
    coordinator = cluster.coordinator()
    gone = cluster.others()[0]
    cluster.zookeeper(False)
    cluster.crash(gone, expire=False)
    cluster.run(6.0)
    reference = cluster.publish(coordinator, "t", "x", id=1)
    assert cluster.answers[reference].code == ""
    cluster.run(4.0)
    running = cluster.running()
    assert cluster.fenced() == running
    cluster.zookeeper(True)
    cluster.run(3.0)
    assert cluster.fenced() == []


def test_isolated_brokers_continue_under_halt() -> None:
    cluster = Cluster(on_history_loss="halt").up()
    cluster.run(2.0)
    gone = cluster.others()[0]
    cluster.zookeeper(False)
    cluster.crash(gone, expire=False)
    cluster.run(30.0)
    running = cluster.running()
    assert cluster.fenced() == []
    reference = cluster.publish(running[0], "t", "x", id=1)
    assert cluster.answers[reference].code == ""


def test_one_broker_that_hears_zookeeper_prevents_isolation() -> None:
    cluster = Cluster().up()
    cluster.run(2.0)
    gone = cluster.others()[0]
    running = [name for name in cluster.names if name != gone]
    cluster.zookeeper(False, running[0])
    cluster.crash(gone, expire=False)
    cluster.run(20.0)
    assert cluster.fenced() == []


def test_heartbeats_carry_the_age_of_zookeepers_last_answer() -> None:
    cluster = Cluster().up()
    cluster.zookeeper(False)
    cluster.sent.clear()
    cluster.run(3.0)
    beats = [message for _, message in cluster.messages("a", Heartbeat)]
    ages = [message.zookeeper_age for message in beats]
    assert ages == sorted(ages)
    assert ages[-1] > 2.0


def test_fenced_survivor_continues_with_restarted_brokers() -> None:
    """It was fenced, but its log is needed: it takes part in takeovers and lists the learners."""
    cluster = Cluster().up()
    cluster.publish("a", "t", "x", id=1)
    survivor = cluster.coordinator()
    others = cluster.others()
    for name in others:
        cluster.crash(name)
    cluster.run(6.0)
    assert cluster.logic(survivor).ctx.fenced
    cluster.start(*others)
    cluster.run(15.0)
    record = cluster.record()
    assert record.activated
    assert len(record.members) == 3
    assert record.first < record.epoch
    assert cluster.fenced() == []
    reference = cluster.publish(others[0], "t", "y", id=2)
    position = cluster.answers[reference].position
    assert position is not None
    assert position.sequence == 2


def test_coordinator_that_is_cut_off_resigns_once() -> None:
    """No broker must wait for it while ZooKeeper still hears it: its ephemeral is deleted, once."""
    cluster = Cluster().up()
    cluster.run(2.0)
    old = cluster.coordinator()
    cluster.isolate(old)
    cluster.run(4.5)
    assert cluster.fenced() == [old]
    assert len(cluster[old].notes("resigned")) == 1
    assert cluster.record().owner[0] != old


def test_fenced_broker_that_others_hear_keeps_its_groups() -> None:
    """It is cut off from one coordinator only and could still fill a list: its own groups lose nothing."""
    cluster = Cluster(groups=3).up()
    cluster.run(2.0)
    owners = {cluster.record(group).owner[0] for group in range(3)}
    assert len(owners) > 1
    first, second = sorted(owners)[:2]
    cluster.cut(first, second)
    cluster.run(4.5)
    assert cluster.fenced() == [first, second]
    assert [cluster[name].notes("resigned") for name in (first, second)] == [[], []]
