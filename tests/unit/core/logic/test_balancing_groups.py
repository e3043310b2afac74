"""Groups that move to another coordinator while all brokers are healthy: drain and balance
(docs/concepts/replication.md, "Restarts, links and drains")."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.events import (
    Admission,
    DrainClients,
    DrainRequest,
)
from migratory_protocol.peer import (
    HandOver,
    InventoryRequest,
    Prepare,
    Promise,
    Sync,
)
from migratory_testing.brokers import Cluster


def test_drain_hands_groups_over_then_sends_clients() -> None:
    """DRAIN-ORDER: a draining broker first hands all its groups over, then sends its clients to the others, and
    remains in the groups' lists until it ends."""
    cluster = Cluster(groups=6)
    cluster.up()
    cluster.run(10.0)
    name = cluster.coordinator(0)
    logic = cluster.logic(name)
    cluster.give(name, DrainRequest(20.0))
    cluster.give(name, DrainRequest(20.0))
    cluster.settle()
    assert cluster[name].of(Admission)[-1] == Admission(False, "draining")
    assert not logic.drained
    cluster.run(3.0)
    (drain,) = cluster[name].of(DrainClients)
    assert f"ws://{name}" not in [server.url for server in drain.servers]
    assert len(drain.servers) == 2
    assert logic.drained
    assert all(cluster.coordinator(group) != name for group in range(6))
    assert all((name, 1) in cluster.record(group).members for group in range(6))  # a leaver stays listed
    order = [type(effect).__name__ for effect in cluster[name].effects]
    assert order.index("DrainClients") > 0
    cluster.crash(name)
    cluster.run(4.0)
    assert all(name not in dict(cluster.record(group).members) for group in range(6))


def test_a_drain_without_a_successor_still_ends() -> None:
    cluster = Cluster(("a",), min_copies=1).up()
    cluster.give("a", DrainRequest(8.0))
    cluster.run(1.0)
    assert not cluster["a"].of(DrainClients)
    cluster.run(2.0)
    assert cluster["a"].of(DrainClients) == [DrainClients(pytest.approx(6.0, abs=0.2), ())]  # type: ignore[arg-type]


@pytest.mark.parametrize("reported", [True, False])
def test_drain_waits_while_a_list_has_lost_another_member(reported: bool) -> None:
    """A drain sends the clients away but does not finish while a member of a list is lost, whether ZooKeeper has
    reported this or only the link is broken."""
    cluster = Cluster(relist_delay=100.0).up()
    coordinator = cluster.coordinator()
    leaver, gone = cluster.others()
    cluster.crash(gone, expire=reported)
    cluster.run(0.3)
    cluster.give(leaver, DrainRequest(20.0))
    cluster.run(2.0)
    assert cluster[leaver].of(DrainClients)
    assert not cluster.logic(leaver).drained
    assert coordinator == cluster.coordinator()


def test_drain_waits_until_a_dead_coordinator_has_a_successor() -> None:
    cluster = Cluster().up()
    dead = cluster.coordinator()
    leaver, other = cluster.others()
    cluster.crash(dead, expire=False)
    cluster.give(leaver, DrainRequest(20.0))
    cluster.run(2.0)
    assert cluster[leaver].of(DrainClients)
    assert not cluster.logic(leaver).drained
    cluster.expire(dead)
    cluster.run(4.0)
    assert cluster.coordinator() == other
    assert cluster.logic(leaver).drained


def test_drain_waits_until_the_successor_has_the_log() -> None:
    """With minCopies 1, a drain does not finish until the successor's record is activated, because no other broker
    surely has the log."""
    cluster = Cluster(min_copies=1).up()
    leaver = cluster.coordinator()
    cluster.publish(leaver, "t", "x", id=1)
    before = cluster.record()
    cluster.hold = lambda sender, receiver, message: sender == leaver and isinstance(message, Promise)
    cluster.give(leaver, DrainRequest(20.0))
    cluster.run(1.0)
    assert cluster.record().epoch > before.epoch
    assert not cluster.record().activated
    assert cluster[leaver].of(DrainClients)
    assert not cluster.logic(leaver).drained
    cluster.release()
    cluster.run(0.5)
    assert cluster.record().activated
    assert cluster.logic(leaver).drained


def test_superseded_coordinator_drains_only_after_its_successor_activated() -> None:
    """A draining broker whose record was superseded without its knowledge does not finish its drain until the
    successor's record is activated. With minCopies 1 it may have the only copy."""
    cluster = Cluster(min_copies=1).up()
    leaver = cluster.coordinator()
    cluster.publish(leaver, "t", "x", id=1)
    before = cluster.record()
    cluster.hold = lambda sender, receiver, message: (
        receiver == leaver and isinstance(message, (InventoryRequest, Prepare))
    )
    cluster.zookeeper(False, leaver)
    cluster.store.expire(cluster[leaver].session)
    cluster.run(1.0)
    assert cluster.record().epoch > before.epoch
    cluster.store.expire(cluster[cluster.record().owner[0]].session)  # else its ephemeral is all there is to see
    cluster[leaver].zookeeper = True
    cluster.expire(leaver)
    cluster.give(leaver, DrainRequest(20.0))
    cluster.run(1.0)
    (over,) = cluster[leaver].notes("term_ended")
    assert over.fields["reason"] == "another candidate wrote a record"
    assert cluster[leaver].of(DrainClients)
    assert not cluster.logic(leaver).drained
    cluster.release()
    cluster.run(0.5)
    assert cluster.record().activated
    assert cluster.logic(leaver).drained


@pytest.mark.unmeasured
def test_groups_move_back_to_a_restarted_broker_and_then_rest() -> None:
    """After a broker has restarted, groups move until each broker coordinates two of six, and then none moves any
    more."""
    cluster = Cluster(groups=6, balance_every=0.5)
    cluster.up()
    cluster.run(8.0)
    counts = cluster.logic("a").gossip.counts()
    assert sorted(counts.values()) == [2, 2, 2]
    cluster.crash("b")
    cluster.run(4.0)
    cluster.start("b")
    cluster.run(20.0)
    assert sorted(cluster.logic("a").gossip.counts().values()) == [2, 2, 2]
    epochs = [cluster.record(group).epoch for group in range(6)]
    cluster.run(5.0)
    assert [cluster.record(group).epoch for group in range(6)] == epochs


def test_draining_coordinator_asks_a_successor_once() -> None:
    """HAND-OVER: a draining coordinator sends one hand-over for each of its groups, and repeats them only after the
    progress timeout."""
    cluster = Cluster(groups=6).up()
    cluster.run(8.0)
    name = cluster.coordinator(0)
    mine = [group for group in range(6) if cluster.coordinator(group) == name]
    assert len(mine) > 1
    cluster.hold = lambda sender, receiver, message: isinstance(message, HandOver)
    cluster.give(name, DrainRequest(60.0))
    cluster.run(1.5)
    assert sorted(message.group for _, _, message in cluster.held if isinstance(message, HandOver)) == mine
    cluster.run(1.0)
    assert len(cluster.held) == 2 * len(mine)


def coordinated(cluster: Cluster) -> dict[str, int]:
    """Return the number of groups that each broker coordinates."""
    owners = [cluster.coordinator(group) for group in range(cluster.groups)]
    return {name: owners.count(name) for name in cluster.names}


def even(cluster: Cluster) -> bool:
    counts = coordinated(cluster).values()
    return max(counts) - min(counts) <= 1


def lopsided() -> tuple[Cluster, str]:
    """Return a cluster, and its broker with the most groups. The broker `c` was restarted, is ready and has fewer
    groups than the others."""
    cluster = Cluster(groups=12).up()
    cluster.run(16.0)
    cluster.restart("c")
    live = cluster.logic("a").membership.live
    while "c" not in live or (live["c"].incarnation, live["c"].ready) != (2, True):
        assert cluster.now < 60.0
        cluster.run(0.1)
    counts = coordinated(cluster)
    return cluster, max(("a", "b"), key=lambda name: counts[name])


def test_groups_stay_while_no_successor_is_linked() -> None:
    """HAND-OVER: a coordinator with surplus groups keeps them while it has no link to a possible successor;
    afterwards the groups become even."""
    cluster, heavy = lopsided()
    counts = coordinated(cluster)
    assert counts[heavy] - counts["c"] >= 2
    handed = len(cluster[heavy].notes("group_handed_over"))
    cluster.isolate(heavy)
    cluster.run(2.5)
    assert len(cluster[heavy].notes("group_handed_over")) == handed
    cluster.heal()
    cluster.run(12.0)
    assert even(cluster)


@pytest.mark.unmeasured
def test_groups_are_not_handed_to_a_broker_with_as_many() -> None:
    """HAND-OVER: while the broker with the fewest groups cannot be reached, two others with equally many hand no
    groups to each other; afterwards the groups become even."""
    cluster, heavy = lopsided()
    (other,) = {"a", "b"} - {heavy}
    cluster.cut(heavy, "c")
    cluster.cut(other, "c")
    before = {name: len(cluster[name].notes("group_handed_over")) for name in ("a", "b")}
    cluster.run(3.5)  # less than the fencing time
    assert {name: len(cluster[name].notes("group_handed_over")) for name in ("a", "b")} == before
    cluster.heal()
    cluster.run(30.0)
    assert even(cluster)


@pytest.mark.unmeasured
def test_unaccepted_hand_overs_back_off_and_balance_is_reached() -> None:
    """When a successor does not accept its groups, hand-overs are repeated rarely: 3 to 6 times in a minute. Once it
    accepts them, the groups become even and stay."""
    cluster, heavy = lopsided()
    cluster.hold = lambda sender, receiver, message: isinstance(message, HandOver)
    before = len(cluster[heavy].notes("group_handed_over"))
    cluster.run(60.0)
    assert 3 <= len(cluster[heavy].notes("group_handed_over")) - before <= 6
    cluster.held.clear()
    cluster.hold = lambda sender, receiver, message: False
    cluster.run(90.0)
    assert even(cluster)
    epochs = [cluster.record(group).epoch for group in range(12)]
    cluster.run(40.0)
    assert [cluster.record(group).epoch for group in range(12)] == epochs


@pytest.mark.unmeasured
def test_hand_overs_that_come_back_back_off() -> None:
    """When a successor accepts groups, makes no progress and resigns, hand-overs are repeated rarely: 3 to 20 times
    in two minutes. Once it makes progress, the groups become even."""
    cluster, _ = lopsided()
    cluster.hold = lambda sender, receiver, message: sender == "c" and isinstance(message, Sync)
    before = sum(len(cluster[name].notes("group_handed_over")) for name in ("a", "b"))
    cluster.run(120.0)
    handed = sum(len(cluster[name].notes("group_handed_over")) for name in ("a", "b")) - before
    assert 3 <= handed <= 20
    cluster.held.clear()
    cluster.hold = lambda sender, receiver, message: False
    cluster.run(120.0)
    assert even(cluster)
