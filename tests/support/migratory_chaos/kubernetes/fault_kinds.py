"""The kinds of faults on a Kubernetes, by the names that `--faults` takes, and what each needs."""

from __future__ import annotations

from migratory_chaos.engine import Kind
from migratory_chaos.kubernetes import node_faults, pod_faults, spec_faults
from migratory_chaos.kubernetes.scene import KubernetesScene
from migratory_chaos.kubernetes.target import BROKER, ZOOKEEPER

NEEDS = {
    "node": "needs the processes of a node of this machine (docs/start/kubernetes.md), and root",
    "operator": "the operator does not run in a pod",
    "zookeeper": "needs a ZooKeeper ensemble of the cluster's own with three members",
}
"""The needs of faults, each with the reason for which a kind is left out where its need is not met."""

KINDS: dict[str, Kind[KubernetesScene]] = {
    "kill": Kind(lambda _: pod_faults.DeleteBroker(forced=False)),
    "kill-forced": Kind(lambda _: pod_faults.DeleteBroker(forced=True)),
    "coordinator": Kind(lambda _: pod_faults.DeleteBroker(forced=True, coordinator=True), weight=4),
    "crash": Kind(lambda _: node_faults.CrashBroker(), "node"),
    "evict": Kind(lambda _: pod_faults.EvictBroker()),
    "zookeeper-member": Kind(lambda _: pod_faults.DeleteZooKeeper("member"), "zookeeper"),
    "zookeeper-leader": Kind(lambda _: pod_faults.DeleteZooKeeper("leader"), "zookeeper"),
    "zookeeper-all": Kind(lambda _: pod_faults.DeleteZooKeeper("all"), "zookeeper"),
    "operator": Kind(lambda _: pod_faults.DeleteOperator(0.0), "operator", 2),
    "operator-away": Kind(lambda chance: pod_faults.DeleteOperator(chance.choice((10.0, 20.0))), "operator", 2),
    "partition": Kind(lambda chance: node_faults.PartitionBroker(chance.choice((4.0, 9.0, 16.0, 25.0))), "node", 4),
    "node-restart": Kind(lambda chance: node_faults.RestartNode(chance.choice((2.0, 8.0, 15.0))), "node", 2),
    "bad-image": Kind(lambda _: spec_faults.BadImage(), weight=1),
    "configuration": Kind(lambda _: spec_faults.Roll(BROKER, configuration=True), weight=1),
    "roll": Kind(lambda _: spec_faults.Roll(BROKER), weight=1),
    "roll-zookeeper": Kind(lambda _: spec_faults.Roll(ZOOKEEPER), "zookeeper", 1),
    "scale": Kind(lambda chance: spec_faults.Scale(chance.choice((1, 2))), weight=1),
}
