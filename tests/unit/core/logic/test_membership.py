"""Incarnations, links, readiness, reasons for a broker to stop, and what it announces about itself
(docs/concepts/replication.md, "Restarts, links and drains")."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.events import (
    Admission,
    ConnectPeers,
    Flush,
    PeerDown,
    PeerReceived,
    PeerUp,
    PublishRequest,
    RefusePeer,
    ServerList,
    Stop,
    ZkChanged,
)
from migratory_broker.core.logic.status import describe_logic
from migratory_protocol.peer import (
    Forward,
    ForwardedPublication,
    HandOver,
    Heartbeat,
    Publication,
    SurveyReply,
)
from migratory_testing.brokers import Cluster
from migratory_testing.zookeeper_tree import Stored


def test_newer_incarnation_of_the_own_name_stops_the_process() -> None:
    """NEWER-LIFE: a broker that reads a newer incarnation of its own name in ZooKeeper stops its process with exit
    code 3."""
    cluster = Cluster().up()
    cluster.store.nodes["/brokers/a"].data = b"2"
    cluster.run(1.0)
    (stop,) = cluster["a"].of(Stop)
    assert stop.code == 3
    assert "incarnation 2 of broker a" in stop.reason


def test_ephemeral_of_a_newer_incarnation_is_left_alone() -> None:
    cluster = Cluster().up()
    node = cluster.store.nodes["/members/b"]
    node.data = node.data.replace(b'"incarnation":1', b'"incarnation":9')
    node.owner = 7
    cluster.logic("b").membership._announced = None
    cluster.step("b", ZkChanged("/members/a"))
    cluster.run(0.3)
    assert cluster["b"].of(Stop)
    assert cluster.store.nodes["/members/b"].owner == 7


@pytest.mark.parametrize("how", ["replaced", "gone", "gone unnoticed"])
def test_removed_ephemeral_is_created_again(how: str) -> None:
    """RESTORE-EPHEMERAL: a broker whose presence node was deleted or replaced by that of an older incarnation
    creates the node again with its own session, even if no watch reported the change."""
    cluster = Cluster().up()
    cluster.restart("b")
    cluster.run(3.0)
    node = cluster.store.nodes.pop("/members/b")
    assert b'"incarnation":2' in node.data
    if how == "replaced":
        older = node.data.replace(b'"incarnation":2', b'"incarnation":1')
        cluster.store.nodes["/members/b"] = Stored(older, node.version, node.owner + 1000)
    if how != "gone unnoticed":
        cluster.store.fire("/members/b", True)
        cluster._watches()
    cluster.run(0.5 if how != "gone unnoticed" else cluster.logic("b").config.refresh_interval + 0.5)
    assert cluster["b"].running
    again = cluster.store.nodes["/members/b"]
    assert (again.data, again.owner) == (node.data, cluster["b"].session)
    assert all(cluster.logic(name).membership.live["b"].incarnation == 2 for name in cluster.names)


def test_link_to_an_old_incarnation_is_refused() -> None:
    cluster = Cluster().up()
    logic = cluster.logic("a")
    logic.membership.learn("b", 5)
    assert "b" not in logic.ctx.links  # the link led to a life that is over
    cluster.step("a", PeerUp("b", 4))
    assert "b" not in logic.ctx.links
    assert cluster["a"].notes("old_incarnation_refused")
    cluster.step("a", PeerReceived("b", (Heartbeat(0.0, [], [], True, True),)))
    assert "b" not in logic.membership.peers or logic.membership.peers["b"].heard_at < cluster.now
    cluster.step("a", PeerUp("b", 5))
    cluster.step("a", PeerUp("b", 5))
    assert logic.ctx.links["b"] == 5
    cluster.step("a", PeerDown("b"))
    cluster.step("a", PeerDown("b"))
    assert "b" not in logic.ctx.links


def test_messages_about_unknown_groups_end_the_link() -> None:
    for message in (
        HandOver(77, 1, 1),
        Heartbeat(0.0, [], [(77, 1)], True, True),
        Forward(77, []),
        SurveyReply(1, [(77, 1)]),
    ):
        cluster = Cluster().up()
        cluster.step("a", PeerReceived("b", (message, HandOver(78, 1, 1))))
        (refusal,) = cluster["a"].of(RefusePeer)
        name = type(message).__name__
        assert refusal == RefusePeer("b", "group", f"{name}: the group is one of the cluster's")
        assert "b" not in cluster.logic("a").ctx.links


def test_a_refused_heartbeat_changes_nothing() -> None:
    cluster = Cluster().up()
    logic = cluster.logic("a")
    coordinator = logic.gossip.coordinator(0)
    claimant = next(name for name in ("b", "c") if name != coordinator)
    known = logic.membership.peers[claimant]
    claims = [(0, logic.groups[0].replica.promised), (77, 1)]
    cluster.step("a", PeerReceived(claimant, (Heartbeat(0.0, [], claims, False, False),)))
    assert cluster["a"].of(RefusePeer)
    assert logic.membership.peers[claimant] == known
    assert logic.gossip.coordinator(0) == coordinator


def test_messages_of_no_kind_are_ignored() -> None:
    cluster = Cluster().up()
    assert cluster.step("a", PeerReceived("b", (Publication(1, 1, b""),))) == []  # type: ignore[arg-type]


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


def test_links_are_kept_until_zookeeper_names_a_newer_incarnation() -> None:
    """When all sessions expire while ZooKeeper is away, brokers publish on over their links; when it is back, they
    register again with the same incarnations, and connect to no peer anew."""
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


def test_brokers_with_different_cluster_configurations_stop() -> None:
    cluster = Cluster().up()
    cluster.crash("a")
    cluster.groups = 7
    cluster.start("a")
    cluster.run(1.0)
    (stop,) = cluster["a"].of(Stop)
    assert stop.code == 1
    assert "1 topic groups" in stop.reason
    assert "7" in stop.reason


def test_status_has_the_fields_for_operators() -> None:
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    cluster.publish("a", "t", "x", id=1)
    status = describe_logic(cluster.logic(coordinator))
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
    assert describe_logic(fresh.logic("a"))["zookeeper"] == {
        "connected": False, "age": -1.0, "identity": "", "data_losses": 0,
    }  # fmt: skip
    assert describe_logic(fresh.logic("a"))["roles"]["none"] == 1  # type: ignore[index]


def test_frozen_process_checks_fencing_before_it_acts() -> None:
    """A process that was frozen for 20 s fences itself before it handles the publication that waited in its socket,
    and answers it with `retry`."""
    cluster = Cluster().up()
    cluster.run(5.0)
    cluster.now += 20.0
    effects = cluster.step("a", PublishRequest(0, 1, [ForwardedPublication("t", b"x", 1, "p", 1, 1)]))
    cluster.step("a", Flush())
    assert Admission(False, "fenced") in effects
    assert cluster.answers[1].code == "retry"
    assert cluster["a"].notes("was_frozen")
