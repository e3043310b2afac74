"""docs/replication.md, "A broker's lives": learners, lists, broken links, incarnations, readiness, drain, balance."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.events import (
    Admission,
    ConnectPeers,
    DrainClients,
    DrainRequest,
    Gap,
    PeerDown,
    PeerReceived,
    PeerUp,
    PublishRequest,
    ServerList,
    Stop,
    ZkChanged,
)
from migratory_protocol.peer import (
    Accept,
    Activated,
    Entries,
    HandOver,
    Heartbeat,
    Prepare,
    Publication,
    Standing,
    Sync,
)
from migratory_protocol.positions import Position
from migratory_testing.brokers import Cluster


def members(cluster: Cluster, group: int = 0) -> list[tuple[str, int]]:
    return sorted((name, incarnation) for name, incarnation in cluster.record(group).members)


def test_a_restarted_broker_learns_and_is_listed_after_catching_up() -> None:
    """LISTED-AFTER-CATCHING-UP: a learner votes nothing and takes no clients; then a record lists it."""
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


def test_a_learner_follows_live_traffic_by_the_mark() -> None:
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
    assert cluster.logic(victim).status()["roles"] == {
        "coordinator": 0,
        "candidate": 0,
        "member": 0,
        "learner": 1,
        "none": 0,
    }


def test_relisting_skips_the_promises_and_keeps_numbering_until_it_promises() -> None:
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


def test_an_uncommitted_suffix_survives_a_relisting() -> None:
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


def test_a_restart_is_a_failure_until_it_is_listed_again() -> None:
    """BY-INCARNATION: a fast restart, before anybody noticed that the old one went."""
    cluster = Cluster().up()
    victim, other = cluster.others()
    cluster.publish(other, "t", "x", id=1)
    cluster.restart(victim)
    cluster.run(1.0)
    assert (victim, 2) not in members(cluster)
    cluster.run(5.0)
    assert (victim, 2) in members(cluster)
    assert cluster.logic(victim).membership.ready


def test_a_restarted_owner_does_not_resume_its_epoch() -> None:
    """Its old ephemeral is there until the session ends; the record names another incarnation."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    session = cluster[old].session
    cluster.crash(old, expire=False)
    cluster.start(old)
    cluster.run(2.0)
    assert cluster.logic(old).groups[0].reign is None
    assert cluster.store.nodes["/coordinators/0"].owner == session
    cluster.store.expire(session)
    cluster.run(6.0)
    assert cluster.record().activated
    assert (old, 2) in members(cluster)


def test_a_broken_link_is_repaired_by_what_is_missing() -> None:
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


def test_gap_told() -> None:
    """GAP-TOLD: what was evicted meanwhile is `truncated` to live subscribers at once; the log is taken whole."""
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


def test_a_missing_entry_is_asked_for_once() -> None:
    """ACCEPT: not the next of its topic. (A link loses nothing; should it, the member asks.)"""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    member, _ = cluster.others()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept) and receiver == member
    cluster.publish(coordinator, "t", "1", id=1)
    cluster.held.clear()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Standing)
    cluster.publish(coordinator, "t", "2", id=2)
    cluster.publish(coordinator, "t", "3", id=3)
    assert len(cluster[member].notes("entry_missing")) == 1
    assert cluster.delivered(member, "t") == []
    cluster.release()
    cluster.run(0.1)
    assert cluster.delivered(member, "t") == [(1, "1"), (2, "2"), (3, "3")]


def test_an_entry_that_is_here_already_changes_nothing() -> None:
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    member, _ = cluster.others()
    cluster.publish(coordinator, "t", "1", id=1)
    replica = cluster.logic(member).groups[0].replica
    again = Accept(0, replica.history, replica.synced, [Entries("t", [replica.topics["t"].entries[0]])], [], [])
    cluster.step(member, PeerReceived(coordinator, again))
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


def test_a_sync_that_would_not_fit_is_asked_for_again() -> None:
    """`topics_total` and `lasts_total` are checked before anything changes."""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    member, _ = cluster.others()
    cluster.publish(coordinator, "t", "1", id=1)
    group = cluster.logic(coordinator).groups[0]
    assert group.reign is not None
    replica = cluster.logic(member).groups[0].replica
    replica.drop([replica.topics["t"]])
    group.reign.followers.add_streaming(member)
    for effect in cluster.logic(coordinator).ctx.effects[-1:]:
        cluster._carry_out(cluster[coordinator], effect)
    cluster.settle()
    assert cluster[member].notes("sync_asked_again")
    assert replica.topics["t"].committed == 1


def test_a_newer_incarnation_of_the_own_name_stops_the_process() -> None:
    """NEWER-LIFE: by the own timed read, by the presence node, or by what a peer says."""
    cluster = Cluster().up()
    cluster.store.nodes["/brokers/a"].version += 1
    cluster.run(1.0)
    (stop,) = cluster["a"].of(Stop)
    assert stop.code == 3
    assert "incarnation 2 of broker a" in stop.reason


def test_a_presence_node_of_a_newer_life_is_left_alone() -> None:
    cluster = Cluster().up()
    node = cluster.store.nodes["/members/b"]
    node.data = node.data.replace(b'"incarnation":1', b'"incarnation":9')
    node.owner = 7
    cluster.logic("b").membership._announced = None
    cluster.step("b", ZkChanged("/members/a"))
    cluster.run(0.3)
    assert cluster["b"].of(Stop)
    assert cluster.store.nodes["/members/b"].owner == 7


def test_a_link_to_an_old_life_is_refused() -> None:
    cluster = Cluster().up()
    logic = cluster.logic("a")
    logic.membership.learn("b", 5)
    assert "b" not in logic.ctx.links  # the link led to a life that is over
    cluster.step("a", PeerUp("b", 4))
    assert "b" not in logic.ctx.links
    assert cluster["a"].notes("old_incarnation_refused")
    cluster.step("a", PeerReceived("b", Heartbeat(0.0, [], [], True, True)))
    assert "b" not in logic.membership.news or logic.membership.news["b"].at < cluster.now
    cluster.step("a", PeerUp("b", 5))
    cluster.step("a", PeerUp("b", 5))
    assert logic.ctx.links["b"] == 5
    cluster.step("a", PeerDown("b"))
    cluster.step("a", PeerDown("b"))
    assert "b" not in logic.ctx.links


def test_messages_with_impossible_groups_are_ignored() -> None:
    cluster = Cluster().up()
    assert cluster.step("a", PeerReceived("b", HandOver(77, 1, 1))) == []
    assert cluster.step("a", PeerReceived("b", Publication(1, 1, b""))) == []  # type: ignore[arg-type]
    cluster.step("a", PeerReceived("b", Heartbeat(0.0, [], [(77, 1)], True, True)))


def test_server_list_and_admission_follow_readiness() -> None:
    cluster = Cluster().up()
    lists = cluster["a"].of(ServerList)
    assert [server.url for server in lists[-1].servers] == ["ws://a", "ws://b", "ws://c"]
    cluster.crash("c")
    cluster.run(1.0)
    assert [server.url for server in cluster["a"].of(ServerList)[-1].servers] == ["ws://a", "ws://b"]
    cluster.zookeeper(False)
    cluster.run(2.0)
    assert [server.url for server in cluster["a"].of(ServerList)[-1].servers] == ["ws://a", "ws://b"]


def test_links_are_kept_while_zookeeper_does_not_name_their_end() -> None:
    """All sessions expired with ZooKeeper away; when it is back, each is named again with the same incarnation."""
    cluster = Cluster().up()
    cluster.zookeeper(False)
    cluster.run(2.0)
    for name in cluster.names:
        cluster.store.expire(cluster[name].session)
        cluster._session += 1
        cluster[name].session = cluster._session
    cluster.run(1.0)
    reference = cluster.publish("a", "t", "x", id=1)
    assert cluster.answers[reference].code == ""
    before, lists = len(cluster["a"].of(ConnectPeers)), len(cluster["a"].of(ServerList))
    cluster.zookeeper(True)
    cluster.run(6.0)
    assert len(cluster["a"].of(ConnectPeers)) == before
    assert all(len(servers.servers) == 3 for servers in cluster["a"].of(ServerList)[-1:])
    assert len(cluster["a"].of(ServerList)) == lists
    assert {cluster.logic(name).incarnation for name in cluster.names} == {1}
    assert all(cluster.store.nodes[f"/members/{name}"].owner == cluster[name].session for name in cluster.names)
    assert cluster.record().activated


def test_configurations_that_differ_must_not_meet() -> None:
    cluster = Cluster().up()
    cluster.crash("a")
    cluster.groups = 7
    cluster.start("a")
    cluster.run(1.0)
    (stop,) = cluster["a"].of(Stop)
    assert stop.code == 1
    assert "1 topic groups" in stop.reason
    assert "7" in stop.reason


def test_drain_hands_groups_over_then_sends_clients() -> None:
    """DRAIN-ORDER"""
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


def test_a_broker_is_not_drained_while_a_list_has_lost_another_member() -> None:
    cluster = Cluster(relist_delay=100.0).up()
    coordinator = cluster.coordinator()
    leaver, gone = cluster.others()
    cluster.crash(gone)
    cluster.run(0.3)
    cluster.give(leaver, DrainRequest(20.0))
    cluster.run(2.0)
    assert cluster[leaver].of(DrainClients)
    assert not cluster.logic(leaver).drained
    assert coordinator == cluster.coordinator()


def test_coordinators_move_back_to_a_restarted_broker_and_then_rest() -> None:
    """Balance: only while all are ready; a second look moves nobody."""
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


def test_status_names_what_an_operator_asks_for() -> None:
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    cluster.publish("a", "t", "x", id=1)
    status = cluster.logic(coordinator).status()
    assert status["roles"] == {"coordinator": 1, "candidate": 0, "member": 0, "learner": 0, "none": 0}
    assert status["ready"] is True
    assert status["settled"] is True
    assert status["published"] == 1
    assert status["committed"] == 1
    assert status["waiting_groups"] == 0
    assert status["coordinators"] == {coordinator: 1}
    assert status["groups"][0]["members"] == ["a", "b", "c"]  # type: ignore[index]
    fresh = Cluster()
    fresh.start("a")
    assert fresh.logic("a").status()["zookeeper"] == {"connected": False, "age": -1.0}
    assert fresh.logic("a").status()["roles"]["none"] == 1  # type: ignore[index]


def test_a_process_that_was_frozen_looks_before_it_acts() -> None:
    """What waited in its sockets is not acted upon as if no time had passed."""
    cluster = Cluster().up()
    cluster.run(5.0)
    cluster.now += 20.0
    effects = cluster.step("a", PublishRequest(0, 1, "t", b"x", 1, "p", 1, 1))
    assert Admission(False, "fenced") in effects
    assert cluster.answers[1].code == "retry"
    assert cluster["a"].notes("was_frozen")


def test_a_draining_coordinator_names_a_successor_once() -> None:
    """HAND-OVER: of several groups, each one time, and again only when the successor had its time."""
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


def test_groups_stay_where_they_are_while_no_successor_is_linked() -> None:
    """HAND-OVER: a coordinator with groups to spare keeps them while it is cut off from those who could take them."""
    cluster = Cluster(groups=12).up()
    cluster.run(16.0)
    cluster.restart("c")
    live = cluster.logic("a").membership.live
    while "c" not in live or (live["c"].incarnation, live["c"].ready) != (2, True):
        assert cluster.now < 60.0
        cluster.run(0.1)
    heavy = max(("a", "b"), key=lambda name: sum(cluster.coordinator(group) == name for group in range(12)))
    groups = [group for group in range(12) if cluster.coordinator(group) == heavy]
    light = sum(cluster.coordinator(group) == "c" for group in range(12))
    assert len(groups) - light >= 2
    handed = len(cluster[heavy].notes("hands_over"))
    cluster.isolate(heavy)
    cluster.run(2.5)
    assert len(cluster[heavy].notes("hands_over")) == handed
    cluster.heal()
    cluster.run(12.0)
    counts = [sum(cluster.coordinator(group) == name for group in range(12)) for name in cluster.names]
    assert max(counts) - min(counts) <= 1


def lopsided() -> tuple[Cluster, str]:
    """`c` was restarted, is ready and has fewer groups than the others; the one with most."""
    cluster = Cluster(groups=12).up()
    cluster.run(16.0)
    cluster.restart("c")
    live = cluster.logic("a").membership.live
    while "c" not in live or (live["c"].incarnation, live["c"].ready) != (2, True):
        assert cluster.now < 60.0
        cluster.run(0.1)
    return cluster, max(("a", "b"), key=lambda name: sum(cluster.coordinator(group) == name for group in range(12)))


def even(cluster: Cluster) -> bool:
    counts = [sum(cluster.coordinator(group) == name for group in range(12)) for name in cluster.names]
    return max(counts) - min(counts) <= 1


def test_hand_overs_that_nobody_takes_become_rare_and_balance_comes_all_the_same() -> None:
    """The successor is too busy to take what it is given."""
    cluster, heavy = lopsided()
    cluster.hold = lambda sender, receiver, message: isinstance(message, HandOver)
    before = len(cluster[heavy].notes("hands_over"))
    cluster.run(60.0)
    assert 3 <= len(cluster[heavy].notes("hands_over")) - before <= 6
    cluster.held.clear()
    cluster.hold = lambda sender, receiver, message: False
    cluster.run(90.0)
    assert even(cluster)
    epochs = [cluster.record(group).epoch for group in range(12)]
    cluster.run(40.0)
    assert [cluster.record(group).epoch for group in range(12)] == epochs


def test_groups_that_come_back_at_once_are_handed_over_less_and_less_often() -> None:
    """The successor takes the group, gets nowhere with it and stands back."""
    cluster, _ = lopsided()
    cluster.hold = lambda sender, receiver, message: sender == "c" and isinstance(message, Sync)
    before = sum(len(cluster[name].notes("hands_over")) for name in ("a", "b"))
    cluster.run(120.0)
    handed = sum(len(cluster[name].notes("hands_over")) for name in ("a", "b")) - before
    assert 3 <= handed <= 20
    cluster.held.clear()
    cluster.hold = lambda sender, receiver, message: False
    cluster.run(120.0)
    assert even(cluster)
