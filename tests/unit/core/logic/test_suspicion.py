"""SUSPECT: a coordinator that is taken to be dead is replaced before its ZooKeeper session ends, and one that lives
steps down and loses nothing (docs/concepts/replication.md, "Takeover")."""

from __future__ import annotations

import msgspec
import pytest
from migratory_broker.core.logic.events import (
    PeerDown,
    PeerReceived,
    PeerRefused,
    PeerUp,
    SendPeer,
    Tick,
    ZkChanged,
    ZkCommit,
    ZkCreate,
    ZkDelete,
    ZkWrite,
)
from migratory_broker.core.logic.membership.records import decode_group, encode
from migratory_broker.core.logic.membership.suspicion import MAX_DOUBLINGS, TRUST_SESSIONS
from migratory_protocol.peer import Heartbeat, Synced
from migratory_protocol.positions import Position
from migratory_testing.brokers import Cluster

SESSION = 4.0
TRUST = TRUST_SESSIONS * SESSION


def refuse(cluster: Cluster, suspect: str, *by: str) -> None:
    """Tell the brokers `by` (by default all others that run) that the process of `suspect` refuses connections."""
    incarnation = cluster.logic(suspect).incarnation
    for name in by or tuple(other for other in cluster.running() if other != suspect):
        cluster.give(name, PeerRefused(suspect, incarnation))


def kill(cluster: Cluster, name: str) -> None:
    """End a process whose session lives on, and let the others find that it is gone."""
    cluster.crash(name, expire=False)
    refuse(cluster, name)


def suspected(cluster: Cluster, name: str, by: str) -> bool:
    logic = cluster.logic(by)
    return logic.suspicions.since((name, cluster.logic(name).incarnation)) is not None


def test_a_dead_coordinator_is_replaced_while_its_session_lives() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    contact, other = cluster.others()
    for number in range(1, 6):
        cluster.publish(contact, "t", str(number), id=number)
    before, session = cluster.record(), cluster[old].session
    kill(cluster, old)
    cluster.run(0.5)
    new = cluster.coordinator()
    assert new != old
    assert cluster.store.nodes[f"/members/{old}"].owner == session
    assert cluster.store.nodes["/coordinators/0"].owner == cluster[new].session
    (written,) = [
        [(type(operation), operation.path) for operation in commit.operations]
        for commit in cluster[new].of(ZkCommit)
        if any(isinstance(operation, ZkDelete) for operation in commit.operations)
    ]
    ephemeral = "/coordinators/0"
    assert {(ZkWrite, "/groups/0"), (ZkDelete, ephemeral), (ZkCreate, ephemeral)} <= set(written)
    source = cluster.record().source
    assert source is not None
    assert source.epoch == before.epoch
    assert cluster[new].notes("record_written")[-1].fields["reason"] == "suspect"
    reference = cluster.publish(contact, "t", "6", id=6)
    assert cluster.answers[reference].position == Position(cluster.record().epoch, 6)
    assert cluster.delivered(other, "t") == [(number, str(number)) for number in range(1, 7)]


def test_all_groups_of_a_dead_coordinator_are_taken_over_at_once() -> None:
    cluster = Cluster(groups=30).up(8.0)
    led = {group: cluster.coordinator(group) for group in range(30)}
    old = led[0]
    kill(cluster, old)
    cluster.run(0.5)
    assert all(cluster.coordinator(group) != old for group in range(30))
    assert all(cluster.coordinator(group) == led[group] for group in range(30) if led[group] != old)
    taken = [group for group in range(30) if led[group] == old]
    assert len({cluster.coordinator(group) for group in taken}) == 2


def test_a_coordinator_that_most_brokers_do_not_hear_is_replaced() -> None:
    """A broken link alone is no evidence. Silence of half the fencing time is, before the session ends."""
    cluster = Cluster().up()
    old, before = cluster.coordinator(), cluster.record()
    cluster.crash(old, expire=False)
    cluster.run(1.9)
    assert cluster.record() == before
    cluster.run(0.9)
    new = cluster.coordinator()
    assert new != old
    assert cluster.store.nodes[f"/members/{old}"].owner == cluster[old].session
    assert [note.fields["evidence"] for note in cluster[new].notes("broker_suspected")] == ["silent"]


def test_a_minority_that_does_not_hear_the_coordinator_is_no_evidence() -> None:
    cluster = Cluster(("a", "b", "c", "d", "e"), min_copies=3).up()
    old, before = cluster.coordinator(), cluster.record()
    first, second = cluster.others()[:2]
    for name in cluster.names:
        for cut in (first, second):
            if name not in (first, second):
                cluster.cut(name, cut)
    cluster.run(3.0)
    assert not any(cluster.logic(name).suspicions.any for name in (first, second))
    assert cluster.logic(old).suspicions.any, "most brokers do not hear the two"
    assert cluster.record().owner == before.owner


def test_a_silent_broker_that_is_heard_again_is_trusted() -> None:
    cluster = Cluster().up()
    other, suspect = cluster.others()
    for turn in range(2):
        cluster.isolate(suspect)
        cluster.run(2.5)
        assert suspected(cluster, suspect, other) is (turn == 0)
        cluster.heal()
        cluster.run(1.0)
    assert len(cluster[other].notes("suspected_wrongly")) == 1


def test_a_broker_with_a_link_contradicts() -> None:
    """A broker that cannot reach the coordinator, which another one reaches, does not take over."""
    cluster = Cluster().up()
    old, before = cluster.coordinator(), cluster.record()
    first, second = cluster.others()
    for name, linked in ((first, second), (second, first)):
        cluster.cut(name, old)
        refuse(cluster, old, name)
        refuse(cluster, name, old)
        cluster.run(6.0)
        assert cluster.record() == before
        assert not suspected(cluster, old, name)
        there = cluster.logic(linked).membership.peers[name]
        assert not there.links_to((old, cluster.logic(old).incarnation))
        cluster.heal()
        cluster.run(1.0)


def test_a_silent_broker_does_not_contradict() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    first, second = cluster.others()
    cluster.hold = lambda sender, receiver, message: sender == second and isinstance(message, Heartbeat)
    cluster.cut(first, old)
    refuse(cluster, old, first)
    cluster.run(1.0)
    assert not suspected(cluster, old, first)
    cluster.run(1.0)
    assert suspected(cluster, old, first)


def test_a_link_that_breaks_is_reported_with_the_next_tick() -> None:
    cluster = Cluster().up()
    cluster.run(0.1)
    for _ in range(10):
        effects = cluster.step("a", Tick())
        if any(isinstance(effect, SendPeer) and isinstance(effect.message, Heartbeat) for effect in effects):
            break
        cluster.now += 0.1
    incarnation = cluster.logic("b").incarnation
    cluster.step("a", PeerDown("b"))
    cluster.step("a", Tick())
    heartbeat = cluster.messages("a", Heartbeat)[-1]
    assert heartbeat[0] == "c"
    assert dict(zip(heartbeat[1].heard, heartbeat[1].incarnations, strict=True))["b"] == 0
    assert incarnation != 0


def test_a_coordinator_that_lives_steps_down_and_loses_nothing() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    contact = cluster.others()[0]
    cluster.publish(contact, "t", "1", id=1)
    cluster.isolate(old)
    refuse(cluster, old)
    cluster.publish(old, "t", "x", publisher="q", id=1)
    cluster.run(1.0)
    (new,) = [name for name in cluster.coordinators() if name != old]
    cluster.publish(contact, "t", "2", id=2)
    cluster.heal()
    cluster.run(1.0)
    assert cluster.coordinator() == new
    logs = [cluster.logic(name).groups[0].replica.topics["t"] for name in cluster.names]
    assert [[entry.payload for entry in log.entries] for log in logs] == [[b"1", b"2"]] * 3
    assert cluster[new].notes("suspected_wrongly")
    assert cluster.logic(new).groups[0].term is not None


def test_repeated_wrong_suspicion_waits_longer() -> None:
    cluster = Cluster().up()
    logic, incarnation = cluster.logic("a"), cluster.logic("b").incarnation
    suspicions, lowest = logic.suspicions, 0.0
    for turn in range(MAX_DOUBLINGS + 3):
        cluster.step("a", PeerDown("b"))
        cluster.now += lowest - 1.0 if turn else 0.0
        cluster.step("a", PeerRefused("b", incarnation))
        assert suspicions.any is (turn == 0)
        cluster.now += 1.0
        cluster.step("a", PeerRefused("b", incarnation))
        assert suspicions.any
        cluster.step("a", PeerUp("b", incarnation))
        assert not suspicions.any
        lowest = TRUST * 2 ** min(turn, MAX_DOUBLINGS)
        assert cluster["a"].notes("suspected_wrongly")[-1].fields["trusted_seconds"] == lowest


@pytest.mark.parametrize("case", ["link stands", "never linked", "another incarnation"])
def test_refusals_that_are_no_evidence(case: str) -> None:
    cluster = Cluster().up()
    logic, incarnation = cluster.logic("a"), cluster.logic("b").incarnation
    if case != "link stands":
        cluster.step("a", PeerDown("b"))
    peer = "x" if case == "never linked" else "b"
    cluster.step("a", PeerRefused(peer, incarnation + (case == "another incarnation")))
    assert not logic.suspicions.any
    assert logic.suspicions.since(("b", incarnation)) is None
    assert logic.suspicions.since(("x", incarnation)) is None


def test_evidence_is_of_one_incarnation() -> None:
    """Evidence stays when the next incarnation of the broker appears, which is not suspected."""
    cluster = Cluster().up()
    logic, incarnation = cluster.logic("a"), cluster.logic("b").incarnation
    cluster.step("a", PeerDown("c"))
    cluster.step("a", PeerDown("b"))
    cluster.step("a", PeerRefused("b", incarnation))
    cluster.step("a", PeerRefused("b", incarnation))
    assert len(cluster["a"].notes("broker_suspected")) == 1
    refused_at = cluster.now
    cluster.now += 0.1
    cluster.step("a", PeerUp("b", incarnation + 1))
    assert logic.suspicions.since(("b", incarnation)) == refused_at
    assert logic.suspicions.since(("b", incarnation + 1)) is None
    cluster.step("a", PeerDown("b"))
    assert not logic.suspicions.any
    assert logic.suspicions.since(("b", incarnation)) is None


def test_old_evidence_leaves_the_decision_to_the_session() -> None:
    cluster = Cluster().up()
    logic, incarnation = cluster.logic("a"), cluster.logic("b").incarnation
    cluster.step("a", PeerDown("b"))
    cluster.step("a", PeerRefused("b", incarnation))
    cluster.step("a", Tick())
    assert logic.suspicions.any
    cluster.now += 2 * SESSION + 0.1
    cluster.step("a", Tick())
    assert not logic.suspicions.any
    assert logic.suspicions.since(("b", incarnation)) is None


@pytest.mark.parametrize("change", ["a later epoch of the suspect", "another owner"])
def test_a_record_that_changed_meanwhile_is_not_replaced(change: str) -> None:
    """No ping-pong: a suspected owner that wrote a later record lives, and two brokers that suspect each other do not
    take each other's new epochs."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    record = cluster.record()
    if change == "another owner":
        written = msgspec.structs.replace(record, owner=("x", 1))
    else:
        written = record.next(record.owner, record.members, 2).as_activated()
    node = cluster.store.nodes["/groups/0"]
    node.data, node.version = encode(written), node.version + 1
    kill(cluster, old)
    cluster.run(3.0)
    assert cluster.record() == written


def test_a_candidate_that_dies_before_its_activation_is_replaced() -> None:
    cluster = Cluster(("a", "b", "c", "d", "e"), min_copies=3).up()
    first = cluster.coordinator()
    cluster.publish(cluster.others()[0], "t", "1", id=1)
    cluster.hold = lambda sender, receiver, message: isinstance(message, Synced)
    kill(cluster, first)
    cluster.run(0.5)
    second = cluster.record().owner[0]
    assert not cluster.record().activated
    cluster.hold = lambda sender, receiver, message: False
    source = cluster.record().source
    kill(cluster, second)
    cluster.run(1.0)
    third = cluster.coordinator()
    assert third not in (first, second)
    assert cluster.record().source == source
    assert [entry.payload for entry in cluster.logic(third).groups[0].replica.topics["t"].entries] == [b"1"]


def test_no_history_begins_by_suspicion() -> None:
    """Too few of the last list are left to promise. The group waits, and nobody counts as lost."""
    cluster = Cluster(history_wait_sessions=2.5, isolation_sessions=2.0).up()
    old, before = cluster.coordinator(), cluster.record()
    first, second = cluster.others()
    cluster.crash(first, expire=False)
    kill(cluster, old)
    refuse(cluster, first, second)
    cluster.run(7.9)
    assert cluster.record() == before
    assert cluster[second].notes("group_waits")[-1].fields["reason"] == (
        "too few of the last activated list can be reached"
    )


def test_the_reason_of_a_wait_stays_while_the_suspects_ephemeral_exists() -> None:
    """WAITS-AND-SAYS-SO: listings show the suspect's ephemeral, but the group waits until the suspect is back."""
    cluster = Cluster().up()
    old, reason = cluster.coordinator(), "too few of the last activated list can be reached"
    first, second = cluster.others()
    cluster.crash(first, expire=False)
    cluster.cut(old, second)
    refuse(cluster, old, second)
    refuse(cluster, first, second)
    cluster.run(0.5)
    shown = []
    for _ in range(12):
        cluster.run(0.1)
        assert suspected(cluster, old, second)
        cluster.give(second, ZkChanged("/coordinators"))
        shown.append(cluster.logic(second).election.states[0].waiting)
    assert set(shown) == {reason}
    assert [note.fields["reason"] for note in cluster[second].notes("group_waits")] == [reason]
    assert cluster.coordinator() == old
    assert "/coordinators/0" in cluster.store.nodes
    cluster.heal()
    cluster.run(1.0)
    assert not suspected(cluster, old, second)
    assert cluster.coordinator() == old
    assert cluster.logic(second).election.states[0].waiting == ""


def test_suspects_are_no_candidates() -> None:
    cluster = Cluster(("a", "b", "c", "d", "e"), min_copies=3).up()
    old = cluster.coordinator()
    election = cluster.logic(old).election
    assert sorted(election.order(0)) == ["a", "b", "c", "d", "e"]
    first = next(name for name in election.order(0) if name != old)
    kill(cluster, first)
    kill(cluster, old)
    cluster.run(0.5)
    assert cluster.coordinator() not in (old, first)
    for name in cluster.running():
        assert sorted(cluster.logic(name).election.order(0)) == sorted(cluster.running())


def test_a_refused_takeover_waits_for_what_zookeeper_shows() -> None:
    """The session ends just before the transaction, so that there is nothing to replace. The usual takeover follows."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    expired = False

    def lost(broker: str, commit: ZkCommit) -> bool:
        nonlocal expired
        if not expired and any(isinstance(operation, ZkDelete) for operation in commit.operations):
            expired = True
            cluster.store.expire(cluster[old].session)
        return False

    cluster.lost = lost
    kill(cluster, old)
    cluster.run(4.0)
    assert expired
    assert cluster.coordinator() != old
    assert any(cluster[name].notes("record_refused") for name in cluster.running())
    assert decode_group(cluster.store.nodes["/groups/0"].data).activated


def test_heartbeats_of_an_older_broker_do_not_contradict() -> None:
    """It does not say which links it has. Promises fence a coordinator that it may reach."""
    cluster = Cluster().up()
    cluster.step("a", PeerReceived("c", (Heartbeat(0.0, ["a", "b"], [], True, True),)))
    state = cluster.logic("a").membership.peers["c"]
    assert state.heard == {"a": 0, "b": 0}
    assert not state.links_to(("b", cluster.logic("b").incarnation))
