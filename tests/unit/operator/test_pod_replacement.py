"""Replacement of a pod by eviction or deletion, and the modes of ZooKeeper's members."""

from __future__ import annotations

import asyncio
import copy
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from migratory_local.cluster.certificates import DevelopmentAuthority
from migratory_operator import names
from migratory_operator.api.broker_status import BrokerStatusPage
from migratory_operator.api.cluster_pods import BrokerStatusClient, member_modes
from migratory_operator.api.kubernetes import POD, ApiError, KubernetesApi
from migratory_operator.names import Object
from migratory_operator.reconcile.cluster import ClusterReconciler
from migratory_operator.telemetry.metrics import OperatorMetrics
from migratory_testing.fakekube import FakeKube
from migratory_testing.kubernetes import OLD, SETTINGS, cluster, pages_of, pod, settled

AT = "namespaces/market"
ONE = {"brokers": {"replicas": 1}, "zookeeper": {"replicas": 1}, "delivery": {"minCopies": 1}}
BROKER = f"{AT}/pods/quotes-broker-0"


class FixedPages(BrokerStatusClient):
    """A stand-in for the client of status pages, which returns healthy pages without a request."""

    def __init__(self) -> None:
        """Open no HTTP session, because no requests are made."""

    async def pages(self, pods: Iterable[Object]) -> dict[str, BrokerStatusPage]:
        return pages_of(1) if list(pods) else {}


Reconcile = Callable[[], Any]


@pytest.fixture
async def reconcile(kube: FakeKube) -> AsyncIterator[Reconcile]:
    """Yield a function that reconciles a cluster of one broker, whose objects exist and whose broker pod has an old
    revision."""
    api = KubernetesApi((), kube.config)
    reconciler = ClusterReconciler(api, FixedPages(), SETTINGS, OperatorMetrics())
    kube.put(f"{AT}/migratoryclusters/quotes", cluster(ONE))
    await reconciler.reconcile("market", "quotes")
    for path, item in list(kube.objects.items()):
        if "/statefulsets/" in path:
            kube.put(path, settled(item))
    kube.put(f"{AT}/pods/quotes-zookeeper-0", pod("quotes-zookeeper-0", names.ZOOKEEPER))
    kube.put(BROKER, pod("quotes-broker-0", names.BROKER, revision=OLD))
    yield lambda: reconciler.reconcile("market", "quotes")
    await api.close()


def pod_requests(kube: FakeKube) -> list[tuple[str, str]]:
    return [(method, path) for method, path in kube.requests if "/pods/" in path and method != "GET"]


async def test_a_running_pod_is_evicted_and_the_cluster_requeued(kube: FakeKube, reconcile: Reconcile) -> None:
    assert 0 < await reconcile() < 5
    assert pod_requests(kube) == [("POST", f"{BROKER}/eviction")]
    assert BROKER not in kube.objects


async def test_an_eviction_that_the_budget_forbids_is_retried(
    kube: FakeKube, reconcile: Reconcile, caplog: pytest.LogCaptureFixture
) -> None:
    kube.protected.add(BROKER)
    with caplog.at_level(logging.INFO):
        assert await reconcile() > 0
    assert "replacing pod quotes-broker-0 failed" in caplog.text
    assert BROKER in kube.objects
    conditions = kube.objects[f"{AT}/migratoryclusters/quotes"]["status"]["conditions"]
    (text,) = [entry["message"] for entry in conditions if entry["type"] == "Progressing"]
    assert text.startswith("replacing quotes-broker-0 failed: Cannot evict pod as it would violate")
    kube.protected.clear()
    await reconcile()
    assert BROKER not in kube.objects


async def test_a_failed_eviction_is_reported_and_retried(kube: FakeKube, reconcile: Reconcile) -> None:
    kube.refuse["/eviction"] = 500
    with pytest.raises(ApiError, match="is refused"):
        await reconcile()
    conditions = kube.objects[f"{AT}/migratoryclusters/quotes"]["status"]["conditions"]
    (text,) = [entry["message"] for entry in conditions if entry["type"] == "Progressing"]
    assert "replacing quotes-broker-0 failed" in text
    kube.refuse.clear()
    await reconcile()
    assert BROKER not in kube.objects


async def test_an_empty_pod_is_deleted_whatever_the_budget(kube: FakeKube, reconcile: Reconcile) -> None:
    kube.protected.add(BROKER)
    kube.put(BROKER, pod("quotes-broker-0", names.BROKER, ready=False, revision=OLD, phase="Pending"))
    await reconcile()
    assert pod_requests(kube) == [("DELETE", BROKER)]
    assert BROKER not in kube.objects


async def test_another_pod_of_the_same_name_is_not_deleted(kube: FakeKube) -> None:
    api = KubernetesApi((), kube.config)
    observed = pod("quotes-broker-0", names.BROKER)
    kube.put(BROKER, {**observed, "metadata": {**observed["metadata"], "uid": "of another one"}})
    try:
        await api.delete(POD, observed)
        assert await api.evict(observed) == ""
        assert kube.objects[BROKER]["metadata"]["uid"] == "of another one"
        del kube.objects[BROKER]
        await api.delete(POD, observed)
        assert await api.evict(observed) == "", "a pod that is gone is no error"
    finally:
        await api.close()


def listening(member: Object, port: int, *volumes: str) -> Object:
    """Return the pod with a container that listens for ZooKeeper's clients, and with these volumes."""
    container = {"name": "zookeeper", "ports": [{"name": "zookeeper", "containerPort": port}]}
    return {**member, "spec": {"containers": [container], "volumes": [{"name": name} for name in volumes]}}


async def member_server(answer: bytes, tls: ssl.SSLContext | None = None) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(4) == b"srvr"
        writer.write(answer)
        await writer.drain()
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)


@pytest.mark.parametrize(
    ("answer", "mode"),
    [
        (b"Zookeeper version: 3.9\nLatency min/avg/max: 0/0/0\nMode: leader\nNode count: 5\n", "leader"),
        (b"Mode: follower\n", "follower"),
        (b"This ZooKeeper instance is not currently serving requests\n", None),
        (b"", None),
    ],
)
async def test_a_members_mode_is_read_from_srvr(answer: bytes, mode: str | None) -> None:
    async with await member_server(answer) as server:
        port = server.sockets[0].getsockname()[1]
        members = [
            listening(pod(f"quotes-zookeeper-{number}", names.ZOOKEEPER, podIP=address), port)
            for number, address in enumerate(("127.0.0.1", "127.0.0.2", ""))
        ]
        modes = await member_modes(members)
    assert modes == ({} if mode is None else {"quotes-zookeeper-0": mode})


@pytest.mark.parametrize("known", [True, False])
async def test_a_member_with_tls_is_asked_with_the_operators_certificate(known: bool, tmp_path: Path) -> None:
    """The member's certificate must have its name, and the operator's one the member's authority."""
    authority, secret = DevelopmentAuthority(), tmp_path / "secret"
    secret.mkdir()
    certificate, key = authority.issue(["quotes-zookeeper-0.quotes-zookeeper.market.svc"])
    own, own_key = authority.issue(["migratory-operator"])
    (tmp_path / "member.pem").write_bytes(key + certificate)
    (secret / "ca.crt").write_bytes(authority.certificate)
    if known:
        (secret / "tls.crt").write_bytes(own)
        (secret / "tls.key").write_bytes(own_key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(secret / "ca.crt"))
    tls.load_cert_chain(tmp_path / "member.pem")
    tls.verify_mode = ssl.CERT_REQUIRED
    async with await member_server(b"Mode: leader\n", tls) as server:
        port = server.sockets[0].getsockname()[1]
        members = [
            listening(pod(f"quotes-zookeeper-{number}", names.ZOOKEEPER, podIP="127.0.0.1"), port, names.TLS_VOLUME)
            for number in range(2)
        ]
        assert await member_modes(members, str(secret)) == ({"quotes-zookeeper-0": "leader"} if known else {})


async def test_what_a_webhook_changes_back_is_reported_and_pods_are_replaced(
    kube: FakeKube, reconcile: Reconcile
) -> None:
    brokers = f"{AT}/statefulsets/quotes-broker"
    changed_back = {"spec": {"podManagementPolicy": "OrderedReady"}}
    kube.admit[brokers] = changed_back
    kube.put(brokers, {**kube.objects[brokers], "spec": {**kube.objects[brokers]["spec"], **changed_back["spec"]}})
    await reconcile()
    degraded = next(
        entry
        for entry in kube.objects[f"{AT}/migratoryclusters/quotes"]["status"]["conditions"]
        if entry["type"] == "Degraded"
    )
    assert (degraded["status"], degraded["reason"]) == ("True", "ApplyIneffective")
    assert ".spec.podManagementPolicy is still not" in degraded["message"]
    assert pod_requests(kube) == [("POST", f"{BROKER}/eviction")]


async def test_a_foreign_entry_for_which_an_apply_is_rejected_is_removed(kube: FakeKube, reconcile: Reconcile) -> None:
    service = f"{AT}/services/quotes-clients"
    theirs = copy.deepcopy(kube.objects[service])
    theirs["spec"]["ports"] = [{**theirs["spec"]["ports"][0], "name": "extra", "port": 9999}]
    kube.put(service, theirs)
    kube.crowded.add(service)
    await reconcile()
    assert [port["name"] for port in kube.objects[service]["spec"]["ports"]] == ["clients"]
    removals = [method for method, path in kube.requests if path == service and method == "PATCH"]
    assert len(removals) == 4, "its creation, the rejected apply, the removal, the apply"
