"""Mutual TLS of ZooKeeper: of an ensemble of three real members on all ports, whose certificate is replaced, and of a
broker."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from migratory_local.cluster.certificates import DevelopmentAuthority
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble, ZooKeeperMember, ZooKeeperTls
from migratory_node.paths import ROOT
from migratory_testing.processes import Brokers
from migratory_testing.waiting import poll

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

COMMAND = ROOT / "docker" / "zookeeper" / "certificates"
"""The command of the ZooKeeper image that makes the members' files from a Secret."""


class Secret:
    """A folder as Kubernetes mounts a Secret, and the members' files that are made from it."""

    def __init__(self, folder: Path) -> None:
        self.mounted, self.target = folder / "secret", folder / "tls"
        self.mounted.mkdir()
        self._version = 0
        for name in ("tls.crt", "tls.key", "ca.crt"):
            (self.mounted / name).symlink_to(Path("..data", name))
        self.tls = ZooKeeperTls(self.target / "member.pem", self.target / "ca.crt")

    def replace(self, certificate: bytes, key: bytes, authority: bytes) -> subprocess.CompletedProcess[str]:
        """Replace all files at once, as the kubelet does, and run the image's command."""
        self._version += 1
        version = self.mounted / f"..{self._version}"
        version.mkdir()
        for name, content in (("tls.crt", certificate), ("tls.key", key), ("ca.crt", authority)):
            (version / name).write_bytes(content)
        (self.mounted / "..new").symlink_to(version.name)
        (self.mounted / "..new").rename(self.mounted / "..data")
        command = [str(COMMAND), str(self.mounted), str(self.target)]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path)


@pytest.fixture
def authority() -> DevelopmentAuthority:
    return DevelopmentAuthority()


@pytest.fixture
def ensemble(tmp_path: Path, secret: Secret, authority: DevelopmentAuthority) -> Iterator[ZooKeeperEnsemble]:
    done = secret.replace(*authority.issue(["127.0.0.1"]), authority.certificate)
    assert done.returncode == 0, done.stderr
    with ZooKeeperEnsemble(tmp_path / "zookeeper", 3, tls=secret.tls) as running:
        yield running


def answer(port: int, context: ssl.SSLContext | None, request: bytes) -> bytes:
    """Return the first bytes that a port answers; empty if it ends the connection or answers nothing."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            if context is None:
                connection.sendall(request)
                return connection.recv(4096)
            with context.wrap_socket(connection, server_hostname="127.0.0.1") as secured:
                secured.sendall(request)
                return secured.recv(4096)
    except OSError:
        return b""


ELECTION = (
    (2**64 - 65536).to_bytes(8, "big")  # the version of the protocol
    + (4).to_bytes(8, "big")  # the id of the member that connects, which is none of the ensemble
    + len(b"127.0.0.1:1").to_bytes(4, "big")
    + b"127.0.0.1:1"
)
"""The first message of a member on the election port, of which a real member logs the connection."""


def test_ports_are_closed_to_those_without_a_certificate(
    ensemble: ZooKeeperEnsemble, secret: Secret, authority: DevelopmentAuthority, tmp_path: Path
) -> None:
    other = DevelopmentAuthority()
    certificate, key = other.issue(["127.0.0.1"])
    (tmp_path / "other.pem").write_bytes(key + certificate)
    anonymous, foreign, right = (ssl.create_default_context(cafile=str(secret.tls.authority)) for _ in range(3))
    foreign.load_cert_chain(tmp_path / "other.pem")
    right.load_cert_chain(secret.tls.identity)
    leader = ensemble.leader()
    assert leader is not None
    for member in ensemble.members:
        assert b"Mode: " in answer(member.port, right, b"srvr")
        for context in (None, anonymous, foreign):
            assert answer(member.port, context, b"srvr") == b""
    # TLS 1.2 ends a handshake without a certificate before anything can be sent, so that its end says who got through.
    for context in (anonymous, foreign, right):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    for port in (leader.quorum_port, *(member.election_port for member in ensemble.members)):
        assert shakes_hands(port, right)
        assert not shakes_hands(port, anonymous)
        assert not shakes_hands(port, foreign)
        assert answer(port, None, ELECTION) == b""
    assert all(member.mode() for member in ensemble.members)


def shakes_hands(port: int, context: ssl.SSLContext) -> bool:
    try:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
            context.wrap_socket(connection, server_hostname="127.0.0.1"),
        ):
            return True
    except ssl.SSLError:
        return False


def test_member_of_another_authority_does_not_join(tmp_path: Path, ensemble: ZooKeeperEnsemble, secret: Secret) -> None:
    member = next(member for member in ensemble.members if member.mode() == "follower")
    ensemble.kill(member)
    certificate, key = DevelopmentAuthority().issue(["127.0.0.1"])
    (tmp_path / "wrong.pem").write_bytes(key + certificate)
    config = member.folder / "zoo.cfg"
    right = config.read_text()
    config.write_text(right.replace(str(secret.tls.identity), str(tmp_path / "wrong.pem")))
    member.process.start()
    others = [other for other in ensemble.members if other is not member]
    refused = b"Exception reading or writing challenge"
    poll(lambda: all(refused in other.process.log.read_bytes() for other in others), "both others refuse it", 60)
    assert [member.mode() for member in ensemble.members if member.mode()] == [other.mode() for other in others]
    ensemble.kill(member)
    config.write_text(right)
    member.process.start()
    poll(member.mode, "the member serves with its own certificate", 60)


def test_member_with_another_name_leads_nobody(tmp_path: Path, secret: Secret, authority: DevelopmentAuthority) -> None:
    assert secret.replace(*authority.issue(["quotes-zookeeper-0"]), authority.certificate).returncode == 0
    ensemble = ZooKeeperEnsemble(tmp_path / "zookeeper", 3, tls=secret.tls)
    try:
        ensemble.start()
        log = ensemble.members[0].process.log
        poll(
            lambda: log.exists() and b"match any of the subject alternative names" in log.read_bytes(),
            "a name is refused",
            60,
        )
        assert all(member.mode() is None for member in ensemble.members)
    finally:
        ensemble.stop()


def test_certificate_and_authority_are_replaced_while_members_run(
    ensemble: ZooKeeperEnsemble, secret: Secret, authority: DevelopmentAuthority
) -> None:
    after, namesake = DevelopmentAuthority("after"), DevelopmentAuthority()
    both = authority.certificate + after.certificate
    old, new = authority.issue(["127.0.0.1"]), after.issue(["127.0.0.1"])
    assert secret.replace(*old, both).returncode == 0
    poll(lambda: all(shown(member, both) == old[0] for member in ensemble.members), "all show the pair", 30)

    for certificate, key, trusted, reason in (
        (new[0], old[1], both, "KEY_VALUES_MISMATCH"),
        (new[0][:200], new[1], both, "cannot be used"),
        (*new, b"", "cannot be used"),
        (*old, authority.certificate + namesake.certificate, "allowed: different subjects"),
        (new[0], new[1].replace(b"PRIVATE", b"EC PRIVATE"), both, "allowed: PKCS #8"),
    ):
        done = secret.replace(certificate, key, trusted)
        assert done.returncode == 1
        assert reason in done.stderr
    assert all(shown(member, both) == old[0] for member in ensemble.members)

    assert secret.replace(*new, both).returncode == 0
    poll(lambda: all(shown(member, both) == new[0] for member in ensemble.members), "all show the pair", 30)
    assert secret.replace(*new, after.certificate).returncode == 0
    leader = ensemble.leader()
    assert leader is not None
    ensemble.kill(leader)  # all other members connect anew, with the new pairs
    poll(lambda: (found := ensemble.leader()) is not None and found is not leader, "there is a leader", 30)
    leader.process.start()
    poll(lambda: all(member.mode() for member in ensemble.members), "all members serve", 30)


def shown(member: ZooKeeperMember, authorities: bytes) -> bytes | None:
    """Return the certificate of a member as PEM, or None if it does not answer."""
    context = ssl.create_default_context(cadata=authorities.decode())
    try:
        with (
            socket.create_connection(("127.0.0.1", member.port), timeout=5) as connection,
            context.wrap_socket(connection, server_hostname="127.0.0.1") as secured,
        ):
            found = secured.getpeercert(binary_form=True)
    except OSError:
        return None
    assert found is not None
    return ssl.DER_cert_to_PEM_cert(found).encode()


def test_broker_uses_tls_to_zookeeper_and_names_a_handshake_that_fails(
    tmp_path: Path, ensemble: ZooKeeperEnsemble, secret: Secret
) -> None:
    (tmp_path / "other.crt").write_bytes(DevelopmentAuthority().certificate)
    tls = {name: str(secret.mounted / f"tls.{end}") for name, end in (("cert", "crt"), ("key", "key"))}
    tls["ca"] = str(secret.mounted / "ca.crt")
    with Brokers(tmp_path / "b", ensemble.servers, size=1, delivery={"minCopies": 1}) as brokers:
        broker = brokers["b0"]
        brokers.configure(tls={"zookeeper": tls})
        brokers.start_all()
        broker.kill()
        brokers.configure(
            tls={"zookeeper": {**tls, "ca": str(tmp_path / "other.crt")}},
            zookeeper={"servers": ensemble.servers, "startTimeout": 4.0},
        )
        broker.start()
        assert "certificate" in broker.event("zookeeper_tls_failed")["reason"]
        assert broker.wait(30) == 4
