"""Messages of peers that break the rules of replication: the broker refuses each with its reason, and changes nothing.

Also: forged replies and claims are ignored, a refused epoch is accepted once the record confirms it, and a takeover
goes on after a refused promise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from migratory_broker.core.logic.events import Flush, Note, PeerReceived, RefusePeer
from migratory_broker.core.logic.membership.epochs import EPOCH_SLACK
from migratory_broker.core.logic.membership.records import encode
from migratory_broker.core.logic.status import describe_logic
from migratory_protocol.peer import (
    Accept,
    Accepted,
    Activated,
    EpochRefused,
    Forward,
    ForwardedPublication,
    ForwardReplies,
    ForwardReply,
    Heartbeat,
    InventoryRequest,
    PeerMessage,
    Prepare,
    Promise,
    Publication,
    PublisherRow,
    Survey,
    SurveyReply,
    Sync,
    TopicEntries,
    TopicPart,
    decode_peer,
    encode_peer,
)
from migratory_protocol.positions import Position
from migratory_protocol.topics import topic_group
from migratory_testing.brokers import WALL_MS, Cluster
from migratory_testing.hostile import HostilePeer
from msgspec.structs import replace as changed


def received(cluster: Cluster, receiver: str, sender: str, *messages: PeerMessage) -> list[RefusePeer]:
    """Deliver messages in one read over the link from `sender`, without a flush. Return the refusals that the receiver
    emits for them."""
    before = len(cluster[receiver].of(RefusePeer))
    cluster.step(receiver, PeerReceived(sender, tuple(decode_peer(encode_peer(message)) for message in messages)))
    return cluster[receiver].of(RefusePeer)[before:]


def published() -> tuple[Cluster, str, str]:
    """Return a cluster in which topic t has one acknowledged publication, the name of its coordinator, and that of
    another member."""
    cluster = Cluster().up()
    coordinator, member = cluster.coordinator(), cluster.others()[0]
    reference = cluster.publish(member, "t", "x", id=1)
    assert cluster.answers[reference].code == ""
    return cluster, coordinator, member


def sync(cluster: Cluster, *parts: TopicPart, **fields: Any) -> Sync:
    """Return a valid Sync of the current epoch, as the coordinator would send it, with these fields changed."""
    record = cluster.record()
    message = Sync(
        0, record.history, record.first, record.epoch, 9, record.owner, record.members, 2, True, True, True,
        list(parts), len(parts), sum(part.last for part in parts),
    )  # fmt: skip
    return changed(message, **fields)


def entry(cluster: Cluster, sequence: int = 1, **fields: Any) -> Publication:
    return changed(Publication(cluster.record().epoch, sequence, b"x", "p", sequence), **fields)


def log(cluster: Cluster, topic: str = "t", last: int = 1, **fields: Any) -> TopicPart:
    """Return the part of a topic with its whole log of `last` committed entries of publisher p, with these fields
    changed."""
    entries = [entry(cluster, sequence) for sequence in range(1, last + 1)]
    row = PublisherRow("p", last, cluster.record().epoch, last)
    return changed(TopicPart(topic, 0, 0, 0, last, last, whole=True, entries=entries, table=[row]), **fields)


@pytest.mark.parametrize("kind", [Prepare, InventoryRequest, Sync, EpochRefused, SurveyReply])
def test_epoch_bound(kind: type) -> None:
    """EPOCH-BOUND: a message with an epoch above the bound (wall clock and EPOCH_SLACK) is refused; one at the bound is
    accepted. The promise never exceeds the bound."""
    for above, refused in ((0, False), (1, True), (2**61, True)):
        cluster, coordinator, member = published()
        record = cluster.record()
        bound = WALL_MS + int((cluster.now - 10.0) * 1000) + EPOCH_SLACK
        epoch = bound + above
        messages: dict[type, PeerMessage] = {
            Prepare: Prepare(0, record.history, epoch, 0, False, []),
            InventoryRequest: InventoryRequest(0, record.history, epoch),
            Sync: sync(cluster, epoch=epoch, last=False),
            EpochRefused: EpochRefused(0, record.epoch, epoch),
            SurveyReply: SurveyReply(1, [(0, epoch)]),
        }
        refusals = received(cluster, member, coordinator, messages[kind])
        assert [(refusal.reason, "EPOCH-BOUND" in refusal.text) for refusal in refusals] == [("epoch", True)] * refused
        assert cluster.logic(member).groups[0].replica.promised <= bound


def test_epoch_that_the_record_confirms_is_known_at_the_next_link() -> None:
    """A message with an epoch above the bound ends its link once and makes the broker read the record. As the record
    has this epoch, the broker then accepts the message, promises the epoch, and accepts it for other groups as well."""
    cluster, coordinator, member = published()
    record = cluster.record()
    node = cluster.store.nodes["/groups/0"]
    node.data = encode(changed(record, epoch=record.epoch + 2 * EPOCH_SLACK))
    message = Prepare(0, record.history, record.epoch + 2 * EPOCH_SLACK, 0, False, [])
    assert len(received(cluster, member, coordinator, message, message)) == 1
    cluster.run(0.2)
    assert received(cluster, member, coordinator, message) == []
    assert cluster.logic(member).groups[0].replica.promised == message.epoch
    # one confirmed epoch shows the distance of the clocks, and holds for every group
    cluster.logic(member).epochs.check(1, message.epoch, 0)


def test_epoch_beyond_an_unreadable_record_is_refused() -> None:
    cluster, coordinator, member = published()
    cluster.store.nodes["/groups/0"].data = b"?"
    message = Prepare(0, 1, 2**62, 0, False, [])
    assert received(cluster, member, coordinator, message)
    cluster.run(0.2)
    assert cluster[member].notes("node_unreadable")
    node = cluster.store.nodes.pop("/groups/0")
    assert received(cluster, member, coordinator, message)
    cluster.run(0.2)
    cluster.store.nodes["/groups/0"] = node
    cluster.zookeeper(False, member)
    cluster.run(0.2)
    assert received(cluster, member, coordinator, message)


def test_two_links_and_a_huge_epoch_leave_the_group_its_coordinator() -> None:
    """One `Prepare` with a huge epoch to each broker, in the name of another, changes nothing: the coordinator stays,
    publications are acknowledged, and the record's epoch stays small."""
    cluster, coordinator, _ = published()
    for name in cluster.names:
        sender = next(other for other in cluster.names if other != name)
        received(cluster, name, sender, Prepare(0, cluster.record().history, 2**62, 0, False, []))
    cluster.run(3.0)
    reference = cluster.publish(cluster.others()[0], "t", "y", id=2)
    assert cluster.answers[reference].code == ""
    assert cluster.record().epoch < 2**32
    assert cluster.coordinator() == coordinator


def test_claim_of_a_group_counts_only_up_to_the_promise() -> None:
    """A heartbeat that claims a group at an epoch above the promised one is not refused, and its claim is ignored."""
    cluster, coordinator, member = published()
    (liar,) = [name for name in cluster.others() if name != member]
    claims = Heartbeat(0.0, [], [(0, cluster.record().epoch + 1)], True, True)
    assert received(cluster, member, liar, claims) == []
    assert cluster.logic(member).gossip.coordinator(0) == coordinator


@pytest.mark.parametrize(
    ("fields", "reason", "text"),
    [
        ({"owner": ("z", 1)}, "sender", "OWNER"),
        ({"members": [("z", 1)]}, "sender", "OWNER"),
        ({"members": 2 * [("a", 1), ("b", 1), ("c", 1)]}, "snapshot", "each once"),
        ({"copies": 9}, "snapshot", "copies"),
        ({"copies": 0}, "snapshot", "copies"),
        ({"first": 2**61}, "snapshot", "history begins"),
    ],
)
def test_sync_that_no_owner_sends_is_refused(fields: dict[str, Any], reason: str, text: str) -> None:
    cluster, coordinator, member = published()
    before = replace_view(cluster, member)
    (refusal,) = received(cluster, member, coordinator, sync(cluster, log(cluster), **fields))
    assert (refusal.peer, refusal.reason) == (coordinator, reason)
    assert refusal.text.startswith("Sync: ")
    assert text in refusal.text
    assert replace_view(cluster, member) == before


def replace_view(cluster: Cluster, name: str) -> tuple[Any, ...]:
    """Return the parts of a replica's state that a Sync may change, to be compared: history, promise, synced epoch,
    view and the bounds of the logs."""
    replica = cluster.logic(name).groups[0].replica
    view = replica.view
    logs = {topic: (found.base, found.last, found.committed) for topic, found in replica.topics.items()}
    return replica.history, replica.promised, replica.synced, view and replace(view), logs


def bad_parts(cluster: Cluster) -> dict[str, tuple[list[TopicPart], str]]:
    """Return, by name, the parts of snapshots that are impossible as a log or contradict the one committed
    entry of topic t, each with the reason of its refusal."""
    good = log(cluster, last=2)
    later = cluster.record().epoch + 1
    entries = [entry(cluster, 1), entry(cluster, 2, epoch=later)]
    return {
        "continued": ([changed(good, continued=True)], "snapshot"),
        "twice": ([good, good], "snapshot"),
        "hole": ([changed(good, entries=[entry(cluster, 1), entry(cluster, 3)])], "snapshot"),
        "too few": ([changed(good, last=3)], "snapshot"),
        "backwards": ([changed(good, base=5)], "snapshot"),
        "keeps with whole": ([changed(good, keep=1, entries=[entry(cluster, 2)])], "snapshot"),
        "too large": ([TopicPart("t", 2**62, 2**62, 0, 2**62, 0, whole=True)], "snapshot"),
        "mark behind the end": ([changed(good, committed=3)], "snapshot"),
        "entry of a later epoch": ([changed(good, entries=entries)], "snapshot"),
        "epochs fall": ([changed(good, entries=[entry(cluster, 1), entry(cluster, 2, epoch=1)])], "snapshot"),
        "older beyond": ([changed(good, older=[entry(cluster, number) for number in (1, 2, 3)])], "snapshot"),
        "older with a hole": ([changed(good, older=[entry(cluster, 2)])], "snapshot"),
        "row beyond": ([changed(good, table=[PublisherRow("p", 1, 1, 3)])], "snapshot"),
        "base of a later epoch": ([changed(good, base_epoch=later)], "snapshot"),
        "cut": ([log(cluster, last=0)], "committed"),
        "deleted": ([TopicPart("t", 0, 0, 0, 0, 0, deleted=True)], "committed"),
        "dropped": ([log(cluster, topic="other")], "committed"),
        "replaced": ([changed(good, entries=[entry(cluster, 1, epoch=1), entry(cluster, 2)])], "committed"),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(bad_parts(Cluster().up())))
def test_snapshot_that_describes_no_log_is_refused(name: str) -> None:
    cluster, coordinator, member = published()
    parts, reason = bad_parts(cluster)[name]
    before = replace_view(cluster, member)
    lasts = {part.topic: part.last for part in parts if not part.deleted}
    message = sync(cluster, *parts, topics_total=len(lasts), lasts_total=sum(lasts.values()))
    (refusal,) = received(cluster, member, coordinator, message)
    assert refusal.reason == reason
    assert replace_view(cluster, member) == before
    cluster.run(1.0)
    assert cluster.answers[cluster.publish(member, "t", "y", id=2)].code == ""


def test_topics_of_other_groups_are_refused() -> None:
    cluster = Cluster(groups=2).up()
    number = 1 - cluster.logic("a").publishing.groups[0].number
    topic = next(f"t{index}" for index in range(99) if _group(f"t{index}") == 1 - number)
    coordinator = cluster.coordinator(number)
    member = cluster.others(number)[0]
    record = cluster.record(number)
    messages: list[tuple[str, str, PeerMessage]] = [
        (member, coordinator, changed(sync(cluster, log(cluster, topic)), group=number, history=record.history,
         first=record.first, epoch=record.epoch, owner=record.owner, members=record.members)),
        (member, coordinator, Accept(number, record.history, record.epoch,
         [TopicEntries(topic, [Publication(record.epoch, 1, b"")])], [], [])),
        (coordinator, member, Forward(number, [ForwardedPublication(topic, b"", 0, "", 0, 0)])),
    ]  # fmt: skip
    for receiver, sender, message in messages:
        (refusal,) = received(cluster, receiver, sender, message)
        assert refusal.reason == "group"
        cluster.run(0.5)


def _group(topic: str) -> int:
    return topic_group(topic, 2)


def test_epoch_has_one_coordinator() -> None:
    """OWNER: messages that prepare, inventory, sync or activate an epoch are refused if another broker than the owner
    sends them; the coordinator stays."""
    cluster, coordinator, member = published()
    record = cluster.record()
    liar = (member, cluster.logic(member).incarnation)
    attacks: list[PeerMessage] = [
        Prepare(0, record.history, record.epoch, 0, False, []),
        InventoryRequest(0, record.history, record.epoch),
        sync(cluster, owner=liar),
        Activated(0, record.history, record.epoch),
    ]
    for message in attacks:
        (refusal,) = received(cluster, coordinator, member, message)
        assert refusal.reason == "sender"
        cluster.run(0.5)
    assert cluster.coordinator() == coordinator


def test_vote_for_what_was_not_numbered_is_refused() -> None:
    """LISTED-VOTES: a vote for an entry that the coordinator has not numbered is refused, because it would commit an
    entry that does not exist."""
    for lasts in ([("t", 2)], [("unknown", 1)]):
        cluster, coordinator, member = published()
        record = cluster.record()
        message = Accepted(0, record.history, record.epoch, lasts)
        (refusal,) = received(cluster, coordinator, member, message)
        assert refusal.reason == "votes"


def test_entries_of_another_epoch_are_refused() -> None:
    """ACCEPT: an Accept with an entry of a higher epoch than its own is refused."""
    cluster, coordinator, member = published()
    record = cluster.record()
    items = [TopicEntries("t", [entry(cluster, 2, epoch=record.epoch + 1)])]
    (refusal,) = received(cluster, member, coordinator, Accept(0, record.history, record.epoch, items, [], []))
    assert refusal.reason == "epoch"


def test_only_the_broker_that_got_a_publication_answers_it() -> None:
    """A reply from a broker to which the publication was not forwarded answers nothing; the coordinator's later reply
    does. Regression: a forged reply acknowledged a publication that was never stored."""
    cluster = Cluster().up()
    member, liar = cluster.others()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Forward)
    reference = cluster.publish(member, "t", "precious", id=1)
    forged = ForwardReplies([ForwardReply("t", "p", 1, "", Position(5, 5))])
    assert received(cluster, member, liar, forged) == []
    cluster.step(member, Flush())
    assert reference not in cluster.answers
    cluster.release()
    assert cluster.answers[reference].code == ""


def test_survey_of_more_groups_than_there_are_is_refused() -> None:
    cluster = Cluster().up()
    (refusal,) = received(cluster, "a", "b", Survey(1, [0, 0]))
    assert refusal.reason == "group"


@pytest.mark.parametrize(
    ("fields", "reason", "text"),
    [
        ({"members": [], "copies": 1000}, "sender", "OWNER-LISTED"),
        ({"owner": ("z", 1)}, "sender", "OWNER-LISTED"),
        ({"copies": 4}, "snapshot", "copies"),
        ({"members": 2 * [("a", 1), ("b", 1), ("c", 1)]}, "snapshot", "each once"),
        ({"first": 2**61}, "snapshot", "history begins"),
        ({"leads": True}, "sender", "led by its owner"),
    ],
)
def test_copy_that_no_broker_holds_is_refused(fields: dict[str, Any], reason: str, text: str) -> None:
    """Regression: a record was restored from a copy with an empty list, and no broker could read it."""
    cluster, coordinator, member = published()
    reply = cluster.logic(member).histories.holdings(1, [0])
    assert received(cluster, coordinator, member, reply) == []
    lie = changed(reply, copies=[changed(reply.copies[0], **fields)])
    (refusal,) = received(cluster, coordinator, member, lie)
    assert (refusal.reason, text in refusal.text) == (reason, True)


def test_survey_reply_with_more_groups_than_there_are_is_refused() -> None:
    cluster, coordinator, member = published()
    reply = cluster.logic(member).histories.holdings(1, [0])
    for lie in (changed(reply, groups=2 * reply.groups), changed(reply, copies=2 * reply.copies)):
        (refusal,) = received(cluster, coordinator, member, lie)
        assert refusal.reason == "group"
        cluster.run(0.2)


def test_names_that_a_peer_invents_take_no_memory() -> None:
    cluster = Cluster().up()
    names = [f"invented-{number}" for number in range(100)]
    received(cluster, "a", "b", Heartbeat(0.0, names, [], True, True, None, [1] * len(names)))
    assert not set(names) & set(cluster.logic("a").membership.appeared)


def takeover() -> tuple[Cluster, str, str]:
    """Return a cluster after its coordinator's death, the candidate, which waits for the held promise of the other
    survivor, and that survivor."""
    cluster, coordinator, _ = published()
    cluster.hold = lambda sender, receiver, message: isinstance(message, Promise)
    cluster.crash(coordinator)
    cluster.run(0.3)
    candidate = cluster.record().owner[0]
    (survivor,) = [name for name in cluster.running() if name != candidate]
    return cluster, candidate, survivor


@pytest.mark.parametrize("useful", [True, False])
def test_promise_that_cannot_be_merged_is_refused_and_the_takeover_goes_on(useful: bool) -> None:
    cluster, candidate, survivor = takeover()
    group = cluster.logic(candidate).groups[0]
    assert group.term is not None
    promise_round = group.term.promise_round
    assert promise_round is not None
    promise_round.useful = useful
    source = promise_round.source.epoch
    base = Promise(0, cluster.record().history, cluster.record().epoch, source, True, [], [])
    whole = changed(log(cluster), entries=[entry(cluster, epoch=source)], table=[])
    continuing = TopicPart("t", 1, 0, 0, 2, 0, entries=[entry(cluster, 2, epoch=source)])
    behind = changed(continuing, keep=5, last=6, entries=[entry(cluster, 6, epoch=source)])
    attacks = {
        "synced": changed(base, synced=base.epoch),
        "deleted": changed(base, topics=[changed(whole, deleted=True)]),
        "unknown topic": changed(base, topics=[changed(continuing, topic="u")]),
        "unknown entries": changed(base, topics=[behind]),
        "disagrees": changed(base, topics=[changed(whole, entries=[entry(cluster, epoch=source, publisher="q")])]),
        "too short": base,
    }  # fmt: skip
    del attacks["disagrees" if not useful else "too short"]
    for message in attacks.values():
        (refusal,) = received(cluster, candidate, survivor, message)
        assert refusal.text.startswith("Promise: ")
        cluster.run(0.1)
        assert not promise_round.answers.keys() - {(candidate, 1)}
    promise_round.useful = True
    cluster.held = [held for held in cluster.held if held[2].epoch == base.epoch][-1:]  # type: ignore[union-attr]
    cluster.release()
    cluster.run(5.0)
    assert cluster.record().activated
    assert cluster.delivered(survivor, "t") == [(1, "x")]


def test_promises_that_contradict_each_other_are_not_merged() -> None:
    """ONE-LOG: of two promises synced to the source that differ in an entry, the later one is refused. A promise that
    is not synced to the source is accepted, because it is not merged."""
    cluster = Cluster(("a", "b", "c", "d", "e"), min_copies=2).up()
    old = cluster.coordinator()
    cluster.publish(old, "t", "x", id=1)
    cluster.hold = lambda sender, receiver, message: isinstance(message, Promise)
    cluster.crash(old)
    cluster.run(0.3)
    candidate = cluster.record().owner[0]
    promise_round = cluster.logic(candidate).groups[0].term.promise_round  # type: ignore[union-attr]
    assert promise_round is not None
    source, epoch = promise_round.source.epoch, cluster.record().epoch
    behind, first, second = [name for name in cluster.running() if name != candidate]
    for name, synced, publisher, refused in (
        (behind, 0, "r", False),  # not merged
        (first, source, "p", False),
        (second, source, "q", True),
    ):
        part = TopicPart("t", 1, 0, 0, 2, 0, entries=[Publication(source, 2, b"y", publisher, 2)])
        message = Promise(0, cluster.record().history, epoch, synced, True, [], [part])
        assert bool(received(cluster, candidate, name, message)) == refused


def test_refusal_of_a_learner_says_which_message_broke_which_rule() -> None:
    cluster, coordinator, member = published()
    received(cluster, member, coordinator, sync(cluster, copies=0), sync(cluster, copies=9))
    assert [effect.text for effect in cluster[member].of(RefusePeer)] == [
        "Sync: an epoch has as many members as copies, each once"
    ]
    assert not [effect for effect in cluster[member].of(Note) if effect.level == "error"]


@pytest.mark.unmeasured
@settings(max_examples=150)
@given(st.data())
def test_no_sequence_of_messages_ends_a_broker(data: Any) -> None:
    """No broker stops, raises an exception, sends a message that cannot be encoded and decoded (`Cluster` does both to
    each message), or has a status that cannot be encoded."""
    cluster = Cluster().up()
    cluster.publish("a", "t", "x", id=1)
    peer = HostilePeer(cluster, lambda values: data.draw(st.sampled_from(values)))
    for _ in range(data.draw(st.integers(1, 12))):
        peer.attack()
    cluster.run(1.0)
    assert cluster.running() == list(cluster.names)
    for name in cluster.names:
        msgspec.json.encode(describe_logic(cluster.logic(name)))
