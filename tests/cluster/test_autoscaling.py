"""Scaling by Kubernetes' autoscaler: the `scale` subresource, and a HorizontalPodAutoscaler on a metric of the pods.

The tests need the API server, its controllers and the operator. The clusters' pods fit no node, so nothing runs. A
stand-in serves the custom metrics API on this machine, in place of an adapter for Prometheus: it gives each pod its
part of a total.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml
from migratory_node.kubectl import Kubectl, KubectlError, Object
from migratory_node.paths import ROOT
from migratory_node.pods import make_cluster
from migratory_node.processes import run

pytestmark = [pytest.mark.alone, pytest.mark.timeout(600)]  # the metrics API is the whole cluster's
METRICS = "custom.metrics.k8s.io/v1beta2"
SELECTOR = "app.kubernetes.io/component=broker,app.kubernetes.io/instance=quotes,app.kubernetes.io/name=migratory"


NOWHERE: Object = {"pod": {"nodeSelector": {"test.migratory.dev/node": "none"}}}


class Adapter(ThreadingHTTPServer):
    """An HTTPS server of the custom metrics API, with the metric `migratory_clients` of pods: `total` clients, divided
    evenly among the pods that the autoscaler's selector matches."""

    def __init__(self, kube: Kubectl, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), AdapterRequest)
        self.kube, self.total = kube, 0
        self.selectors: set[str] = set()
        key, certificate = folder / "key.pem", folder / "certificate.pem"
        run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-keyout", str(key), "-out", str(certificate)])  # fmt: skip
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True)

    def values(self, selector: str) -> Object:
        self.selectors.add(selector)
        pods = [pod["metadata"]["name"] for pod in self.kube.list("pods", selector)]
        items = [
            {
                "describedObject": {"kind": "Pod", "namespace": self.kube.namespace, "name": pod, "apiVersion": "v1"},
                "metric": {"name": "migratory_clients"},
                "timestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "value": f"{self.total * 1000 // len(pods)}m",
            }
            for pod in pods
        ]
        return {"kind": "MetricValueList", "apiVersion": METRICS, "metadata": {}, "items": items}


class AdapterRequest(BaseHTTPRequestHandler):
    """A request of the API server: for the metrics that there are, or for the values of one."""

    server: Adapter

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if unquote(url.path).endswith("/pods/*/migratory_clients"):
            answer = self.server.values(parse_qs(url.query).get("labelSelector", [""])[0])
        else:
            resource = {"name": "pods/migratory_clients", "singularName": "", "namespaced": True,
                        "kind": "MetricValueList", "verbs": ["get"]}  # fmt: skip
            answer = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": METRICS, "resources": [resource]}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the test's output is for failures."""


@pytest.fixture
def adapter(kube: Kubectl, tmp_path: Path) -> Iterator[Adapter]:
    """Serve the custom metrics API, and register it with the API server, which must run on this machine."""
    server = kube("config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}")
    try:
        socket.create_server((str(urlsplit(server).hostname), 0)).close()
    except OSError:
        pytest.skip(f"{server} is not on this machine, so it can't reach the stand-in for an adapter")
    adapter = Adapter(kube, tmp_path)
    thread = threading.Thread(target=adapter.serve_forever)
    thread.start()
    port = adapter.server_address[1]
    group, _, version = METRICS.partition("/")
    name = f"{version}.{group}"
    service = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}
    spec = {
        "group": group,
        "version": version,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "insecureSkipTLSVerify": True,
        "service": {"name": "adapter", "namespace": kube.namespace, "port": port},
    }
    kube.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "adapter"}, "spec": service},
        {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name}, "spec": spec},
    )
    yield adapter
    kube("delete", "apiservice", name)
    adapter.shutdown()
    thread.join()
    adapter.server_close()


def replicas(kube: Kubectl) -> int:
    return int((kube.get("mgc", "quotes") or {})["spec"]["brokers"]["replicas"])


def test_the_scale_subresource_has_the_brokers_and_their_number(kube: Kubectl) -> None:
    make_cluster(kube, {"brokers": NOWHERE, "zookeeper": NOWHERE}, ready=False)
    path = f"/apis/migratory.dev/v1alpha1/namespaces/{kube.namespace}/migratoryclusters/quotes/scale"

    def scale() -> Object:
        found: Object = json.loads(kube.request(path))
        return found

    wanted = {"replicas": 3, "selector": SELECTOR}
    kube.until(lambda: (scale()["spec"], scale()["status"]) == ({"replicas": 3}, wanted), "status of the scale", 60)
    selected = {pod["metadata"]["name"] for pod in kube.list("pods", SELECTOR)}
    assert selected == {f"quotes-broker-{number}" for number in range(3)}, "no ZooKeeper member is measured"
    kube("patch", "mgc", "quotes", "--subresource=scale", "--type=merge", "-p", '{"spec": {"replicas": 5}}')
    assert (replicas(kube), scale()["spec"]) == (5, {"replicas": 5})
    kube.until(lambda: scale()["status"]["replicas"] == 5, "five pods", 60)
    kube.patch("mgc", "quotes", {"spec": {"brokers": {"weights": {"quotes-broker-4": 50}}}})
    for refused in (0, 2, 4):  # no broker, fewer than two copies need, and a weight of none
        with pytest.raises(KubectlError, match=r"spec\.brokers"):
            kube("scale", "mgc", "quotes", f"--replicas={refused}")
    assert replicas(kube) == 5


def declare_running(kube: Kubectl) -> bool:
    """Write into the status of each broker's pod that it runs and is ready, as the kubelet of its node would: the
    autoscaler ignores other pods. Return whether there is a pod."""
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "conditions": [ready]}
    pods = kube.list("pods", SELECTOR)
    for pod in pods:
        kube("patch", "pod", pod["metadata"]["name"], "--subresource=status", "-p", json.dumps({"status": status}))
    return bool(pods)


def test_the_autoscaler_follows_the_clients_of_all_brokers(kube: Kubectl, adapter: Adapter) -> None:
    """The example's autoscaler, with short windows, adds brokers, and asks for fewer again. It stays with that while
    the operator removes none, because it can't ask the brokers whether they can do without one."""
    one = {**NOWHERE, "replicas": 1}
    make_cluster(kube, {"brokers": one, "zookeeper": NOWHERE, "delivery": {"minCopies": 1}}, ready=False)
    example = yaml.safe_load((ROOT / "manifests" / "autoscaling" / "hpa.yaml").read_text())
    example["spec"] |= {"minReplicas": 1, "maxReplicas": 3}
    for direction in example["spec"]["behavior"].values():
        direction["stabilizationWindowSeconds"] = 0
        direction["policies"] = [{"type": "Pods", "value": 2, "periodSeconds": 15}]
    kube.until(lambda: declare_running(kube), "the first broker's pod", 60)
    adapter.total = 90_000
    kube.apply(example)
    kube.until(lambda: replicas(kube) == 3, "at most three brokers, for 90,000 clients of 20,000 each", 240)
    kube.until(
        lambda: kube.condition("quotes", "ScalingLimited", "hpa") == ("True", "TooManyReplicas"), "the limit", 60
    )
    kube.until(lambda: len(kube.list("pods", SELECTOR)) == 3, "three pods", 60)
    declare_running(kube)
    adapter.total = 10_000
    kube.until(lambda: replicas(kube) == 1, "one broker, for 10,000 clients", 240)
    adapter.selectors.clear()
    kube.until(lambda: adapter.selectors, "the next measurement", 60)
    assert (replicas(kube), len(kube.list("pods", SELECTOR))) == (1, 3)
    assert adapter.selectors == {SELECTOR}
