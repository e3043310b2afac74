"""FLOOR, REMOVED-WITH-EPOCH, REMOVED-EMPTY: idle topics are removed, and begin again above all of their positions."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic import events as ev
from migratory_broker.core.logic.context import PeerError
from migratory_broker.core.logic.replication.replica import Replica
from migratory_protocol.peer import Accepted, Activated, ForwardedPublication, Promise, PublisherRow, Sync, TopicPart
from migratory_protocol.positions import Position
from migratory_testing.brokers import Cluster
from msgspec.structs import replace

CONFIG: dict[str, object] = {"topic_idle_timeout": 8.0, "max_age": 2.0, "min_age": 0.0, "duplicate_window": 4.0}


def idle_cluster(**config: object) -> Cluster:
    """Return a cluster that removes topics after 8 seconds."""
    return Cluster(**CONFIG | config).up()  # type: ignore[arg-type]


def replica(cluster: Cluster, name: str) -> Replica:
    return cluster.logic(name).groups[0].replica


def empty_sync(group: Replica, floor: Position) -> Sync:
    """Return a Sync of the next epoch without topics."""
    me = group.ctx.me
    return Sync(0, group.history, group.first, group.synced + 1, 1, me, [], 2, False, True, True, [], 0, 0, floor)


def topics(cluster: Cluster) -> set[str]:
    """Return the topics of any broker."""
    return {
        topic for name, broker in cluster.brokers.items() if broker.running for topic in replica(cluster, name).topics
    }


def test_idle_topics_go_everywhere_and_begin_again_above_their_positions() -> None:
    cluster = idle_cluster()
    one, other = cluster.coordinator(), cluster.others()[0]
    for number in range(3):
        cluster.publish(one, "long", f"m{number}")
    cluster.publish(one, "short", "s")
    first = cluster.record().epoch
    cluster.run(7.0)
    assert topics(cluster) == {"long", "short"}
    cluster.run(5.0)
    assert topics(cluster) == set()
    epoch = cluster.record().epoch
    assert epoch == first + 1
    assert {replica(cluster, name).floor for name in cluster.names} == {Position(epoch, 4)}
    assert [note.fields["count"] for note in cluster[one].notes("topics_removed")] == [2]
    assert ev.Observe("migratory_topics_removed_total", 2) in cluster[one].of(ev.Observe)
    for name in (one, other):
        cluster[name].effects.clear()
    cluster.publish(other, "short", "again")
    for name in (one, other):
        assert cluster.delivered(name, "short") == [(5, "again")]
        assert cluster[name].of(ev.Gap) == [ev.Gap("short", "truncated", Position(epoch, 4), 1, 4)]


def test_uncommitted_tail_above_the_floor_goes_with_a_takeover() -> None:
    """COMMITTED-STAYS: of a topic that began again, nothing is committed at its floor. Regression: the Sync of the new
    coordinator, which never had the topic, was refused, each time that the link stood again."""
    cluster = idle_cluster(topic_idle_timeout=4.0)
    old = cluster.coordinator()
    cluster.publish(old, "t", "m1", id=1)
    cluster.run(12.0)
    assert topics(cluster) == set()
    cluster.isolate(old)
    cluster.publish(old, "t", "m2", id=2)
    assert replica(cluster, old).topics["t"].last == 3
    cluster.expire(old)
    cluster.run(8.0)
    assert cluster.record().owner[0] != old
    cluster.heal()
    cluster.run(6.0)
    assert not any(broker.of(ev.RefusePeer) for broker in cluster.brokers.values())
    assert replica(cluster, old).synced == cluster.record().epoch
    assert topics(cluster) == set()


def test_resume_into_a_removed_topic_reports_a_gap() -> None:
    cluster = idle_cluster()
    one, other = cluster.coordinator(), cluster.others()[0]
    cluster.publish(one, "t", "m1")
    first = cluster.record().epoch
    begun = cluster.attach(other, "empty")
    assert begun is not None
    cluster.run(12.0)
    floor = replica(cluster, other).floor
    assert floor == Position(cluster.record().epoch, 2)
    for topic, position in (("t", (first, 1)), ("empty", begun.position)):
        answer = cluster.attach(other, topic, position)
        assert answer is not None
        assert (answer.receipt, answer.first, answer.last) == ("truncated", position[1] + 1, 2)
        assert answer.position == floor
    current = cluster.attach(other, "t", floor)
    assert current is not None
    assert current.receipt == "complete"
    page = cluster.page(other, "t", (first, 1))
    assert (page.receipt, page.first, page.last) == ("truncated", 2, 2)
    cluster.publish(one, "t", "m3")
    answer = cluster.attach(other, "t", floor)
    assert answer is not None
    assert (answer.receipt, [entry.sequence for entry in answer.publications]) == ("complete", [3])
    ahead = cluster.attach(other, "empty", (cluster.record().epoch, 9))
    assert ahead is None


def test_a_topic_with_publications_or_publishers_stays() -> None:
    cluster = idle_cluster(duplicate_window=20.0)
    one = cluster.coordinator()
    cluster.publish(one, "qos1", "m", id=1)
    cluster.publish(one, "qos0", "m")
    cluster.run(12.0)
    assert topics(cluster) == {"qos1"}
    cluster.run(12.0)
    assert topics(cluster) == set()
    cluster = idle_cluster(max_age=20.0)
    cluster.publish(cluster.coordinator(), "cached", "m")
    cluster.run(15.0)
    assert topics(cluster) == {"cached"}


def test_a_relisting_continues_the_duplicate_windows() -> None:
    cluster = idle_cluster(duplicate_window=6.0, topic_idle_timeout=3.0)
    one = cluster.coordinator()
    cluster.publish(one, "idle", "m")
    cluster.run(2.0)
    cluster.publish(one, "t", "m1", id=1)
    begun = cluster.record().epoch
    cluster.run(5.0)
    assert cluster.record().epoch > begun
    assert replica(cluster, one).topics["t"].table.rows
    cluster.run(1.5)
    log = replica(cluster, one).topics.get("t")
    assert log is None or not log.table.rows


def test_nothing_is_removed_without_a_timeout() -> None:
    """A timeout of 0 removes no topic, also when the owner writes its next record because a commit takes too long."""
    cluster = idle_cluster(topic_idle_timeout=0.0)
    one = cluster.coordinator()
    cluster.publish(one, "t", "m")
    cluster.run(30.0)
    epoch = cluster.record().epoch
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accepted)
    cluster.publish(one, "u", "m")
    cluster.run(2.5)
    assert cluster.record().epoch == epoch + 1
    assert cluster.record().activated
    assert cluster.logic(one).ctx.calm
    assert topics(cluster) == {"t", "u"}


def test_nothing_is_removed_in_a_disturbed_cluster() -> None:
    cluster = idle_cluster()
    one, other = cluster.coordinator(), cluster.others()[0]
    cluster.publish(one, "t", "m")
    cluster.run(7.0)
    cluster.crash(other)  # it might return as an older version, which ignores removals
    epoch = cluster.record().epoch
    cluster.run(15.0)
    assert cluster.record().epoch == epoch + 1  # without the broker
    assert topics(cluster) == {"t"}
    cluster.start(other)
    cluster.run(8.0)
    assert topics(cluster) == set()


def test_topics_stay_until_the_epoch_is_activated() -> None:
    """An epoch that is never activated removes nothing: the next one has the topics, and no subscriber was notified."""
    cluster = idle_cluster()
    one = cluster.coordinator()
    for number in range(3):
        cluster.publish(one, "t", f"m{number}")
    epoch = cluster.record().epoch
    cluster.lost = lambda broker, commit: broker == one and cluster.record().epoch > epoch
    cluster.run(12.0)
    holders = [name for name in cluster.names if replica(cluster, name).removed]
    assert holders
    assert all("t" in replica(cluster, name).topics for name in cluster.names)
    cluster.crash(one)
    cluster.lost = lambda broker, commit: False
    cluster.run(4.0)
    new = cluster.coordinator()
    assert replica(cluster, new).topics["t"].last == 3
    assert replica(cluster, new).floor == Position(cluster.record().first, 0)
    assert not any(broker.of(ev.Gap) for broker in cluster.brokers.values())


def test_a_successor_removes_what_its_source_epoch_removed() -> None:
    """The activation is in ZooKeeper, and no other broker has heard of it: own log and promises are those before it."""
    cluster = idle_cluster()
    one = cluster.coordinator()
    cluster.publish(one, "t", "m")
    cluster.hold = lambda sender, receiver, message: sender == one and isinstance(message, Activated)
    epoch = cluster.record().epoch
    while not (cluster.record().epoch > epoch and cluster.record().activated):
        cluster.run(0.1)
    removing = cluster.record().epoch
    others = cluster.others()
    assert all(replica(cluster, name).removed == ["t"] for name in others)
    cluster.held = []
    cluster.crash(one)
    cluster.run(6.0)
    assert all(replica(cluster, name).floor == Position(removing, 2) for name in others)
    assert topics(cluster) == set()
    promises = [message for name in others for _, message in cluster.messages(name, Promise)]
    assert promises[-1].floor == Position(removing, 2)


def test_a_member_that_missed_the_removal_gets_it_with_its_sync() -> None:
    cluster = idle_cluster()
    one, other = cluster.coordinator(), cluster.others()[0]
    cluster.publish(one, "t", "m")
    cluster.publish(one, "u", "m")
    cluster.hold = lambda sender, receiver, message: (
        sender == one and receiver == other and isinstance(message, Activated)
    )
    cluster.run(12.0)
    assert set(replica(cluster, other).topics) == {"t", "u"}
    cluster.publish(one, "t", "again")  # held back as well, as messages are ordered
    cluster.held = []
    cluster.disconnect(one, other)
    cluster.release()
    cluster.heal()
    cluster.run(2.0)
    assert set(replica(cluster, other).topics) == {"t"}
    assert cluster.delivered(other, "t")[-1] == (3, "again")


def test_a_new_broker_learns_the_floor() -> None:
    cluster = idle_cluster()
    one, other = cluster.coordinator(), cluster.others()[0]
    cluster.publish(one, "t", "m")
    cluster.run(12.0)
    cluster.restart(other)
    cluster.run(8.0)
    assert replica(cluster, other).floor == replica(cluster, cluster.coordinator()).floor
    assert replica(cluster, other).floor.sequence == 2


def test_a_peer_cannot_lower_the_floor_or_remove_what_is_not_there() -> None:
    cluster = idle_cluster()
    other = cluster.others()[0]
    cluster.publish(other, "t", "m")
    cluster.run(12.0)
    group = replica(cluster, other)
    for floor, removed, rule in (
        (Position(group.first, 0), [], "FLOOR: the floor never falls"),
        (Position(group.synced + 2, 9), [], "FLOOR: a floor is a position"),
        (Position(group.synced, 2**62 + 1), [], "FLOOR: a floor is a position"),
        (group.floor, ["unknown"], "REMOVED-WITH-EPOCH"),
    ):
        with pytest.raises(PeerError, match=rule):
            group.check(replace(empty_sync(group, floor), removed=removed), [])


def test_a_peer_cannot_remove_a_topic_twice_or_one_of_which_something_is_left() -> None:
    """REMOVED-WITH-EPOCH, REMOVED-EMPTY. Regression: a name that was there twice, or that the Sync itself deleted,
    ended the process when the epoch was activated."""
    cluster = idle_cluster()
    other = cluster.others()[0]
    cluster.publish(other, "qos0", "m")
    cluster.publish(other, "qos1", "m", id=1)
    group = replica(cluster, other)
    sync, epoch = replace(empty_sync(group, group.floor), whole=False), group.synced
    row = PublisherRow("p", 1, epoch, 1)
    entry = group.topics["qos1"].entries[0]
    evicted = TopicPart("qos0", 1, 1, epoch, 1, 1, whole=True)
    deleted = replace(evicted, deleted=True)
    for activated, removed, parts in (
        (False, ["qos0", "qos0"], []),
        (False, ["qos0"] * 10_001, []),
        (False, ["qos0"], [deleted]),
        (False, ["qos1"], []),
        (False, ["qos1"], [replace(evicted, topic="qos1", table=[row])]),
        (False, ["qos1"], [replace(evicted, topic="qos1", keep=0, base=0, entries=[entry])]),
        (True, ["qos0"], []),
    ):
        with pytest.raises(PeerError, match="REMOVED-WITH-EPOCH"):
            group.check(replace(sync, activated=activated, removed=removed), parts)
    # the sender has evicted what this broker still has, and says so of one topic
    group.check(replace(sync, removed=["qos0"]), [])
    group.check(replace(sync, removed=["qos0", "qos1"]), [evicted, replace(evicted, topic="qos1")])


def test_an_older_broker_sends_no_floor() -> None:
    cluster = idle_cluster()
    other = cluster.others()[0]
    cluster.publish(other, "t", "m")
    cluster.run(12.0)
    group = replica(cluster, other)
    floor = group.floor
    group.install(empty_sync(group, Position(0, 0)), [])
    assert group.floor == floor


def test_made_up_topics_block_others_only_until_they_are_idle() -> None:
    cluster = idle_cluster(max_topics=5, topics_per_client=5)
    one = cluster.coordinator()
    for number in range(5):
        cluster.publish(one, f"made-up/{number}", "m")
    refused = cluster.publish(one, "wanted", "m", id=1)
    assert cluster.answers[refused].code == "too_many_topics"
    text = "the cluster holds 5 topics, its limit (maxTopics); topics are removed 8 s after their last publication"
    assert cluster.answers[refused].text == text
    cluster.run(12.0)
    accepted = cluster.publish(one, "wanted", "m", id=1)
    assert cluster.answers[accepted].code == ""


def test_made_up_publishers_block_others_only_for_the_duplicate_window() -> None:
    cluster = idle_cluster(max_publishers=5)
    one = cluster.coordinator()
    for number in range(5):
        cluster.publish(one, "t", "m", publisher=f"made-up-{number}", id=1)
    refused = cluster.publish(one, "t", "m", publisher="wanted", id=1)
    assert cluster.answers[refused].code == "retry"
    assert "remembers 5 publishers, its limit; silent ones are forgotten after 4 s" in cluster.answers[refused].text
    cluster.run(7.0)
    accepted = cluster.publish(one, "t", "m", publisher="wanted", id=1)
    assert cluster.answers[accepted].code == ""


@pytest.mark.unmeasured
def test_groups_change_a_few_at_a_time_and_not_more_often_than_an_eighth_of_the_timeout() -> None:
    cluster = idle_cluster(topic_idle_timeout=40.0)
    one = cluster.coordinator()
    begun = cluster.record().epoch
    for number in range(6):
        cluster.publish(one, f"t{number}", "m")
        cluster.run(3.0)
    cluster.run(45.0)
    assert topics(cluster) == set()
    assert 2 <= cluster.record().epoch - begun <= 4
    busy = idle_cluster(relist_at_once=1)
    cluster.publish(one, "t", "m")
    state = busy.logic(busy.coordinator()).election.states[0]
    busy.publish(busy.coordinator(), "t", "m")
    state.busy = True
    busy.run(12.0)
    assert topics(busy) == {"t"}


def test_the_quota_of_a_client_begins_again() -> None:
    cluster = idle_cluster(topics_per_client=2)
    one = cluster.coordinator()

    def create(topic: str) -> str:
        publication = ForwardedPublication(topic, b"x", 1, "p", 1, 1)
        cluster.answers.pop(7, None)
        cluster.give(one, ev.PublishRequest(0, 7, [publication]))
        cluster.settle()
        return cluster.answers[7].code

    assert [create(topic) for topic in "abc"] == ["", "", "too_many_topics"]
    cluster.run(12.0)
    assert [create(topic) for topic in "abc"] == ["", "", "too_many_topics"]
