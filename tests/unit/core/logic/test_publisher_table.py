"""Duplicates, message ids, and publishers that are forgotten (docs/concepts/replication.md, "Normal case")."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.events import Flush, PublishRequest
from migratory_broker.core.logic.replication import sequencer
from migratory_broker.core.logic.replication.topic_log import TopicLog
from migratory_protocol import limits
from migratory_protocol.peer import (
    Accept,
    Forward,
    ForwardedPublication,
    ForwardReplies,
    ForwardReply,
    payload_digest,
)
from migratory_protocol.positions import Position
from migratory_testing.brokers import Cluster


def test_next_or_mark() -> None:
    """NEXT-OR-MARK: a publication is accepted if its id is the publisher's next one or the lowest that the publisher
    waits for; otherwise it is answered with `gap` and not stored."""
    cluster = Cluster().up()
    contact = cluster.others()[0]
    late = cluster.publish(contact, "t", "2", id=2, mark=1)
    assert cluster.answers[late].code == "gap"  # unknown publisher: the mark only
    first = cluster.publish(contact, "t", "1", id=1, mark=1)
    following = cluster.publish(contact, "t", "2", id=2, mark=1)
    over = cluster.publish(contact, "t", "4", id=4, mark=3)
    given_up = cluster.publish(contact, "t", "5", id=5, mark=5)
    codes = [cluster.answers[reference].code for reference in (first, following, over, given_up)]
    assert codes == ["", "", "gap", ""]
    assert cluster.delivered(contact, "t") == [(1, "1"), (2, "2"), (3, "5")]


def test_duplicate_waits_for_the_position_it_depends_on() -> None:
    """DUPLICATE-WAITS: a repeated publication whose first copy is not committed is answered only after the commit,
    with the first position, at the coordinator and at a contact."""
    cluster = Cluster().up()
    coordinator, contact = cluster.coordinator(), cluster.others()[0]
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    cluster.publish(coordinator, "t", "x", id=1)
    again = cluster.publish(contact, "t", "x", id=1)
    local = cluster.publish(coordinator, "t", "x", id=1)
    assert again not in cluster.answers
    assert local not in cluster.answers
    cluster.release()
    position = Position(cluster.record().epoch, 1)
    assert cluster.answers[again].position == cluster.answers[local].position == position
    later = cluster.publish(contact, "t", "x", id=1)
    assert cluster.answers[later].position == position
    assert cluster.delivered(contact, "t") == [(1, "x")]


def test_duplicate_of_an_evicted_entry_is_acknowledged_by_its_digest() -> None:
    """SAME-PAYLOAD: when a publisher's entries are evicted, a repeat of its last id with the same payload gets the
    old position, with another payload `id_reused`; an earlier id gets `outcome_unknown`."""
    cluster = Cluster(messages_per_topic=2, min_age=0.0).up()
    coordinator, contact = cluster.coordinator(), cluster.others()[0]
    epoch = cluster.record().epoch
    for number in (1, 2):
        cluster.publish(contact, "t", str(number), id=number)
    for number in (1, 2, 3):
        cluster.publish(contact, "t", "x", publisher="q", id=number)
    assert cluster.logic(coordinator).groups[0].replica.topics["t"].base >= 2
    for place in (coordinator, contact):
        old = cluster.answers[cluster.publish(place, "t", "1", id=1)]
        assert (old.code, old.position) == ("outcome_unknown", None)
        assert "message id 1 is not above this publisher's last one, 2" in old.text
        assert cluster.answers[cluster.publish(place, "t", "2", id=2)].position == Position(epoch, 2)
        reused = cluster.answers[cluster.publish(place, "t", "other", id=2)]
        assert (reused.code, f"at {epoch}:2" in reused.text) == ("id_reused", True)
    assert cluster.delivered(contact, "t")[-1] == (5, "x")


def test_row_without_a_digest_acknowledges_nothing() -> None:
    """A repeat of a publisher's last id gets `outcome_unknown` when its entry is evicted and its row, from an older
    broker, has no digest."""
    cluster = Cluster(messages_per_topic=1, min_age=0.0).up()
    coordinator = cluster.coordinator()
    cluster.publish(coordinator, "t", "1", id=1)
    rows = cluster.logic(coordinator).groups[0].replica.topics["t"].table.rows
    rows["p"] = (*rows["p"][:3], b"")
    assert cluster.answers[cluster.publish(coordinator, "t", "1", id=1)].code == ""
    cluster.publish(coordinator, "t", "x", publisher="q", id=1)
    assert cluster.answers[cluster.publish(coordinator, "t", "1", id=1)].code == "outcome_unknown"


def test_duplicate_by_digest_waits_for_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """DUPLICATE-WAITS: a repeat that is recognised only by the digest in its publisher's row also waits for the
    commit."""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    cluster.publish(coordinator, "t", "x", id=1)
    monkeypatch.setattr(TopicLog, "find", lambda *_: None)
    waits = cluster.publish(cluster.others()[0], "t", "x", id=1)
    assert waits not in cluster.answers
    cluster.release()
    assert cluster.answers[waits].position == Position(cluster.record().epoch, 1)


def test_two_duplicates_that_depend_on_different_positions() -> None:
    cluster = Cluster().up()
    coordinator, contact = cluster.coordinator(), cluster.others()[0]
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    cluster.publish(coordinator, "t", "1", id=1)
    cluster.publish(coordinator, "t", "2", id=2)
    first, second = cluster.publish(contact, "t", "1", id=1), cluster.publish(contact, "t", "2", id=2)
    sequencer = cluster.logic(coordinator).groups[0].term.sequencer  # type: ignore[union-attr]
    sequencer.accepted((contact, 1), [("t", 1)])
    cluster.step(coordinator, Flush())
    cluster.settle()
    assert first in cluster.answers
    assert second not in cluster.answers
    sequencer.accepted((contact, 1), [("t", 1), ("t", 2)])
    cluster.step(coordinator, Flush())
    cluster.settle()
    assert cluster.answers[second].position == Position(cluster.record().epoch, 2)


def test_id_with_another_payload_is_refused() -> None:
    cluster = Cluster().up()
    contact = cluster.others()[0]
    cluster.publish(contact, "t", "x", id=1)
    reference = cluster.publish(contact, "t", "other", id=1)
    assert cluster.answers[reference].code == "id_reused"
    assert "message id 1" in cluster.answers[reference].text


def test_earlier_id_that_was_never_used_is_not_acknowledged() -> None:
    """After id 5 of a new publisher, id 3 is answered with `outcome_unknown`. Regression: it was acknowledged with a
    null position."""
    cluster = Cluster().up()
    contact = cluster.others()[0]
    assert cluster.answers[cluster.publish(contact, "t", "x", id=5, mark=5)].code == ""
    assert cluster.answers[cluster.publish(contact, "t", "y", id=3, mark=3)].code == "outcome_unknown"


@pytest.mark.unmeasured
def test_restarted_publisher_that_numbers_from_1_again_is_refused() -> None:
    """A restarted publisher that numbers from 1 again gets `outcome_unknown` or `id_reused`. Regression: its new
    payloads were acknowledged with the positions of old ones, and dropped."""
    cluster = Cluster(messages_per_topic=3, min_age=0.0).up()
    contact = cluster.others()[0]
    for number in (1, 2, 3):
        cluster.publish(contact, "t", f"old {number}", id=number)
    for number in (1, 2, 3, 4):
        cluster.publish(contact, "t", "x", publisher="q", id=number)
    cluster.run(61.0)
    codes = [cluster.answers[cluster.publish(contact, "t", f"new {number}", id=number)].code for number in (1, 2, 3)]
    assert codes == ["outcome_unknown", "outcome_unknown", "id_reused"]


def test_id_far_above_the_last_one_is_refused() -> None:
    """ID-BOUND: an id too far above the publisher's last one is refused with `id_too_high`. Regression: with id 2^53
    - 1 any client could use up the ids of another publisher, whose publications were then acknowledged and dropped."""
    cluster = Cluster().up()
    contact = cluster.others()[0]
    cluster.publish(contact, "t", "1", id=1)
    for number in (2**53 - 1, 3 + limits.ID_JUMP):
        refused = cluster.answers[cluster.publish(contact, "t", "evil", id=number, mark=number)]
        assert refused.code == "id_too_high"
        assert refused.text.endswith("is more than 1000000 above the last one, 1; number on from there")
    assert cluster.answers[cluster.publish(contact, "t", "2", id=2)].code == ""
    last = 3 + limits.ID_JUMP
    assert cluster.answers[cluster.publish(contact, "t", "x", id=last, mark=last)].code == ""
    assert [text for _, text in cluster.delivered(contact, "t")] == ["1", "2", "x"]


@pytest.mark.parametrize("at_coordinator", [True, False])
def test_two_payloads_under_one_id_at_one_contact(at_coordinator: bool) -> None:
    """SAME-PAYLOAD: of two payloads sent under one id at the same time to one broker, the second is refused with
    `id_reused`, and only the first is stored. Regression: both were acknowledged."""
    cluster = Cluster().up()
    contact = cluster.coordinator() if at_coordinator else cluster.others()[0]
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    first = cluster.publish(contact, "t", "x", id=1)
    other = cluster.publish(contact, "t", "y", id=1)
    again = cluster.publish(contact, "t", "x", id=1)
    assert cluster.answers[other].code == "id_reused"
    assert "awaits its answer with another payload" in cluster.answers[other].text
    cluster.release()
    position = Position(cluster.record().epoch, 1)
    assert cluster.answers[first].position == cluster.answers[again].position == position
    assert cluster.delivered(contact, "t") == [(1, "x")]


def test_two_payloads_under_one_id_at_two_contacts() -> None:
    """SAME-PAYLOAD: of two payloads sent under one id to two brokers, the first that the coordinator stores is
    acknowledged, and the other is refused with `id_reused`."""
    cluster = Cluster().up()
    coordinator, contact = cluster.coordinator(), cluster.others()[0]
    cluster.hold = lambda sender, receiver, message: isinstance(message, Forward)
    late = cluster.publish(contact, "t", "y", id=1)
    cluster.hold = lambda sender, receiver, message: False
    first = cluster.publish(coordinator, "t", "x", id=1)
    assert cluster.answers[first].code == ""
    assert late not in cluster.answers
    cluster.release()
    assert cluster.answers[late].code == "id_reused"


def test_late_reply_to_another_payload_answers_nothing() -> None:
    """SAME-PAYLOAD: a contact that waits for the answer to one payload ignores a late reply for another payload
    under the same id."""
    cluster = Cluster().up()
    coordinator, contact = cluster.coordinator(), cluster.others()[0]
    cluster.publish(coordinator, "t", "x", id=1)
    cluster.hold = lambda sender, receiver, message: isinstance(message, ForwardReplies)
    cluster.publish(contact, "t", "x", id=1)
    cluster.run(6.0)  # answered with `retry`
    cluster.hold = lambda sender, receiver, message: isinstance(message, Forward)
    other = cluster.publish(contact, "t", "y", id=1)
    answers = cluster.logic(contact).answers
    answers.resolve(ForwardReply("t", "p", 1, position=Position(1, 1), digest=payload_digest(b"x")))
    assert ("t", "p", 1) in answers.pending
    answers.resolve(ForwardReply("t", "p", 1, "id_reused", digest=payload_digest(b"y")))
    assert not answers.pending
    cluster.step(contact, Flush())
    cluster.settle()
    assert cluster.answers[other].code == "id_reused"


@pytest.mark.unmeasured
def test_repeat_begins_the_window_anew() -> None:
    """A repeat of a publication restarts its publisher's duplicate window, so that later repeats get the first
    position too. Regression: the same id at 0, 62 and 124 s of a window of 120 s got a second position."""
    cluster = Cluster().up()
    contact = cluster.others()[0]
    first = cluster.answers[cluster.publish(contact, "t", "x", id=1)].position
    for _ in range(3):
        cluster.run(62.0)
        assert cluster.answers[cluster.publish(contact, "t", "x", id=1)].position == first
    assert cluster.delivered(contact, "t") == [(1, "x")]


@pytest.mark.parametrize("payload", ["other", "x"])
def test_refused_repeat_does_not_begin_the_window_anew(payload: str) -> None:
    cluster = Cluster(duplicate_window=4.0).up()
    contact = cluster.others()[0]
    cluster.publish(contact, "t", "x", id=1)
    cluster.run(3.0)
    cluster.publish(contact, "t", payload, id=1)
    cluster.run(3.0)
    rows = cluster.logic(contact).groups[0].replica.topics["t"].table.rows
    assert ("p" in rows) == (payload == "x")


def test_digests_survive_a_takeover() -> None:
    cluster = Cluster(messages_per_topic=1, min_age=0.0).up()
    old = cluster.coordinator()
    cluster.publish(old, "t", "1", id=1)
    cluster.publish(old, "t", "x", publisher="q", id=1)
    cluster.crash(old)
    cluster.run(6.0)
    new = cluster.coordinator()
    assert cluster.answers[cluster.publish(new, "t", "other", id=1)].code == "id_reused"
    assert cluster.answers[cluster.publish(new, "t", "1", id=1)].position is not None
    for name in cluster.running():
        assert set(cluster.logic(name).groups[0].replica.topics["t"].table.rows["p"][3:]) == {payload_digest(b"1")}


def test_silent_publisher_is_forgotten_at_every_broker() -> None:
    """FORGET-ALIKE: a publisher leaves the table of every broker `duplicateWindow` after its last publication; then
    it may number from 1 again."""
    cluster = Cluster(duplicate_window=2.0).up()
    contact = cluster.others()[0]
    cluster.publish(contact, "t", "x", publisher="old", id=7)
    cluster.run(1.0)
    cluster.publish(contact, "t", "y", publisher="young", id=1)
    cluster.run(1.5)
    for name in cluster.names:
        assert set(cluster.logic(name).groups[0].replica.topics["t"].table.rows) == {"young"}
    reference = cluster.publish(contact, "t", "z", publisher="old", id=1)
    assert cluster.answers[reference].code == ""
    cluster.run(3.0)
    for name in cluster.names:
        assert cluster.logic(name).groups[0].replica.topics["t"].table.rows == {}


def test_many_publishers_are_forgotten_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publishers that are all due at the same moment after a takeover are forgotten in portions of a limited size,
    at the coordinator and at the other broker."""
    monkeypatch.setattr(sequencer, "FORGET_AT_ONCE", 7)
    cluster = Cluster(duplicate_window=2.0).up()
    for number in range(20):
        cluster.publish("a", f"t{number % 3}", "x", publisher=f"p{number}", id=1)
    old = cluster.coordinator()
    cluster.crash(old)
    cluster.run(8.0)
    new = cluster.coordinator()
    (receiver,) = {*cluster.names} - {old, new}
    counts = [len(message.forget) for to, message in cluster.messages(new, Accept) if to == receiver and message.forget]
    assert counts == [7, 7, 6]
    for name in (new, receiver):
        assert [log.table.rows for log in cluster.logic(name).groups[0].replica.topics.values()] == [{}, {}, {}]


def test_publisher_with_an_uncommitted_position_is_not_forgotten() -> None:
    cluster = Cluster(duplicate_window=0.3).up()
    coordinator = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    cluster.publish(coordinator, "t", "x", id=1)
    cluster.run(1.0)
    assert set(cluster.logic(coordinator).groups[0].replica.topics["t"].table.rows) == {"p"}


def test_removal_precedes_the_entries_of_its_message() -> None:
    cluster = Cluster(duplicate_window=0.3).up()
    coordinator, member = cluster.coordinator(), cluster.others()[0]
    cluster.publish(coordinator, "t", "x", publisher="old", id=7)
    cluster.now += 1.0
    logic = cluster.logic(coordinator)
    cluster.step(coordinator, PublishRequest(0, 900, [ForwardedPublication("t", b"y", 1, "new", 1, 1)]))
    logic.groups[0].term.sequencer.expire()  # type: ignore[union-attr]
    cluster.step(coordinator, PublishRequest(0, 901, [ForwardedPublication("t", b"z", 1, "old", 1, 1)]))
    cluster.step(coordinator, Flush())
    cluster.settle()
    for name in (coordinator, member):
        rows = cluster.logic(name).groups[0].replica.topics["t"].table.rows
        assert {publisher: row[0] for publisher, row in rows.items()} == {"new": 1, "old": 1}


def test_removal_for_an_unknown_topic_is_ignored() -> None:
    cluster = Cluster().up()
    coordinator, member = cluster.coordinator(), cluster.others()[0]
    replica = cluster.logic(member).groups[0].replica
    message = Accept(0, replica.history, replica.synced, [], [("nowhere", "p")], [("nowhere", 3)])
    cluster.logic(member).groups[0].accept(coordinator, message)
    assert replica.topics == {}


# ---- the limit of publishers: a client that invents names must not fill the memory of every broker


def rows(cluster: Cluster, name: str) -> int:
    return sum(len(log.table.rows) for log in cluster.logic(name).groups[0].replica.topics.values())


def test_new_publishers_beyond_the_limit_retry_and_known_ones_continue() -> None:
    cluster = Cluster(max_publishers=5, duplicate_window=3.0).up()
    codes = [cluster.answers[cluster.publish("a", f"t{n % 2}", "x", f"p{n}", 1)].code for n in range(8)]
    assert codes == [""] * 5 + ["retry"] * 3
    refused = [answer for answer in cluster.answers.values() if answer.code]
    assert all("remembers 5 publishers" in answer.text and answer.retry_after > 0 for answer in refused)
    assert {rows(cluster, name) for name in cluster.names} == {5}
    assert cluster.answers[cluster.publish("b", "t0", "y", "p0", 2)].code == ""  # known
    assert cluster.answers[cluster.publish("b", "t0", "x", "p0", 1)].code == ""  # a duplicate
    cluster.publish("c", "t0", "without a name")
    assert cluster.delivered("a", "t0")[-1][1] == "without a name"  # QoS 0 has none
    cluster.run(1.5)
    assert cluster.answers[cluster.publish("a", "t0", "x", "p9", 1)].code == "retry"
    cluster.run(4.0)  # publishers that were silent for the duplicate window are forgotten
    assert rows(cluster, "a") == 0
    assert cluster.answers[cluster.publish("a", "t0", "x", "p9", 1)].code == ""


def test_publisher_count_survives_a_takeover() -> None:
    cluster = Cluster(max_publishers=3).up()
    for n in range(3):
        cluster.publish("a", "t", "x", f"p{n}", 1)
    old = cluster.coordinator()
    cluster.crash(old)
    cluster.run(4.0)
    other = cluster.coordinator()
    assert cluster.answers[cluster.publish(other, "t", "x", "p3", 1)].code == "retry"
    assert cluster.answers[cluster.publish(other, "t", "x", "p2", 2)].code == ""
