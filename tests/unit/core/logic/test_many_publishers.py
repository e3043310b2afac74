"""Publisher tables are bounded: a client that makes up a name for every message fills nobody's memory."""

from __future__ import annotations

from migratory_testing.brokers import Cluster


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
    cluster.run(4.0)  # who was silent for the duplicate window is forgotten
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
