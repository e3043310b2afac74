"""The operator's own secrets are in no log, Event, status or other object that it writes: the token and the key with
which it asks brokers and ZooKeeper, and the secret by which a report's driver and executors know each other."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from migratory_local.cluster.certificates import DevelopmentAuthority
from migratory_operator import names
from migratory_operator.api import cluster_pods
from migratory_operator.api.cluster_pods import BrokerStatusClient
from migratory_operator.api.kubernetes import ApiError, KubernetesApi
from migratory_operator.leases import Leases
from migratory_operator.names import Object
from migratory_operator.reconcile.cluster import ClusterReconciler
from migratory_operator.reports.controller import ReportController
from migratory_operator.telemetry.metrics import OperatorMetrics
from migratory_testing.fakekube import FakeKube
from migratory_testing.kubernetes import OLD, SETTINGS, cluster, pod, report

AT = "namespaces/market"
QUOTES, WEEKLY = f"{AT}/migratoryclusters/quotes", f"{AT}/slareports/weekly"
TOKEN = "token-of-the-operator-6b1f0c"


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with FakeKube() as fake:
        yield fake


@pytest.fixture
async def api(kube: FakeKube) -> AsyncIterator[KubernetesApi]:
    api = KubernetesApi((), kube.config)
    yield api
    await api.close()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


def events(kube: FakeKube) -> list[Object]:
    return [item for path, item in kube.objects.items() if "/events/" in path]


def written(kube: FakeKube, but: str = "") -> str:
    """Return all objects as text, Events and statuses included, except the one whose path ends with `but`."""
    return json.dumps([item for path, item in kube.objects.items() if not but or not path.endswith(but)])


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    authority, folder = DevelopmentAuthority(), tmp_path / "secret"
    folder.mkdir()
    certificate, key = authority.issue(["migratory-operator"])
    for name, content in (("tls.crt", certificate), ("tls.key", key), ("ca.crt", authority.certificate)):
        (folder / name).write_bytes(content)
    (folder / "token").write_text(TOKEN + "\n")
    return folder


@pytest.mark.parametrize("broken", ["", "ca.crt", "tls.key", "token"])
async def test_token_and_key_for_brokers_and_zookeeper(
    kube: FakeKube, api: KubernetesApi, secret: Path, logged: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, broken: str,
) -> None:  # fmt: skip
    """A broker refuses the token, or sends no status page; members of an old revision are asked for their modes."""
    key = (secret / "tls.key").read_text().splitlines()[1:-1]
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"ready": "no"}, status=401 if len(seen) == 1 else 200)

    app = web.Application()
    app.add_routes([web.get("/v1/status", answer)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setattr(cluster_pods, "ADMIN_PORT", runner.addresses[0][1])
    if broken:
        text = (secret / broken).read_text()
        (secret / broken).write_text(text[: len(text) // 2] + "\n" if broken != "token" else text + "\u00e9")
    kube.put(QUOTES, cluster({"security": {"tls": {"zookeeper": {"secretName": "zk"}}}}))
    brokers, settings = BrokerStatusClient(str(secret)), replace(SETTINGS, broker_secret=str(secret))
    reconciler = ClusterReconciler(api, brokers, settings, OperatorMetrics())
    try:
        for _ in range(2):
            await reconciler.reconcile("market", "quotes")
        for component in (names.BROKER, names.ZOOKEEPER):
            member = pod(f"quotes-{component}-0", component, revision=OLD, podIP="127.0.0.1")
            kube.put(f"{AT}/pods/quotes-{component}-0", {**member, "spec": {"volumes": [{"name": names.TLS_VOLUME}]}})
        for path in [path for path in kube.objects if "/statefulsets/" in path]:
            del kube.objects[path]  # its Event says that it was deleted
        for _ in range(3):
            await reconciler.reconcile("market", "quotes")
    finally:
        await brokers.close()
        await runner.cleanup()
    assert seen or broken in ("ca.crt", "token")
    assert events(kube)
    for text in (written(kube), logged.text):
        assert TOKEN not in text
        assert not [line for line in key if line in text]


@pytest.mark.parametrize("refused", ["", "jobs"])
async def test_secret_of_a_reports_run(
    kube: FakeKube, api: KubernetesApi, logged: pytest.LogCaptureFixture, refused: str
) -> None:
    kube.put(QUOTES, cluster({"sla": {"prometheus": {"url": "http://p"}, "spark": {"executors": 2}}}))
    kube.put(WEEKLY, report())
    if refused:
        kube.refuse[f"POST {AT}/{refused}"] = 403
    metrics = OperatorMetrics()
    controller = ReportController(api, SETTINGS, metrics, Leases(api, "system/migratory/one", metrics))
    try:
        for _ in range(2):
            try:
                await controller.reconcile("market", "weekly")
            except ApiError as error:
                logging.getLogger(__name__).warning("%s", error)
    finally:
        await controller.close()
    ((path, kept),) = [(path, item) for path, item in kube.objects.items() if "/secrets/" in path]
    (value,) = kept["stringData"].values()
    assert len(value) == 64
    assert value not in written(kube, but=path)
    assert value not in logged.text
