"""ZooKeeper nodes with data of another program: brokers continue to run, log the node, and use it again once its
data are valid."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from migratory_broker.core.logic.events import DrainRequest, Stop, Tick, ZkCommit
from migratory_broker.core.logic.membership.records import (
    BadRecord,
    ClusterRecord,
    GroupRecord,
    MemberRecord,
    SourceEpoch,
    decode_cluster,
    decode_group,
    decode_member,
    encode,
    group_number,
)
from migratory_testing.brokers import Cluster
from migratory_testing.zookeeper_tree import Stored

GARBAGE = (
    b"", b"\xff\xfe", b"{}", b"[1]", b"null", b'{"incarnation":"x"}', b"[" * 100_000, b'{"x":' + b"[" * 100_000,
    b'{"url":"\xff"}', b'{"groups":1,"hash":"\xff"}', b'{"owner":["\xff",1]}',
)  # fmt: skip
SOURCE = SourceEpoch(7, [("a", 1)], 1, ("a", 1))
RECORD = GroupRecord(5, 1, 8, ("a", 1), [("a", 1)], 1, True, SOURCE)


def plant(cluster: Cluster, path: str, contents: bytes) -> None:
    """Write the contents into a node of ZooKeeper, which may be new, and let its watches fire, as an operator can
    with ZooKeeper's own command."""
    node = cluster.store.nodes.get(path)
    cluster.store.nodes[path] = (
        Stored(contents, 0, 0) if node is None else Stored(contents, node.version + 1, node.owner)
    )
    cluster.store.fire(path, node is None)
    cluster._watches()
    cluster.settle()


def stops(cluster: Cluster) -> list[Stop]:
    return [stop for name in cluster.names for stop in cluster[name].of(Stop)]


def takes_publications(cluster: Cluster, id: int) -> bool:
    reference = cluster.publish("c", "t", "x", id=id)
    cluster.run(0.5)
    return cluster.answers[reference].code == ""


@pytest.mark.parametrize("decode", [decode_group, decode_member, decode_cluster])
@pytest.mark.parametrize("contents", GARBAGE)
def test_foreign_data_raises_bad_record(decode, contents: bytes) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadRecord) as caught:
        decode(contents)
    assert len(str(caught.value)) > 10


@pytest.mark.parametrize(
    ("field", "value"),
    [("epoch", -1), ("epoch", 2**63), ("first", 2**70), ("history", 2**63), ("copies", 0), ("members", []),
     ("members", [("a", -1)]), ("owner", ("a", 2**63))],
)  # fmt: skip
def test_record_with_numbers_beyond_64_bits_is_refused(field: str, value: object) -> None:
    """A record with a number that does not fit 64 bits, or is out of its range, is refused with the field's name:
    messages between brokers have 64 bits for it."""
    assert decode_group(encode(RECORD)) == RECORD
    wrong = msgspec.structs.replace(RECORD, **{field: value})
    with pytest.raises(BadRecord, match=field):
        decode_group(msgspec.json.encode(wrong))


def test_invalid_weight_is_refused() -> None:
    member = MemberRecord(1, "ws://a", "a:1", 100, True, False)
    assert decode_member(encode(member)) == member
    with pytest.raises(BadRecord, match="weight"):
        decode_member(encode(msgspec.structs.replace(member, weight=2**53)))
    assert decode_cluster(encode(ClusterRecord(7))) == ClusterRecord(7)


def test_only_decimal_names_are_groups() -> None:
    assert group_number("12") == 12
    for name in ("", "x", "-1", "1x", "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT ONE}", "9" * 5000):
        assert group_number(name) is None


@pytest.mark.parametrize("contents", [b"", b"{}", b"\xff"])
def test_unreadable_member_is_logged_and_ignored(contents: bytes) -> None:
    cluster = Cluster().up()
    before = cluster["c"].logic.membership.servers()
    plant(cluster, "/members/stranger", contents)
    plant(cluster, "/members/b", contents)
    cluster.run(2.0)
    assert not stops(cluster)
    (note, *_) = cluster["a"].notes("node_unreadable")
    assert note.fields["path"] == "/members/stranger"
    assert note.fields["reason"]
    assert cluster["c"].logic.membership.servers() == before  # what was known of it still holds
    assert decode_member(cluster.store.nodes["/members/b"].data).url == "ws://b"  # b has written it again
    assert takes_publications(cluster, 1)


def test_unreadable_own_ephemeral_of_an_older_session_is_replaced() -> None:
    cluster = Cluster().up()
    old = cluster["b"].session
    cluster.store.nodes["/members/b"] = replace(cluster.store.nodes["/members/b"], data=b"{}", owner=old + 1000)
    cluster.logic("b").membership.new_session()
    cluster.run(1.0)
    node = cluster.store.nodes["/members/b"]
    assert node.owner == old
    assert decode_member(node.data).incarnation == 1


def test_foreign_names_among_the_coordinators_are_ignored() -> None:
    cluster = Cluster().up()
    for name in ("\N{SUPERSCRIPT TWO}", "x", "99"):
        plant(cluster, f"/coordinators/{name}", b"")
    cluster.run(1.0)
    assert not stops(cluster)
    assert takes_publications(cluster, 1)


def test_foreign_cluster_node_stops_the_broker_with_a_reason() -> None:
    cluster = Cluster()
    cluster.store.nodes["/cluster"] = Stored(b"not ours", 0, 0)
    cluster.start()
    cluster.settle()
    assert len(stops(cluster)) == 3
    for stop in stops(cluster):
        assert stop.reason.startswith("/cluster in ZooKeeper was not written by a broker: ")
        assert stop.code == 1


@pytest.mark.parametrize("contents", [b"", b'{"epoch":1}', b'{"history":"\xff"}'])
def test_group_with_an_unreadable_record_continues_only_under_its_owner(contents: bytes) -> None:
    cluster = Cluster().up()
    owner = cluster.coordinator()
    right = cluster.store.nodes["/groups/0"].data
    plant(cluster, "/groups/0", contents)
    assert takes_publications(cluster, 1)
    cluster.crash(owner)
    cluster.run(5.0)
    assert not cluster.coordinators()
    waiting = [cluster.logic(name).election.states[0].waiting for name in cluster.running()]
    assert any(reason.startswith("its record cannot be read: ") for reason in waiting), waiting
    plant(cluster, "/groups/0", right)
    cluster.start(owner)
    cluster.run(8.0)
    assert takes_publications(cluster, 2)
    assert cluster.delivered("c" if owner != "c" else "b", "t")[-1][0] == 2


def test_owner_keeps_its_term_when_the_record_is_unreadable() -> None:
    """A coordinator continues, and accepts publications, while its record in ZooKeeper cannot be read and its
    ephemeral node is gone; it logs the node."""
    cluster = Cluster().up()
    owner = cluster.coordinator()
    plant(cluster, "/groups/0", b"garbage")
    del cluster.store.nodes["/coordinators/0"]
    cluster.store.fire("/coordinators/0", True)
    cluster._watches()
    cluster.run(3.0)
    assert cluster.coordinators() == [owner]
    assert cluster[owner].notes("node_unreadable")[0].fields["path"] == "/groups/0"
    assert takes_publications(cluster, 1)


def test_unreadable_record_after_an_unknown_outcome_is_not_the_own() -> None:
    """UNKNOWN-READS-AGAIN: a broker whose first record has an unknown outcome, and then cannot be read, does not
    become coordinator, but waits and names the reason."""
    cluster = Cluster()
    spoiled: list[str] = []

    def spoil(broker: str, commit: ZkCommit) -> bool:
        """Return True for the first write of the record, whose reply is then lost, after another program has
        overwritten the record; else False."""
        if spoiled or not any(operation.path == "/groups/0" for operation in commit.operations):
            return False
        spoiled.append(broker)
        cluster.store.nodes["/groups/0"].data = b"garbage"
        return True

    cluster.unknown = spoil
    cluster.start()
    cluster.run(4.0)
    assert spoiled
    assert not stops(cluster)
    assert not cluster.coordinators()
    assert cluster.logic(spoiled[0]).election.states[0].waiting.startswith("its record cannot be read: ")


def test_unreadable_record_does_not_activate() -> None:
    cluster = Cluster()
    spoiled: list[str] = []

    def spoil(broker: str, commit: ZkCommit) -> bool:
        (operation, *others) = commit.operations
        if spoiled or len(others) > 1 or operation.path != "/groups/0":
            return False
        spoiled.append(broker)
        cluster.store.nodes["/groups/0"].data = b"garbage"
        return True

    cluster.unknown = spoil
    cluster.start()
    cluster.run(4.0)
    (broker,) = spoiled
    assert not cluster.coordinators()
    (over, *_) = cluster[broker].notes("term_ended")
    assert str(over.fields["reason"]).startswith("its record cannot be read: ")


def test_resume_that_needs_an_unreadable_record_is_answered_in_time() -> None:
    cluster = Cluster().up()
    plant(cluster, "/groups/0", b"garbage")
    attached = cluster.attach("a", "t", (2**40, 5), wait=30.5)
    assert attached is not None
    assert attached.receipt == "reset"


def test_drain_ends_with_an_unreadable_record() -> None:
    cluster = Cluster().up()
    owner = cluster.coordinator()
    plant(cluster, "/groups/0", b"garbage")
    cluster.give(owner, DrainRequest(2.0))
    cluster.run(4.0)
    cluster.step(owner, Tick())
    assert cluster.logic(owner)._clients_drained
