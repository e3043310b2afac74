"""Fencing, and situations in which a broker must not fence itself (docs/concepts/replication.md, "Fencing")."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.events import Admission, DrainRequest, PeerReceived
from migratory_protocol.peer import Accept, Heartbeat
from migratory_testing.brokers import Cluster
from msgspec import structs


def test_fence_alone() -> None:
    """FENCE-ALONE: a coordinator that hears fewer than minCopies - 1 other members fences itself: it acknowledges
    nothing and sends its clients away. When links return, it accepts them again."""
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
    """No broker fences itself when all its links break for less than the fencing time, even for a moment between two
    heartbeats."""
    cluster = Cluster().up()
    cluster.run(10.0)
    cluster.isolate(cluster.others()[0])
    cluster.run(seconds)
    cluster.heal()
    cluster.run(3.0)
    assert not any(cluster[name].notes("fenced") for name in cluster.names)


def test_draining_broker_that_is_cut_off_closes_its_clients_at_once() -> None:
    """A draining broker that is cut off fences itself and closes its clients with the reason `drained`, although its
    drain period is long; once it is linked again, it drains on."""
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
    """FENCED-SILENT: a fenced contact broker answers `retry` even for a publication that commits, and a fenced
    coordinator answers `retry` to publications of others."""
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
    """FENCE-CUT: a broker that is cut off from a live coordinator that others hear fences itself."""
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
    """Return a cluster whose coordinator ended longer ago than the fencing time, the coordinator's name, the broker
    that stays cut off from it, and the broker that will hear it again. No silence counts as evidence (SUSPECT)."""
    cluster = Cluster(silence=100.0).up()
    cluster.run(2.0)
    old = cluster.coordinator()
    contact, other = cluster.others()
    cluster.crash(old, expire=False)
    cluster.run(4.5)
    cluster.cut(old, contact)
    return cluster, old, contact, other


def test_restarted_coordinator_has_the_fencing_time_to_be_heard() -> None:
    """A broker that does not hear a restarted coordinator, while another one does, does not fence itself before the
    fencing time, counted from the restart: the coordinator's groups are in takeover."""
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
    """A broker that learns of a restarted coordinator only from a peer's heartbeat waits the fencing time from then
    on before it fences itself. If the heartbeat names no incarnation (an older version), it does not wait."""
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
    """Without ZooKeeper no broker of three connected ones fences itself for a minute, and publications are
    acknowledged."""
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
    """FENCE-ISOLATED: under `reset`, brokers that do not reach ZooKeeper and miss a listed member, which may have
    been replaced, acknowledge publications at first, and then fence themselves until ZooKeeper is back."""
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
    """A broker whose two members died is fenced; when they have restarted, it takes over with its log, lists all
    three, and no broker is fenced. The topic continues after its old publication."""
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
    """A coordinator that is cut off resigns once, so that another broker becomes owner of its group at once, while
    ZooKeeper still hears the first one."""
    cluster = Cluster().up()
    cluster.run(2.0)
    old = cluster.coordinator()
    cluster.isolate(old)
    cluster.run(4.5)
    assert cluster.fenced() == [old]
    assert len(cluster[old].notes("resigned")) == 1
    assert cluster.record().owner[0] != old


def test_fenced_broker_that_others_hear_keeps_its_groups() -> None:
    """Two coordinators that are cut off only from each other are fenced, and neither resigns from its groups,
    because each could still fill a list."""
    cluster = Cluster(groups=3).up()
    cluster.run(2.0)
    owners = {cluster.record(group).owner[0] for group in range(3)}
    assert len(owners) > 1
    first, second = sorted(owners)[:2]
    cluster.cut(first, second)
    cluster.run(4.5)
    assert cluster.fenced() == [first, second]
    assert [cluster[name].notes("resigned") for name in (first, second)] == [[], []]
