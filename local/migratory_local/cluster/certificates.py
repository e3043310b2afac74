"""A certificate authority for development: `migratory up --dev-tls` makes one for each run, and tests make their own.

The authority's key stays in memory. `write_certificates` writes the keys of brokers and ZooKeeper members to files. A
certificate proves nothing to anybody but the processes that are given `ca.crt`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from migratory_local.cluster.state import write_secret

VALIDITY = timedelta(days=30)
"""The time for which a certificate is valid. A cluster for development is started anew long before its end."""

_BACKDATED = timedelta(minutes=5)
"""The time by which a certificate's validity begins before it is made, because clocks differ."""

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class DevelopmentAuthority:
    """An authority that signs certificates with a key that it has made for itself. `certificate` is PEM."""

    def __init__(self, name: str = "Migratory development") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        built = (
            _certificate(self._name, self._name, self._key.public_key(), VALIDITY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = built.public_bytes(Encoding.PEM)

    def issue(
        self, names: Sequence[str], *, validity: timedelta = VALIDITY, key: PrivateKey | None = None
    ) -> tuple[bytes, bytes]:
        """Return a certificate for DNS names and IP addresses, and its key, both PEM. Servers and clients can use it.
        `names` has at least one; the first one is also the subject.

        :param validity: the time from now for which it is valid; a negative one makes a certificate that has expired.
        :param key: the key; by default a new one on the curve P-256.
        """
        key = key or ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        built = (
            _certificate(_name(names[0]), self._name, key.public_key(), validity)
            .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            # authorities of one name are told apart by their keys
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return built.public_bytes(Encoding.PEM), private


def write_certificates(
    folder: Path, authority: DevelopmentAuthority, brokers: Sequence[str], host: str, members: Sequence[str] = ()
) -> None:
    """Write `ca.crt`, and `NAME.crt` and `NAME.key` for each broker, into the folder, which is created for this user
    only. A broker's certificate has its name, for its peers, and `localhost` and the address `host`, for clients.
    Earlier files are replaced. Raise OSError if the folder or a certificate cannot be written.

    :param members: addresses of ZooKeeper's members, for which `zookeeper.pem` is written: a key and its certificate;
        with none it is not written.
    :raises LocalError: a key cannot be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "ca.crt").write_bytes(authority.certificate)
    for broker in brokers:
        certificate, key = authority.issue([broker, "localhost", host])
        (folder / f"{broker}.crt").write_bytes(certificate)
        write_secret(folder / f"{broker}.key", key)
    if members:
        certificate, key = authority.issue(members)
        write_secret(folder / "zookeeper.pem", key + certificate)


def _certificate(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey | rsa.RSAPublicKey, validity: timedelta
) -> x509.CertificateBuilder:
    """Return a certificate that is not signed yet, valid from `_BACKDATED` before now until `validity` from now. With a
    negative `validity` it begins earlier, and has expired."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED - max(-validity, timedelta(0)))
        .not_valid_after(now + validity)
    )


def _name(text: str) -> x509.Name:
    """Return a distinguished name with only a common name, cut to the 64 characters that are allowed."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs: bool) -> x509.KeyUsage:
    """Return the use of a key: to sign certificates, or to take part in handshakes."""
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
