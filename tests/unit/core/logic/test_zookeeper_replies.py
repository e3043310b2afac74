"""ZooKeeper's replies that are lost, come late, or are of a server that lags behind: who owns a group then."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.context import InvariantError
from migratory_broker.core.logic.events import (
    Attached,
    DrainRequest,
    Tick,
    ZkChildren,
    ZkCommit,
    ZkCreate,
    ZkGet,
    ZkReply,
    ZkSession,
)
from migratory_broker.core.logic.membership.records import encode
from migratory_testing.brokers import Broker, Cluster
from migratory_testing.zookeeper_tree import Stored

EPHEMERAL = "/coordinators/0"
RECORD = "/groups/0"


def alone_with_zookeeper(cluster: Cluster, name: str) -> Broker:
    """Nobody else can become a candidate, so that what `name` does is all that happens to the group."""
    for other in cluster.names:
        if other != name:
            cluster.zookeeper(False, other)
    cluster.settle()
    return cluster[name]


def ephemeral_goes(cluster: Cluster) -> Stored:
    node = cluster.store.nodes.pop(EPHEMERAL)
    cluster.store.fire(EPHEMERAL, True)
    cluster._watches()
    cluster.settle()
    return node


def once(cluster: Cluster, path: str) -> list[str]:
    """The next read of `path` gets no reply. Returns who asked, empty until then."""
    asked: list[str] = []

    def unread(broker: str, read: str) -> bool:
        if asked or read != path:
            return False
        asked.append(broker)
        return True

    cluster.unread = unread
    return asked


def test_every_request_is_answered_once() -> None:
    """ONE-REPLY: a second answer would let an owner go on from what it knew before the first."""
    cluster = Cluster().up()
    with pytest.raises(InvariantError, match="ONE-REPLY"):
        cluster.step("a", ZkReply(1, "ok"))


def test_about_one_group_there_is_one_request_at_a_time() -> None:
    """ONE-REQUEST, and an epoch that is over is not gone on from."""
    cluster = Cluster().up()
    logic = cluster.logic(cluster.coordinator())
    term = logic.groups[0].term
    assert term is not None
    logic.election.states[0].busy = True
    with pytest.raises(InvariantError, match="ONE-REQUEST"):
        logic.election.renew(0, term)
    logic.election.states[0].busy = False
    term.end("test")
    with pytest.raises(InvariantError, match="OWNER"):
        logic.election.renew(0, term)


# ---- registration


def test_a_step_of_the_registration_is_not_asked_twice_at_once_and_again_after_a_lost_reply() -> None:
    cluster = Cluster().up()
    cluster.crash("c")
    asked = once(cluster, "/brokers/c")
    cluster.start("c")
    cluster.settle()
    assert asked == ["c"]
    assert cluster.logic("c").incarnation == 0
    reads = len(cluster["c"].of(ZkGet))
    for _ in range(3):
        cluster.step("c", Tick())  # the reply to the first is under way
    assert len(cluster["c"].of(ZkGet)) == reads + 1
    cluster.run(0.3)
    assert cluster.logic("c").incarnation == 2


def test_a_node_of_incarnations_that_is_gone_ends_no_life() -> None:
    """NEWER-LIFE is told by a newer incarnation, not by the loss of what ZooKeeper knew."""
    cluster = Cluster().up()
    del cluster.store.nodes["/brokers/a"]
    cluster.run(2.0)
    assert cluster["a"].running
    assert cluster.logic("a").zookeeper.age() < 1.0


# ---- candidates


def test_who_has_no_presence_node_is_no_candidate() -> None:
    """EAGER: a broker whose session ended without its knowing must not compete, and is not waited for."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    first, second = cluster.logic(old).election.order(0)[1:]
    cluster.lost = lambda broker, commit: broker == first  # nor is anything carried out in it
    cluster.store.expire(cluster[first].session)
    cluster._watches()
    cluster.run(0.5)
    assert first not in cluster.logic(first).membership.live
    cluster.crash(old)
    cluster.run(1.0)
    assert cluster.record().owner[0] == second


def test_an_unknown_write_is_looked_for_until_a_read_is_answered() -> None:
    """UNKNOWN-READS-AGAIN: the reply to the looking may be lost as well."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    candidate, other = cluster.logic(old).election.order(0)[1:]
    asked: list[str] = []

    def record(broker: str, commit: ZkCommit) -> bool:
        if asked or not any(operation.path == RECORD for operation in commit.operations):
            return False
        asked.append(broker)
        once(cluster, RECORD)
        return True

    cluster.unknown = record
    cluster.zookeeper(False, other)
    cluster.crash(old)
    cluster.run(0.1)
    standing = cluster.logic(candidate).election.states[0]
    assert asked == [candidate]
    assert standing.unsure is not None
    cluster.run(0.1)
    assert standing.unsure is not None  # that read had no reply
    cluster.run(1.0)
    assert standing.unsure is None
    assert cluster.coordinator() == candidate


def test_a_write_that_two_reads_do_not_show_did_not_happen() -> None:
    """UNKNOWN-READS-AGAIN: then its candidate tries anew."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    candidate, other = cluster.logic(old).election.order(0)[1:]
    epoch = cluster.record().epoch
    lost: list[str] = []

    def record(broker: str, commit: ZkCommit) -> bool:
        if lost or not any(operation.path == RECORD for operation in commit.operations):
            return False
        lost.append(broker)
        return True

    cluster.lost = record
    cluster.zookeeper(False, other)
    cluster.crash(old)
    cluster.run(1.0)
    standing = cluster.logic(candidate).election.states[0]
    assert standing.missed
    assert cluster.record().epoch == epoch
    cluster.run(3.0)
    assert standing.unsure is None
    assert cluster.coordinator() == candidate
    assert cluster.record().epoch == epoch + 1


def test_an_owner_whom_nobody_can_be_listed_with_waits_and_says_so() -> None:
    """The owner's own promise is enough of its source list, but no list can be made of one broker."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    broker = alone_with_zookeeper(cluster, old)
    epoch = cluster.record().epoch
    term = cluster.logic(old).groups[0].term
    assert term is not None
    term.end("test")
    cluster.isolate(old)
    cluster.run(2.0)
    assert [note.fields["reason"] for note in broker.notes("group_waits")] == ["only 1 brokers can be listed"]
    assert cluster.record().epoch == epoch
    cluster.heal()
    cluster.run(2.0)
    assert cluster.record().epoch > epoch
    assert cluster.coordinator() == old


def test_a_coordinator_that_nobody_can_replace_does_not_stand_back() -> None:
    """PROGRESS: it is stuck because the others are gone, so that letting go would help nobody."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    for name in cluster.others():
        cluster.crash(name)
    reference = cluster.publish(old, "t", "x", id=1)
    cluster.run(3.5)
    assert not cluster[old].notes("resigned")
    assert cluster.store.nodes[EPHEMERAL].owner == cluster[old].session
    term = cluster.logic(old).groups[0].term
    assert term is not None
    assert term.stuck
    assert reference not in cluster.answers


# ---- ephemerals


@pytest.mark.parametrize("reason", ["cut off", "draining"])
def test_an_ephemeral_that_another_should_have_is_not_made_again(reason: str) -> None:
    """RESTORE-EPHEMERAL: not by a coordinator that could list nobody, nor by one that is about to leave."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    alone_with_zookeeper(cluster, old)
    if reason == "cut off":
        cluster.isolate(old)
    else:
        cluster.give(old, DrainRequest(30.0))
    ephemeral_goes(cluster)
    cluster.run(2.0)
    assert EPHEMERAL not in cluster.store.nodes


def test_an_ephemeral_is_there_although_a_listing_lacked_it() -> None:
    """A listing of a server that lags: what is read then, of this session, is left as it is."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    alone_with_zookeeper(cluster, old)
    node = ephemeral_goes(cluster)
    standing = cluster.logic(old).election.states[0]
    assert standing.absent_since is not None
    cluster.store.nodes[EPHEMERAL] = node
    commits = len(cluster[old].of(ZkCommit))
    cluster.run(0.3)
    assert standing.absent_since is None
    assert len(cluster[old].of(ZkCommit)) == commits
    assert cluster.coordinator() == old


@pytest.mark.parametrize("healed", [False, True])
def test_an_ephemeral_that_this_brokers_server_lacks_is_made_again(healed: bool) -> None:
    """HIDDEN-EPHEMERAL: the other servers have one of a session that is over. Made anew it is refused; without being
    seen it is deleted in the same transaction, unless it has gone by itself: then the one after makes it."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    broker = alone_with_zookeeper(cluster, old)
    node = ephemeral_goes(cluster)
    epoch = cluster.record().epoch
    broker.lacks = {EPHEMERAL}
    cluster.store.nodes[EPHEMERAL] = Stored(node.data, node.version, node.owner - 1)
    while not broker.notes("ephemeral_refused"):
        cluster.run(0.1)
    standing = cluster.logic(old).election.states[0]
    assert standing.describe() == ["absent", "hidden"]
    if healed:
        del cluster.store.nodes[EPHEMERAL]
    cluster.run(2.0)
    assert cluster.store.nodes[EPHEMERAL] == Stored(node.data, 0, broker.session)
    cluster.run(2.0)
    assert broker.lacks == set()
    assert len(broker.notes("ephemeral_refused")) == 1 + healed
    assert standing.describe() == []
    assert (cluster.coordinator(), cluster.record().epoch) == (old, epoch)


@pytest.mark.parametrize("carried_out", [True, False])
def test_an_ephemeral_whose_making_had_no_reply_is_looked_for(carried_out: bool) -> None:
    """RESTORE-EPHEMERAL: unknown is neither made nor refused; the term goes on, and the next listing tells."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    alone_with_zookeeper(cluster, old)
    lost: list[str] = []

    def making(broker: str, commit: ZkCommit) -> bool:
        if lost or not any(isinstance(one, ZkCreate) and one.path == EPHEMERAL for one in commit.operations):
            return False
        lost.append(broker)
        return True

    if carried_out:
        cluster.unknown = making
    else:
        cluster.lost = making
    ephemeral_goes(cluster)
    cluster.run(0.2)
    assert lost == [old]
    assert cluster.coordinator() == old
    cluster.run(2.0)
    assert cluster.store.nodes[EPHEMERAL].owner == cluster[old].session
    assert cluster.logic(old).election.states[0].absent_since is None
    assert cluster.coordinator() == old


def test_two_new_sessions_at_once() -> None:
    """RESTORE-EPHEMERAL: the second comes while the first one's read is under way; the node ends up in the last."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    broker = alone_with_zookeeper(cluster, old)
    for _ in range(2):
        cluster.store.expire(broker.session)
        cluster._session += 1
        broker.session = cluster._session
        cluster.step(old, ZkSession("connected", broker.session))
    cluster.run(1.0)
    assert cluster.store.nodes[EPHEMERAL].owner == broker.session
    assert cluster.coordinator() == old


@pytest.mark.parametrize("under_way", [ZkGet, ZkCommit])
def test_an_ephemeral_is_restored_by_one_request_at_a_time(under_way: type[ZkGet] | type[ZkCommit]) -> None:
    """RESTORE-EPHEMERAL, ONE-REQUEST: a server that takes its time is not asked again meanwhile."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    broker = alone_with_zookeeper(cluster, old)
    ephemeral_goes(cluster)
    broker.effects.clear()
    cluster.step(old, Tick())
    while not broker.of(under_way):
        cluster.step(*cluster.next_event())
    standing = cluster.logic(old).election.states[0]
    assert standing.busy
    broker.effects.clear()
    cluster.now += 1.0
    cluster.step(old, Tick())
    assert [read for read in broker.of(ZkGet) if read.path == EPHEMERAL] == []
    assert broker.of(ZkCommit) == []
    cluster.settle()
    assert not standing.busy
    assert cluster.store.nodes[EPHEMERAL].owner == broker.session


def test_nothing_is_asked_of_a_zookeeper_that_is_away() -> None:
    cluster = Cluster().up()
    cluster.zookeeper(False)
    cluster.settle()
    for name in cluster.names:
        cluster[name].effects.clear()
    cluster.run(cluster.logic("a").config.refresh_interval + 1.0)
    for name in cluster.names:
        assert [effect for effect in cluster[name].effects if isinstance(effect, ZkGet | ZkChildren | ZkCommit)] == []


def test_an_old_ephemeral_that_a_server_still_shows_is_not_let_go_in_its_successors_place() -> None:
    """LET-GO: a hand-over makes the node anew, with the version that it had: the record tells them apart."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    broker = alone_with_zookeeper(cluster, old)
    term = cluster.logic(old).groups[0].term
    assert term is not None
    term.end("test")
    broker.effects.clear()
    cluster.step(old, Tick())
    while not [read for read in broker.of(ZkGet) if read.path == EPHEMERAL]:
        cluster.step(*cluster.next_event())
    # what was read is on its way when the successor's transaction is carried out
    record, node = cluster.store.nodes[RECORD], cluster.store.nodes[EPHEMERAL]
    cluster.store.nodes[RECORD] = Stored(record.data, record.version + 1, 0)
    cluster.store.nodes[EPHEMERAL] = Stored(b"the successor's", node.version, node.owner + 1000)
    cluster.settle()
    assert cluster.store.nodes[EPHEMERAL].data == b"the successor's"
    cluster.run(0.3)
    assert cluster.store.nodes[EPHEMERAL].data == b"the successor's"
    assert cluster.logic(old).election.states[0].claimed is None


@pytest.mark.parametrize("path", [RECORD, EPHEMERAL])
def test_letting_go_is_tried_again_when_a_read_had_no_reply(path: str) -> None:
    """LET-GO"""
    cluster = Cluster().up()
    old = cluster.coordinator()
    alone_with_zookeeper(cluster, old)
    term = cluster.logic(old).groups[0].term
    assert term is not None
    asked = once(cluster, path)
    term.end("test")
    cluster.run(0.1)
    assert asked == [old]
    assert EPHEMERAL in cluster.store.nodes
    cluster.run(0.1)
    assert EPHEMERAL not in cluster.store.nodes


def test_an_owner_learns_that_it_was_superseded_only_from_the_record() -> None:
    """CAS: a refusal alone does not end a term. When the read behind it is lost, the owner goes on until another
    refusal; a higher epoch is numbered by nobody before this one's quorum has promised it."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    alone_with_zookeeper(cluster, old)
    term = cluster.logic(old).groups[0].term
    assert term is not None
    record = cluster.record()
    cluster.store.nodes[RECORD] = Stored(encode(record.next(("x", 1), record.members, 2)), 99, 0)
    asked = once(cluster, RECORD)
    ephemeral_goes(cluster)
    cluster.run(0.2)
    assert asked == [old]
    assert term.active
    cluster.run(1.0)
    assert term.phase == "over"


def test_what_zookeeper_did_not_say_about_epochs_leaves_a_resume_waiting() -> None:
    """A position of an epoch that nobody here knows: without ZooKeeper's word the time decides."""
    cluster = Cluster().up()
    asked = once(cluster, RECORD)
    assert cluster.attach("a", "t", (cluster.record().epoch + 1000, 3)) is None
    assert asked == ["a"]
    cluster.run(29.0)
    assert not cluster["a"].of(Attached)
    cluster.run(1.5)
    assert [attached.receipt for attached in cluster["a"].of(Attached)] == ["reset"]
