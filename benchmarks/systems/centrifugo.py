"""Centrifugo with its in-memory engine; clients may subscribe and publish without tokens."""

from __future__ import annotations

import json

from migratory_local.processes.network import free_ports

from benchmarks import peers
from benchmarks.processes import MeasurementFailed, wait_for_port
from benchmarks.systems.base import System, Workload


class Centrifugo(System):
    """One Centrifugo server, with TLS if it is asked for."""

    protocol = "centrifuge"

    def __init__(self, *, tls: bool = False) -> None:
        super().__init__("centrifugo")
        self._tls = tls

    async def start(self, work: Workload, core: int | None) -> None:
        program = peers.find("centrifugo")
        if program is None:
            raise MeasurementFailed("centrifugo is not installed; run `make bench-peers`")
        (port,) = free_ports(1)
        path = self.folder / "config.json"
        allowed = ("allow_subscribe_for_client", "allow_publish_for_client", "allow_subscribe_for_anonymous",
                   "allow_publish_for_anonymous")  # fmt: skip
        server: dict[str, object] = {"address": "127.0.0.1", "port": port}
        if self._tls:
            certificate, key = self.make_certificate()
            server["tls"] = {"enabled": True, "cert_pem": str(certificate), "key_pem": str(key)}
        config = {
            "http_server": server,
            "client": {
                "insecure": True,
                "allowed_origins": ["*"],
                "allow_anonymous_connect_without_token": True,
                "ping_interval": "30m",
                "pong_timeout": "29m",
            },
            "channel": {"without_namespace": dict.fromkeys(allowed, True)},
            "log": {"level": "error"},
            "usage_stats": {"disabled": True},
        }
        path.write_text(json.dumps(config, indent=2))
        process = self._run([program, "-c", str(path)], core)
        await wait_for_port(process, port)
        self.addresses = [("127.0.0.1", port)]
