"""Certificates of the broker's listeners, links and connections to ZooKeeper: read from files, tried before they are
used, and replaced while the broker runs.

A pair that does not match, a truncated file, an expired certificate or an authority that did not sign it would make
every later handshake fail. So changed files become new TLS contexts, in which a handshake in memory is tried, and only
if that succeeds do they replace those in use. Connections that stand are not affected.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from migratory_broker.runtime.config import CertificateSection
from migratory_broker.runtime.errors import TlsError
from migratory_broker.runtime.logs import Log
from migratory_broker.runtime.watched_file import FileState, file_state

CHECK_INTERVAL = 2.0
"""Seconds between two checks whether the files have changed."""

Purpose = Literal["clients", "peers", "zookeeper", "administration"]


class Certificate:
    """The certificate with which a broker serves clients or the administration, connects to ZooKeeper, or proves its
    name to its peers and checks theirs.

    Read the contexts for each new connection. `refused` is the number of handshakes so far that failed, `failures` the
    number of attempts so far to use changed files that failed.

    :param files: the paths of the certificate, its key and the authority.
    :param name: the broker's name. It replaces `{broker}` in the paths. With the purpose `peers`, the certificate must
        be of this name.
    :param on_refused: called for each handshake that is reported by `refuse`.
    :raises TlsError: the files cannot be used.
    """

    server: ssl.SSLContext
    """The context for accepted connections. That of peers demands a certificate that the authority signed."""
    client: ssl.SSLContext
    """The context with which peers, or members of ZooKeeper, are dialled. It checks that the certificate has the name
    that was dialled. For other purposes it serves the trial only."""
    expires_at: float
    """The end of the certificate's validity, in seconds since 1970."""

    def __init__(
        self,
        purpose: Purpose,
        files: CertificateSection,
        name: str,
        log: Log,
        on_refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._purpose = purpose
        self._name = name
        self._log = log
        self._on_refused = on_refused
        own = files.of_broker(name)
        self._paths = [Path(path) for path in (own.cert, own.key, own.ca) if path]
        self._next_check = 0.0
        self._logged_at = -60.0
        self.failures = 0
        self.refused = 0
        self._failure: tuple[object, str] | None = None  # the files' state and the reason, while they cannot be used
        self._state = self._stat()
        try:
            self._load()
        except (OSError, ValueError) as error:
            raise TlsError(f"tls.{purpose}: {self._explain(error)}") from error

    def refuse(self, host: str, error: Exception) -> None:
        """Count a handshake that failed, with the other end's address `host`. Log at most one line in ten seconds."""
        self.refused += 1
        self._on_refused()
        now = time.monotonic()
        if now - self._logged_at >= 10.0:
            self._logged_at = now
            reason = getattr(error, "verify_message", "") or str(error) or type(error).__name__
            self._log("warning", "tls_refused", purpose=self._purpose, remote=host, reason=reason)

    def tick(self, now: float) -> None:
        """Every `CHECK_INTERVAL`, replace the contexts if the files have changed and can be used. Otherwise go on with
        those in use, log why, once for each change and each reason, and try again at the next check: a certificate
        becomes valid, and a file readable, without a change of the files."""
        if now < self._next_check:
            return
        self._next_check = now + CHECK_INTERVAL
        state = self._stat()
        if state == self._state and self._failure is None:
            return
        self._state = state
        try:
            self._load()
        except (OSError, ValueError) as error:
            self.failures += 1
            failure = state, self._explain(error)
            if failure != self._failure:
                self._failure = failure
                self._log("error", "certificate_rejected", purpose=self._purpose, reason=failure[1])
        else:
            self._failure = None
            self._log("info", "certificate_loaded", purpose=self._purpose, expires_at=self.expires_at)

    def _stat(self) -> list[FileState | None]:
        """Return the state of each file, None for one that does not exist."""
        return [_state_of(path) for path in self._paths]

    def _explain(self, error: Exception) -> str:
        """Return the text of an error, with the paths of the files."""
        files = ", ".join(map(str, self._paths))
        return f"{files} cannot be used: {getattr(error, 'verify_message', '') or error}"

    def _load(self) -> None:
        """Make contexts of the files, try them in a handshake in memory, and put them in the place of those in use.
        Raise OSError or ValueError if they cannot be used, and then leave those in use."""
        cert, key, *authority = self._paths
        mutual = self._purpose == "peers"
        # of ZooKeeper's members only the authority is known; otherwise without one the own chain is trusted, so that at
        # least its dates are checked
        trusted = authority[0] if mutual or self._purpose == "zookeeper" else cert
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.minimum_version = client.minimum_version = ssl.TLSVersion.TLSv1_3 if mutual else ssl.TLSVersion.TLSv1_2
        server.load_cert_chain(cert, key)
        client.load_verify_locations(trusted)
        if mutual:
            server.verify_mode = ssl.CERT_REQUIRED
            server.load_verify_locations(trusted)
            server.num_tickets = 0  # links are few and long
            client.load_cert_chain(cert, key)
        elif self._purpose == "zookeeper":
            client.load_cert_chain(cert, key)
        else:
            client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            client.check_hostname = False
        if self._purpose == "zookeeper":
            described = _shown(cert, key)
        else:
            described = _handshake(server, client, self._name if mutual else None)
        self.server, self.client = server, client
        self.expires_at = float(ssl.cert_time_to_seconds(str(described["notAfter"])))


def names_of(certificate: dict[str, object] | None) -> list[str]:
    """Return the DNS names of a verified certificate, as `getpeercert` describes it; an empty list for None."""
    found = certificate.get("subjectAltName", ()) if certificate else ()
    return [name for kind, name in found if kind == "DNS"]  # type: ignore[attr-defined]


def _state_of(path: Path) -> FileState | None:
    """Return the state of a file, None if it cannot be had."""
    try:
        return file_state(path)
    except OSError:
        return None


def _shown(cert: Path, key: Path) -> dict[str, object]:
    """Return the certificate of this pair of files, as a server has verified it when a client presents it. Raise
    SSLError if the certificate is not valid, such as an expired one."""
    client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    server.verify_mode = ssl.CERT_REQUIRED
    server.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    server.load_verify_locations(cert)
    for context in (client, server):
        context.load_cert_chain(cert, key)
    return _handshake(server, client, None)


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None) -> dict[str, object]:
    """Connect two contexts in memory. Return the server's certificate as the client has verified it, or the client's if
    only the server verifies. With `name`, the server's certificate must have that name. Raise SSLError if either end
    refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):  # flights of a handshake
        for end in ends:
            _advance(end.do_handshake)
    _advance(ends[0].read)  # with TLS 1.3 the server's refusal comes after the client's last flight
    certificate: dict[str, object] = ends[0].getpeercert() or ends[1].getpeercert() or {}  # type: ignore[assignment]
    return certificate


def _advance(step: Callable[[], object]) -> None:
    """Take a step of a handshake. Nothing happens if it needs bytes that the other end has not written yet."""
    with contextlib.suppress(ssl.SSLWantReadError):
        step()
