"""Secrets that are rewritten under load: the certificates of clients, peers and ZooKeeper, and the keys of tokens."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from datetime import timedelta

import pytest
from migratory_local.cluster.certificates import DevelopmentAuthority
from migratory_node.kubectl import Kubectl
from migratory_node.load import LoadPod, assert_nothing_lost
from migratory_node.pods import Pods, make_cluster, urls
from migratory_testing.tokens import key_set, public_jwk, sign

pytestmark = pytest.mark.timeout(600)
PODS = ("quotes-broker-0", "quotes-broker-1", "quotes-zookeeper-0")
EXPIRY = "migratory_certificate_expiry_timestamp_seconds"
SHOW = "import ssl; print(ssl.get_server_certificate(('127.0.0.1', {})))"


def write_secret(kube: Kubectl, name: str, files: Mapping[str, bytes]) -> None:
    data = {file: base64.b64encode(content).decode() for file, content in files.items()}
    kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data})


def keys(*names: str) -> dict[str, bytes]:
    return {"keys.json": key_set(*(public_jwk("ES256", name) for name in names))}


def token(key: str) -> str:
    now = time.time()
    return sign({"sub": "load", "iat": now, "exp": now + 3600}, "ES256", key)


def shown(kube: Kubectl, pod: str, port: int) -> str:
    """Return the certificate that is shown at a port of a pod, as PEM."""
    return kube("exec", pod, "--", "python3", "-c", SHOW.format(port)).strip()


def processes(kube: Kubectl) -> dict[str, tuple[str, int]]:
    """Return each pod's uid, and how often its containers were restarted."""
    found = {name: kube.get("pod", name) or {} for name in PODS}
    return {
        name: (pod["metadata"]["uid"], sum(one["restartCount"] for one in pod["status"]["containerStatuses"]))
        for name, pod in found.items()
    }


def publish(kube: Kubectl, name: str, key: str) -> tuple[str, str]:
    """Publish with a token of this key, and with trust in the second authority alone. Return phase and log."""
    pods = Pods(kube)
    server = ("--server", urls(kube, "quotes"))
    pods.start(name, "pub", "other", "x", *server, "--token", token(key), trusted="second")
    return pods.end(name)


def test_certificates_and_keys_are_replaced_under_load_and_no_pod_is(kube: Kubectl) -> None:
    """The pair of all ports is replaced by one of another authority, and of two keys of tokens one by a third. Clients
    stay connected, nothing is lost, and new connections see the new pair and need the new keys."""
    first, second = DevelopmentAuthority("first"), DevelopmentAuthority("second")
    hosts = [f"*.quotes-{part}.{kube.namespace}.svc" for part in ("broker", "zookeeper")]
    authorities = first.certificate + second.certificate
    certificates = [
        {"tls.crt": certificate, "tls.key": key, "ca.crt": authorities}
        for certificate, key in (
            authority.issue([*PODS, *hosts], validity=timedelta(days=days))
            for authority, days in ((first, 20), (second, 30))
        )
    ]
    write_secret(kube, "certificates", certificates[0])
    write_secret(kube, "keys", keys("a", "b"))
    write_secret(kube, "both", {"ca.crt": authorities})
    write_secret(kube, "second", {"ca.crt": second.certificate})
    spec = {
        "brokers": {"replicas": 2},
        "zookeeper": {"replicas": 1},
        "delivery": {"minCopies": 1},
        "security": {
            "tokens": {"keys": [{"algorithms": ["ES256"], "secret": {"name": "keys", "key": "keys.json"}}]},
            "rules": [{"topics": ["**"], "allow": ["subscribe", "publish", "history"]}],
            "tls": {purpose: {"secretName": "certificates"} for purpose in ("clients", "peers", "zookeeper")},
        },
    }
    make_cluster(kube, spec)
    LoadPod(kube, "load").start("both", subscribers=30, topics=10, rate=2.0, publishers=2, token=token("b"))
    before = processes(kube)

    def expiries() -> set[float]:
        """Return when the certificates in use expire, of all purposes and brokers."""
        lines = [line for pod in PODS[:2] for line in kube.request_pod(pod, 8082, "/metrics").splitlines()]
        values = [float(line.split()[-1]) for line in lines if line.startswith(EXPIRY + "{")]
        assert len(values) == 6
        return set(values)

    def knows_keys(pod: str) -> bool:
        return "credentials_changed" in kube.request(f"/api/v1/namespaces/{kube.namespace}/pods/{pod}/log")

    (old,) = expiries()
    write_secret(kube, "certificates", certificates[1])
    write_secret(kube, "keys", keys("b", "c"))
    # The kubelet looks at a pod's Secrets about once a minute, and at once when something of the pod changes.
    kube("annotate", "pods", *PODS, "rotated=true")
    kube.until(lambda: len(now := expiries()) == 1 and old not in now, "all brokers use the new pair", 150)
    kube.until(lambda: all(map(knows_keys, PODS[:2])), "all brokers know the new keys", 60)
    pair = certificates[1]["tls.crt"].decode().strip()
    for pod, port in ((PODS[0], 8080), (PODS[0], 8081), (PODS[1], 8080), (PODS[1], 8081)):
        assert shown(kube, pod, port) == pair
    kube.until(lambda: shown(kube, PODS[2], 2281) == pair, "ZooKeeper uses the new pair", 150)
    assert publish(kube, "new", "c")[0] == "Succeeded"
    phase, log = publish(kube, "old", "a")
    assert (phase, "the token's key or algorithm is not accepted" in log) == ("Failed", True), log

    account = assert_nothing_lost(kube, "load", cease=True)
    assert set(account["reconnect_reasons"]) <= {"moved"}, "no connection was lost"
    assert processes(kube) == before
