"""Functions that stop ZooKeeper of a scripted `Cluster`, and let it come back with its data, older data or none."""

from __future__ import annotations

from copy import deepcopy

from migratory_broker.core.logic.events import ZkSession

from migratory_testing.brokers import Cluster
from migratory_testing.zookeeper_tree import Stored

Nodes = dict[str, Stored]
"""The content of ZooKeeper by path."""


def away(cluster: Cluster) -> None:
    """Disconnect all brokers from ZooKeeper, and run the cluster for a second."""
    cluster.zookeeper(False)
    cluster.run(1.0)


def comes_back(cluster: Cluster, nodes: Nodes | None = None, *names: str) -> None:
    """Start ZooKeeper with these nodes, by default without any, and without watches. Connect the running brokers, or
    only `names`, in new sessions."""
    cluster.store.nodes = nodes or {"/": Stored(b"", 0, 0)}
    cluster.store.watches.clear()
    for name in names or cluster.running():
        reconnect(cluster, name)


def reconnect(cluster: Cluster, name: str) -> None:
    """Connect a broker to ZooKeeper in a new session, after telling it that its old one was lost."""
    cluster._session += 1
    cluster[name].session, cluster[name].zookeeper = cluster._session, True
    cluster.give(name, ZkSession("lost"))
    cluster.give(name, ZkSession("connected", cluster._session))


def empty(cluster: Cluster) -> None:
    """Stop ZooKeeper and start it again without data."""
    away(cluster)
    comes_back(cluster)


def backup(cluster: Cluster) -> Nodes:
    """Return a copy of ZooKeeper's data, without ephemerals."""
    return {path: deepcopy(node) for path, node in cluster.store.nodes.items() if not node.owner}


def publishes(cluster: Cluster, number: int) -> bool:
    """Publish with QoS 1 and the message id `number` at a running broker. Return whether it was acknowledged within 3 s
    of the cluster's clock."""
    reference = cluster.publish(cluster.running()[0], "t", f"x{number}", id=number)
    cluster.run(3.0)
    answer = cluster.answers.get(reference)
    return answer is not None and not answer.code


def publishing_without_one() -> tuple[Cluster, str, str, str]:
    """Return a cluster of three brokers with a publication that was acknowledged after one broker was lost, and the
    names of the coordinator, of the lost broker and of the third one."""
    cluster = Cluster().up()
    coordinator = cluster.coordinator()
    lost, follower = cluster.others()
    cluster.wall_ms = 100
    cluster.crash(lost)
    cluster.run(3.0)
    assert publishes(cluster, 1)
    return cluster, coordinator, lost, follower
