"""TLS: certificates of servers and clients, and errors if they do not match."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from migratory_spark.prometheus import partitions
from migratory_spark.prometheus.errors import ServerError
from migratory_spark.prometheus.options import parse_options
from migratory_testing.fakeprometheus import FakePrometheus, Reply
from migratory_testing.prometheus_wire import streamed

SAMPLES = [({"__name__": "a"}, [(1000, 1.0)])]


@dataclass(slots=True)
class Certificates:
    folder: Path

    def file(self, name: str) -> str:
        return str(self.folder / name)

    def make(self, name: str, *options: str) -> None:
        command = [
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", self.file(f"{name}.key"), "-out", self.file(f"{name}.pem"), "-days", "2",
            "-subj", f"/CN={name}", *options,
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on PATH")
    certificates_ = Certificates(tmp_path_factory.mktemp("certificates"))
    by_ca = ("-CA", certificates_.file("ca.pem"), "-CAkey", certificates_.file("ca.key"))
    end = ("-addext", "basicConstraints=critical,CA:FALSE")
    certificates_.make("ca", "-addext", "keyUsage=critical,keyCertSign")
    certificates_.make("server", *by_ca, *end, "-addext", "subjectAltName=IP:127.0.0.1")
    certificates_.make("client", *by_ca, *end)
    certificates_.make("stranger")
    return certificates_


@pytest.fixture
def server(certificates: Certificates) -> Iterator[FakePrometheus]:
    """Run a server that requires a client certificate of the test's CA, and yield it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.file("server.pem"), certificates.file("server.key"))
    context.load_verify_locations(certificates.file("ca.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    with FakePrometheus(lambda _: Reply(streamed(SAMPLES)), context) as prometheus:
        yield prometheus


def read(server: FakePrometheus, **given: str) -> list[float]:
    options = parse_options({"url": server.url, "matchers": "a", "retries": "0", "timeout": "10s"} | given)
    return [value for block in partitions.read(options, 0, 2000) for value in block.values.tolist()]


def test_client_and_server_certificates_are_verified(server: FakePrometheus, certificates: Certificates) -> None:
    files = {name: certificates.file(file) for name, file in (("certFile", "client.pem"), ("keyFile", "client.key"))}
    assert read(server, caFile=certificates.file("ca.pem"), **files) == [1.0]


def test_a_server_with_an_unknown_authority_is_rejected(server: FakePrometheus, certificates: Certificates) -> None:
    for given in ({}, {"caFile": certificates.file("stranger.pem")}):
        with pytest.raises(ServerError, match=r"TLS failed: .*certificate verify failed.*see options caFile"):
            read(server, **given)
    assert server.requests == []


def test_a_missing_client_certificate_is_rejected(server: FakePrometheus, certificates: Certificates) -> None:
    with pytest.raises(ServerError, match=r"https://127.0.0.1:\d+: "):
        read(server, caFile=certificates.file("ca.pem"))
    assert server.requests == []


def test_http_to_an_https_server_is_an_error(server: FakePrometheus) -> None:
    with pytest.raises(ServerError, match=r"http://127.0.0.1:\d+: "):
        read(server, url=server.url.replace("https", "http"))
