"""A broker that reaches ZooKeeper by mutual TLS only, and one that does not trust the authority of its members."""

from __future__ import annotations

from pathlib import Path

import pytest
from migratory_local.cluster.certificates import DevelopmentAuthority
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble
from migratory_local.processes.network import free_ports
from migratory_testing.processes import Brokers

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

SETTINGS = """\
secureClientPort={port}
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.location={folder}/member.pem
ssl.keyStore.type=PEM
ssl.trustStore.location={folder}/ca.crt
ssl.trustStore.type=PEM
"""


def test_broker_uses_tls_to_zookeeper_and_names_a_handshake_that_fails(tmp_path: Path) -> None:
    authority, other = DevelopmentAuthority(), DevelopmentAuthority()
    certificate, key = authority.issue(["127.0.0.1"])
    files = {"ca.crt": authority.certificate, "member.pem": key + certificate, "other.crt": other.certificate}
    for name, content in (files | {"broker.crt": certificate, "broker.key": key}).items():
        (tmp_path / name).write_bytes(content)
    (port,) = free_ports(1)
    ensemble = ZooKeeperEnsemble(tmp_path / "zookeeper", 1)
    with (tmp_path / "zookeeper" / "zookeeper-0" / "zoo.cfg").open("a") as file:
        file.write(SETTINGS.format(port=port, folder=tmp_path))
    tls = {"cert": str(tmp_path / "broker.crt"), "key": str(tmp_path / "broker.key"), "ca": str(tmp_path / "ca.crt")}
    with ensemble, Brokers(tmp_path / "b", f"127.0.0.1:{port}", size=1, delivery={"minCopies": 1}) as brokers:
        broker = brokers["b0"]
        brokers.configure(tls={"zookeeper": tls})
        brokers.start_all()
        broker.kill()
        brokers.configure(
            tls={"zookeeper": {**tls, "ca": str(tmp_path / "other.crt")}},
            zookeeper={"servers": f"127.0.0.1:{port}", "startTimeout": 4.0},
        )
        broker.start()
        assert "certificate" in broker.event("zookeeper_tls_failed")["reason"]
        assert broker.wait(30) == 4
