"""Numbering, copies, commits and acknowledgements, the answer `retry`, and limits (docs/concepts/replication.md,
"Normal case")."""

from __future__ import annotations

from typing import Any

import pytest
from migratory_broker.core.logic.context import InvariantError
from migratory_broker.core.logic.events import Fanout, Flush, PeerReceived, PublishRequest, SendPeer
from migratory_broker.core.logic.serving.answers import PENDING_BYTES
from migratory_protocol.peer import Accept, Accepted, Forward, ForwardedPublication, ForwardReplies, Publication
from migratory_protocol.positions import Position
from migratory_testing.brokers import Cluster


def test_publication_is_numbered_once_and_delivered_everywhere() -> None:
    cluster = Cluster().up()
    contact = cluster.others()[0]
    reference = cluster.publish(contact, "t", "x", id=1)
    first = cluster.record().first
    assert cluster.answers[reference].position == Position(first, 1)
    for name in cluster.names:
        assert cluster.delivered(name, "t") == [(1, "x")]


def test_contact_acknowledges_at_its_own_accept_with_two_copies() -> None:
    """CONTACT-ACKS-COMMITS, IMMEDIATE-COMMIT: with minCopies 2, a member commits, delivers and acknowledges an entry
    as soon as it has accepted it; the coordinator delivers only after a confirmation (COMMITTED-ONLY)."""
    cluster = Cluster().up()
    contact, other = cluster.others()
    coordinator = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accepted)
    reference = cluster.publish(contact, "t", "x", id=1)
    assert cluster.answers[reference].code == ""
    assert cluster.delivered(contact, "t") == [(1, "x")]
    assert cluster.delivered(other, "t") == [(1, "x")]
    assert cluster.delivered(coordinator, "t") == []  # COMMITTED-ONLY: the coordinator is no exception
    cluster.release()
    assert cluster.delivered(coordinator, "t") == [(1, "x")]


def test_numbering_alone_acknowledges_nothing() -> None:
    cluster = Cluster().up()
    coordinator, contact = cluster.coordinator(), cluster.others()[0]
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    local = cluster.publish(coordinator, "t", "x", id=1)
    remote = cluster.publish(contact, "t", "y", publisher="q", id=1)
    assert cluster.logic(coordinator).groups[0].replica.topics["t"].last == 2
    assert local not in cluster.answers
    assert remote not in cluster.answers
    assert cluster.delivered(coordinator, "t") == []
    cluster.release()
    assert cluster.answers[local].position == Position(cluster.record().epoch, 1)
    assert cluster.answers[remote].position == Position(cluster.record().epoch, 2)


def test_three_copies_commit_by_the_mark() -> None:
    """MARK-DECIDES: with minCopies 3, a member's own accept commits nothing; all deliver and the contact
    acknowledges after the coordinator's mark."""
    cluster = Cluster(("a", "b", "c", "d", "e"), min_copies=3).up()
    coordinator = cluster.coordinator()
    first, *others = cluster.others()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accepted) and sender != first
    reference = cluster.publish(first, "t", "x", id=1)
    assert reference not in cluster.answers  # two copies: the coordinator's and its own
    assert all(not cluster.delivered(name, "t") for name in cluster.names)
    cluster.release()
    cluster.run(0.1)
    assert cluster.answers[reference].code == ""
    for name in (coordinator, first, *others):
        assert cluster.delivered(name, "t") == [(1, "x")]


def test_one_copy_commits_at_the_coordinators_store() -> None:
    cluster = Cluster(min_copies=1).up()
    coordinator, contact = cluster.coordinator(), cluster.others()[0]
    reference = cluster.publish(coordinator, "t", "x", id=1)
    assert cluster.answers[reference].position == Position(cluster.record().epoch, 1)
    cluster.run(0.1)
    assert cluster.delivered(contact, "t") == [(1, "x")]


def test_votes_decide_nothing_with_one_copy() -> None:
    cluster = Cluster(min_copies=1).up()
    coordinator = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accepted)
    cluster.publish(coordinator, "t", "1", id=1)
    voter, _, vote = cluster.held[0]
    cluster.step(coordinator, PublishRequest(0, 2, [ForwardedPublication("t", b"2", 1, "p", 2, 2)]))
    cluster.step(coordinator, PeerReceived(voter, (vote,)))
    cluster.step(coordinator, PublishRequest(0, 3, [ForwardedPublication("t", b"3", 1, "p", 3, 2)]))
    cluster.step(coordinator, Flush())
    assert cluster.delivered(coordinator, "t") == [(1, "1"), (2, "2"), (3, "3")]
    assert [cluster.answers[reference].code for reference in (2, 3)] == ["", ""]
    cluster.settle()
    assert all(cluster.delivered(name, "t") == [(1, "1"), (2, "2"), (3, "3")] for name in cluster.names)


def test_batches_are_sent_once_per_turn() -> None:
    """A coordinator sends one Accept per group and turn, with all publications of the turn, and the same object to
    every follower."""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    logic = cluster.logic(coordinator)
    before = len(cluster.messages(coordinator, Accept))
    for number in range(1, 6):
        cluster.step(coordinator, PublishRequest(0, number, [ForwardedPublication("t", b"x", 1, "p", number, number)]))
        cluster.step(
            coordinator, PublishRequest(0, number + 10, [ForwardedPublication("u", b"x", 1, "p", number, number)])
        )
    assert len(cluster.messages(coordinator, Accept)) == before
    effects = logic.step(Flush(), cluster.now)
    messages = [effect.message for effect in effects if isinstance(effect, SendPeer)]
    assert len(messages) == 2
    assert isinstance(messages[0], Accept)
    assert messages[0] is messages[1]
    assert [(item.topic, len(item.publications)) for item in messages[0].entries] == [("t", 5), ("u", 5)]
    assert logic.step(Flush(), cluster.now) == []


def test_only_listed_incarnations_vote() -> None:
    """LISTED-VOTES, BY-INCARNATION: confirmations of a broker that is not listed, or of another incarnation of a
    member, commit nothing."""
    cluster = Cluster().up()
    coordinator, member = cluster.coordinator(), cluster.others()[0]
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    cluster.publish(coordinator, "t", "x", id=1)
    sequencer = cluster.logic(coordinator).groups[0].term.sequencer  # type: ignore[union-attr]
    sequencer.accepted(("stranger", 1), [("t", 1)])
    sequencer.accepted((member, 2), [("t", 1)])
    assert cluster.delivered(coordinator, "t") == []


def test_qos_0_has_no_id_row_or_acknowledgement() -> None:
    cluster = Cluster().up()
    contact = cluster.others()[0]
    reference = cluster.publish(contact, "t", "x")
    assert reference not in cluster.answers
    assert cluster.delivered(contact, "t") == [(1, "x")]
    assert cluster.logic(contact).groups[0].replica.topics["t"].table.rows == {}
    assert cluster.logic(contact).answers.pending == {}


def test_publisher_retries_without_a_coordinator() -> None:
    cluster = Cluster()
    cluster.start("a")
    cluster.run(1.0)
    reference = cluster.publish("a", "t", "x", id=1)
    assert cluster.answers[reference].code == "retry"
    assert cluster.answers[reference].retry_after == 0.2
    quiet = cluster.publish("a", "t", "x")
    assert quiet not in cluster.answers


def test_link_loss_and_timeout_answer_retry() -> None:
    """A contact answers `retry` when its link to the coordinator ends, or after the publish wait; it never sends a
    publication again by itself, because marks must be fresh."""
    cluster = Cluster(publish_wait=1.0).up()
    coordinator, contact = cluster.coordinator(), cluster.others()[0]
    cluster.hold = lambda sender, receiver, message: isinstance(message, (Forward, ForwardReplies))
    unanswered = cluster.publish(contact, "t", "x", id=1)
    cluster.disconnect(contact, coordinator)
    cluster.settle()
    assert cluster.answers[unanswered].code == "retry"
    cluster.heal()
    cluster.run(0.5)
    late = cluster.publish(contact, "t", "x", id=1)
    twice = cluster.publish(contact, "t", "x", id=1)
    assert late not in cluster.answers
    cluster.run(1.2)
    assert cluster.answers[late].code == cluster.answers[twice].code == "retry"
    assert cluster.logic(contact).answers.pending == {}
    cluster.run(1.2)  # the second deadline finds nothing


@pytest.mark.parametrize("limit", [{"max_pending": 1}, {"max_pending_bytes": 10}], ids=["number", "bytes"])
def test_the_pending_table_is_bounded(limit: dict[str, Any]) -> None:
    cluster = Cluster(**limit).up()
    contact = cluster.others()[0]
    answers = cluster.logic(contact).answers
    cluster.hold = lambda sender, receiver, message: isinstance(message, Forward)
    first = cluster.publish(contact, "t", "x" * 100, id=1)
    assert answers.held == PENDING_BYTES + 100
    reference = cluster.publish(contact, "t", "y", id=2, mark=1)
    assert cluster.answers[reference].code == "retry"
    config = cluster.logic(contact).config
    assert f"reached ({config.max_pending}, or {config.max_pending_bytes} bytes)" in cluster.answers[reference].text
    cluster.publish(contact, "t", "x" * 100, id=1)  # a repeat waits with the first, and takes no more
    assert answers.held == PENDING_BYTES + 100
    cluster.hold = lambda sender, receiver, message: False
    cluster.run(6.0)
    assert first in cluster.answers
    assert (answers.held, answers.pending) == (0, {})


def test_forward_to_a_broker_that_is_not_coordinator_is_answered_retry() -> None:
    cluster = Cluster().up()
    contact, other = cluster.others()
    cluster.logic(contact).gossip.learn(0, cluster.record().epoch + 5, other, 0.0)
    reference = cluster.publish(contact, "t", "x", id=1)
    cluster.publish(contact, "t", "quiet")
    assert cluster.answers[reference].code == "retry"
    assert cluster.delivered(contact, "t") == []


def test_a_refused_publication_creates_no_topic() -> None:
    """A gap in the ids of an unknown publisher is refused, and takes no place of `max_topics`."""
    cluster = Cluster(max_topics=1).up()
    contact = cluster.others()[0]
    reference = cluster.publish(contact, "t", "x", id=7, mark=5)
    assert cluster.answers[reference].code == "gap"
    assert not any(cluster.logic(name).groups[0].replica.topics for name in cluster.names)
    reference = cluster.publish(contact, "u", "x", id=1)
    assert cluster.answers[reference].code == ""


def test_topics_beyond_the_limit_are_refused() -> None:
    cluster = Cluster(max_topics=1).up()
    contact = cluster.others()[0]
    cluster.publish(contact, "t", "x", id=1)
    reference = cluster.publish(contact, "u", "x", id=1)
    assert cluster.answers[reference].code == "too_many_topics"
    assert cluster.answers[reference].text == (
        "the cluster holds 1 topics, its limit (maxTopics); topics are removed 86400 s after their last publication"
    )
    assert cluster.publish(contact, "v", "x") not in cluster.answers


@pytest.mark.parametrize("bound", [{"messages_per_topic": 2, "min_age": 0.0}, {"max_bytes": 700}])
def test_numbering_stops_when_uncommitted_entries_fill_the_bound(bound: dict[str, Any]) -> None:
    cluster = Cluster(**bound).up()
    coordinator = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    references = [cluster.publish(coordinator, "t", "x" * 100, id=number) for number in range(1, 5)]
    answered = [cluster.answers[reference].code for reference in references if reference in cluster.answers]
    assert answered
    assert set(answered) <= {"retry", "gap"}
    log = cluster.logic(coordinator).groups[0].replica.topics["t"]
    assert log.base == 0  # nothing uncommitted was evicted
    assert len(log.entries) < 4


def test_one_copy_commits_at_the_end_of_the_turn() -> None:
    """With minCopies 1, publications are delivered only at the end of the turn, in one fan-out, and acknowledged
    then; before a publisher is removed from the table, those of the turn are sent."""
    cluster = Cluster(("a",), min_copies=1, duplicate_window=0.3).up()
    logic = cluster.logic("a")
    cluster.publish("a", "t", "x", publisher="old", id=7)
    cluster.now += 1.0
    sent = [ForwardedPublication("t", b"y", 1, "new", number, 1) for number in (1, 2, 3)]
    effects = cluster.step("a", PublishRequest(0, 900, sent))
    assert effects == []  # nothing is delivered before the turn's end
    logic.groups[0].term.sequencer.expire()  # type: ignore[union-attr]
    (fanout,) = logic.ctx.effects
    assert isinstance(fanout, Fanout)
    assert [publication.sequence for publication in fanout.publications] == [2, 3, 4]
    assert logic.has_output
    cluster.step("a", Flush())
    assert not logic.has_output
    assert cluster.answers[900].id == 3
    assert logic.step(Flush(), cluster.now) == []
    assert set(logic.groups[0].replica.topics["t"].table.rows) == {"new"}


def test_entry_that_is_not_the_next_breaks_a_rule() -> None:
    """DENSE, PROMISE-RISES: appending an entry that is not the next one, or promising a lower epoch, raises
    InvariantError, in production too."""
    cluster = Cluster().up()
    replica = cluster.logic("a").groups[0].replica
    with pytest.raises(InvariantError, match="DENSE"):
        replica.append(replica.log("t"), Publication(1, 3, b"x"))
    with pytest.raises(InvariantError, match="PROMISE-RISES"):
        replica.promise(0)


def test_reply_to_a_contact_without_link_is_dropped() -> None:
    """DUPLICATE-WAITS: when a contact's link ends before the commit that its reply waits for, the reply is dropped
    and goes to no other broker."""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    contact, other = cluster.others()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    cluster.publish(contact, "t", "x", id=1)
    cluster.publish(contact, "t", "x", id=1)
    cluster.held = [message for message in cluster.held if message[1] == other]
    cluster.crash(contact)
    before = len(cluster.sent)
    cluster.release()
    assert cluster.logic(coordinator).groups[0].replica.topics["t"].committed == 1
    assert not [message for _, _, message in cluster.sent[before:] if isinstance(message, ForwardReplies)]
    again = cluster.publish(other, "t", "x", id=1)
    assert cluster.answers[again].position == Position(cluster.record().epoch, 1)
