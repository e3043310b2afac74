"""Tests of rules that no other file of this folder names."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.context import InvariantError
from migratory_broker.core.logic.events import Flush, Note, PeerReceived, ZkCommit, ZkSession, ZkWrite
from migratory_broker.core.logic.membership.records import GroupRecord, encode
from migratory_broker.core.logic.status import describe_logic
from migratory_protocol.peer import (
    Accept,
    Accepted,
    ForwardedPublication,
    HandOver,
    Inventory,
    InventoryRequest,
    Prepare,
    Promise,
    Synced,
)
from migratory_testing.brokers import Cluster
from migratory_testing.zookeeper_tree import Stored


def test_number_promised() -> None:
    """NUMBER-PROMISED: numbering a publication raises InvariantError in a coordinator that has promised a higher
    epoch."""
    cluster = Cluster().up()
    group = cluster.logic(cluster.coordinator()).groups[0]
    sequencer = group.term.sequencer  # type: ignore[union-attr]
    group.replica.promised += 1
    with pytest.raises(InvariantError, match="NUMBER-PROMISED"):
        sequencer.number([ForwardedPublication("t", b"x", 1, "p", 1, 1)], None)


def test_owner_listed() -> None:
    """OWNER-LISTED, OWNER: beginning a term raises InvariantError when the record does not list this broker, or
    names another owner."""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    group = cluster.logic(coordinator).groups[0]
    record = cluster.record()
    absent = record.next((coordinator, 1), [broker for broker in record.members if broker[0] != coordinator], 2)
    with pytest.raises(InvariantError, match="OWNER-LISTED"):
        group.begin_term(absent, 9)
    with pytest.raises(InvariantError, match="OWNER:"):
        group.begin_term(record.next(("x", 1), record.members, 2), 9)


def test_first_empty() -> None:
    """FIRST-EMPTY: a term of a record without a source begins empty. Entries that the replica holds of that history,
    which no coordinator can have numbered, are removed, and an error is logged."""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    cluster.publish(coordinator, "t", "x", id=1)
    record = cluster.record()
    group = cluster.logic(coordinator).groups[0]
    wrong = GroupRecord(
        record.history,
        record.first,
        record.epoch + 1,
        (coordinator, 1),
        record.members,
        2,
        activated=False,
        source=None,
    )
    group.begin_term(wrong, 9)
    assert group.replica.topics == {}
    assert "entries_without_source" in [effect.event for effect in group.ctx.effects if isinstance(effect, Note)]


def test_takeover_source() -> None:
    """TAKEOVER-SOURCE, WAITS-AND-SAYS-SO: when too few members of the last activated list live, the group waits,
    logs the reason, and sends no Prepare, although members of a later list that was not activated live."""
    cluster = Cluster(("a", "b", "c", "d", "e")).up()
    old = cluster.coordinator()
    b1, two, three, four = cluster.others()
    record = cluster.record()
    activated = GroupRecord(
        record.history,
        record.first,
        record.epoch,
        (old, 1),
        sorted([(old, 1), (b1, 1)]),
        1,
        activated=True,
        source=None,
    )
    following = activated.next((two, 1), [(two, 1), (three, 1), (four, 1)], 2)
    cluster.store.nodes["/groups/0"] = Stored(encode(following), 50, 0)
    cluster.crash(old)
    cluster.crash(b1)
    cluster.sent.clear()
    cluster.run(8.0)
    assert cluster.record() == following
    assert not [message for _, _, message in cluster.sent if isinstance(message, (Prepare, Promise))]
    assert {
        str(note.fields["reason"]) for name in (two, three, four) for note in cluster[name].notes("group_waits")
    } == {"too few of the last activated list can be reached"}
    assert describe_logic(cluster.logic(two))["waiting_groups"] == 1


def test_longest_log_wins_over_the_candidates_own() -> None:
    """LONGEST-WINS: a candidate adopts an entry that only another member has, delivers it, and has its publisher in
    the table."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    first, second = cluster.others()
    for behind, ahead in ((first, second),):
        cluster.hold = lambda sender, receiver, message, behind=behind: (
            isinstance(message, Accept) and receiver == behind  # type: ignore[misc]
        )
        cluster.publish(ahead, "t", "x", id=1)
        assert cluster.delivered(ahead, "t") == [(1, "x")]
        cluster.held.clear()
    cluster.hold = lambda sender, receiver, message: False
    cluster.give(first, PeerReceived(old, (HandOver(0, cluster.record().history, cluster.record().epoch),)))
    cluster.settle()
    cluster.crash(old)
    cluster.run(6.0)
    assert cluster.delivered(first, "t") == [(1, "x")]
    assert cluster.logic(first).groups[0].replica.topics["t"].table.rows["p"][0] == 1


def test_answers_in_another_phase_are_ignored() -> None:
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    member = cluster.others()[0]
    group = cluster.logic(coordinator).groups[0]
    term = group.term
    assert term is not None
    history, epoch = cluster.record().history, cluster.record().epoch
    for message in (
        Promise(0, history, epoch, epoch, True, [], []),
        Inventory(0, history, epoch + 1, epoch, epoch, []),
        Synced(0, history, epoch, 999),
        Accepted(0, history, epoch + 1, [("t", 1)]),
    ):
        assert cluster.step(coordinator, PeerReceived(member, (message,))) == []
        assert cluster.step(member, PeerReceived(coordinator, (message,))) == []  # no term at all
    term.followers.inventory("nobody", Inventory(0, history, epoch, epoch, epoch, []))
    term.end("test")
    term.end("twice")
    cluster.step(coordinator, PeerReceived(member, (Inventory(0, history, epoch, epoch, epoch, []),)))
    group.peer_up(member)
    term.check_activation()
    assert term.phase == "over"


def test_second_promise_of_a_broker_is_ignored() -> None:
    cluster = Cluster(("a", "b", "c", "d", "e"), min_copies=2).up()
    old = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Promise)
    cluster.crash(old)
    cluster.run(0.5)
    (candidate,) = [name for name in cluster.running() if cluster.logic(name).groups[0].term is not None]
    promise_round = cluster.logic(candidate).groups[0].term.promise_round  # type: ignore[union-attr]
    assert promise_round is not None
    (sender, _, answer) = cluster.held[0]
    assert isinstance(answer, Promise)
    promise_round.promise(sender, answer)
    count = len(promise_round.answers)
    promise_round.promise(sender, answer)
    assert len(promise_round.answers) == count
    cluster.disconnect(candidate, sender)
    cluster.heal()
    cluster.settle()
    cluster.release()
    cluster.run(5.0)
    assert cluster.record().activated


def test_candidate_of_another_history_adopts_the_answers() -> None:
    """A broker whose log is of another history becomes owner or follows, and then has the current history and its
    entries."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    first, second = cluster.others()
    cluster.publish(old, "t", "old", id=1)
    replica = cluster.logic(first).groups[0].replica
    replica.history = 7  # as if it came from another time
    cluster.hold = lambda sender, receiver, message: isinstance(message, (InventoryRequest, Inventory))
    cluster.crash(old)
    cluster.zookeeper(False, second)
    cluster.run(6.0)
    assert cluster.record().owner[0] in (first, second)
    cluster.hold = lambda sender, receiver, message: False
    cluster.zookeeper(True, second)
    cluster.run(10.0)
    assert replica.history == cluster.record().history
    assert [entry.payload for entry in replica.topics["t"].entries] == [b"old"]


def test_owner_that_promised_higher_resigns() -> None:
    """A candidate whose promise rises while the reply to its record's write is lost resigns, so that no broker waits
    for it."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    cluster.unknown = lambda broker, commit: any(isinstance(done, ZkWrite) for done in commit.operations)
    cluster.crash(old)
    cluster.run(0.3)
    owner = cluster.record().owner[0]
    cluster.logic(owner).groups[0].replica.promised += 100
    cluster.unknown = lambda broker, commit: False
    cluster.run(10.0)
    assert cluster[owner].notes("resigned")
    assert cluster.record().activated


def test_higher_than_promised() -> None:
    """HIGHER-THAN-PROMISED: after one broker, coordinator or not, has promised an epoch that no record has, a record
    with a higher epoch is written within 10 s, and publications at all three brokers are acknowledged and delivered."""
    for poisoned in range(3):
        cluster = Cluster().up()
        coordinator = cluster.coordinator()
        name = [coordinator, *cluster.others()][poisoned]
        record = cluster.record()
        sender = cluster.others()[0] if name == coordinator else coordinator
        epoch = record.epoch + 1_000_000
        cluster.step(name, PeerReceived(sender, (Prepare(0, record.history, epoch, 0, False, []),)))
        assert cluster.logic(name).groups[0].replica.promised == epoch
        cluster.publish(sender, "t", "first", id=1)
        cluster.run(10.0)
        assert cluster.record().epoch > epoch
        for contact in cluster.names:
            reference = cluster.publish(contact, "t", contact, publisher=contact, id=1)
            cluster.run(0.1)
            assert cluster.answers[reference].code == ""
        assert all(len(cluster.delivered(contact, "t")) >= 3 for contact in cluster.names)


def test_candidates_whose_promises_no_record_confirms_take_over() -> None:
    """HIGHER-THAN-PROMISED: candidates that have promised a higher epoch than the record's write nothing for a second,
    because the read may be stale; then one writes and activates the epoch after the promised one."""
    cluster = Cluster().up()
    coordinator, record = cluster.coordinator(), cluster.record()
    epoch = record.epoch + 1_000_000
    for name in cluster.others():
        cluster.step(name, PeerReceived(coordinator, (Prepare(0, record.history, epoch, 0, False, []),)))
    cluster.crash(coordinator)
    cluster.run(1.0)
    assert cluster.record() == record
    cluster.run(4.0)
    assert cluster.record().epoch == epoch + 1
    assert cluster.record().activated


def test_list_with_too_many_losses_is_not_activated() -> None:
    """ACTIVATE-QUORUM: a record with three members of which two are known to be lost is not activated, although
    enough had confirmed it; another record with a higher epoch is."""
    cluster = Cluster(("a", "b", "c", "d", "e")).up()
    old = cluster.coordinator()
    successor, gone, also, _ = cluster.others()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Synced)
    cluster.give(successor, PeerReceived(old, (HandOver(0, cluster.record().history, cluster.record().epoch),)))
    cluster.settle()
    record = cluster.record()
    assert (record.owner[0], record.activated) == (successor, False)
    cluster.crash(gone)
    cluster.crash(also)
    cluster.settle()
    cluster.release()
    assert cluster.record() == record
    cluster.run(5.0)
    assert cluster.record().activated
    assert cluster.record().epoch > record.epoch
    assert len(cluster.record().members) == 3


def test_every_request_with_a_lost_reply_is_repeated() -> None:
    """When ZooKeeper is lost again and again, so that requests of every kind end as `unknown`, the brokers repeat
    them, and a record is activated; also in a takeover."""
    cluster = Cluster()
    cluster.start()
    for _ in range(12):
        cluster.zookeeper(False)
        cluster.run(0.1)
        for name in cluster.names:
            cluster[name].zookeeper = False
            cluster.give(name, ZkSession("connected", cluster[name].session))
        cluster.run(0.3)
        cluster.zookeeper(True)
        cluster.run(0.2)
    cluster.run(8.0)
    assert cluster.record().activated
    old = cluster.coordinator()
    cluster.crash(old)
    survivors = cluster.running()
    for _ in range(10):
        for name in survivors:
            cluster[name].zookeeper = not cluster[name].zookeeper
        cluster.run(0.3)
    cluster.zookeeper(True)
    cluster.run(8.0)
    assert cluster.record().activated
    assert cluster.coordinator() in survivors


def test_registration_repeats_steps_with_lost_replies() -> None:
    cluster = Cluster()
    dropped: list[str] = []

    def first_of_each(broker: str, commit: ZkCommit) -> bool:
        key = f"{broker} {commit.operations[0].path}"
        if key in dropped or ("/brokers/" not in key and "members" not in key):
            return False
        dropped.append(key)
        return True

    cluster.unknown = first_of_each
    cluster.start()
    cluster.run(8.0)
    assert len(dropped) >= 6
    assert all(cluster.logic(name).incarnation > 1 for name in cluster.names)
    assert cluster.record().activated


def test_flush_without_output_is_silent() -> None:
    cluster = Cluster().up()
    assert all(cluster.step(name, Flush()) == [] for name in cluster.names)
