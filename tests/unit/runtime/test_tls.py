"""Certificates of brokers: changed files are used without a restart once a handshake with them succeeds. Until then the
pair before them stays in use, and a failure is counted and logged. Also handshakes that are refused."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import ssl
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from migratory_broker.runtime.accepting.listener import TLS_HANDSHAKE_BYTES, Acceptor, ConnectionStarter, bind, listen
from migratory_broker.runtime.clients.handshake_queue import DeferredHandshake
from migratory_broker.runtime.clients.service import ClientService, client_byte_limits
from migratory_broker.runtime.config import CertificateSection, parse
from migratory_broker.runtime.errors import TlsError
from migratory_broker.runtime.pump import Pump
from migratory_broker.runtime.tls import Certificate, Purpose, _handshake, names_of
from migratory_local.cluster import certificates
from migratory_local.cluster.certificates import DevelopmentAuthority
from migratory_testing.waiting import until


class Files:
    """The certificate files of broker b0, issued by an authority of the test."""

    def __init__(self, folder: Path, log: Any) -> None:
        self.folder = folder
        self.log = log
        self.authority = DevelopmentAuthority()
        self.now = 0.0
        self.write(self.authority.certificate, *self.authority.issue(["b0"]))

    def write(self, ca: bytes | None = None, cert: bytes | None = None, key: bytes | None = None) -> None:
        """Replace those files that are given, as a whole."""
        for name, data in (("ca.crt", ca), ("b0.crt", cert), ("b0.key", key)):
            if data is not None:
                (self.folder / "new").write_bytes(data)
                os.replace(self.folder / "new", self.folder / name)

    def load(self, purpose: Purpose = "peers", name: str = "b0") -> Certificate:
        paths = [str(self.folder / f"{{broker}}.{kind}").replace("{broker}", "b0") for kind in ("crt", "key")]
        ca = str(self.folder / "ca.crt") if purpose in ("peers", "zookeeper") else ""
        return Certificate(purpose, CertificateSection(cert=paths[0], key=paths[1], ca=ca), name, self.log)

    def tick(self, certificate: Certificate) -> bool:
        """Advance the clock by 10 s, and let the certificate check its files. Return whether it uses another pair
        now."""
        before = certificate.server
        self.now += 10
        certificate.tick(self.now)
        return certificate.server is not before


@pytest.fixture
def files(tmp_path: Path, log: Any) -> Files:
    return Files(tmp_path, log)


def handshake(one: Certificate, other: Certificate, name: str) -> str:
    """Connect `one` to `other` in memory as to the broker `name`. Return the first name in the certificate of `other`.
    Raise SSLError if either refuses the other."""
    return names_of(_handshake(other.server, one.client, name))[0]


@pytest.mark.parametrize("purpose", ["peers", "clients", "zookeeper", "administration"])
def test_new_pair_serves_without_a_restart(files: Files, purpose: Purpose) -> None:
    certificate = files.load(purpose)
    assert not files.tick(certificate)
    before = certificate.expires_at
    files.write(None, *files.authority.issue(["b0"], validity=timedelta(days=60)))
    assert files.tick(certificate)
    assert certificate.expires_at > before + 86_400
    assert files.log.events() == ["certificate_loaded"]
    certificate.tick(files.now + 0.1)  # too soon: nothing is read


@pytest.mark.parametrize("purpose", ["peers", "clients", "zookeeper"])
@pytest.mark.parametrize("first", ["certificate", "key"])
def test_half_replaced_pair_is_not_used(files: Files, purpose: Purpose, first: str) -> None:
    certificate = files.load(purpose)
    cert, key = files.authority.issue(["b0"])
    files.write(cert=cert) if first == "certificate" else files.write(key=key)
    assert not files.tick(certificate)
    assert not files.tick(certificate)
    # counted at each attempt, logged once for each change
    assert (certificate.failures, files.log.events()) == (2, ["certificate_rejected"])
    files.write(key=key) if first == "certificate" else files.write(cert=cert)
    assert files.tick(certificate)


@pytest.mark.parametrize("name", ["b0.crt", "b0.key", "ca.crt"])
def test_truncated_and_missing_files_are_not_used(files: Files, name: str) -> None:
    certificate = files.load()
    whole = (files.folder / name).read_bytes()
    for part in (whole[: len(whole) // 2], b""):
        (files.folder / name).write_bytes(part)
        assert not files.tick(certificate)
    (files.folder / name).unlink()
    assert not files.tick(certificate)
    assert certificate.failures == 3
    assert all(line["purpose"] == "peers" and name in line["reason"] for line in files.log.lines)
    (files.folder / name).write_bytes(whole)
    assert files.tick(certificate)


def test_files_that_cannot_be_read_are_tried_again(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of the files stays, as with a key that becomes readable for the broker after it was replaced."""
    certificate = files.load()
    files.write(None, *files.authority.issue(["b0"]))
    errors = iter([OSError(errno.EMFILE, "Too many open files"), *[PermissionError(errno.EACCES, "denied")] * 2])

    def unreadable(*_: Any) -> None:
        raise next(errors)

    with monkeypatch.context() as patched:
        patched.setattr(ssl.SSLContext, "load_cert_chain", unreadable)
        assert not any(files.tick(certificate) for _ in range(3))
    assert [line["reason"].partition("] ")[2] for line in files.log.lines] == ["Too many open files", "denied"]
    assert files.tick(certificate)
    assert certificate.failures == 3
    assert files.log.events()[2:] == ["certificate_loaded"]
    assert not files.tick(certificate)


async def test_certificate_is_used_as_soon_as_it_is_valid(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = files.load()
    with monkeypatch.context() as patched:
        patched.setattr(certificates, "_BACKDATED", timedelta(seconds=-2))
        files.write(None, *files.authority.issue(["b0"]))
    assert not files.tick(certificate)
    assert "not yet valid" in files.log.lines[-1]["reason"]
    await until(lambda: files.tick(certificate))
    assert files.log.events() == ["certificate_rejected", "certificate_loaded"]


def test_rsa_key_is_followed_by_one_on_a_curve(files: Files) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    files.write(None, *files.authority.issue(["b0"], key=key))
    certificate = files.load()
    assert handshake(certificate, certificate, "b0") == "b0"
    files.write(None, *files.authority.issue(["b0"]))
    assert files.tick(certificate)
    assert handshake(certificate, certificate, "b0") == "b0"


def test_change_of_the_authority(files: Files, tmp_path: Path) -> None:
    """Two brokers change their authority in three steps, one broker after the other: trust both authorities, use new
    pairs, trust the new authority alone. After each change both accept each other's handshakes."""
    brokers = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        for file in ("ca.crt", "b0.crt", "b0.key"):
            shutil.copy(tmp_path / file, tmp_path / name / file)
        own = Files.__new__(Files)
        own.folder, own.log, own.now, own.authority = tmp_path / name, files.log, 0.0, files.authority
        brokers.append((own, own.load()))
    after = DevelopmentAuthority()
    both = files.authority.certificate + after.certificate
    steps: list[tuple[bytes | None, bool]] = [(both, False), (None, True), (after.certificate, False)]
    for ca, pair in steps:
        for own, certificate in brokers:
            own.write(ca, *(after.issue(["b0"]) if pair else (None, None)))
            assert own.tick(certificate)
            assert handshake(brokers[0][1], brokers[1][1], "b0") == "b0"
            assert handshake(brokers[1][1], brokers[0][1], "b0") == "b0"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("authority", "certificate"),
        ("name", "b0"),
        ("expired", "expired"),
    ],
)
def test_pair_that_peers_would_refuse_is_not_used(files: Files, wrong: str, reason: str) -> None:
    certificate = files.load()
    issued = {
        "authority": lambda: DevelopmentAuthority().issue(["b0"]),
        "name": lambda: files.authority.issue(["b1"]),
        "expired": lambda: files.authority.issue(["b0"], validity=timedelta(seconds=-60)),
    }[wrong]()
    files.write(None, *issued)
    assert not files.tick(certificate)
    assert reason in files.log.lines[-1]["reason"]
    with pytest.raises(TlsError, match=reason) as error:
        files.load()
    assert str(error.value).startswith("tls.peers: ")
    assert error.value.code == 2


def test_expired_certificate_for_clients_is_not_used(files: Files) -> None:
    files.write(None, *files.authority.issue(["b0"], validity=timedelta(seconds=-60)))
    with pytest.raises(TlsError, match="expired"):
        files.load("clients")


def test_certificate_for_zookeeper(files: Files) -> None:
    """It needs no name and no usage of a server, and may be of another authority than that of ZooKeeper's members."""
    own = DevelopmentAuthority()
    member = files.load("clients")
    member.server.verify_mode = ssl.CERT_REQUIRED
    member.server.load_verify_locations(cadata=own.certificate.decode())
    files.write(None, *own.issue(["anything"]))
    certificate = files.load("zookeeper")
    assert handshake(certificate, member, "b0") == "b0"
    with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
        handshake(certificate, member, "b1")
    before = certificate.expires_at
    files.write(None, *own.issue(["anything"], validity=timedelta(seconds=-60)))
    assert not files.tick(certificate)
    assert "expired" in files.log.lines[-1]["reason"]
    files.write(None, *own.issue(["anything"], validity=timedelta(days=60)))
    assert files.tick(certificate)
    assert certificate.expires_at > before
    files.write(own.certificate)  # another authority of the members
    assert files.tick(certificate)
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        handshake(certificate, member, "b0")


def test_stranger_gets_no_handshake(files: Files) -> None:
    """A handshake fails if the client has no certificate, and if the server's certificate lacks the name that the
    client dialled."""
    certificate = files.load()
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.load_verify_locations(files.folder / "ca.crt")
    with pytest.raises(ssl.SSLError):
        _handshake(certificate.server, stranger, "b0")
    with pytest.raises(ssl.SSLError):
        handshake(certificate, certificate, "b1")  # the name that was dialled


def test_refused_handshakes_are_counted_and_logged_seldom(files: Files) -> None:
    certificate = files.load()
    for _ in range(3):
        certificate.refuse("192.0.2.1", ssl.SSLError("no certificate"))
    assert certificate.refused == 3
    assert files.log.events() == ["tls_refused"]


def test_names_of_nothing() -> None:
    assert names_of(None) == []


class Lease:
    """A lease of a connection's address that records its release."""

    released = 0

    def release(self) -> None:
        self.released += 1


class Echo(asyncio.Protocol):
    """An HTTP protocol's stand-in that answers what it receives."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def count_received(self, size: int) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@pytest.mark.parametrize("client", ["trusting", "silent", "plain"])
async def test_connection_gives_back_its_lease_however_its_handshake_ends(files: Files, client: str) -> None:
    certificate, lease = files.load("clients"), Lease()
    loop = asyncio.get_running_loop()

    def defer(action: Any, argument: Any, _: float = 0.0) -> None:
        loop.call_soon(action, argument)

    listening = listen(bind("127.0.0.1", 0, "clients"), "clients")
    start = ConnectionStarter(
        Echo,
        tls=lambda: certificate.server,
        tls_timeout=0.2,
        on_tls_failure=certificate.refuse,
        wrap=lambda http, accepted, lease: DeferredHandshake(http, None, defer, lease),
    )
    context = ssl.create_default_context(cafile=str(files.folder / "ca.crt")) if client == "trusting" else None
    name = "b0" if context is not None else None
    listening.setblocking(False)
    connecting = asyncio.create_task(
        asyncio.open_connection(*listening.getsockname(), ssl=context, server_hostname=name)
    )
    accepted, _ = await loop.sock_accept(listening)
    start(accepted, lease)  # type: ignore[arg-type]
    reader, writer = await connecting
    if client != "silent":
        writer.write(b"hello")
    if client == "trusting":
        assert await reader.readexactly(5) == b"hello"
        assert lease.released == 0
        writer.close()
    else:
        with suppress(OSError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
    await until(lambda: lease.released == 1)
    assert certificate.refused == (client != "trusting")
    listening.close()


async def test_unfinished_handshakes_of_clients_are_limited_and_counted(files: Files, core: Any, log: Any) -> None:
    """At the limit the oldest one of the address with the most ends."""
    certificate, loop = files.load("clients"), asyncio.get_running_loop()
    total = 20 * TLS_HANDSHAKE_BYTES * 4 // 3  # of a process: three quarters are for whole messages
    document = {
        "cluster": "quotes",
        "brokers": ["b0"],
        "zookeeper": {"servers": "zk:2181"},
        "limits": {"inputTotal": 4 * total, "maxPayload": 1000},
        "delivery": {"minCopies": 1},
        "ioProcesses": 4,
        "tls": {"clients": {"cert": "used.crt", "key": "used.key"}},
    }
    config = parse(json.dumps(document).encode())
    assert client_byte_limits(config)["handshakes"] == 4 * total + 2 * total  # of TLS and of HTTP
    pump = Pump(core(), loop.call_soon, time.monotonic, lambda error: None)
    service = ClientService(config, "b0", pump, time.monotonic, certificate)
    acceptor = Acceptor(listen(bind("127.0.0.1", 0, "clients"), "clients"), service.start_connection, log)
    address = acceptor._socket.getsockname()
    silent = [await asyncio.open_connection(*address) for _ in range(20 + 2)]
    for reader, _ in silent[:2]:
        assert await asyncio.wait_for(reader.read(), 5) == b""
    await until(lambda: len(service.start_connection) == 20)
    counts = service.handshake_counts()
    assert counts["handshakes_waiting"] == 20
    assert counts["handshake_bytes_waiting"] == 20 * TLS_HANDSHAKE_BYTES
    assert counts["handshakes_evicted"] == certificate.refused == 2
    context = ssl.create_default_context(cafile=str(files.folder / "ca.crt"))
    reader, writer = await asyncio.open_connection(*address, ssl=context, server_hostname="b0")
    writer.write(b"GET /v1/servers HTTP/1.1\r\nHost: b0\r\n\r\n")
    assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 200")
    assert service.handshake_counts()["handshakes_evicted"] == 3
    for _, opened in [*silent, (reader, writer)]:
        opened.close()
    await until(lambda: not service.load)
    acceptor.close()
    await service.close()
