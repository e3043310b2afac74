"""The models of certificates of a cluster, `spec.security.tls`, for one machine and for Kubernetes, and the brokers'
configuration that follows from them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from migratory_resources.fields import PatternText, ResourceModel

_PATH = r"/[^\x00-\x1f]{1,4095}"
_ADMINISTRATION = "TLS for probes, metrics and status pages; by default they are served without"
_SECRET = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"

CertificatePath = Annotated[str, PatternText(_PATH, 4096, "the absolute path of a PEM file")]


class CertificateFiles(ResourceModel):
    """Paths of PEM files: a certificate, its key and, for links between brokers, the authority. `{broker}` in a path
    stands for the broker's name."""

    cert: CertificatePath = Field(description="The certificate, followed by its chain")
    key: CertificatePath = Field(description="The private key, without a passphrase")
    ca: CertificatePath | None = Field(default=None, description="For peers: the authority that signs them")


class FileSource(ResourceModel):
    """A certificate with its key in files, for brokers on one machine."""

    files: CertificateFiles = Field(description="Paths of PEM files")


class TlsSpec(ResourceModel):
    """Certificates for the listeners of clients and administration, and for the links between brokers:
    `spec.security.tls`. None means no TLS there."""

    clients: FileSource | None = Field(default=None, description="TLS for clients; by default they connect without")
    peers: FileSource | None = Field(default=None, description="Mutual TLS between brokers, which prove their names")
    administration: FileSource | None = Field(default=None, description=_ADMINISTRATION)


class SecretSource(ResourceModel):
    """A certificate with its key, and an authority, in a Secret, for pods on Kubernetes."""

    secret_name: Annotated[str, PatternText(_SECRET, 253, "a Secret's name")] = Field(
        description="A Secret with tls.crt, tls.key and, except for clients, ca.crt"
    )


class KubernetesTlsSpec(ResourceModel):
    """Certificates for the listeners of clients and administration, for the links between brokers, and for ZooKeeper:
    `spec.security.tls`. None means no TLS there."""

    clients: SecretSource | None = Field(default=None, description="TLS for clients; by default they connect without")
    peers: SecretSource | None = Field(default=None, description="Mutual TLS between brokers, which prove their names")
    administration: SecretSource | None = Field(default=None, description=_ADMINISTRATION)
    zookeeper: SecretSource | None = Field(
        default=None, description="Mutual TLS to ZooKeeper, and between the members of the cluster's own ensemble"
    )


def certificate_sections(tls: TlsSpec | KubernetesTlsSpec, mount: str) -> dict[str, dict[str, str]]:
    """Return the section `tls` of the brokers' configuration: by purpose, the paths of its certificate, its key and,
    where there is one, its authority. A purpose is a field of `tls`, such as `clients`; one without a certificate is
    left out.

    :param mount: the folder in which the Secret of each purpose is a folder of the purpose's name.
    """
    sections = {}
    for purpose, source in tls:
        if isinstance(source, FileSource):
            sections[purpose] = source.files.model_dump(exclude_none=True)
        elif source is not None:
            names = {
                "cert": "tls.crt",
                "key": "tls.key",
                **({"ca": "ca.crt"} if purpose in ("peers", "zookeeper") else {}),
            }
            sections[purpose] = {field: f"{mount}/{purpose}/{name}" for field, name in names.items()}
    return sections
