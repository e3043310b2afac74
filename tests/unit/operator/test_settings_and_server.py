"""Settings from the environment, and the operator's HTTP server."""

from __future__ import annotations

import socket

import aiohttp
import pytest
from migratory_operator.main import main
from migratory_operator.settings import OperatorSettings, SettingsError, read_settings
from migratory_operator.telemetry.metrics import OperatorMetrics
from migratory_operator.telemetry.server import STUCK_SECONDS, TelemetryServer

IMAGES = {"MIGRATORY_BROKER_IMAGE": "b:1", "MIGRATORY_ZOOKEEPER_IMAGE": "z:1"}


def test_images_are_the_only_required_settings() -> None:
    assert read_settings(IMAGES) == OperatorSettings("b:1", "z:1")


def test_all_settings_are_read() -> None:
    given = {
        "MIGRATORY_PULL_POLICY": "Never",
        "MIGRATORY_PULL_SECRETS": "a, b",
        "MIGRATORY_NAMESPACES": "one,two",
        "MIGRATORY_RESYNC_SECONDS": "2.5",
        "MIGRATORY_LISTEN_PORT": "9000",
        "MIGRATORY_SPARK_IMAGE": "s:1",
        "MIGRATORY_BROKER_SECRET": "/etc/secret",
    }
    assert read_settings({**IMAGES, **given}) == OperatorSettings(
        "b:1", "z:1", "s:1", "Never", ("a", "b"), ("one", "two"), 2.5, 9000, broker_secret="/etc/secret"
    )


def test_settings_of_service_monitors_are_read() -> None:
    given = {"MIGRATORY_MONITOR_INTERVAL": "5s", "MIGRATORY_MONITOR_LABELS": "release=watch, team="}
    settings = read_settings({**IMAGES, **given})
    assert settings.monitor_interval == "5s"
    assert settings.monitor_labels == (("release", "watch"), ("team", ""))


def test_monitors_are_namespaces_and_labels() -> None:
    given = {"MIGRATORY_MONITORS": "monitoring, watch/app.kubernetes.io/name=prometheus,*"}
    assert read_settings({**IMAGES, **given}).monitors == (
        ("monitoring", ""), ("watch", "app.kubernetes.io/name=prometheus"), ("*", "")
    )  # fmt: skip


def test_settings_of_reports_are_read() -> None:
    given = {
        "MIGRATORY_REPORTS_ENABLED": "true",
        "MIGRATORY_REPORTS_POD_CONTENT": "true",
        "MIGRATORY_REPORTS_ALLOWED_IMAGES": "example/*",
        "MIGRATORY_REPORTS_ALLOWED_PROMETHEUS": "http://prometheus.monitoring:9090, https://*.example.com/prom",
    }
    settings = read_settings({**IMAGES, **given})
    assert (settings.reports_enabled, settings.allowed_images) == (True, ("example/*",))
    assert settings.reports_pod_content is True
    assert read_settings(IMAGES).reports_pod_content is False
    assert settings.allowed_prometheus == ("http://prometheus.monitoring:9090", "https://*.example.com/prom")
    assert read_settings({**IMAGES, "MIGRATORY_REPORTS_ENABLED": ""}).reports_enabled is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MONITORS", "Monitoring"),
        ("MONITORS", "monitoring/app"),
        ("MONITORS", "*/app=prometheus"),
        ("REPORTS_ENABLED", "yes"),
        ("REPORTS_ALLOWED_PROMETHEUS", "*"),
        ("REPORTS_ALLOWED_PROMETHEUS", "http://me:secret@prometheus"),
        ("MONITOR_LABELS", "release"),
        ("BROKER_IMAGE", ""),
        ("PULL_POLICY", "Sometimes"),
        ("RESYNC_SECONDS", "0"),
        ("RESYNC_SECONDS", "soon"),
    ],
)
def test_an_invalid_variable_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"MIGRATORY_{name}"):
        read_settings({**IMAGES, f"MIGRATORY_{name}": value})


def test_main_exits_without_images(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("MIGRATORY_BROKER_IMAGE", raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "MIGRATORY_BROKER_IMAGE is not set" in capsys.readouterr().err


async def test_health_follows_the_beat_and_readiness_the_first_list() -> None:
    now = 0.0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = TelemetryServer(port, OperatorMetrics(), lambda: now)
    await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

            async def code(path: str) -> int:
                async with session.get(path) as answer:
                    return answer.status

            assert (await code("/healthz"), await code("/readyz")) == (200, 503)
            server.set_ready()
            assert await code("/readyz") == 200
            now = STUCK_SECONDS + 1
            assert await code("/healthz") == 503
            server.beat()
            assert await code("/healthz") == 200
            async with session.get("/metrics") as answer:
                assert 'migratory_operator_reconciles_total{result="done"} 0.0' in await answer.text()
    finally:
        await server.close()
