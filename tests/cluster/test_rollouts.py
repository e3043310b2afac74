"""Rollouts replace one pod at a time and lose nothing; the first failure stops them."""

from __future__ import annotations

import os

import pytest
from migratory_node.kubectl import Kubectl, Object
from migratory_node.load import CLIENTS, assert_clients_balance, assert_nothing_lost, load, mark
from migratory_node.pods import BROKER_IMAGE, is_settled, wait_settled

pytestmark = pytest.mark.timeout(900)
BROKERS, MEMBERS = "app.kubernetes.io/component=broker", "app.kubernetes.io/component=zookeeper"
OPERATOR = "app.kubernetes.io/name=migratory-operator"
ASK = "exec 3<>/dev/tcp/127.0.0.1/2181; echo srvr >&3; cat <&3"


def uids(kube: Kubectl, selector: str) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kube.list("pods", selector)}


def six(kube: Kubectl) -> list[Object]:
    return [*kube.list("pods", MEMBERS), *kube.list("pods", BROKERS)]


def leader(kube: Kubectl) -> str:
    members = sorted(uids(kube, MEMBERS))
    return next(name for name in members if "Mode: leader" in kube("exec", name, "--", "bash", "-c", ASK))


def happened(kube: Kubectl, *types: str) -> list[str]:
    """Return the reasons of the Events about clusters; with `types`, of those types only."""
    return [
        event["reason"]
        for event in kube.list("events")
        if event["involvedObject"]["kind"] == "MigratoryCluster" and (not types or event["type"] in types)
    ]


def became_ready(kube: Kubectl) -> str:
    """Return the time at which Ready became True."""
    (ready,) = (one for one in (kube.get("mgc", "quotes") or {})["status"]["conditions"] if one["type"] == "Ready")
    assert ready["status"] == "True", ready
    return str(ready["lastTransitionTime"])


@pytest.mark.usefixtures("kills_operator")
def test_image_configuration_and_zookeeper_are_updated_under_load(operator: Kubectl, standing: Kubectl) -> None:
    """A new image, configuration and ZooKeeper setting under load: one pod is replaced at a time, ZooKeeper's leader
    last of its members and then the brokers; nothing is lost, no client changes its broker more than twice, and the
    cluster stays ready without a warning. The operator is killed meanwhile, unless it runs outside of the cluster."""
    kube = standing
    wait_settled(kube)
    ready_since, warnings = became_ready(kube), happened(kube, "Warning")
    old, led = {**uids(kube, MEMBERS), **uids(kube, BROKERS)}, leader(kube)
    load(kube, "update")
    # Before the update: brokers would balance the clients of the load's start while ZooKeeper's members are replaced.
    assert_clients_balance(kube)
    mark(kube, "update", "update")
    same_by_another_name = BROKER_IMAGE if "/" in BROKER_IMAGE else f"docker.io/library/{BROKER_IMAGE}"
    change = {
        "brokers": {"image": same_by_another_name},
        "topics": {"cache": {"messagesPerTopic": 299}},
        "zookeeper": {"resources": {"requests": {"cpu": "51m"}}},
    }
    kube.patch("mgc", "quotes", {"spec": change})
    kube.until(lambda: len(set(old.values()) & set(uids(kube, MEMBERS).values())) < 3, "the first to go", 120)
    if os.environ.get("MIGRATORY_OPERATOR") != "outside":
        operator("delete", "pod", "-l", OPERATOR, "--grace-period=0", "--force")
    fewest = len(old)

    def rolled() -> bool:
        nonlocal fewest
        fewest = min(fewest, sum("deletionTimestamp" not in pod["metadata"] for pod in six(kube)))
        return is_settled(kube)

    kube.until(rolled, "the rollout's end", 420)
    assert fewest == len(old) - 1, "one at a time"

    pods = sorted(six(kube), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    order = [pod["metadata"]["name"] for pod in pods]
    assert not {pod["metadata"]["uid"] for pod in pods} & set(old.values()), "all pods are up to date"
    assert sorted(order[:3]) == sorted(uids(kube, MEMBERS)), "ZooKeeper before the brokers"
    assert order[2] == led, "the leader last: one election"
    assert order[3:] == [f"quotes-broker-{number}" for number in (2, 1, 0)]
    assert {"RolloutStarted", "RolloutFinished"} <= set(happened(kube))
    assert (became_ready(kube), happened(kube, "Warning")) == (ready_since, warnings), "a healthy roll alarms nobody"

    account = assert_nothing_lost(kube, "update", cease=True)
    assert set(account["reconnect_reasons"]) - {"moved"}, "nobody noticed"
    (update,) = account["marks"]
    changes = update["clients_by_reconnects"]
    assert sum(changes.values()) == CLIENTS
    assert max(map(int, changes)) <= 2, "each client changes its broker twice at most"
    print(f"{account['reconnects']} changes of broker, clients by how many: {changes}, {account['reconnect_reasons']}")


def test_a_bad_image_stops_at_the_first_broker_and_is_corrected_by_another_edit(standing: Kubectl) -> None:
    kube = standing
    wait_settled(kube)
    before = uids(kube, BROKERS)
    kube.patch("mgc", "quotes", {"spec": {"brokers": {"image": "nowhere.invalid/no/such:1"}}})
    kube.until(lambda: kube.condition("quotes", "Progressing") == ("False", "RolloutStopped"), "it stopped", 120)
    assert kube.condition("quotes", "Degraded")[0] == "True"
    assert "RolloutStopped" in happened(kube)
    stopped = uids(kube, BROKERS)
    assert {name for name in before if stopped[name] != before[name]} == {"quotes-broker-2"}
    # the operator looks again and again meanwhile
    kube("annotate", "mgc", "quotes", "looked=again")
    kube.patch("mgc", "quotes", {"spec": {"brokers": {"image": "nowhere.invalid/no/such:2"}}})
    kube.until(
        lambda: uids(kube, BROKERS).get("quotes-broker-2") not in (None, stopped["quotes-broker-2"]), "again", 60
    )
    kube.until(lambda: kube.condition("quotes", "Progressing") == ("False", "RolloutStopped"), "it stopped again", 120)
    kube.patch("mgc", "quotes", {"spec": {"brokers": {"image": None}}})
    wait_settled(kube)
    assert kube.condition("quotes", "Degraded")[0] == "False"
    after = uids(kube, BROKERS)
    assert after["quotes-broker-2"] not in (before["quotes-broker-2"], stopped["quotes-broker-2"])
