"""docs/replication.md, "Normal case": numbering, copies, commits, acknowledgements."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic import sequencer
from migratory_broker.core.logic.context import InvariantError
from migratory_broker.core.logic.events import Attach, Fanout, Flush, PeerReceived, PublishRequest
from migratory_protocol.peer import Accept, Accepted, Answer, Answers, Forward, Forwarded, Publication
from migratory_protocol.positions import Position
from migratory_testing.brokers import Cluster


def accepts(cluster: Cluster, sender: str) -> list[tuple[str, Accept]]:
    return [(to, message) for by, to, message in cluster.sent if by == sender and isinstance(message, Accept)]


def test_a_publication_is_numbered_once_and_delivered_everywhere() -> None:
    cluster = Cluster().up()
    contact = cluster.others()[0]
    reference = cluster.publish(contact, "t", "x", id=1)
    first = cluster.record().first
    assert cluster.answers[reference].position == Position(first, 1)
    for name in cluster.names:
        assert cluster.delivered(name, "t") == [(1, "x")]


def test_contact_acks_commits_with_two_copies_at_its_own_accept() -> None:
    """CONTACT-ACKS-COMMITS, IMMEDIATE-COMMIT: the contact's copy is the second one; no confirmation is waited for."""
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


def test_nothing_is_acknowledged_because_it_was_numbered() -> None:
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
    """MARK-DECIDES: with q = 3 a member's own accept commits nothing."""
    cluster = Cluster(("a", "b", "c", "d", "e"), min_copies=3).up()
    coordinator = cluster.coordinator()
    one, *rest = cluster.others()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accepted) and sender != one
    reference = cluster.publish(one, "t", "x", id=1)
    assert reference not in cluster.answers  # two copies: the coordinator's and its own
    assert all(not cluster.delivered(name, "t") for name in cluster.names)
    cluster.release()
    cluster.run(0.1)
    assert cluster.answers[reference].code == ""
    for name in (coordinator, one, *rest):
        assert cluster.delivered(name, "t") == [(1, "x")]


def test_one_copy_commits_at_the_coordinators_store() -> None:
    cluster = Cluster(min_copies=1).up()
    coordinator, contact = cluster.coordinator(), cluster.others()[0]
    reference = cluster.publish(coordinator, "t", "x", id=1)
    assert cluster.answers[reference].position == Position(cluster.record().epoch, 1)
    cluster.run(0.1)
    assert cluster.delivered(contact, "t") == [(1, "x")]


def test_with_one_copy_a_vote_between_two_publications_of_a_turn_decides_nothing() -> None:
    cluster = Cluster(min_copies=1).up()
    coordinator = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accepted)
    cluster.publish(coordinator, "t", "1", id=1)
    voter, _, vote = cluster.held[0]
    cluster.step(coordinator, PublishRequest(0, 2, [Forwarded("t", b"2", 1, "p", 2, 2)]))
    cluster.step(coordinator, PeerReceived(voter, (vote,)))
    cluster.step(coordinator, PublishRequest(0, 3, [Forwarded("t", b"3", 1, "p", 3, 2)]))
    cluster.step(coordinator, Flush())
    assert cluster.delivered(coordinator, "t") == [(1, "1"), (2, "2"), (3, "3")]
    assert [cluster.answers[reference].code for reference in (2, 3)] == ["", ""]
    cluster.settle()
    assert all(cluster.delivered(name, "t") == [(1, "1"), (2, "2"), (3, "3")] for name in cluster.names)


def test_batches_leave_once_per_turn() -> None:
    """Taken: number, store, then one Accept per group and turn, the same object to everybody."""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    logic = cluster.logic(coordinator)
    before = len(accepts(cluster, coordinator))
    for number in range(1, 6):
        cluster.step(coordinator, PublishRequest(0, number, [Forwarded("t", b"x", 1, "p", number, number)]))
        cluster.step(coordinator, PublishRequest(0, number + 10, [Forwarded("u", b"x", 1, "p", number, number)]))
    assert len(accepts(cluster, coordinator)) == before
    effects = logic.step(Flush(), cluster.now)
    messages = [effect.message for effect in effects if hasattr(effect, "message")]
    assert len(messages) == 2
    assert messages[0] is messages[1]
    assert [(item.topic, len(item.publications)) for item in messages[0].entries] == [("t", 5), ("u", 5)]
    assert logic.step(Flush(), cluster.now) == []


def test_next_or_mark() -> None:
    """NEXT-OR-MARK: an id is taken as the next one, or as the lowest its publisher waits for; else `gap`."""
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
    """DUPLICATE-WAITS, at the coordinator: acknowledged once committed, never before, with its old position."""
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


def test_duplicate_of_an_evicted_entry_depends_on_the_publishers_last_one() -> None:
    cluster = Cluster(messages_per_topic=2, min_age=0.0).up()
    coordinator, contact = cluster.coordinator(), cluster.others()[0]
    for number in range(1, 5):
        cluster.publish(contact, "t", str(number), id=number)
    old = cluster.publish(contact, "t", "1", id=1)
    assert cluster.answers[old] == Answer("t", "p", 1)  # committed, its position no longer cached
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    cluster.publish(coordinator, "t", "5", id=5)
    held = cluster.publish(contact, "t", "2", id=2)
    assert held not in cluster.answers
    newest = cluster.publish(contact, "t", "5", id=5)
    cluster.release()
    assert cluster.answers[held].code == ""
    assert cluster.answers[held].position is None
    assert cluster.answers[newest].position == Position(cluster.record().epoch, 5)


def test_two_duplicates_that_depend_on_different_positions() -> None:
    cluster = Cluster().up()
    coordinator, contact = cluster.coordinator(), cluster.others()[0]
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    cluster.publish(coordinator, "t", "1", id=1)
    cluster.publish(coordinator, "t", "2", id=2)
    first, second = cluster.publish(contact, "t", "1", id=1), cluster.publish(contact, "t", "2", id=2)
    sequencer = cluster.logic(coordinator).groups[0].reign.sequencer  # type: ignore[union-attr]
    sequencer.accepted((contact, 1), [("t", 1)])
    cluster.step(coordinator, Flush())
    cluster.settle()
    assert first in cluster.answers
    assert second not in cluster.answers
    sequencer.accepted((contact, 1), [("t", 1), ("t", 2), ("unknown", 3)])
    cluster.step(coordinator, Flush())
    cluster.settle()
    assert cluster.answers[second].position == Position(cluster.record().epoch, 2)


def test_an_id_used_for_another_payload_is_an_error() -> None:
    cluster = Cluster().up()
    contact = cluster.others()[0]
    cluster.publish(contact, "t", "x", id=1)
    reference = cluster.publish(contact, "t", "other", id=1)
    assert cluster.answers[reference].code == "id_reused"
    assert "message id 1" in cluster.answers[reference].text


def test_listed_votes_only() -> None:
    """LISTED-VOTES, BY-INCARNATION: neither a learner's copy nor one of another life of a member counts."""
    cluster = Cluster().up()
    coordinator, member = cluster.coordinator(), cluster.others()[0]
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    cluster.publish(coordinator, "t", "x", id=1)
    sequencer = cluster.logic(coordinator).groups[0].reign.sequencer  # type: ignore[union-attr]
    sequencer.accepted(("stranger", 1), [("t", 1)])
    sequencer.accepted((member, 2), [("t", 1)])
    assert cluster.delivered(coordinator, "t") == []


def test_quality_0_takes_the_same_way_without_id_table_and_acknowledgement() -> None:
    cluster = Cluster().up()
    contact = cluster.others()[0]
    reference = cluster.publish(contact, "t", "x")
    assert reference not in cluster.answers
    assert cluster.delivered(contact, "t") == [(1, "x")]
    assert cluster.logic(contact).groups[0].replica.topics["t"].table.rows == {}
    assert cluster.logic(contact).contact.pending == {}


def test_without_a_coordinator_the_publisher_tries_again() -> None:
    cluster = Cluster()
    cluster.start("a")
    cluster.run(1.0)
    reference = cluster.publish("a", "t", "x", id=1)
    assert cluster.answers[reference].code == "retry"
    assert cluster.answers[reference].retry_after == 0.2
    quiet = cluster.publish("a", "t", "x")
    assert quiet not in cluster.answers


def test_link_loss_and_time_out_end_the_wait() -> None:
    """The contact never sends again by itself: marks must be fresh."""
    cluster = Cluster(publish_wait=1.0).up()
    coordinator, contact = cluster.coordinator(), cluster.others()[0]
    cluster.hold = lambda sender, receiver, message: isinstance(message, (Forward, Answers))
    lost = cluster.publish(contact, "t", "x", id=1)
    cluster.disconnect(contact, coordinator)
    cluster.settle()
    assert cluster.answers[lost].code == "retry"
    cluster.heal()
    cluster.run(0.5)
    late = cluster.publish(contact, "t", "x", id=1)
    twice = cluster.publish(contact, "t", "x", id=1)
    assert late not in cluster.answers
    cluster.run(1.2)
    assert cluster.answers[late].code == cluster.answers[twice].code == "retry"
    assert cluster.logic(contact).contact.pending == {}
    cluster.run(1.2)  # the second deadline finds nothing


def test_the_pending_table_is_bounded() -> None:
    cluster = Cluster(max_pending=1).up()
    contact = cluster.others()[0]
    cluster.hold = lambda sender, receiver, message: isinstance(message, Forward)
    cluster.publish(contact, "t", "x", id=1)
    reference = cluster.publish(contact, "t", "y", id=2, mark=1)
    assert cluster.answers[reference].code == "retry"


def test_a_forward_to_one_who_is_no_coordinator() -> None:
    cluster = Cluster().up()
    contact, other = cluster.others()
    cluster.logic(contact).gossip.learn(0, cluster.record().epoch + 5, other, 0.0)
    reference = cluster.publish(contact, "t", "x", id=1)
    cluster.publish(contact, "t", "quiet")
    assert cluster.answers[reference].code == "retry"
    assert cluster.delivered(contact, "t") == []
    logic = cluster.logic(other)
    logic.contact.forwarded(contact, Forward(99, [Forwarded("t", b"x", 1, "p", 1, 1)]))


def test_too_many_topics() -> None:
    cluster = Cluster(max_topics=1).up()
    contact = cluster.others()[0]
    cluster.publish(contact, "t", "x", id=1)
    reference = cluster.publish(contact, "u", "x", id=1)
    assert cluster.answers[reference].code == "too_many_topics"
    assert cluster.answers[reference].text == "the cluster holds 1 topics, its limit"
    assert cluster.publish(contact, "v", "x") not in cluster.answers


@pytest.mark.parametrize("bound", [{"messages_per_topic": 2, "min_age": 0.0}, {"max_bytes": 700}])
def test_uncommitted_entries_that_fill_the_bound_stop_the_numbering(bound: dict[str, object]) -> None:
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


def test_forget_alike() -> None:
    """FORGET-ALIKE: a publisher leaves the table `duplicateWindow` after its last publication, at every broker, before
    later entries."""
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


def test_very_many_publishers_are_forgotten_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A takeover makes all of them silent at the same moment: neither one step nor one message has them all."""
    monkeypatch.setattr(sequencer, "FORGET_AT_ONCE", 7)
    cluster = Cluster(duplicate_window=2.0).up()
    for number in range(20):
        cluster.publish("a", f"t{number % 3}", "x", publisher=f"p{number}", id=1)
    old = cluster.coordinator()
    cluster.crash(old)
    cluster.run(8.0)
    new = cluster.coordinator()
    (receiver,) = {*cluster.names} - {old, new}
    told = [len(message.forget) for to, message in accepts(cluster, new) if to == receiver and message.forget]
    assert told == [7, 7, 6]
    for name in (new, receiver):
        assert [log.table.rows for log in cluster.logic(name).groups[0].replica.topics.values()] == [{}, {}, {}]


def test_an_undecided_publisher_is_not_forgotten() -> None:
    cluster = Cluster(duplicate_window=0.3).up()
    coordinator = cluster.coordinator()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    cluster.publish(coordinator, "t", "x", id=1)
    cluster.run(1.0)
    assert set(cluster.logic(coordinator).groups[0].replica.topics["t"].table.rows) == {"p"}


def test_a_removal_stands_before_the_entries_of_its_message() -> None:
    cluster = Cluster(duplicate_window=0.3).up()
    coordinator, member = cluster.coordinator(), cluster.others()[0]
    cluster.publish(coordinator, "t", "x", publisher="old", id=7)
    cluster.now += 1.0
    logic = cluster.logic(coordinator)
    cluster.step(coordinator, PublishRequest(0, 900, [Forwarded("t", b"y", 1, "new", 1, 1)]))
    logic.groups[0].reign.sequencer.expire()  # type: ignore[union-attr]
    cluster.step(coordinator, PublishRequest(0, 901, [Forwarded("t", b"z", 1, "old", 1, 1)]))
    cluster.step(coordinator, Flush())
    cluster.settle()
    for name in (coordinator, member):
        rows = cluster.logic(name).groups[0].replica.topics["t"].table.rows
        assert {publisher: row[0] for publisher, row in rows.items()} == {"new": 1, "old": 1}


def test_one_copy_commits_with_the_turn_and_owes_nothing_afterwards() -> None:
    """Several publications of one request, to one group; a removal sends what was numbered before it."""
    cluster = Cluster(("a",), min_copies=1, duplicate_window=0.3).up()
    logic = cluster.logic("a")
    cluster.publish("a", "t", "x", publisher="old", id=7)
    cluster.now += 1.0
    sent = [Forwarded("t", b"y", 1, "new", number, 1) for number in (1, 2, 3)]
    effects = cluster.step("a", PublishRequest(0, 900, sent))
    assert effects == []  # nothing is delivered before the turn's end
    logic.groups[0].reign.sequencer.expire()  # type: ignore[union-attr]
    (fanout,) = logic.ctx.effects
    assert isinstance(fanout, Fanout)
    assert [publication.sequence for publication in fanout.publications] == [2, 3, 4]
    assert logic.contact.owes
    cluster.step("a", Flush())
    assert not logic.contact.owes
    assert cluster.answers[900].id == 3
    assert logic.step(Flush(), cluster.now) == []
    assert set(logic.groups[0].replica.topics["t"].table.rows) == {"new"}


def test_a_removal_of_a_topic_that_is_not_here() -> None:
    cluster = Cluster().up()
    coordinator, member = cluster.coordinator(), cluster.others()[0]
    replica = cluster.logic(member).groups[0].replica
    message = Accept(0, replica.history, replica.synced, [], [("nowhere", "p")], [("nowhere", 3)])
    cluster.logic(member).groups[0].accept(coordinator, message)
    assert replica.topics == {}


def test_an_entry_that_is_not_the_next_is_a_broken_rule() -> None:
    """DENSE: assertions stay in production."""
    cluster = Cluster().up()
    replica = cluster.logic("a").groups[0].replica
    with pytest.raises(InvariantError, match="DENSE"):
        replica.append(replica.log("t"), Publication(1, 3, b"x"))
    with pytest.raises(InvariantError, match="PROMISE-RISES"):
        replica.promise(0)


def test_permissions_are_asked() -> None:
    class Nobody:
        def publish(self, edge: int, reference: int, publication: Forwarded) -> str:
            return f"{publication.publisher} may not publish to {publication.topic}"

        def attach(self, event: Attach) -> str:
            return "no"

    cluster = Cluster().up()
    logic = cluster.logic("a")
    logic.contact.authorizer = logic.resume.authorizer = Nobody()
    reference = cluster.publish("a", "t", "x", id=1)
    assert cluster.answers[reference].code == "not_allowed"
    assert cluster.answers[reference].text == "p may not publish to t"
    attached = cluster.attach("a", "t")
    assert attached is not None
    assert (attached.code, attached.text) == ("not_allowed", "no")
    assert not cluster["a"].of(Fanout)


def test_an_answer_whose_contact_is_gone_is_lost_with_its_link() -> None:
    """DUPLICATE-WAITS: the contact went before the commit that the answer waited for; nobody else gets it."""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    contact, other = cluster.others()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Accept)
    cluster.publish(contact, "t", "x", id=1)
    cluster.publish(contact, "t", "x", id=1)
    cluster.held = [one for one in cluster.held if one[1] == other]
    cluster.crash(contact)
    before = len(cluster.sent)
    cluster.release()
    assert cluster.logic(coordinator).groups[0].replica.topics["t"].committed == 1
    assert not [message for _, _, message in cluster.sent[before:] if isinstance(message, Answers)]
    again = cluster.publish(other, "t", "x", id=1)
    assert cluster.answers[again].position == Position(cluster.record().epoch, 1)
