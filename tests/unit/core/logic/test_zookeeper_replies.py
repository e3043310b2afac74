"""Replies of ZooKeeper that are lost, late, or from a server that lags do not make two brokers lead a group, or
none."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.context import InvariantError
from migratory_broker.core.logic.events import (
    Attached,
    DrainRequest,
    PeerReceived,
    Tick,
    ZkChildren,
    ZkCommit,
    ZkCreate,
    ZkGet,
    ZkReply,
    ZkSession,
)
from migratory_broker.core.logic.membership.records import encode
from migratory_protocol.peer import HandOver
from migratory_testing.brokers import Broker, Cluster
from migratory_testing.zookeeper_tree import Stored

EPHEMERAL = "/coordinators/0"
RECORD = "/groups/0"


def alone_with_zookeeper(cluster: Cluster, name: str) -> Broker:
    """Disconnect all other brokers from ZooKeeper, so that only broker `name` acts on the group. Return it."""
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


def ephemeral_comes_back(cluster: Cluster, node: Stored) -> None:
    cluster.store.nodes[EPHEMERAL] = node
    cluster.store.fire(EPHEMERAL, True)
    cluster._watches()
    cluster.settle()


@pytest.mark.parametrize("obstacle", ["lost reply", "pending request"])
def test_ephemeral_that_comes_back_is_looked_at_again_later(obstacle: str) -> None:
    cluster = Cluster(groups=1).up()
    owner = cluster.coordinator()
    alone_with_zookeeper(cluster, owner)
    state, node = cluster.logic(owner).election.states[0], cluster.store.nodes[EPHEMERAL]
    cluster.isolate(owner)
    cluster.run(5.0)
    state.busy = obstacle == "pending request"
    if obstacle == "lost reply":
        once(cluster, EPHEMERAL)
    ephemeral_comes_back(cluster, node)
    assert state.deleted
    assert EPHEMERAL in cluster.store.nodes
    state.busy = False
    cluster.run(12.0)
    assert EPHEMERAL not in cluster.store.nodes


@pytest.mark.parametrize("coordinates", [True, False])
def test_ephemeral_that_comes_back_after_its_deletion_is_deleted_again(coordinates: bool) -> None:
    """LET-GO. Regression, seed 202854: ZooKeeper was rolled back to before the deletion of an ephemeral by which a
    coordinator had resigned. The coordinator went on, but never listed another broker again. Without a term of its
    owner, the ephemeral kept every candidate away."""
    cluster = Cluster().up()
    owner = cluster.coordinator()
    alone_with_zookeeper(cluster, owner)
    logic, node = cluster.logic(owner), cluster.store.nodes[EPHEMERAL]
    if coordinates:
        cluster.isolate(owner)  # it resigns, because too few brokers are linked
    else:
        term = logic.groups[0].term
        assert term is not None
        term.end("test")
    cluster.run(5.0 if coordinates else 0.1)
    assert EPHEMERAL not in cluster.store.nodes
    ephemeral_comes_back(cluster, node)
    cluster.heal()
    cluster.run(1.0)
    assert cluster.store.nodes.get(EPHEMERAL) is not node
    cluster.run(10.0)
    assert logic.election.states[0].describe() == []
    assert cluster.coordinator() == owner


def test_ephemeral_of_another_broker_after_a_deletion_is_left_alone() -> None:
    cluster = Cluster().up()
    owner = cluster.coordinator()
    cluster.isolate(owner)
    cluster.run(10.0)
    assert cluster.record().owner[0] != owner
    state = cluster.logic(owner).election.states[0]
    assert (state.deleted, state.claimed) == (False, None)
    assert EPHEMERAL in cluster.store.nodes


def once(cluster: Cluster, path: str) -> list[str]:
    """Make the reply to the next read of `path` get lost. Return a list to which the name of the broker that sent
    that read is then added."""
    requests: list[str] = []

    def unread(broker: str, read: str) -> bool:
        if requests or read != path:
            return False
        requests.append(broker)
        return True

    cluster.unread = unread
    return requests


def test_every_request_is_answered_once() -> None:
    """ONE-REPLY: a reply to a request that does not wait for one raises InvariantError."""
    cluster = Cluster().up()
    with pytest.raises(InvariantError, match="ONE-REPLY"):
        cluster.step("a", ZkReply(1, "ok"))


def test_one_request_per_group_at_a_time() -> None:
    """ONE-REQUEST, OWNER: renewing an election raises InvariantError while a request for its group is pending, or
    after the term has ended."""
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


@pytest.mark.parametrize("path", ["/cluster", "/brokers/c"])
def test_registration_step_is_repeated_only_after_a_lost_reply(path: str) -> None:
    cluster = Cluster().up()
    cluster.crash("c")
    request = once(cluster, path)
    cluster.start("c")
    cluster.settle()
    assert request == ["c"]
    assert cluster.logic("c").incarnation == 0

    def reads() -> int:
        return len([read for read in cluster["c"].of(ZkGet) if read.path == path])

    before = reads()
    for _ in range(3):
        cluster.step("c", Tick())  # the reply to the first is under way
    assert reads() == before + 1
    cluster.run(0.3)
    assert cluster.logic("c").incarnation == 2


def test_missing_incarnation_node_stops_no_broker() -> None:
    """A broker whose incarnation node has vanished from ZooKeeper runs on: NEWER-LIFE needs a newer incarnation."""
    cluster = Cluster().up()
    del cluster.store.nodes["/brokers/a"]
    cluster.run(2.0)
    assert cluster["a"].running
    assert cluster.logic("a").zookeeper.age() < 1.0


@pytest.mark.interpreted
def test_presence_node_is_read_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An announcement while another one is under way reads nothing."""
    logic = Cluster().up().logic("a")
    reads: list[str] = []
    monkeypatch.setattr(logic.zookeeper, "get", lambda path, receive: reads.append(path))
    logic.membership.announce()
    logic.membership.announce()
    assert reads == ["/members/a"]


# ---- candidates


def test_candidate_reads_the_record_again_after_a_lost_reply() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    candidate, other = cluster.logic(old).election.order(0)[1:]
    cluster.zookeeper(False, other)
    request = once(cluster, RECORD)
    cluster.crash(old)
    cluster.run(6.0)
    assert request == [candidate]
    assert cluster.record().owner[0] == candidate


@pytest.mark.interpreted
def test_ephemeral_is_not_restored_while_a_request_for_its_group_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    """RESTORE-EPHEMERAL waits for the reply to the earlier request."""
    cluster = Cluster().up()
    logic = cluster.logic(cluster.coordinator())
    term = logic.groups[0].term
    assert term is not None
    reads: list[str] = []
    monkeypatch.setattr(logic.zookeeper, "get", lambda path, receive: reads.append(path))
    logic.election.ephemerals.restore(0, term)
    assert reads == [EPHEMERAL]
    assert logic.election.states[0].busy
    logic.election.ephemerals.restore(0, term)
    assert reads == [EPHEMERAL]


def test_broker_without_ephemeral_is_no_candidate() -> None:
    """EAGER: a broker whose session has ended, and whose presence node is gone, does not become candidate, and the
    next broker takes over without waiting for it."""
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


def test_unknown_write_is_read_until_a_read_is_answered() -> None:
    """UNKNOWN-READS-AGAIN: when the reply to the read after an unknown write is lost as well, the broker reads again
    until it gets an answer; then it becomes coordinator."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    candidate, other = cluster.logic(old).election.order(0)[1:]
    requests: list[str] = []

    def record(broker: str, commit: ZkCommit) -> bool:
        if requests or not any(operation.path == RECORD for operation in commit.operations):
            return False
        requests.append(broker)
        once(cluster, RECORD)
        return True

    cluster.unknown = record
    cluster.zookeeper(False, other)
    cluster.crash(old)
    cluster.run(0.1)
    standing = cluster.logic(candidate).election.states[0]
    assert requests == [candidate]
    assert standing.unsure is not None
    cluster.run(0.1)
    assert standing.unsure is not None  # that read had no reply
    cluster.run(1.0)
    assert standing.unsure is None
    assert cluster.coordinator() == candidate


def test_write_that_two_reads_do_not_show_is_given_up() -> None:
    """UNKNOWN-READS-AGAIN: a candidate whose lost write two reads do not show writes the record again, with the same
    epoch, and becomes coordinator."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    candidate, other = cluster.logic(old).election.order(0)[1:]
    epoch = cluster.record().epoch
    dropped: list[str] = []

    def record(broker: str, commit: ZkCommit) -> bool:
        if dropped or not any(operation.path == RECORD for operation in commit.operations):
            return False
        dropped.append(broker)
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


def test_owner_without_another_broker_to_list_waits_and_logs_it() -> None:
    """An owner whose term has ended and who can list no other broker writes no record, and logs why it waits; when
    links are back, it becomes coordinator again."""
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


def test_coordinator_that_no_broker_can_replace_does_not_resign() -> None:
    """PROGRESS: a coordinator that cannot commit because all other brokers are gone does not resign and keeps its
    ephemeral node; the publication has no answer."""
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
def test_ephemeral_is_not_restored_by_an_unfit_coordinator(reason: str) -> None:
    """RESTORE-EPHEMERAL: a coordinator that is cut off from the others, or drains, does not create its missing
    ephemeral node again."""
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


def test_ephemeral_missing_from_a_stale_listing_is_kept() -> None:
    """A coordinator whose ephemeral node is missing only in the listing of a server that lags reads the node and
    changes nothing."""
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
def test_hidden_ephemeral_is_deleted_unseen_and_created(healed: bool) -> None:
    """HIDDEN-EPHEMERAL: the server of a coordinator does not show the ephemeral node of an ended session, so that
    creating a new one is refused. The next transaction deletes the node and creates a new one; if the node has gone
    by itself meanwhile, the transaction after that creates it. The term continues."""
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
    assert standing.describe() == ["ephemeral_absent", "ephemeral_hidden"]
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
def test_creation_of_an_ephemeral_without_reply_is_checked(carried_out: bool) -> None:
    """RESTORE-EPHEMERAL: when the reply to the creation of its ephemeral node is lost, the coordinator continues,
    and then has the node, whether the creation was carried out or not."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    alone_with_zookeeper(cluster, old)
    dropped: list[str] = []

    def making(broker: str, commit: ZkCommit) -> bool:
        if dropped or not any(
            isinstance(operation, ZkCreate) and operation.path == EPHEMERAL for operation in commit.operations
        ):
            return False
        dropped.append(broker)
        return True

    if carried_out:
        cluster.unknown = making
    else:
        cluster.lost = making
    ephemeral_goes(cluster)
    cluster.run(0.2)
    assert dropped == [old]
    assert cluster.coordinator() == old
    cluster.run(2.0)
    assert cluster.store.nodes[EPHEMERAL].owner == cluster[old].session
    assert cluster.logic(old).election.states[0].absent_since is None
    assert cluster.coordinator() == old


def test_ephemeral_is_restored_in_the_last_of_two_new_sessions() -> None:
    """RESTORE-EPHEMERAL: when two new sessions follow each other closely, the ephemeral node ends up in the last
    one."""
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
def test_ephemeral_is_restored_by_one_request_at_a_time(under_way: type[ZkGet] | type[ZkCommit]) -> None:
    """RESTORE-EPHEMERAL, ONE-REQUEST: while a read or a transaction for the ephemeral node is pending at a slow
    server, the coordinator sends no other; in the end the node is its own."""
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


def test_no_request_is_sent_while_zookeeper_is_away() -> None:
    cluster = Cluster().up()
    cluster.zookeeper(False)
    cluster.settle()
    for name in cluster.names:
        cluster[name].effects.clear()
    cluster.run(cluster.logic("a").config.refresh_interval + 1.0)
    for name in cluster.names:
        assert [effect for effect in cluster[name].effects if isinstance(effect, ZkGet | ZkChildren | ZkCommit)] == []


def test_stale_own_ephemeral_does_not_delete_its_successors() -> None:
    """LET-GO: a former coordinator that deletes its ephemeral node does not delete that of its successor, which has
    the same version: the record's version differs."""
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
def test_deletion_of_the_ephemeral_is_retried_after_a_lost_read(path: str) -> None:
    """LET-GO: when the read before the deletion of the ephemeral node gets no reply, the former coordinator tries
    again, and the node is deleted."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    alone_with_zookeeper(cluster, old)
    term = cluster.logic(old).groups[0].term
    assert term is not None
    request = once(cluster, path)
    term.end("test")
    cluster.run(0.1)
    assert request == [old]
    assert EPHEMERAL in cluster.store.nodes
    cluster.run(0.1)
    assert EPHEMERAL not in cluster.store.nodes


def test_owner_is_superseded_only_by_a_read_record() -> None:
    """CAS: a coordinator whose transaction was refused continues while its read of the record gets no reply, and
    ends its term once it has read a record of another owner."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    alone_with_zookeeper(cluster, old)
    term = cluster.logic(old).groups[0].term
    assert term is not None
    record = cluster.record()
    cluster.store.nodes[RECORD] = Stored(encode(record.next(("x", 1), record.members, 2)), 99, 0)
    request = once(cluster, RECORD)
    ephemeral_goes(cluster)
    cluster.run(0.2)
    assert request == [old]
    assert term.active
    cluster.run(1.0)
    assert term.phase == "over"


def test_record_of_an_unknown_epoch_is_read_again_after_a_lost_reply() -> None:
    """A subscription from an epoch that no broker knows gets `reset` when ZooKeeper replies to a second read.
    Regression: it read once, and got `reset` after 30 s."""
    cluster = Cluster().up()
    request = once(cluster, RECORD)
    assert cluster.attach("a", "t", (cluster.record().epoch + 1000, 3)) is None
    assert request == ["a"]
    cluster.run(3.0)
    assert [attached.receipt for attached in cluster["a"].of(Attached)] == ["reset"]


def test_record_that_is_written_at_a_later_try_begins_one_term() -> None:
    """UNKNOWN-READS-AGAIN. Regression: a hand-over that was requested again wrote the record, and the read for the
    earlier try then began the term of its epoch a second time."""
    cluster = Cluster().up()
    old, successor = cluster.coordinator(), cluster.others()[0]
    tried: list[str] = []

    def first(broker: str, commit: ZkCommit) -> bool:
        tried.extend([broker] if commit.operations[0].path == "/groups/0" else [])
        return len(tried) == 1

    cluster.lost = first
    for _ in range(2):
        record = cluster.record()
        cluster.give(successor, PeerReceived(old, (HandOver(0, record.history, record.epoch),)))
        cluster.run(0.3)
    cluster.run(4.0)
    assert [note.fields["reason"] for note in cluster[successor].notes("record_written")] == ["hand over"]
    assert cluster.coordinator() == successor
