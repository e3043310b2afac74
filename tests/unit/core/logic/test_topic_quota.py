"""The quota of topics that one client may create, which leaves topics for other clients."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import PublishRequest
from migratory_broker.core.logic.serving import policy
from migratory_broker.core.logic.serving.policy import TopicQuota
from migratory_protocol.peer import Forward, ForwardedPublication
from migratory_testing.brokers import Cluster


def publish(cluster: Cluster, broker: str, topic: str, client: int, id: int = 1, qos: int = 1) -> str | None:
    """Publish a message as this client, and return the code of the answer ("" for success), or None without an
    answer."""
    cluster.answers.pop(client, None)
    publisher = f"p{client}"
    publication = ForwardedPublication(topic, b"x", qos, publisher if qos else "", id if qos else 0, id)
    cluster.give(broker, PublishRequest(0, client, [publication]))
    cluster.settle()
    answer = cluster.answers.get(client)
    return answer.code if answer else None


@pytest.fixture(params=["coordinator", "contact"])
def there(request: pytest.FixtureRequest) -> tuple[Cluster, str]:
    """Return a cluster with a limit of three topics per client, and the broker to which the test's clients are
    connected: the coordinator, and in a second run another broker."""
    cluster = Cluster(topics_per_client=3).up()
    return cluster, cluster.coordinator() if request.param == "coordinator" else cluster.others()[0]


def test_client_creates_limited_topics_and_publishes_to_any(there: tuple[Cluster, str]) -> None:
    cluster, broker = there
    codes = [publish(cluster, broker, f"t{number}", client=7) for number in range(5)]
    assert codes == ["", "", "", "too_many_topics", "too_many_topics"]
    assert "has created 3 topics, the limit is 3" in cluster.answers[7].text
    assert publish(cluster, broker, "t4", client=8) == ""  # another makes it,
    assert publish(cluster, broker, "t4", client=7) == ""  # and the first may use it
    assert publish(cluster, broker, "t0", client=7, id=2) == ""
    cluster.run(10.0)
    assert publish(cluster, broker, "t9", client=7) == "too_many_topics"


def test_refusal_of_qos_0_is_logged(there: tuple[Cluster, str]) -> None:
    cluster, broker = there
    for number in range(6):
        assert publish(cluster, broker, f"t{number}", client=7, qos=0) is None
    topics = cluster.logic(cluster.coordinator()).groups[0].replica.topics
    assert sorted(topics) == ["t0", "t1", "t2"]
    (note,) = cluster[broker].notes("topic_quota_exceeded")
    assert note.fields == {"edge": 0, "connection": 7, "limit": 3}
    cluster.run(10.0)
    publish(cluster, broker, "t9", client=7, qos=0)
    assert len(cluster[broker].notes("topic_quota_exceeded")) == 2


def test_pending_topic_counts_once_and_a_failed_one_is_refunded() -> None:
    cluster = Cluster(topics_per_client=3).up()
    contact = cluster.others()[0]
    cluster.hold = lambda sender, receiver, message: isinstance(message, Forward)
    for number in range(1, 6):
        publish(cluster, contact, "t", client=7, id=number)
    publish(cluster, contact, "u", client=7)
    publish(cluster, contact, "v", client=7)
    assert publish(cluster, contact, "w", client=7) == "too_many_topics"
    cluster.held.clear()  # the link swallowed them all
    cluster.hold = lambda sender, receiver, message: False
    cluster.run(6.0)
    assert [publish(cluster, contact, topic, client=7) for topic in "wxyz"] == ["", "", "", "too_many_topics"]


def test_new_history_clears_the_quota() -> None:
    cluster = Cluster(topics_per_client=2).up()
    contact = cluster.others()[0]
    assert [publish(cluster, contact, topic, client=7) for topic in "tuv"] == ["", "", "too_many_topics"]
    cluster.logic(contact).ctx.histories += 1
    assert publish(cluster, contact, "v", client=7) == ""


def test_topics_of_an_earlier_count_are_not_subtracted_from_the_next() -> None:
    ctx, table = alone(topics_per_client=2)
    assert table.admit("t", (0, 1)) == ""
    ctx.histories += 1
    assert table.admit("u", (0, 1)) == ""
    ctx.now += 6.0
    table.tick(lambda topic: topic == "u")  # "t" was charged to a count that is gone
    assert [table.admit(topic, (0, 1)) != "" for topic in "vw"] == [False, True]


def test_new_history_is_counted() -> None:
    cluster = Cluster().up()
    before = cluster.logic("a").ctx.histories
    cluster.logic("a").groups[0].replica.begin_history(99, 99)
    assert cluster.logic("a").ctx.histories == before + 1


def alone(**limits: int) -> tuple[Context, TopicQuota]:
    ctx = Context(LogicConfig("c", "a", ("a",), min_copies=1, **limits))  # type: ignore[arg-type]
    return ctx, TopicQuota(ctx)


def test_tracked_clients_and_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "MAX_TRACKED_CLIENTS", 2)
    monkeypatch.setattr(policy, "MAX_TOPICS_BEING_CREATED", 3)
    ctx, table = alone(topics_per_client=2)
    for client in (1, 2, 1, 3):
        assert table.admit(f"t{client}{ctx.now}", (0, client)) == ""
        ctx.now += 0.1
    assert list(table._created.items()) == [((0, 1), 2), ((0, 3), 1)]  # 2 made one longest ago
    assert len(table._pending) == 3
    assert table.admit("u", (0, 4)) == ""
    assert len(table._pending) == 3
    ctx.now += 10.0
    table.tick(lambda topic: False)  # of 1 and 2 nothing is known any more: nothing is given back
    assert (list(table._pending), list(table._created)) == ([], [])


def test_failed_topics_are_refunded_one_by_one() -> None:
    ctx, table = alone(topics_per_client=2)
    assert table.admit("t", (0, 1)) == ""
    ctx.now += 1.0
    assert table.admit("u", (0, 1)) == ""
    ctx.now += 4.5
    table.tick(lambda topic: False)
    assert list(table._created.items()) == [((0, 1), 1)]
    assert list(table._pending) == ["u"]
    ctx.now += 4.5
    table.tick(lambda topic: True)
    assert list(table._created.items()) == [((0, 1), 1)]
