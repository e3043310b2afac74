"""Pod templates on a real Kubernetes: a changed template replaces one pod at a time, an annotation of the service
account none, and the API server refuses what would take a name of the operator's."""

from __future__ import annotations

import pytest
from migratory_node.kubectl import Kubectl, KubectlError, Object
from migratory_node.load import assert_nothing_lost, load
from migratory_node.pods import BROKER_IMAGE, is_settled, wait_settled

pytestmark = pytest.mark.timeout(900)
BROKERS, MEMBERS = "app.kubernetes.io/component=broker", "app.kubernetes.io/component=zookeeper"
SIDECAR: Object = {
    "name": "waiter",
    "image": BROKER_IMAGE,
    "restartPolicy": "Always",
    "command": ["/bin/sh", "-c", "exec sleep 100000"],
    "resources": {"requests": {"cpu": "1m", "memory": "1024Ki"}},
    "ports": [{"containerPort": 9100}],
    "volumeMounts": [{"name": "spool", "mountPath": "/spool"}],
}
TEMPLATE: Object = {
    "labels": {"team": "market"},
    "annotations": {"example.com/owner": "market"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
            ]
        }
    },
    "topologySpreadConstraints": [{"topologyKey": "rack", "whenUnsatisfiable": "ScheduleAnyway"}],
    "env": [
        {"name": "ZONE", "value": "eu"},
        {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
    ],
    "volumes": [{"name": "spool", "emptyDir": {"sizeLimit": "1024Ki"}}, {"name": "ca", "configMap": {"name": "ca"}}],
    "volumeMounts": [{"name": "ca", "mountPath": "/etc/ca", "readOnly": True}],
    "initContainers": [SIDECAR],
}


def uids(kube: Kubectl, selector: str) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in kube.list("pods", selector)}


def test_a_template_is_rolled_out_under_load_and_annotations_of_the_account_replace_nobody(standing: Kubectl) -> None:
    before, members = uids(standing, BROKERS), uids(standing, MEMBERS)
    standing("create", "configmap", "ca", "--from-literal=ca.crt=none")
    load(standing, "template")
    fewest = len(before)

    def rolled() -> bool:
        nonlocal fewest
        fewest = min(fewest, sum("deletionTimestamp" not in pod["metadata"] for pod in standing.list("pods", BROKERS)))
        return not set(before.values()) & set(uids(standing, BROKERS).values()) and is_settled(standing)

    standing.patch("mgc", "quotes", {"spec": {"brokers": {"pod": TEMPLATE}}})
    standing.until(rolled, "three new pods", 400)
    assert fewest == len(before) - 1, "one at a time"
    assert_nothing_lost(standing, "template", cease=True)
    assert uids(standing, MEMBERS) == members
    for pod in standing.list("pods", BROKERS):
        name = pod["metadata"]["name"]
        assert pod["metadata"]["labels"]["team"] == "market"
        assert (
            standing("exec", name, "-c", "broker", "--", "/bin/sh", "-c", "echo $ZONE; cat /etc/ca/ca.crt")
            == "eu\nnone"
        )
        assert all(one["restartCount"] == 0 for one in pod["status"]["initContainerStatuses"])
    after = uids(standing, BROKERS)

    account_annotations = {"serviceAccountAnnotations": {"example.com/role": "quotes"}}
    standing.patch("mgc", "quotes", {"spec": {"brokers": {"pod": account_annotations}}})
    standing.until(
        lambda: (standing.get("serviceaccount", "quotes") or {})["metadata"].get("annotations") == {
            "example.com/role": "quotes"
        },
        "the annotation",
    )  # fmt: skip
    wait_settled(standing)
    assert uids(standing, BROKERS) == after
    # An object that the API server has in another form than the template's would be applied again and again.
    version = (standing.get("statefulset", "quotes-broker") or {})["metadata"]["generation"]
    degraded = next(
        one for one in (standing.get("mgc", "quotes") or {})["status"]["conditions"] if one["type"] == "Degraded"
    )
    assert (degraded["status"], degraded["reason"]) == ("False", "NothingKnown")

    standing("patch", "mgc", "quotes", "--type=json", "-p", '[{"op":"remove","path":"/spec/brokers/pod"}]')
    standing.until(lambda: not set(after.values()) & set(uids(standing, BROKERS).values()), "three new pods", 400)
    wait_settled(standing)
    template = (standing.get("statefulset", "quotes-broker") or {})["spec"]["template"]
    assert "team" not in template["metadata"]["labels"]
    assert not {"initContainers", "nodeSelector", "tolerations", "affinity"} & set(template["spec"])
    assert [variable["name"] for variable in template["spec"]["containers"][0]["env"]] == [
        "POD_NAME", "MIGRATORY_REVISION"
    ]  # fmt: skip
    assert (standing.get("statefulset", "quotes-broker") or {})["metadata"]["generation"] == version + 1
    assert "annotations" not in (standing.get("serviceaccount", "quotes") or {})["metadata"]


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"env": [{"name": "POD_NAME", "value": "x"}]}, "spec.brokers.pod.env: Invalid value"),
        ({"volumes": [{"name": "secret-0", "emptyDir": {}}]}, "the operator uses these names: config, tmp, secret-..."),
        ({"containers": [{"name": "broker", "image": "a"}]}, "spec.brokers.pod.containers: Invalid value"),
        ({"labels": {"app.kubernetes.io/component": "x"}}, "the operator and Kubernetes set these labels"),
        ({"env": [{"name": "A"}, {"name": "A"}]}, "Duplicate value"),
        ({"color": "red"}, 'unknown field "color"'),
    ],
)
def test_the_api_server_refuses_the_operators_own_names(kube: Kubectl, pod: Object, words: str) -> None:
    resource = {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "MigratoryCluster",
        "metadata": {"name": "quotes"},
        "spec": {"brokers": {"pod": pod}},
    }
    with pytest.raises(KubectlError) as refused:
        kube.apply(resource)
    assert words in str(refused.value)
