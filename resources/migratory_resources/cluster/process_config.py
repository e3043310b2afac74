"""Builds the configuration of a cluster's processes: the brokers' JSON and a ZooKeeper member's `zoo.cfg`.

Used by the local runner and the operator. Settings that differ between brokers (name, listeners, advertised addresses)
come from their command lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from migratory_resources.cluster.identity import identity_config, zookeeper_credentials
from migratory_resources.cluster.spec import MigratoryCluster
from migratory_resources.cluster.tls import certificate_sections

TICK_MS = 500
"""Milliseconds of a ZooKeeper tick. Session timeouts are at least two ticks, so this allows 1 s."""

TLS_FOLDER = "/etc/migratory-tls"
"""The folder in which a broker's pod has its Secrets with certificates."""

DEFAULT_ZOOKEEPER_PATH = "/migratory/{cluster}"
"""The node below which the nodes of a cluster are, unless its configuration names another one. It suits an ensemble
that belongs to the cluster."""

RELOADED_LIMITS = ("clients", "identities", "addresses")
"""The fields of `limits` whose changes brokers apply while they run."""

ZOOKEEPER_LOG4J = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601}{UTC}Z %-5p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


def broker_config(
    cluster: MigratoryCluster,
    zookeeper_servers: str,
    leaving: Sequence[str] = (),
    default_hosts: Sequence[str] = ("*",),
    default_origins: Sequence[str] = (),
    default_console: bool = False,
    secrets_folder: str = "",
    zookeeper_path: str | None = None,
) -> dict[str, Any]:
    """Return the configuration that all brokers of a cluster read, ready for JSON: durations in seconds, sizes in
    bytes. Fields that brokers of the previous release do not know are left out at their defaults.

    :param zookeeper_servers: "host:port,host:port".
    :param leaving: the brokers of the cluster that will be removed.
    :param default_hosts: the values of the header Host that brokers accept if the cluster's spec names none; "*" for
        all.
    :param default_origins: the origins of web pages that may connect if the cluster's spec names none.
    :param default_console: whether brokers serve the console if the cluster's spec does not say it.
    :param secrets_folder: the folder in which each Secret that the configuration names is a folder of its own.
    :param zookeeper_path: the node below which the cluster's nodes are; None for `DEFAULT_ZOOKEEPER_PATH`.
    """
    spec = cluster.spec
    # Absent at their defaults, as `leaving` below: a broker of the previous release rejects unknown fields.
    recent = {"input_total", "subscriptions_total", *RELOADED_LIMITS}
    limits = spec.limits.model_dump(by_alias=True, exclude=recent)
    limits |= spec.limits.model_dump(by_alias=True, include=recent, exclude_defaults=True)
    zookeeper: dict[str, Any] = {"servers": zookeeper_servers, "sessionTimeout": spec.zookeeper.session_timeout}
    if zookeeper_path is not None:
        zookeeper["path"] = zookeeper_path
    zookeeper |= zookeeper_credentials(spec.security.zookeeper, secrets_folder)
    config = {
        "cluster": cluster.name,
        "brokers": cluster.broker_names,
        "zookeeper": zookeeper,
        "topics": spec.topics.model_dump(by_alias=True),
        "limits": limits,
        "delivery": spec.delivery.model_dump(by_alias=True, exclude={"compression"}),
        "compression": spec.delivery.compression,
        "origins": {
            "allowed": list(spec.security.origins or default_origins),
            "hosts": list(spec.security.hosts or default_hosts),
        },
        "weights": dict(spec.brokers.weights),
        "drain": spec.brokers.drain.model_dump(by_alias=True),
        "ioProcesses": spec.brokers.io_processes,
    }
    config |= identity_config(spec.security.tokens, spec.security.rules, spec.security.anonymous, secrets_folder)
    # Absent when they are empty, as tokens and rules are: a broker of the previous release rejects unknown fields.
    optional = {
        "tls": certificate_sections(spec.security.tls, TLS_FOLDER),
        "administration": spec.security.administration.model_dump(exclude_defaults=True),
        "leaving": list(leaving),
        "console": default_console if spec.console.enabled is None else spec.console.enabled,
    }
    return config | {name: value for name, value in optional.items() if value}


def zookeeper_tls_lines(port: int, identity: str, authority: str) -> list[str]:
    """Return the settings of a ZooKeeper member that accepts clients and other members by mutual TLS alone. The member
    reads the files again when they are replaced.

    Members check the name in the certificate of a member to which they connect. That of one that connects to them is
    not checked: pods have no reliable reverse names.

    :param port: the port for clients.
    :param identity: the PEM file with the member's private key (PKCS #8) and certificate.
    :param authority: the PEM file with the authorities whose certificates the member accepts.
    """
    stores = {"keyStore.location": identity, "keyStore.type": "PEM"}
    stores |= {"trustStore.location": authority, "trustStore.type": "PEM"}
    return [
        f"secureClientPort={port}",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        "client.certReload=true",
        "sslQuorum=true",
        "sslQuorumReloadCertFiles=true",
        # Its other mode does not check names.
        "fips-mode=false",
        "ssl.quorum.clientHostnameVerification=false",
        *(f"{prefix}.{name}={value}" for prefix in ("ssl", "ssl.quorum") for name, value in stores.items()),
    ]


def zookeeper_config(
    data: str, port: int | None, extra_lines: Sequence[str], members: Sequence[str], min_session_ms: int = 1000
) -> str:
    """Return the text of a ZooKeeper member's `zoo.cfg`.

    On Kubernetes a changed text replaces the pods: another order of lines would restart every ensemble.

    :param data: the folder of the member's data.
    :param port: the port for clients without TLS; None for no such port.
    :param extra_lines: settings that depend on where the member runs.
    :param members: all members as HOST:QUORUM:ELECTION, in the order of their ids. They are left out if there is only
        one.
    :param min_session_ms: the shortest session timeout that clients may ask for.
    """
    lines = [
        f"tickTime={TICK_MS}",
        "initLimit=20",
        "syncLimit=10",
        f"dataDir={data}",
        *([] if port is None else [f"clientPort={port}"]),
        f"minSessionTimeout={min_session_ms}",
        "maxSessionTimeout=60000",
        "maxClientCnxns=0",
        "admin.enableServer=false",
        "4lw.commands.whitelist=srvr,mntr,ruok",
        *extra_lines,
    ]
    if len(members) > 1:
        lines += [f"server.{number}={member}" for number, member in enumerate(members, 1)]
    return "\n".join(lines) + "\n"
