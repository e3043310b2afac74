"""ZooKeeper comes back without its data, or with older data: identities, incarnations and what is removed."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.election.history import SurveyRound
from migratory_broker.core.logic.events import (
    PeerReceived,
    RefusePeer,
    Stop,
    ZkCommit,
    ZkSession,
)
from migratory_broker.core.logic.membership.records import (
    encode,
)
from migratory_protocol.peer import Accept, InventoryRequest, Prepare, SurveyReply, Sync, Synced
from migratory_protocol.topics import topic_group
from migratory_testing.brokers import Cluster
from migratory_testing.zookeeper_loss import (
    away,
    backup,
    comes_back,
    empty,
    publishes,
    publishing_without_one,
    reconnect,
)
from migratory_testing.zookeeper_tree import Stored
from msgspec.structs import replace


def test_transactions_of_a_broker_with_the_old_identity_are_refused() -> None:
    """IDENTITY-GUARD: a transaction is refused while the data is of another identity than its broker's, although the
    record is back with its version. So no takeover of before the loss is activated."""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    record, version = cluster.record(), cluster.store.nodes["/groups/0"].version
    nodes = backup(cluster)
    away(cluster)
    identity = next(path for path in nodes if path.startswith("/identity/"))
    nodes["/identity/another"] = nodes.pop(identity)
    nodes["/groups/0"] = Stored(encode(record), version, 0)
    cluster.store.nodes = nodes
    logic = cluster.logic(coordinator)
    outcomes: list[str] = []
    cluster[coordinator].zookeeper = True
    logic.zookeeper.commit([], lambda reply: outcomes.append(reply.outcome))
    for effect in logic.ctx.effects:
        assert isinstance(effect, ZkCommit)
        reply = cluster.store.answer(coordinator, 1, effect)
        logic.zookeeper.reply(reply)
    assert outcomes == ["refused"]


def test_unfinished_takeover_ends_with_the_data() -> None:
    """A candidate gives up, and the record is restored from the copies."""
    cluster = Cluster(relist_delay=100.0).up()
    assert publishes(cluster, 1)
    old = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, (Prepare, Sync))
    cluster.crash(old)
    cluster.run(0.6)
    cluster.hold = lambda sender, receiver, message: False
    cluster.held.clear()
    empty(cluster)
    cluster.run(1.0)
    ends = [note.fields["reason"] for name in cluster.running() for note in cluster[name].notes("term_ended")]
    assert "ZooKeeper lost its record" in ends
    cluster.run(8.0)
    assert publishes(cluster, 2)


@pytest.mark.parametrize("older", ["incarnations", "records"])
def test_rolled_back_data_is_removed_and_restored(older: str) -> None:
    """ROLLED-BACK: a record below a promise ends the data's identity."""
    cluster = Cluster().up()
    nodes = backup(cluster)
    identity = cluster.logic("a").zookeeper.identity
    assert publishes(cluster, 1)
    if older == "records":
        cluster.crash(cluster.coordinator())
        cluster.run(6.0)
        assert publishes(cluster, 2)
    away(cluster)
    comes_back(cluster, nodes)
    cluster.run(4.0)
    noticed = [name for name in cluster.running() if cluster[name].notes("zookeeper_rolled_back")]
    assert bool(noticed) == (older == "records")
    assert (cluster.logic("c").zookeeper.identity == identity) == (older != "records")
    assert publishes(cluster, 3)
    cluster.crash(cluster.coordinator())
    for name in cluster.names:
        if not cluster[name].running:
            cluster.start(name)
    cluster.run(8.0)
    assert publishes(cluster, 4)
    survivor = cluster.coordinator()
    texts = [text for _, text in cluster.delivered(survivor, "t")]
    assert texts == (["x1", "x2", "x3", "x4"] if older == "records" else ["x1", "x3", "x4"])[-len(texts) :]


def test_backup_of_an_identity_that_was_left_is_rolled_back() -> None:
    """ROLLED-BACK: the brokers lost ZooKeeper's data and joined other data since the backup was made. Regression: they
    took the backup for the truth, and its list of two for the last one: one of these, which lacked an acknowledged
    publication, took over and gave its position to another one."""
    cluster, coordinator, back, follower = publishing_without_one()
    nodes, identity = backup(cluster), cluster.logic(coordinator).zookeeper.identity
    cluster.start(back)
    cluster.run(4.0)
    history = cluster.record().history
    empty(cluster)
    cluster.run(8.0)
    assert cluster.record().activated
    joined = cluster.logic(coordinator).zookeeper.identity
    assert joined != identity
    cluster.hold = lambda sender, receiver, message: isinstance(message, (Accept, Sync)) and receiver == follower
    cluster.zookeeper(False)
    cluster.run(0.2)
    reference = cluster.publish(coordinator, "t", "x2", id=2)
    cluster.run(0.3)
    assert not cluster.answers[reference].code
    cluster.crash(coordinator)
    cluster.hold = lambda sender, receiver, message: False
    cluster.held.clear()
    comes_back(cluster, nodes)
    cluster.run(10.0)
    assert {
        note.fields["identity"] for name in cluster.running() for note in cluster[name].notes("zookeeper_rolled_back")
    } == {identity}
    assert cluster.logic(follower).zookeeper.identity not in (identity, joined)
    cluster.wall_ms = 3_000_000
    cluster.start(coordinator)
    cluster.run(15.0)
    assert cluster.record().history == history
    assert publishes(cluster, 3)
    for name in cluster.running():
        assert not cluster[name].of(RefusePeer)
    assert [text for _, text in cluster.delivered(follower, "t")] == ["x1", "x2", "x3"]


def test_record_that_is_not_activated_any_more_is_rolled_back() -> None:
    """ROLLED-BACK: its next record would have no source, and a takeover would ask nobody."""
    cluster = Cluster().up()
    assert publishes(cluster, 1)
    nodes, record = backup(cluster), cluster.record()
    nodes["/groups/0"] = Stored(encode(replace(record, activated=False)), 0, 0)
    away(cluster)
    comes_back(cluster, nodes)
    cluster.run(4.0)
    assert cluster.record().history == record.history
    assert cluster.record().activated
    assert publishes(cluster, 2)


def test_activation_that_only_its_owner_told_is_rolled_back() -> None:
    """ROLLED-BACK: the coordinator, the only one that had read the activation, is gone. The others have its word."""
    cluster = Cluster().up()
    assert publishes(cluster, 1)
    record = cluster.record()
    before = replace(record, activated=False)
    nodes = backup(cluster)
    nodes["/groups/0"] = Stored(encode(before), 0, 0)
    for name in cluster.others():
        cluster.logic(name).zookeeper.recorded[0] = before
    away(cluster)
    cluster.crash(cluster.coordinator())
    comes_back(cluster, nodes)
    cluster.run(8.0)
    assert any(broker.notes("zookeeper_rolled_back") for broker in cluster.brokers.values())
    assert not any(broker.notes("entries_without_source") for broker in cluster.brokers.values())
    assert cluster.record().history == record.history
    assert publishes(cluster, 2)
    assert [text for _, text in cluster.delivered(cluster.coordinator(), "t")] == ["x1", "x2"]


def test_incarnation_is_never_given_twice() -> None:
    """INCARNATION: above the wall clock, and above what live brokers know."""
    cluster = Cluster()
    cluster.wall_ms = 1_000_000
    cluster.up()
    first = cluster.logic("b").incarnation
    assert first >= 1_000_000
    cluster.wall_ms = 2_000_000
    away(cluster)
    cluster.crash("b")
    comes_back(cluster)
    cluster.start("b")
    cluster.run(2.0)
    assert cluster.logic("b").incarnation >= 2_000_000
    # a clock that was set back
    cluster.wall_ms = 0
    away(cluster)
    cluster.crash("b")
    cluster.store.nodes = {"/": Stored(b"", 0, 0)}
    cluster.start("b")
    cluster.run(1.0)
    assert 0 < cluster.logic("b").incarnation < first
    for name in ("a", "c"):
        reconnect(cluster, name)
    cluster.run(1.0)
    (stop, *_) = cluster["b"].of(Stop)
    assert stop.code == 3
    cluster.restart("b")
    cluster.run(2.0)
    assert cluster.logic("b").incarnation > 2_000_000


def test_incarnations_that_were_rolled_back_are_written_again() -> None:
    """INCARNATION: by brokers that took part in the data before there was any record. Regression: a broker whose clock
    was set back began with a lower incarnation, and nobody accepted its links."""
    cluster = Cluster().up()
    nodes = backup(cluster)
    newest = {path: node.data for path, node in nodes.items() if path.startswith("/brokers/")}
    away(cluster)
    comes_back(cluster, {path: node for path, node in nodes.items() if path not in newest})
    cluster.run(2.0)
    assert all(cluster.logic(name).identity.losses == 0 for name in cluster.names)
    assert {path: cluster.store.nodes[path].data for path in newest} == newest


def test_incarnations_that_were_not_written_are_written_again() -> None:
    cluster = Cluster().up()
    refused: set[str] = set()

    def unknown(broker: str, commit: ZkCommit) -> bool:
        path = commit.operations[0].path
        if not path.startswith("/brokers/") or path in refused:
            return False
        refused.add(path)
        return True

    away(cluster)
    cluster.lost = unknown
    cluster.unread = lambda broker, path: path == "/brokers/c" and broker == "a" and not refused
    comes_back(cluster)
    cluster.run(3.0)
    assert refused == {"/brokers/a", "/brokers/b", "/brokers/c"}
    assert [cluster.store.nodes[f"/brokers/{name}"].data for name in "abc"] == [b"1", b"1", b"1"]


def test_nodes_of_an_older_program_have_the_incarnation_as_version() -> None:
    cluster = Cluster().up()
    for name in cluster.names:
        cluster.store.nodes[f"/brokers/{name}"] = Stored(b"", 7, 0)
        cluster.crash(name)
    cluster.start()
    cluster.run(1.0)
    assert {cluster.logic(name).incarnation for name in cluster.names} == {8}


@pytest.mark.parametrize("missing", ["/members", "/identity"])
def test_missing_parents_are_made_again(missing: str) -> None:
    cluster = Cluster().up()
    nodes = backup(cluster)
    away(cluster)
    for path in [path for path in nodes if path == missing or (missing == "/identity" and path.startswith(missing))]:
        if path != "/identity":
            del nodes[path]
    if missing == "/members":
        nodes = {path: node for path, node in nodes.items() if not path.startswith("/identity/")}
    comes_back(cluster, nodes)
    cluster.run(4.0)
    assert {"/members/a", "/members/b", "/members/c"} <= cluster.store.nodes.keys()
    assert publishes(cluster, 1)


def test_lost_replies_only_delay_the_verification() -> None:
    """UNKNOWN-READS-AGAIN: each step is taken again, of the same identity and of another."""
    cluster = Cluster().up()
    assert publishes(cluster, 1)
    nodes = backup(cluster)
    cluster.crash(cluster.coordinator())
    cluster.run(6.0)
    away(cluster)
    seen: set[tuple[str, str]] = set()

    def once(broker: str, path: str) -> bool:
        fresh = (broker, path) not in seen
        seen.add((broker, path))
        return fresh

    cluster.unread = once
    cluster.unknown = lambda broker, commit: once(broker, f"commit {commit.operations[0].path}")
    comes_back(cluster, nodes)
    cluster.run(12.0)
    assert {path for _, path in seen} >= {"/", "/identity", "/groups", "/coordinators", "/groups/0"}
    assert cluster.record().activated
    assert publishes(cluster, 2)


def test_data_that_goes_in_a_session_is_noticed() -> None:
    """An operator deletes everything while the brokers are connected."""
    cluster = Cluster().up()
    assert publishes(cluster, 1)
    cluster.store.nodes = {"/": Stored(b"", 0, 0)}
    cluster.run(4.0)
    assert all(cluster.logic(name).identity.losses == 1 for name in cluster.names)
    assert cluster.record().activated
    assert publishes(cluster, 2)


def test_lost_replies_while_the_parents_are_made_again() -> None:
    cluster = Cluster().up()
    away(cluster)
    created: list[str] = []

    def unknown(broker: str, commit: ZkCommit) -> bool:
        if len(created) < 2 and any(done.path == "/identity" for done in commit.operations):
            created.append(broker)
            return True
        return False

    cluster.lost = unknown
    comes_back(cluster)
    cluster.run(4.0)
    assert len(created) == 2
    assert publishes(cluster, 1)


def test_data_that_goes_during_a_registration_is_noticed() -> None:
    """Regression: a broker that was not registered yet never looked for the identity again, and each of its
    transactions was refused."""
    cluster = Cluster().up()
    cluster.crash("c")
    cluster.unread = lambda broker, path: broker == "c" and path == "/brokers/c"
    cluster.start("c")
    cluster.run(1.0)
    assert not cluster.logic("c").membership.registered
    cluster.store.nodes = {"/": Stored(b"", 0, 0)}
    cluster.unread = lambda broker, path: False
    cluster.run(10.0)
    assert cluster.logic("c").membership.ready


def test_record_of_other_data_is_not_relisted() -> None:
    """CAS: the version that a coordinator knows is of the lost record. Regression: it overwrote the record of a new
    history, which had the same version."""
    cluster = Cluster(min_copies=1, on_history_loss="halt").up()
    coordinator, version = cluster.coordinator(), cluster.store.nodes["/groups/0"].version
    away(cluster)
    for name in cluster.others():
        cluster.crash(name)
    cluster.wall_ms = 1_000_000
    cluster.hold = lambda sender, receiver, message: isinstance(message, SurveyReply)
    comes_back(cluster, None, coordinator)
    cluster.start(*[name for name in cluster.names if name != coordinator])
    cluster.run(6.0)
    assert "/groups/0" not in cluster.store.nodes
    term = cluster.logic(coordinator).groups[0].term
    assert term is not None
    assert len(term.followers.caught_up()) == 2  # another list is wanted
    other = replace(term.record, history=7, epoch=term.epoch + 9, owner=("z", 1), members=[("z", 1)])
    cluster.store.nodes["/groups/0"] = Stored(encode(other), version, 0)
    cluster.store.nodes["/coordinators/0"] = Stored(b"", 0, 99)
    cluster.run(8.0)
    assert cluster.record() == other


def test_records_are_removed_when_nothing_more_is_written_for_the_old_identity() -> None:
    """ROLLED-BACK. Regression: the ephemeral of a coordinator that came between the listing and the removal stayed,
    and kept every candidate away."""
    cluster = Cluster().up()
    assert publishes(cluster, 1)
    nodes = backup(cluster)
    old = next(path for path in nodes if path.startswith("/identity/"))
    cluster.crash(cluster.coordinator())
    cluster.run(6.0)
    away(cluster)
    listings: list[bool] = []

    def unread(broker: str, path: str) -> bool:
        if path == "/groups":
            listings.append(old in cluster.store.nodes)
        return False

    cluster.unread = unread
    comes_back(cluster, nodes)
    cluster.run(4.0)
    assert listings
    assert not any(listings)
    assert publishes(cluster, 2)


def test_survey_of_before_the_connection_broke_permits_no_first_record() -> None:
    """SURVEY: the first record was written meanwhile, and rolled back."""
    cluster = Cluster().up()
    logic = cluster.logic("a")
    logic.histories._results[0] = SurveyRound([0], set(), cluster.now, ended_at=cluster.now)
    cluster.give("a", ZkSession("suspended"))
    cluster.give("a", ZkSession("connected", cluster["a"].session))
    cluster.run(0.5)
    assert not logic.histories._results


def test_session_that_ends_during_the_verification_is_not_verified() -> None:
    cluster = Cluster().up()
    identity = cluster.logic("a").identity
    cluster.give("a", ZkSession("suspended"))
    cluster.settle()
    identity._adopt(cluster.logic("b").zookeeper.identity)
    assert not cluster.logic("a").zookeeper.connected


def test_unreadable_record_is_not_taken_for_an_older_one() -> None:
    cluster = Cluster().up()
    assert publishes(cluster, 1)
    nodes, right = backup(cluster), cluster.store.nodes["/groups/0"]
    nodes["/groups/0"] = Stored(b"garbage", right.version, 0)
    away(cluster)
    comes_back(cluster, nodes)
    cluster.run(2.0)
    assert all(cluster.logic(name).identity.losses == 0 for name in cluster.names)


def test_record_of_another_owner_is_known() -> None:
    """ROLLED-BACK: a follower reads the records that its coordinators name, and knows that they existed."""
    cluster = Cluster().up()
    nodes = backup(cluster)
    cluster.crash(cluster.coordinator())
    cluster.run(6.0)
    (member,) = [name for name in cluster.running() if name != cluster.coordinator()]
    away(cluster)
    cluster.crash(cluster.coordinator())
    comes_back(cluster, nodes)
    cluster.run(2.0)
    assert cluster[member].notes("zookeeper_rolled_back")


def test_promise_that_no_record_confirms_removes_nothing() -> None:
    """ROLLED-BACK: a peer may name any epoch up to a bound. Regression: the next session removed all records."""
    cluster = Cluster().up()
    assert publishes(cluster, 1)
    member = cluster.others()[0]
    epoch = cluster.record().epoch + 1000
    request = InventoryRequest(0, cluster.record().history, epoch)
    cluster.give(member, PeerReceived(cluster.others()[1], (request,)))
    cluster.run(1.0)
    assert cluster.logic(member).groups[0].replica.promised == epoch
    cluster.expire(member)
    cluster.run(2.0)
    assert not cluster[member].notes("zookeeper_rolled_back")
    assert cluster.record().history


def test_group_that_still_waits_for_a_copy_does_not_remove_the_others() -> None:
    """ROLLED-BACK: knowledge of before the loss is of other data. Regression: each new session of a broker removed the
    records that were restored, until the copies were gone."""
    cluster = Cluster(groups=2, on_history_loss="halt").up()
    topics = {topic_group(f"t{number}", 2): f"t{number}" for number in range(9)}
    for topic in topics.values():
        cluster.publish("a", topic, "x", id=1)
    cluster.hold = lambda sender, receiver, message: (
        sender == "c" and isinstance(message, Synced) and message.group == 1
    )
    cluster.restart("c")  # on the list of group 0 only
    cluster.run(8.0)
    away(cluster)
    cluster.crash("b")
    comes_back(cluster)
    cluster.run(20.0)
    assert "/groups/0" in cluster.store.nodes
    assert "/groups/1" not in cluster.store.nodes
    restored = cluster.record()
    for _ in range(3):
        cluster.expire("a")
        cluster.run(3.0)
        assert cluster.record().history == restored.history
    assert all(cluster.logic(name).identity.losses == 1 for name in ("a", "c"))
    assert not any(broker.notes("zookeeper_rolled_back") for broker in cluster.brokers.values())
