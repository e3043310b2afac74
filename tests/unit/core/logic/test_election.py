"""The choice of the next coordinator: candidates and their order, records that are written and activated, unknown
outcomes, ephemerals, resignation, hand-over (docs/concepts/replication.md, "Takeover")."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from migratory_broker.core.logic.events import PeerReceived, ZkCommit, ZkCreate, ZkSession, ZkWrite
from migratory_broker.core.logic.membership.records import decode_group, rendezvous
from migratory_broker.core.logic.status import describe_logic
from migratory_protocol.peer import (
    Accept,
    Accepted,
    HandOver,
    Inventory,
    Promise,
    Synced,
)
from migratory_protocol.positions import Position
from migratory_testing.brokers import Cluster


def writes(commit: ZkCommit, activated: bool) -> bool:
    """Return whether a transaction writes a group's record with this value of `activated`."""
    return any(
        isinstance(operation, (ZkWrite, ZkCreate))
        and operation.path.startswith("/groups/")
        and operation.data != b""
        and decode_group(operation.data).activated is activated
        for operation in commit.operations
    )


def test_activation_is_a_compare_and_set() -> None:
    """ACTIVATE-CAS: a candidate whose record was superseded in ZooKeeper does not activate it; its term is over."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Synced)
    cluster.crash(old)
    cluster.run(1.0)
    (name,) = [n for n in cluster.names if n != old and cluster.logic(n).groups[0].term is not None]
    node = cluster.store.nodes["/groups/0"]
    record = decode_group(node.data)
    overtaking = record.next(("x", 1), record.members, 2)
    node.data, node.version = msgspec.json.encode(overtaking), node.version + 1
    term = cluster.logic(name).groups[0].term
    assert term is not None
    cluster.release()
    assert term.phase == "over"
    assert not cluster.record().activated


@pytest.mark.parametrize("activated", [False, True], ids=["record", "activation"])
@pytest.mark.parametrize("carried_out", [True, False])
def test_unknown_outcome_is_read_again(activated: bool, carried_out: bool) -> None:
    """UNKNOWN-READS-AGAIN: when the outcome of writing or activating the record is unknown, carried out or not, the
    takeover still succeeds and publications are acknowledged."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    dropped: list[str] = []

    def once(broker: str, commit: ZkCommit) -> bool:
        if not dropped and writes(commit, activated):
            dropped.append(broker)
            return True
        return False

    if carried_out:
        cluster.unknown = once
    else:
        cluster.lost = once
    cluster.crash(old)
    cluster.run(6.0)
    assert dropped
    assert cluster.record().activated
    reference = cluster.publish(cluster.coordinator(), "t", "x", id=1)
    assert cluster.answers[reference].code == ""


def test_unknown_activation_of_a_superseded_record_ends_the_term() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    done: list[str] = []

    def overtaken(broker: str, commit: ZkCommit) -> bool:
        if not done and writes(commit, True):
            done.append(broker)
            node = cluster.store.nodes["/groups/0"]
            record = decode_group(node.data)
            node.data = msgspec.json.encode(record.next(("x", 1), record.members, 2))
            node.version += 1
            return True
        return False

    cluster.lost = overtaken
    cluster.crash(old)
    cluster.run(0.5)
    assert cluster[done[0]].notes("term_ended")
    record = cluster.record()
    assert record.epoch > cluster.logic(done[0]).groups[0].replica.first + 2  # above the one that overtook it


def test_unknown_activation_is_recognised_when_it_cannot_be_retried() -> None:
    """UNKNOWN-READS-AGAIN, PROGRESS: a candidate whose activation was carried out without its knowledge, and whose
    list then lost two members, becomes coordinator with a new list, and publishes."""
    cluster = Cluster(("a", "b", "c", "d")).up()
    old = cluster.coordinator()
    cluster.publish(old, "t", "x", id=1)
    dropped: list[str] = []

    def activation(broker: str, commit: ZkCommit) -> bool:
        if dropped or not writes(commit, True):
            return False
        dropped.append(broker)
        return True

    cluster.unknown = activation
    cluster.unread = lambda broker, path: bool(dropped) and path == "/groups/0"
    cluster.crash(old)
    while not dropped:
        cluster.run(0.1)
    (owner,) = dropped
    term = cluster.logic(owner).groups[0].term
    assert term is not None
    assert (term.phase, cluster.record().activated) == ("syncing", True)
    for name in set(cluster.names) - {old, owner}:
        cluster.restart(name)
    cluster.unread = lambda broker, path: False
    cluster.run(1.0)
    assert not term.active  # the list has lost too many
    cluster.run(5.0)
    assert cluster.coordinator() == owner
    assert not term.active  # and has a successor, with the new lives
    reference = cluster.publish(owner, "t", "y", id=2)
    assert cluster.answers[reference].code == ""
    (other, _) = set(cluster.names) - {old, owner}
    log = cluster.logic(other).groups[0].replica.topics["t"]
    assert (log.last, log.committed) == (2, 2)


def test_only_the_own_activated_record_activates_a_term() -> None:
    """ACTIVATE-CAS: a term becomes active only when its own activated record is read; it ignores an older record, an
    own record that is not activated, and lower versions."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Synced)
    cluster.crash(old)
    cluster.run(1.0)
    (term,) = [r for n in cluster.names if n != old and (r := cluster.logic(n).groups[0].term) is not None]
    version = term.version
    record = term.record
    for other in (record, msgspec.structs.replace(record.as_activated(), epoch=record.epoch - 1)):
        term.record_read(other, 99)
        assert (term.phase, term.version) == ("syncing", version)
    term.record_read(record.as_activated(), 99)
    assert (term.phase, term.version) == ("active", 99)
    term.record_read(record.as_activated(), 98)
    assert term.version == 99


def test_takeover_waits_while_zookeeper_is_away() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Synced)
    cluster.crash(old)
    cluster.run(0.5)
    cluster.zookeeper(False)
    cluster.release()
    cluster.run(3.0)
    assert not cluster.record().activated
    cluster.zookeeper(True)
    cluster.run(3.0)
    assert cluster.record().activated


def test_candidate_without_progress_retries_once_and_resigns() -> None:
    """PROGRESS: a candidate that makes no progress writes its record once more with the next epoch, then resigns,
    and another broker becomes owner. Once messages arrive, a record is activated."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    epoch = cluster.record().epoch
    cluster.crash(old)
    cluster.hold = lambda sender, receiver, message: isinstance(message, (Promise, Inventory, Synced))
    cluster.run(1.0)
    first = cluster.record()
    assert first.epoch == epoch + 1
    cluster.run(2.5)
    second = cluster.record()
    assert second.owner == first.owner
    assert second.epoch == epoch + 2
    assert second.source == first.source
    cluster.run(2.5)
    assert cluster[first.owner[0]].notes("resigned")
    (group, *_) = cast("list[dict[str, object]]", describe_logic(cluster.logic(first.owner[0]))["groups"])
    assert group["election_state"] == ["ephemeral_absent", "resigned"]
    cluster.run(4.0)
    assert cluster.record().owner != first.owner
    cluster.hold = lambda sender, receiver, message: False
    cluster.run(12.0)
    assert cluster.record().activated


def test_coordinator_that_cannot_commit_writes_another_list() -> None:
    """PROGRESS: a coordinator whose members confirm nothing writes a record with a higher epoch, stays coordinator
    and commits the publication."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    epoch = cluster.record().epoch
    cluster.hold = lambda sender, receiver, message: isinstance(message, (Accept, Accepted)) and message.epoch == epoch
    reference = cluster.publish(old, "t", "x", id=1)
    cluster.run(4.0)
    assert cluster.record().epoch > epoch
    assert cluster.answers[reference].code == ""
    assert cluster.coordinator() == old


def test_isolated_coordinator_resigns_and_another_takes_over() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    others = cluster.others()
    cluster.isolate(old)
    cluster.publish(old, "t", "x", id=1)
    cluster.run(12.0)
    new = [name for name in cluster.coordinators() if name in others]
    assert len(new) == 1
    cluster.heal()
    cluster.run(6.0)
    assert cluster.coordinator() == new[0]
    assert cluster.logic(old).groups[0].term is None
    assert len(cluster.record().members) == 3


def test_owner_continues_without_its_ephemeral_until_it_promises() -> None:
    """A coordinator whose ephemeral node expired still acknowledges publications, and creates the node again if no
    other record was written (case A10)."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    for name in cluster.names:
        if name != old:
            cluster.zookeeper(False, name)
    cluster.expire(old)
    reference = cluster.publish(old, "t", "x", id=1)
    assert cluster.answers[reference].code == ""
    cluster.run(1.0)
    assert cluster.store.nodes["/coordinators/0"].owner == cluster[old].session
    assert cluster.store.nodes[f"/members/{old}"].owner == cluster[old].session


def test_a10_an_expired_session_is_restored_or_succeeded() -> None:
    """Case A10: after a broker's session has expired, each group has one owner, the broker's presence node is there
    again, and no acknowledged publication is missing."""
    cluster = Cluster(groups=4).up()
    for number in range(1, 4):
        cluster.publish("b", "t", str(number), id=number)
    cluster.expire("a")
    cluster.run(6.0)
    owners = [cluster.coordinator(group) for group in range(4)]
    assert all(cluster.record(group).owner[0] == owners[group] for group in range(4))
    assert cluster.store.nodes["/members/a"].owner == cluster["a"].session
    assert [payload for _, payload in cluster.delivered("c", "t")] == ["1", "2", "3"]
    reference = cluster.publish("b", "t", "4", id=4)
    assert cluster.answers[reference].code == ""


def test_own_ephemeral_of_an_older_session_is_replaced() -> None:
    """RESTORE-EPHEMERAL: a broker with a new session replaces its nodes of the older session by new ones, and its
    record stays."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    broker = cluster[old]
    cluster._session += 1
    broker.session = cluster._session  # a new session, while the nodes of the one before are still there
    cluster.give(old, ZkSession("connected", broker.session))
    cluster.run(0.5)
    assert cluster.store.nodes["/coordinators/0"].owner == broker.session
    assert cluster.store.nodes[f"/members/{old}"].owner == broker.session
    assert cluster.record().epoch == cluster.logic(old).groups[0].replica.synced


def test_coordinator_superseded_by_a_dead_candidate_tries_in_its_turn() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    node = cluster.store.nodes["/groups/0"]
    record = decode_group(node.data)
    node.data = msgspec.json.encode(record.next(("b", 99), record.members, 2))
    node.version += 1
    for name in cluster.names:
        if name != old:
            cluster.zookeeper(False, name)
    cluster.store.expire(cluster[old].session)
    cluster.expire(old)
    cluster.run(6.0)
    assert cluster.record().epoch > record.epoch + 1
    assert cluster.coordinator() == old


def test_named_successor_takes_over_at_a_hand_over_of_the_records_epoch() -> None:
    """HAND-OVER: the successor ignores a hand-over of another epoch. At a hand-over of the record's epoch it becomes
    the coordinator of the next epoch, and continues the sequence numbers."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    successor = cluster.others()[1]
    epoch = cluster.record().epoch
    cluster.publish(old, "t", "x", id=1)
    history = cluster.record().history
    cluster.give(successor, PeerReceived(old, (HandOver(0, history, epoch + 7),)))  # not what the record says
    cluster.settle()
    assert cluster.coordinator() == old
    cluster.give(successor, PeerReceived(old, (HandOver(0, history, epoch),)))
    cluster.run(1.0)
    assert cluster.coordinator() == successor
    assert cluster.record().epoch == epoch + 1
    reference = cluster.publish(old, "t", "y", id=2)
    assert cluster.answers[reference].position == Position(epoch + 1, 2)


def test_candidates_try_in_order_and_ready_brokers_come_first() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    first, second = cluster.others()
    order = [name for name in rendezvous(0, cluster.names) if name != old]
    cluster.crash(old)
    cluster.run(1.0)
    assert cluster.record().owner[0] == order[0]
    election = cluster.logic(first).election
    assert set(election.order(0)) == {first, second}


def test_groups_spread_evenly_over_the_survivors() -> None:
    cluster = Cluster(groups=60)
    cluster.start()
    cluster.run(3.0)
    ranks = [rendezvous(group, ["a", "b", "c"])[0] for group in range(600)]
    assert min(ranks.count(name) for name in "abc") > 150
    counts = cluster.logic("a").gossip.counts()
    assert sum(counts.values()) == 60


def test_group_with_an_unreadable_record_waits_and_logs_it() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    cluster.store.nodes["/groups/0"].data = b"not a record"
    cluster.crash(old)
    cluster.run(1.5)
    name = cluster.running()[0]
    assert cluster[name].notes("group_waits") or cluster[cluster.running()[1]].notes("group_waits")
