"""The first record of a group, and new histories (docs/concepts/replication.md, "The first record", "When the memory
is gone")."""

from __future__ import annotations

from migratory_broker.core.logic.events import DrainRequest, Gap, Observe, ZkCommit, ZkGet, ZkWrite
from migratory_broker.core.logic.membership.records import GroupRecord, encode
from migratory_broker.core.logic.status import describe_logic
from migratory_protocol.peer import Accept, Prepare, Survey, SurveyReply
from migratory_protocol.positions import Position
from migratory_testing.brokers import WALL_MS, Cluster
from migratory_testing.zookeeper_tree import Stored


def test_first_epoch_is_the_wall_clock_and_lists_all_brokers() -> None:
    """FIRST-EPOCH: the first record's epoch is the wall clock in milliseconds, it lists all brokers and has no
    source; candidates send surveys, and no promise is asked for."""
    cluster = Cluster().up()
    record = cluster.record()
    assert record.epoch == record.first >= WALL_MS
    assert record.source is None
    assert [name for name, _ in record.members] == ["a", "b", "c"]
    assert record.history > 0
    assert not [message for _, _, message in cluster.sent if isinstance(message, Prepare)]
    assert [message for _, _, message in cluster.sent if isinstance(message, Survey)]


def test_first_record_waits_a_bounded_time_for_all_configured_brokers() -> None:
    cluster = Cluster()
    cluster.start("a", "b")
    cluster.run(11.0)
    assert "/groups/0" not in cluster.store.nodes
    assert any(cluster[name].notes("group_waits") for name in ("a", "b"))
    cluster.run(4.0)
    assert [name for name, _ in cluster.record().members] == ["a", "b"]
    assert cluster.record().activated


def test_fewer_brokers_than_copies_cannot_begin() -> None:
    cluster = Cluster()
    cluster.start("a")
    cluster.run(16.0)
    assert "/groups/0" not in cluster.store.nodes
    assert cluster["a"].notes("group_waits")[-1].fields["reason"] == "only 1 brokers can be listed"


def test_survey_that_finds_entries_leads_to_a_new_history() -> None:
    """SURVEY: without a record, and with fewer copies than restore it, the history is unknown. Only a new one
    continues, once every configured broker has answered."""
    cluster = Cluster().up()
    cluster.publish("a", "t", "x", id=1)
    before = cluster.record()
    del cluster.store.nodes["/groups/0"]
    survivor, other = cluster.others()
    old = cluster.coordinator()
    cluster.crash(old)
    cluster.restart(other)
    cluster.run(20.0)
    assert "/groups/0" not in cluster.store.nodes
    waiting = {cluster.logic(name).election.states[0].waiting for name in cluster.running()}
    assert f"ZooKeeper lost its record; waiting for the copy of {old}" in waiting
    cluster.start(old)
    cluster.run(10.0)
    assert "/groups/0" not in cluster.store.nodes
    cluster.run(10.0)
    record = cluster.record()
    assert record.history != before.history
    assert record.first == record.epoch or record.source is not None
    assert record.first > before.epoch
    assert [gap.receipt for gap in cluster[survivor].of(Gap)] == ["reset"]


def test_survey_restarts_when_an_asked_broker_leaves() -> None:
    cluster = Cluster()
    cluster.hold = lambda sender, receiver, message: isinstance(message, SurveyReply)
    cluster.start()
    cluster.run(1.5)
    assert "/groups/0" not in cluster.store.nodes
    cluster.disconnect("a", "c")
    cluster.disconnect("b", "c")
    cluster.heal()
    cluster.run(3.5)  # and it is given up after a while
    assert "/groups/0" not in cluster.store.nodes
    cluster.hold = lambda sender, receiver, message: False
    cluster.held.clear()
    cluster.run(4.0)
    assert cluster.record().activated
    histories = cluster.logic("a").histories
    histories.survey_reply("c", SurveyReply(12345, [(0, 1)]))
    decision = histories.bootstrap(0)
    assert decision is None or decision.known == 0


def test_first_record_against_a_stale_read_is_refused() -> None:
    """CAS: the creation of a first record fails when another candidate was faster; the next record continues that
    candidate's history."""
    cluster = Cluster()
    cluster.start()
    refused: list[str] = []

    def late(broker: str, commit: ZkCommit) -> bool:
        if any(operation.path == "/groups/0" for operation in commit.operations) and not refused:
            refused.append(broker)
            other = GroupRecord(99, 5, 5, ("b", 1), [("a", 1), ("b", 1)], 2, activated=False, source=None)
            cluster.store.nodes["/groups/0"] = Stored(encode(other), 0, 0)
        return False

    cluster.lost = late
    cluster.run(6.0)
    assert refused
    assert cluster[refused[0]].notes("record_refused")
    record = cluster.record()
    assert (record.history, record.first) == (99, 5)
    assert record.epoch > 5
    assert record.activated


def test_unactivated_first_record_is_continued_without_promises() -> None:
    """A first record that was never activated is continued by the next candidate without promises: its record has no
    source, a higher epoch, and is activated."""
    cluster = Cluster()
    dropped: list[str] = []

    def activation(broker: str, commit: ZkCommit) -> bool:
        return not dropped and any(
            isinstance(operation, ZkWrite) and b'"activated":true' in operation.data for operation in commit.operations
        )

    cluster.lost = activation
    cluster.start()
    cluster.run(1.2)
    owner = cluster.record().owner[0]
    cluster.crash(owner)
    dropped.append(owner)
    cluster.run(6.0)
    record = cluster.record()
    assert record.activated
    assert record.source is None
    assert record.epoch > record.first


def test_restart_of_all_brokers_begins_a_new_history_after_three_sessions() -> None:
    """NEW-HISTORY-WAITS: when all brokers have restarted, the record stays for three sessions; then a new history
    begins, its reset is counted and logged, and a subscription from an old position gets the receipt `reset`."""
    cluster = Cluster().up()
    cluster.publish("a", "t", "x", id=1)
    before = cluster.record()
    for name in cluster.names:
        cluster.crash(name)
    cluster.start()
    cluster.run(11.0)
    assert cluster.record() == before
    status = describe_logic(cluster.logic("a"))
    assert status["waiting_groups"] == 1
    cluster.run(6.0)
    record = cluster.record()
    assert record.history != before.history
    assert record.first > before.epoch
    assert record.activated
    name = cluster.coordinator()
    assert [o.metric for o in cluster[name].of(Observe)].count("migratory_history_resets_total") == 1
    assert cluster[name].notes("history_reset")
    reference = cluster.publish("b", "t", "y", id=1)
    assert cluster.answers[reference].position == Position(record.first, 1)
    attached = cluster.attach("b", "t", (before.epoch, 1))
    assert attached is not None
    assert (attached.receipt, attached.position) == ("reset", Position(record.first, 1))


def test_halt_waits_for_an_operator() -> None:
    cluster = Cluster(on_history_loss="halt").up()
    before = cluster.record()
    for name in cluster.names:
        cluster.crash(name)
    cluster.start()
    cluster.run(30.0)
    assert cluster.record() == before
    halted = [name for name in cluster.names if cluster[name].notes("history_lost_halted")]
    assert halted
    assert len(cluster[halted[0]].notes("history_lost_halted")) == 1


def test_halt_logs_no_loss_while_a_lagging_zookeeper_lacks_the_record() -> None:
    cluster = Cluster(on_history_loss="halt").up()
    cluster.publish("a", "t", "x", id=1)
    record = cluster.record()
    old = cluster.coordinator()
    for name in cluster.others():
        cluster[name].lacks.add("/groups/0")
    cluster.crash(old)
    cluster.run(10.0)
    assert not [name for name in cluster.running() if cluster[name].notes("history_lost_halted")]
    assert cluster.record() == record  # RESTORE: what exists is not created
    for name in cluster.running():
        cluster[name].lacks.clear()
    cluster.run(5.0)
    assert cluster.record().activated
    assert cluster.record().owner[0] != old
    assert not [name for name in cluster.running() if cluster[name].notes("history_lost_halted")]


def test_survivor_notifies_its_subscribers_of_the_new_history() -> None:
    """NEW-HISTORY: a broker that survives the loss of the history drops its log, and its subscribers get the receipt
    `reset`, also for topics without a publication."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    survivor, other = cluster.others()
    cluster.publish(survivor, "t", "x", id=1)
    assert cluster.attach(survivor, "empty") is not None
    assert cluster.attach(survivor, "t") is not None
    for name in (old, other):
        cluster.crash(name)
    cluster.start(old, other)
    cluster.run(20.0)
    record = cluster.record()
    assert (survivor, 1) in record.members
    assert cluster[survivor].of(Gap) == [
        Gap("empty", "reset", Position(record.first, 0)),
        Gap("t", "reset", Position(record.first, 0)),
    ]
    assert cluster.logic(survivor).groups[0].replica.topics == {}


def lose_all_but(cluster: Cluster, survivor: str) -> None:
    others = [name for name in cluster.names if name != survivor]
    for name in others:
        cluster.crash(name)
    cluster.start(*others)


def test_each_new_history_is_announced_even_after_an_empty_one() -> None:
    """NEW-HISTORY: when two histories begin one after the other, a subscriber gets a `reset` for each, although its
    topic is empty in the first of them."""
    cluster = Cluster().up()
    survivor = next(name for name in cluster.names if name != cluster.coordinator())
    cluster.publish(survivor, "t", "x", id=1)
    assert cluster.attach(survivor, "t") is not None
    firsts = []
    for _ in range(2):
        if cluster.coordinator() == survivor:  # what its owner holds is not lost
            cluster.give(survivor, DrainRequest(60.0))
            cluster.run(3.0)
        lose_all_but(cluster, survivor)
        cluster.run(25.0)
        firsts.append(cluster.record().first)
    assert firsts[0] < firsts[1]
    assert cluster[survivor].of(Gap) == [Gap("t", "reset", Position(first, 0)) for first in firsts]


def test_wait_for_a_loss_starts_with_that_loss() -> None:
    """NEW-HISTORY-WAITS: the wait before a new history starts with the loss of the current one, also at a broker
    that had waited for an earlier loss that another broker ended."""
    cluster = Cluster().up()
    survivor = next(name for name in cluster.names if name != cluster.coordinator())
    lose_all_but(cluster, survivor)
    cluster.run(8.0)
    assert cluster[survivor].notes("group_waits")[-1].fields["reason"] == "history lost"
    cluster.zookeeper(False, survivor)
    cluster.run(20.0)
    second = cluster.record()
    assert second.owner[0] != survivor
    cluster.zookeeper(True, survivor)
    cluster.run(6.0)
    assert cluster.coordinator() != survivor
    lose_all_but(cluster, survivor)
    before = cluster.record()
    cluster.run(11.0)
    assert cluster.record() == before
    cluster.run(8.0)
    assert cluster.record().history != before.history


def test_absent_owner_is_waited_for() -> None:
    """While the owner of a group is only away, and too few of the last list can be reached, the group waits and
    keeps its history; when the owner is back, its log is adopted. LOST needs newer incarnations of the listed
    brokers."""
    cluster = Cluster().up()
    cluster.publish("a", "t", "x", id=1)
    old = cluster.coordinator()
    survivor, other = cluster.others()
    before = cluster.record()
    cluster.isolate(old)
    cluster.store.expire(cluster[old].session)
    cluster.zookeeper(False, old)
    cluster.crash(survivor)
    cluster.start(survivor)
    cluster.run(0.5)
    cluster.crash(other)
    cluster.start(other)
    cluster.run(40.0)
    assert cluster.record().history == before.history
    assert not cluster.record().activated or cluster.record().epoch == before.epoch
    waiting = [note.fields["reason"] for name in (survivor, other) for note in cluster[name].notes("group_waits")]
    assert "too few of the last activated list can be reached" in waiting
    cluster.heal()
    cluster.zookeeper(True, old)
    cluster.run(12.0)
    record = cluster.record()
    assert record.history == before.history
    assert record.activated
    assert len(record.members) == 3
    assert cluster.logic(survivor).groups[0].replica.topics["t"].committed == 1


def test_incarnations_are_read_once_a_second() -> None:
    cluster = Cluster(groups=3).up()
    for name in cluster.names:
        cluster.crash(name)
    cluster.start()
    cluster.run(2.0)
    before = len([get for get in cluster["a"].of(ZkGet) if get.path == "/brokers/b"])
    cluster.run(5.0)
    after = len([get for get in cluster["a"].of(ZkGet) if get.path == "/brokers/b"])
    assert 1 <= after - before <= 6


def test_a9_a_retry_is_stored_if_and_only_if_the_first_attempt_was_not() -> None:
    """Case A9: a publication that was lost with its coordinator is stored once when it is sent again, and a further
    repeat gets the same position. The publisher table is part of the log."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    contact = cluster.others()[0]
    epoch = cluster.record().epoch
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    first = cluster.publish(contact, "t", "x", publisher="p1", id=7)
    assert first not in cluster.answers
    cluster.crash(old)
    cluster.settle()
    assert cluster.answers[first].code == "retry"
    cluster.held.clear()
    cluster.hold = lambda sender, receiver, message: False
    cluster.run(6.0)
    again = cluster.publish(contact, "t", "x", publisher="p1", id=7)
    position = cluster.answers[again].position
    assert position is not None
    assert position.epoch > epoch
    third = cluster.publish(contact, "t", "x", publisher="p1", id=7)
    assert cluster.answers[third].position == position
    assert cluster.delivered(contact, "t") == [(1, "x")]


def test_configured_broker_that_never_started_does_not_delay_a_loss() -> None:
    """A history counts as lost when all listed brokers have newer incarnations; a configured broker that never
    started delays nothing."""
    cluster = Cluster(bootstrap_wait=1.0)
    cluster.start("a", "b")
    cluster.run(15.0)
    before = cluster.record()
    assert before.activated
    cluster.publish("a", "t", "x", id=1)
    for name in ("a", "b"):
        cluster.crash(name)
    cluster.start("a", "b")
    cluster.run(18.0)
    assert "/brokers/c" not in cluster.store.nodes
    record = cluster.record()
    assert record.activated
    assert record.history != before.history
    assert record.first > before.epoch
