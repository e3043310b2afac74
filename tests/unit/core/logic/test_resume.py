"""Receipts, waits and pages of resumed subscriptions (docs/concepts/replication.md, "Resume"), with cases A6 and A7."""

from __future__ import annotations

from typing import Any

import pytest
from migratory_broker.core.logic.events import (
    Attach,
    Attached,
    Effect,
    Fanout,
    PeerReceived,
    ZkGet,
    ZkNode,
    ZkReply,
)
from migratory_broker.core.logic.logic import Logic
from migratory_broker.core.logic.membership.records import encode
from migratory_broker.core.logic.replication.topic_log import TopicLog
from migratory_broker.core.logic.serving import resume
from migratory_broker.core.logic.serving.resume import RETRY_TICKS
from migratory_protocol.peer import Accept, HandOver, Publication
from migratory_protocol.positions import Position
from migratory_testing.brokers import Cluster
from migratory_testing.zookeeper_tree import Stored


def filled(count: int = 5, **config: Any) -> tuple[Cluster, str, int]:
    """Return a cluster with `count` publications in topic "t", the name of a broker that is not the coordinator, and
    the epoch."""
    cluster = Cluster(**config).up()
    member = cluster.others()[0]
    for number in range(1, count + 1):
        cluster.publish(member, "t", str(number), id=number)
    return cluster, member, cluster.record().epoch


def test_current_position_is_given_before_the_first_message() -> None:
    cluster = Cluster().up()
    attached = cluster.attach("a", "t")
    assert attached is not None
    assert (attached.receipt, attached.done) == ("complete", True)
    assert attached.position == Position(cluster.record().first, 0)


def test_committed_position_is_given_not_the_stored_one() -> None:
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    cluster.publish(coordinator, "t", "1", id=1)
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    cluster.publish(coordinator, "t", "2", id=2)
    attached = cluster.attach(coordinator, "t", snapshot=True)
    assert attached is not None
    assert attached.position.sequence == 1
    assert [entry.payload for entry in attached.publications] == [b"1"]
    replayed = cluster.attach(coordinator, "t", (cluster.record().first, 0))
    assert replayed is not None
    assert [entry.payload for entry in replayed.publications] == [b"1"]


def test_snapshot_of_an_empty_topic_is_empty() -> None:
    cluster = Cluster().up()
    attached = cluster.attach("a", "t", snapshot=True)
    assert attached is not None
    assert attached.publications == ()


def test_a7_resume_at_sequence_zero() -> None:
    cluster = Cluster().up()
    first = cluster.attach("a", "t")
    assert first is not None
    for number in (1, 2, 3):
        cluster.publish("b", "t", str(number), id=number)
    attached = cluster.attach("c", "t", tuple(first.position))  # type: ignore[arg-type]
    assert attached is not None
    assert attached.receipt == "complete"
    assert [entry.payload for entry in attached.publications] == [b"1", b"2", b"3"]
    nothing = cluster.attach("c", "u", tuple(first.position))  # type: ignore[arg-type]
    assert nothing is not None
    assert (nothing.receipt, nothing.publications) == ("complete", ())


def test_a6_resume_from_the_future() -> None:
    cluster, member, epoch = filled()
    contradicted = cluster.attach(member, "t", (epoch + 6, 1))
    assert contradicted is not None  # at once: that sequence number is committed in another epoch
    assert contradicted.receipt == "reset"
    unknown = cluster.attach(member, "t", (epoch + 6, 100))
    assert unknown is not None  # at once: ZooKeeper does not know that epoch
    assert (unknown.receipt, unknown.position, unknown.publications) == ("reset", Position(epoch, 5), ())
    assert cluster.attach(member, "t", (epoch, 1000), wait=1.0) is None
    cluster.run(1.5)
    (late,) = [a for a in cluster[member].of(Attached) if a.reference > unknown.reference]
    assert (late.receipt, late.position) == ("reset", Position(epoch, 5))
    cluster.publish(member, "t", "6", id=6)
    last = cluster[member].of(Fanout)[-1].publications
    assert [entry.position for entry in last] == [Position(epoch, 6)]


def test_a6_resume_from_the_future_at_the_coordinator() -> None:
    cluster, _, epoch = filled()
    coordinator = cluster.coordinator()
    assert cluster.attach(coordinator, "t", (epoch, 1000), wait=1.5) is None
    cluster.run(1.0)
    (late,) = cluster[coordinator].of(Attached)
    assert (late.receipt, late.position) == ("reset", Position(epoch, 5))


def test_unknown_epoch_without_zookeeper_is_reset_after_the_wait() -> None:
    cluster, member, epoch = filled()
    cluster.zookeeper(False)
    cluster.run(0.5)
    cluster.give(member, Attach(0, 77, "t", Position(epoch + 6, 100)))
    cluster.run(29.0)  # no coordinator of that epoch is heard
    assert not cluster[member].of(Attached)
    cluster.run(1.5)
    (late,) = cluster[member].of(Attached)
    assert (late.receipt, late.position) == ("reset", Position(epoch, 5))


def test_unknown_epoch_is_looked_up_when_zookeeper_is_back() -> None:
    """Regression: the subscription was marked as looked up while ZooKeeper was away, and answered after 30 s."""
    cluster, member, epoch = filled()
    cluster.zookeeper(False)
    cluster.run(0.5)
    cluster.give(member, Attach(0, 77, "t", Position(epoch + 6, 100)))
    cluster.run(1.0)
    assert not cluster[member].of(Attached)
    cluster.zookeeper(True)
    cluster.run(3.0)
    (late,) = cluster[member].of(Attached)
    assert (late.receipt, late.position) == ("reset", Position(epoch, 5))


@pytest.mark.parametrize("cut_off", [False, True])
def test_position_ahead_waits_while_no_coordinator_is_heard(cut_off: bool) -> None:
    """A subscription from a position ahead waits longer than the resume wait while its broker hears no coordinator,
    cut off or in a takeover that ZooKeeper delays; when the publication has come, the answer is `complete`."""
    cluster, member, epoch = filled()
    (other,) = set(cluster.others()) - {member}
    cluster.hold = lambda sender, receiver, message: receiver == member and isinstance(message, Accept)
    cluster.publish(other, "t", "6", id=6)
    assert cluster.delivered(other, "t")[-1] == (6, "6")
    log = cluster.logic(member).groups[0].replica.topics["t"]
    assert (log.last, log.committed) == (5, 5)
    if cut_off:
        cluster.isolate(member)
    else:
        cluster.zookeeper(False)
        cluster.crash(cluster.coordinator())
    cluster.give(member, Attach(0, 77, "t", Position(epoch, 6)))
    cluster.run(3.5)  # longer than `resume_wait`, and not long enough to fence
    assert not cluster[member].of(Attached)
    cluster.release()
    cluster.heal()
    cluster.zookeeper(True)
    cluster.run(10.0)
    (attached,) = cluster[member].of(Attached)
    assert (attached.receipt, attached.publications) == ("complete", ())


@pytest.mark.parametrize("at_coordinator", [False, True])
def test_position_ahead_waits_at_too_few_brokers_that_are_cut_off_together(at_coordinator: bool) -> None:
    """Regression: a coordinator and one more of five brokers with minCopies 3 were cut off together. A subscriber that
    came from the others, with the last commit of the same epoch, was reset after the resume wait."""
    cluster = Cluster(("a", "b", "c", "d", "e"), min_copies=3).up()
    coordinator, (beside, *others) = cluster.coordinator(), cluster.others()
    contact = coordinator if at_coordinator else beside
    cluster.zookeeper(False)
    for one in (coordinator, beside):
        for other in others:
            cluster.cut(one, other)
    cluster.give(contact, Attach(0, 77, "t", Position(cluster.record().epoch, 6)))
    cluster.run(3.5)  # longer than `resume_wait`, and not long enough to fence
    assert not cluster[contact].of(Attached)


@pytest.mark.parametrize("sequence", [0, 1])
def test_unknown_epoch_of_an_empty_topic_is_reset(sequence: int) -> None:
    cluster = Cluster().up()
    epoch = cluster.record().epoch
    attached = cluster.attach("a", "t", (epoch + 3, sequence))
    assert attached is not None
    assert attached.receipt == "reset"


def test_unreadable_record_leaves_the_resume_waiting() -> None:
    cluster, member, epoch = filled()
    del cluster.store.nodes["/groups/0"]
    attached = cluster.attach(member, "t", (epoch + 6, 100))
    assert attached is not None
    assert attached.receipt == "reset"
    cluster.store.nodes["/groups/0"] = Stored(b"?", 0, 0)
    cluster.run(0.2)
    assert cluster.attach(member, "t", (epoch + 7, 100), wait=0.5) is None


def test_position_ahead_of_this_broker_waits() -> None:
    """A subscription from a position ahead of this broker waits until the broker has reached it, and is then
    answered with `complete` at that position; later publications follow as fan-outs."""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    member, other = cluster.others()
    epoch = cluster.record().epoch
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept) and receiver == member
    for number in (1, 2, 3):
        cluster.publish(coordinator, "t", str(number), id=number)
    assert cluster.delivered(other, "t")
    assert cluster.attach(member, "t", (epoch, 2), wait=0.5) is None
    assert cluster.attach(member, "t", (epoch, 9), wait=0.1) is None
    cluster.release()
    attached = cluster[member].of(Attached)[-1]
    assert attached.receipt == "complete"
    assert attached.position == Position(epoch, 2)  # the moment at which it was reached: the rest comes as Fanout
    assert attached.done
    effects = cluster[member].effects
    behind = [effect for effect in effects[effects.index(attached) :] if isinstance(effect, Fanout)]
    assert [entry.sequence for fanout in behind for entry in fanout.publications] == [3]


def test_epoch_known_only_to_zookeeper_waits() -> None:
    cluster = Cluster().up()
    old = cluster.coordinator()
    member, other = cluster.others()
    cluster.publish(old, "t", "1", id=1)
    cluster.isolate(member)
    cluster.give(other, PeerReceived(old, (HandOver(0, cluster.record().history, cluster.record().epoch),)))
    cluster.run(1.0)
    epoch = cluster.record().epoch
    assert epoch > cluster.logic(member).groups[0].replica.promised
    assert cluster.record().activated
    assert cluster.attach(member, "t", (epoch, 2), wait=0.5) is None


def test_replaced_entry_is_reset() -> None:
    """A subscription from a position of an older epoch whose entry is missing, or was replaced by another, gets the
    receipt `reset`; one whose entry is there gets `complete`."""
    cluster = Cluster().up()
    old = cluster.coordinator()
    member, _ = cluster.others()
    epoch = cluster.record().epoch
    cluster.publish(old, "t", "1", id=1)
    cluster.crash(old)
    cluster.run(6.0)
    missing = cluster.attach(member, "t", (epoch, 2))
    assert missing is not None
    assert missing.receipt == "reset"
    cluster.publish(member, "t", "2", publisher="q", id=1)
    other = cluster.attach(member, "t", (epoch, 2))
    assert other is not None
    assert other.receipt == "reset"
    good = cluster.attach(member, "t", (epoch, 1))
    assert good is not None
    assert (good.receipt, [entry.payload for entry in good.publications]) == ("complete", [b"2"])


def test_position_below_the_cache_is_truncated() -> None:
    cluster, member, epoch = filled(8, messages_per_topic=3, min_age=0.0)
    attached = cluster.attach(member, "t", (epoch, 2))
    assert attached is not None
    assert (attached.receipt, attached.first, attached.last) == ("truncated", 3, 5)
    assert [entry.payload for entry in attached.publications] == [b"6", b"7", b"8"]
    exactly = cluster.attach(member, "t", (epoch, 5))
    assert exactly is not None
    assert (exactly.receipt, len(exactly.publications)) == ("complete", 3)
    wrong = cluster.attach(member, "t", (epoch - 1, 5))
    foreign = cluster.attach(member, "t", (epoch + 1, 2))
    start = cluster.attach(member, "t", (epoch, 0))
    assert wrong is not None
    assert foreign is not None
    assert start is not None
    assert (wrong.receipt, foreign.receipt) == ("reset", "reset")
    assert (start.receipt, start.first, start.last) == ("truncated", 1, 5)


def test_idle_topic_keeps_its_position() -> None:
    cluster, member, epoch = filled(3, messages_per_topic=2, min_age=0.0, max_age=1.0)
    cluster.run(2.0)
    log = cluster.logic(member).groups[0].replica.topics["t"]
    assert (log.base, log.last, len(log.entries)) == (3, 3, 0)
    attached = cluster.attach(member, "t")
    assert attached is not None
    assert attached.position == Position(epoch, 3)
    again = cluster.attach(member, "t", (epoch, 3))
    assert again is not None
    assert again.receipt == "complete"
    duplicate = cluster.publish(member, "t", "3", id=3)
    assert cluster.answers[duplicate].position == Position(epoch, 3)
    cluster.publish(member, "t", "4", id=4)
    assert cluster.delivered(member, "t")[-1] == (4, "4")


def test_replay_is_sent_in_pages_up_to_the_committed_mark() -> None:
    cluster, member, epoch = filled(5)
    attached = cluster.attach(member, "t", (epoch, 0), max_bytes=2)
    assert attached is not None
    assert (len(attached.publications), attached.done) == (2, False)
    page = cluster.page(member, "t", (epoch, 2), max_bytes=2)
    assert ([entry.sequence for entry in page.publications], page.done, page.receipt) == ([3, 4], False, "complete")
    page = cluster.page(member, "t", (epoch, 4))
    assert ([entry.sequence for entry in page.publications], page.done) == ([5], True)
    assert cluster.page(member, "t", (epoch, 5)).publications == ()


def test_replay_overtaken_by_eviction_is_truncated() -> None:
    cluster, member, epoch = filled(3, messages_per_topic=3, min_age=0.0)
    attached = cluster.attach(member, "t", (epoch, 0), max_bytes=1)
    assert attached is not None
    for number in range(4, 9):
        cluster.publish(member, "t", str(number), id=number)
    page = cluster.page(member, "t", (epoch, 1))
    assert (page.receipt, page.first, page.last) == ("truncated", 2, 5)
    assert [entry.sequence for entry in page.publications] == [6, 7, 8]


def test_replay_of_an_ended_history_is_reset() -> None:
    cluster, member, epoch = filled(3)
    page = cluster.page(member, "t", (epoch - 1, 1))
    assert (page.receipt, page.position) == ("reset", Position(epoch, 3))
    assert cluster.page(member, "u", (epoch, 1)).receipt == "reset"


def test_resume_before_the_first_sync_waits() -> None:
    cluster = Cluster()
    cluster.start("a")
    cluster.run(0.5)
    assert cluster.attach("a", "t", wait=1.0) is None
    cluster.run(1.5)
    (attached,) = cluster["a"].of(Attached)
    assert (attached.receipt, attached.position) == ("reset", Position(0, 0))
    cluster.give("a", Attach(0, 77, "t", None))
    cluster.run(0.5)
    cluster.start("b", "c")
    cluster.run(1.4)
    answers = [a for a in cluster["a"].of(Attached) if a.reference == 77]
    assert [a.receipt for a in answers] == ["complete"]


def test_topics_followed_without_a_publication_are_bounded() -> None:
    cluster = Cluster(max_topics=1).up()
    for number in range(150):
        cluster.attach("a", f"t{number}")
    assert len(cluster.logic("a").groups[0].replica._followed) == 101


def test_learner_waits_for_the_mark_of_an_older_entry() -> None:
    """MARK-DECIDES: with minCopies 3, a subscription from an entry that its broker has but does not yet know to be
    committed waits for the mark and gets `complete`; `reset` would be wrong."""
    cluster = Cluster(("a", "b", "c", "d", "e"), min_copies=3, resume_wait=30.0).up()
    old = cluster.coordinator()
    member, other = cluster.others()[:2]
    epoch = cluster.record().epoch
    cluster.hold = lambda sender, receiver, message: (
        receiver == member and isinstance(message, Accept) and not message.entries
    )
    reference = cluster.publish(other, "t", "1", id=1)
    assert cluster.answers[reference].position == Position(epoch, 1)
    assert cluster.delivered(member, "t") == []
    assert cluster.attach(member, "t", (epoch, 1)) is None
    cluster.isolate(member)
    cluster.zookeeper(False, member)
    cluster.crash(old)
    cluster.run(2.0)
    assert cluster.record().epoch > epoch
    cluster.heal()  # its Sync brings nothing that it lacks, and is of an activated epoch
    cluster.run(0.2)
    replica = cluster.logic(member).groups[0].replica
    assert replica.view is not None
    assert (replica.view.activated, replica.topics["t"].last, replica.topics["t"].committed) == (True, 1, 0)
    assert not cluster[member].of(Attached)
    cluster.release()
    cluster.run(0.2)
    assert [attached.receipt for attached in cluster[member].of(Attached)] == ["complete"]
    assert cluster.delivered(member, "t") == [(1, "1")]


def test_page_reads_no_more_of_a_log_than_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a replay reads hardly more entries of the log than it returns, and returns at most `MAX_PAGE` bytes
    but at least one entry. A resume storm asks for very many pages."""
    cluster = Cluster(min_age=60.0).up()
    for number in range(1, 301):
        cluster.publish("a", "t", "x" * 10, id=number)
    looked: list[int] = []
    between = TopicLog.between

    def counted(self: TopicLog, after: int, to: int) -> list[Publication]:
        publications = between(self, after, to)
        looked.append(len(publications))
        return publications

    monkeypatch.setattr(TopicLog, "between", counted)
    epoch = cluster.record().epoch
    page = cluster.page("a", "t", (epoch, 100), max_bytes=450)
    assert [publication.sequence for publication in page.publications] == list(range(101, 146))
    assert not page.done
    assert sum(looked) <= 96
    assert len(cluster.page("a", "t", (epoch, 299), max_bytes=1).publications) == 1
    assert len(cluster.page("a", "t", (epoch, 200), max_bytes=10**6).publications) == 100
    monkeypatch.setattr(resume, "MAX_PAGE", 40)
    page = cluster.page("a", "t", (epoch, 0), max_bytes=10**6)
    assert 40 <= len(page.publications) < 80
    assert not page.done


class TestUnreachablePositions:
    """Subscriptions from positions that do not exist must not slow down ticks or ZooKeeper for other clients."""

    def table(self, count: int, after: Position) -> tuple[Cluster, Logic, int, list[Effect]]:
        """Return a cluster, the logic of a broker that is not its coordinator and has `count` subscriptions that
        wait for the position `after`, the group's synced epoch, and the effects of the attaches."""
        cluster = Cluster(groups=1).up()
        logic = cluster.logic(cluster.others()[0])
        logic.resume._ticks = RETRY_TICKS  # the next nine ticks are not those in which all are tried
        effects: list[Effect] = []
        for number in range(count):
            effects += logic.step(Attach(0, number, f"t{number}", after), cluster.now + number / 1000)
        return cluster, logic, logic.groups[0].replica.synced, effects

    def test_zookeeper_is_asked_about_a_group_once_at_a_time(self) -> None:
        """For 50 subscriptions that need the record of one group, ZooKeeper is read once at a time: the first read
        answers the subscription that was there when it was sent, the second all others. Regression: many of them
        delayed ZooKeeper's other replies by five seconds."""
        cluster, logic, synced, effects = self.table(50, Position(2**62, 5))
        (read,) = [effect for effect in effects if isinstance(effect, ZkGet)]
        node = ZkNode(encode(cluster.record()), 1)
        effects = logic.step(ZkReply(read.request, "ok", node), cluster.now + 0.05)
        (answered,) = [effect for effect in effects if isinstance(effect, Attached)]
        assert (answered.reference, answered.receipt) == (0, "reset")  # it alone was there when ZooKeeper was asked
        (again,) = [effect for effect in effects if isinstance(effect, ZkGet)]
        effects = logic.step(ZkReply(again.request, "ok", node), cluster.now + 0.06)
        assert [(a.receipt, a.position.epoch) for a in effects if isinstance(a, Attached)] == [("reset", synced)] * 49
        assert (logic.resume.waiting, logic.resume._deadlines, logic.resume._unheard_at) == ({}, {}, {})

    def test_lost_reply_is_requested_by_the_next_subscription(self) -> None:
        cluster, logic, _, effects = self.table(2, Position(2**62, 5))
        (read,) = [effect for effect in effects if isinstance(effect, ZkGet)]
        logic.step(ZkReply(read.request, "unknown"), cluster.now + 0.05)
        effects = logic.step(Attach(0, 9, "u", Position(2**62, 5)), cluster.now + 0.06)
        assert [effect.path for effect in effects if isinstance(effect, ZkGet)] == ["/groups/0"]

    @pytest.mark.interpreted
    def test_waiting_subscriptions_are_not_tried_without_cause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Waiting subscriptions are not tried in each tick, nor after a commit that does not reach their positions,
        but only every `RETRY_TICKS` ticks and when their time is over. Regression: 25,600 of them kept a broker busy
        with its ticks."""
        cluster, logic, synced, _ = self.table(50, Position(0, 0))
        now = cluster.now + 1.0
        tried: list[str] = []
        try_ = logic.resume._try_to_answer

        def counted(group: Any, waiting: Any, expired: bool) -> Any:
            tried.append(waiting.event.topic)
            return try_(group, waiting, expired)

        monkeypatch.setattr(logic.resume, "_try_to_answer", counted)
        for number in range(50):
            logic.step(Attach(0, number, "t", Position(synced, 10 + number)), now)
        tried.clear()
        for _ in range(RETRY_TICKS - 1):
            logic.resume.tick()
        assert tried == []
        log = logic.groups[0].replica.log("t")
        log.replace(9, synced, [])
        log.committed = 9
        logic.resume.committed(0, log)
        logic.resume.committed(0, logic.groups[0].replica.log("another"))
        assert (tried, logic.resume.released) == ([], {})
        logic.resume.tick()
        assert len(tried) == 50  # all, now and then
        logic.resume._ticks = 0
        tried.clear()
        logic.ctx.now = now + logic.config.resume_wait
        logic.membership.heard = dict.fromkeys(logic.membership.heard, logic.ctx.now)
        logic.gossip.learn(0, synced, cluster.coordinator(), logic.ctx.now)
        logic.resume.tick()
        assert len(tried) == 50
        assert logic.resume.waiting == {}

    def test_wait_stops_counting_until_a_later_coordinators_log_arrives(self) -> None:
        cluster, logic, synced, _ = self.table(1, Position(0, 0))
        logic.step(Attach(0, 1, "t", Position(synced, 9)), cluster.now + 1.0)
        logic.gossip.learn(0, synced + 1, "another", cluster.now + 1.0)
        for tick in range(40):
            logic.ctx.now = cluster.now + 1.0 + tick / 10
            logic.resume.tick()
        assert list(logic.resume.waiting[0]) == ["t"]
        logic.ctx.now = cluster.now + 1.0 + logic.config.resume_limit
        logic.resume.tick()
        assert logic.resume.waiting == {}
