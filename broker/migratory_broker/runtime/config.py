"""The broker's configuration file: JSON, camel case names, durations in seconds, sizes in bytes.

`load` and `parse` refuse unknown and ill-typed fields with a `ConfigError` that names the field's path, its value and
what is allowed. What differs between the brokers of a cluster (`Identity`) comes from the command line.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from migratory_protocol.origins import OriginPolicy
from msgspec import Meta, Struct, field
from msgspec.inspect import DictType, NoneType, StructType, Type, UnionType, VarTupleType, type_info

from migratory_broker.runtime.errors import ConfigError
from migratory_broker.runtime.security.config import SecuritySection, security_config

Seconds = Annotated[float, Meta(gt=0, le=86400)]
Count = Annotated[int, Meta(ge=1, le=2**31)]
Bytes = Annotated[int, Meta(ge=1024, le=2**46)]
MAX_REVISION = 255
"""Characters of the longest revision. It is short because it is sent to every peer twice a second."""

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?\Z")]


class _Section(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    pass


class CredentialsSection(_Section, frozen=True):
    """The section `zookeeper.credentials`: the user and the file with the password by which the brokers authenticate to
    ZooKeeper. `protect`: whether their nodes are for this user alone."""

    user: Annotated[str, Meta(pattern=r"^[!-9;-~]{1,255}\Z")]
    password_file: Annotated[str, Meta(min_length=1)]
    protect: bool = True


class ZooKeeperSection(_Section, frozen=True):
    """The section `zookeeper`: how to reach ZooKeeper. `servers` is in the syntax of ZooKeeper's clients. `path` is the
    node below which the cluster's nodes are; empty: `/migratory/CLUSTER`. `session_timeout` is in seconds.
    `start_timeout` is how long a starting broker waits for one of the servers, in seconds. Without `credentials`
    brokers do not authenticate, and their nodes are open to everybody."""

    servers: Annotated[str, Meta(min_length=1)]
    path: Annotated[str, Meta(pattern=r"^(/[^/\x00-\x1f\x7f]+)*$")] = ""
    session_timeout: Annotated[float, Meta(ge=1, le=60)] = 4.0
    start_timeout: Seconds = 60.0
    credentials: CredentialsSection | None = None


class CacheSection(_Section, frozen=True):
    """The section `topics.cache`: limits of a broker's cache. Of a topic, `messages_per_topic` publications are kept,
    more while they are younger than `min_age` seconds, and none older than `max_age` seconds. `max_bytes` limits the
    payloads of all topics; for it even younger publications are evicted."""

    messages_per_topic: Count = 300
    min_age: Annotated[float, Meta(ge=0, le=86400)] = 60.0
    max_age: Annotated[float, Meta(gt=0, le=604_800)] = 600.0
    max_bytes: Bytes = 268_435_456


class TopicsSection(_Section, frozen=True):
    """The section `topics`: the number of topic groups, the largest number of topics, the seconds after which a topic
    without publications is removed (`idle_timeout`; 0: never), and the cache."""

    groups: Annotated[int, Meta(ge=1, le=10_000)] = 100
    max_topics: Count = 100_000
    idle_timeout: Annotated[float, Meta(ge=0, le=31_536_000)] = 86_400.0
    cache: CacheSection = field(default_factory=CacheSection)


Rate = Annotated[int, Meta(ge=0, le=2**46)]


class RatesSection(_Section, frozen=True):
    """The section `limits.clients` or `limits.identities`: the rates of each connection, or of each identity, in a
    second: publications, bytes of their payloads, and topics of subscribe requests; 0: no limit."""

    publications_per_second: Rate = 0
    bytes_per_second: Rate = 0
    subscriptions_per_second: Rate = 0


class AddressesSection(RatesSection, frozen=True):
    """The section `limits.addresses`: the limits of each client address: connections at a time, new ones a second, and
    rates as of `RatesSection`; 0: no limit. `exempt` are networks without these limits, such as those of proxies."""

    connections: Annotated[int, Meta(ge=0, le=2**31)] = 0
    connects_per_second: Annotated[int, Meta(ge=0, le=2**31)] = 0
    exempt: tuple[str, ...] = ()


class LimitsSection(_Section, frozen=True):
    """The section `limits`: limits of a broker and of each client.

    `connects_per_second` counts the new connections of all clients of a broker. `max_payload` is the bytes of the
    largest payload of a publication. `queue_per_client` is the bytes that are queued for one client. `queue_total`,
    `input_total` and `subscriptions_total` are bytes of memory over all clients of a broker. `topics_per_client` is the
    number of topics that one client may create. `heartbeat` is the seconds between two pings. `handshake` is the
    seconds from the TCP accept to `connect`; with TLS the time begins at the end of the TLS handshake, which may take
    as long.
    """

    connects_per_second: Count = 5000
    max_payload: Annotated[int, Meta(ge=0, le=67_108_864)] = 1_048_576
    queue_per_client: Bytes = 1_048_576
    queue_total: Bytes = 268_435_456
    input_total: Bytes = 268_435_456
    subscriptions_total: Bytes = 536_870_912
    subscriptions_per_client: Count = 1000
    topics_per_client: Count = 10_000
    heartbeat: Annotated[float, Meta(ge=0.1, le=3600)] = 15.0
    handshake: Annotated[float, Meta(ge=0.1, le=300)] = 10.0
    clients: RatesSection = field(default_factory=RatesSection)
    identities: RatesSection = field(default_factory=RatesSection)
    addresses: AddressesSection = field(default_factory=AddressesSection)

    @property
    def reloadable(self) -> dict[str, Struct]:
        """The limits that a running broker applies when the file has changed, by field."""
        return {"clients": self.clients, "identities": self.identities, "addresses": self.addresses}


class BatchingSection(_Section, frozen=True):
    """The section `delivery.batching`: the seconds for which publications to a client may wait to be written together
    (`max_delay`; 0: they do not wait), and the bytes at which they no longer wait."""

    max_delay: Annotated[float, Meta(ge=0, le=60)] = 0.0
    max_bytes: Bytes = 16_384


class ConflationSection(_Section, frozen=True):
    """A rule of conflation for topics that match the pattern `topics` (`migratory_protocol.topics.TopicPattern`): of
    their QoS 0 publications, live subscribers receive only the latest of each `interval`, in seconds."""

    topics: Annotated[str, Meta(min_length=1, max_length=255)]
    interval: Annotated[float, Meta(ge=0.001, le=3600)]


class DeliverySection(_Section, frozen=True):
    """The section `delivery`: the number of brokers that must hold a publication before it is committed (`min_copies`),
    the duplicate window in seconds, whether a group whose copies are all lost begins a new history (`reset`) or waits
    for a person (`halt`), batching, and rules of conflation."""

    min_copies: Annotated[int, Meta(ge=1, le=16)] = 2
    duplicate_window: Seconds = 120.0
    on_history_loss: Literal["reset", "halt"] = "reset"
    batching: BatchingSection = field(default_factory=BatchingSection)
    conflation: tuple[ConflationSection, ...] = ()


class DrainSection(_Section, frozen=True):
    """The section `drain`: the seconds within which the clients of a draining broker move (`period`)."""

    period: Annotated[float, Meta(ge=0, le=3600)] = 30.0


class OriginsSection(_Section, frozen=True):
    """The section `origins`. `allowed`: origins from which browsers may connect, none by default: `*`,
    `https://app.example.com`, `https://*.example.org`, `http://localhost:*` (any port). `hosts`: allowed Host headers.
    `without_origin`: whether requests without Origin are allowed."""

    allowed: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ("*",)
    without_origin: bool = True


class CertificateSection(_Section, frozen=True):
    """The paths of a certificate with its chain, of its key, and of the authority that signs the other ends (`ca`,
    needed for peers and ZooKeeper), all in PEM. `{broker}` stands for the broker's name."""

    cert: Annotated[str, Meta(min_length=1)]
    key: Annotated[str, Meta(min_length=1)]
    ca: str = ""

    def of_broker(self, name: str) -> CertificateSection:
        """Return the section with the broker's name in place of `{broker}` in the paths."""
        paths = (path.replace("{broker}", name) for path in (self.cert, self.key, self.ca))
        return CertificateSection(*paths)


class TlsSection(_Section, frozen=True):
    """The section `tls`: certificates for the listeners of clients and administration, for links between brokers, and
    for connections to ZooKeeper; None: no TLS there."""

    clients: CertificateSection | None = None
    peers: CertificateSection | None = None
    administration: CertificateSection | None = None
    zookeeper: CertificateSection | None = None


class AdministrationSection(_Section, frozen=True):
    """The section `administration`: the SHA-256 of each token with which the guarded pages may be read, in hexadecimal
    digits. Without any, everybody may read them."""

    tokens: tuple[Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")], ...] = ()


class BrokerConfig(_Section, frozen=True):
    """The configuration of a cluster's brokers, the same for each. `brokers` are their names, `weights` their weights
    in the server list. `leaving`: brokers that will be removed, one after the other. `io_processes`: the number of
    processes that hold the clients' sockets; 0: the broker's own process does. `compression`: whether clients may have
    messages compressed. `console`: whether the clients' listener serves the console. Without `security` every client
    may do everything."""

    cluster: Name
    brokers: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=100)]
    zookeeper: ZooKeeperSection
    topics: TopicsSection = field(default_factory=TopicsSection)
    limits: LimitsSection = field(default_factory=LimitsSection)
    delivery: DeliverySection = field(default_factory=DeliverySection)
    weights: dict[str, Annotated[int, Meta(ge=0, le=10_000)]] = field(default_factory=dict)
    drain: DrainSection = field(default_factory=DrainSection)
    origins: OriginsSection = field(default_factory=OriginsSection)
    tls: TlsSection = field(default_factory=TlsSection)
    administration: AdministrationSection = field(default_factory=AdministrationSection)
    compression: bool = False
    console: bool = False
    io_processes: Annotated[int, Meta(ge=0, le=64)] = 0
    leaving: tuple[Name, ...] = ()
    security: SecuritySection | None = None

    def staying(self, name: str) -> tuple[str, ...]:
        """Return the brokers that are not leaving, and in any case the broker `name`. The logic of that broker takes
        these for the cluster's brokers, and lists them to clients."""
        stay = tuple(broker for broker in self.brokers if broker not in self.leaving)
        return stay if name in stay else (*stay, name)

    def weight(self, name: str) -> int:
        """Return the weight of the broker `name` in the server list, 100 if none is configured."""
        return self.weights.get(name, 100)


@dataclass(frozen=True, slots=True)
class Identity:
    """The values of one broker: its name, its listening addresses (HOST:PORT; port 0 uses a free one) and the addresses
    that it announces to clients and to the other brokers.

    Without `advertise_url` or `advertise_peer` the bound address is announced, which is of use on one machine only.
    `revision` names the broker's program and configuration: brokers that are updated together share one.
    """

    name: str
    clients: str = "127.0.0.1:0"
    peers: str = "127.0.0.1:0"
    admin: str = "127.0.0.1:0"
    advertise_url: str = ""
    advertise_peer: str = ""
    revision: str = ""


def load(path: Path) -> BrokerConfig:
    """Return the configuration in a file. Raises ConfigError, which names the file, if it cannot be read or is not
    valid."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    try:
        return parse(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse(data: bytes) -> BrokerConfig:
    """Return the configuration in JSON text. Raises ConfigError, which names the field, if it is not valid."""
    try:
        raw = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ConfigError(f"not valid JSON: {error}") from error
    try:
        config = msgspec.convert(raw, BrokerConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), raw)) from error
    _check(config)
    return config


def check_identity(config: BrokerConfig, identity: Identity) -> None:
    """Raise ConfigError, which names the command line option, if a value of this broker is malformed or its name is not
    one of the configured brokers."""
    if identity.name not in config.brokers:
        raise ConfigError(f"--name: {identity.name!r} is not one of brokers: {', '.join(config.brokers)}")
    for option, value in (("--clients", identity.clients), ("--peers", identity.peers), ("--admin", identity.admin)):
        split_address(value, option)
    if len(identity.revision) > MAX_REVISION:
        raise ConfigError(f"--revision: {len(identity.revision)} characters; allowed are {MAX_REVISION}")
    if identity.advertise_peer:
        split_address(identity.advertise_peer, "--advertise-peer")
    if identity.advertise_url and not re.match(r"^wss?://[^/\s]+(/\S*)?\Z", identity.advertise_url):
        raise ConfigError(f"--advertise-url: {identity.advertise_url!r}; allowed is ws://HOST:PORT/ws or wss://...")


def split_address(value: str, field_path: str) -> tuple[str, int]:
    """Return HOST:PORT or [IPv6]:PORT as (host, port), without the brackets; an empty host stands for every address.
    Raises ConfigError, which names `field_path`, for another form."""
    host, colon, port = value.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ConfigError(f"{field_path}: {value!r}; allowed is HOST:PORT with a port from 0 to 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"{field_path}: {value!r}; an IPv6 address is written as [ADDRESS]:PORT")
    return host, int(port)


def _check(config: BrokerConfig) -> None:
    """Raise ConfigError if fields of a configuration contradict each other, or have values that their types let through
    and that are not allowed: names, networks, origins, rules, and a missing authority."""
    brokers = config.brokers
    if len(set(brokers)) != len(brokers):
        raise ConfigError(f"brokers: {list(brokers)} names one broker twice; allowed are different names")
    for name in config.leaving:
        if name not in brokers:
            raise ConfigError(f"leaving: {name!r} is no such broker; allowed are {', '.join(brokers)}")
    needed = 2 * config.delivery.min_copies - 1
    if (stay := len(set(brokers) - set(config.leaving))) < needed:
        raise ConfigError(
            f"delivery.minCopies: {config.delivery.min_copies} needs {needed} or more brokers, but brokers names "
            f"{stay}{' that are not leaving' if config.leaving else ''}"
        )
    for name in config.weights:
        if name not in brokers:
            raise ConfigError(f"weights.{name}: no such broker; allowed are {', '.join(brokers)}")
    cache = config.topics.cache
    if cache.min_age > cache.max_age:
        raise ConfigError(
            f"topics.cache.minAge: {cache.min_age}; allowed is at most topics.cache.maxAge, {cache.max_age}"
        )
    shares = max(1, config.io_processes)
    if shares > 1 and config.limits.queue_per_client * shares > config.limits.queue_total:
        raise ConfigError(
            f"limits.queueTotal: {config.limits.queue_total} is divided among {shares} I/O processes; allowed is "
            f"ioProcesses x limits.queuePerClient or more, {config.limits.queue_per_client * shares}"
        )
    if config.limits.queue_per_client > config.limits.queue_total:
        raise ConfigError(
            f"limits.queuePerClient: {config.limits.queue_per_client}; allowed is at most limits.queueTotal, "
            f"{config.limits.queue_total}"
        )
    if config.security is not None:
        security_config(config.security)
    for network in config.limits.addresses.exempt:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise ConfigError(f"limits.addresses.exempt: {error}; allowed are networks such as 10.0.0.0/8") from error
    if config.tls.peers is not None and not config.tls.peers.ca:
        raise ConfigError("tls.peers.ca: missing; brokers accept only peers that this authority has signed")
    if config.tls.zookeeper is not None and not config.tls.zookeeper.ca:
        raise ConfigError("tls.zookeeper.ca: missing; brokers connect only to members that this authority has signed")
    try:
        OriginPolicy(config.origins.allowed, config.origins.hosts, config.origins.without_origin)
    except ValueError as error:
        raise ConfigError(f"origins: {error}") from error


_STEPS = re.compile(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]")
"""A step of a path in msgspec's form: the name of a field, or the index of an entry (`...` in a mapping)."""


def _explain(message: str, raw: object) -> str:
    """Return msgspec's error message in the form "path: value; allowed is ...", or the corresponding one for an unknown
    or missing field. `raw` is the decoded JSON."""
    text, _, path = message.partition(" - at `")
    path = path.removesuffix("`").removeprefix("$").removeprefix(".")
    unknown = re.match(r"Object contains unknown field `(.*)`\Z", text)
    if unknown:
        return f"{_join(path, unknown[1])}: unknown field; allowed are {', '.join(_names_at(path))}"
    missing = re.match(r"Object missing required field `(.*)`\Z", text)
    if missing:
        return f"{_join(path, missing[1])}: missing, and has no default"
    value = msgspec.json.encode(_value(raw, path)).decode()
    if len(value) > 100:
        value = value[:100] + "..."
    allowed = text.partition(", got ")[0].removeprefix("Expected ").replace("`", "")
    return f"{path or 'the configuration'}: {value}; allowed is {allowed}"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _names_at(path: str) -> list[str]:
    """Return the names of the fields of the section at a path in msgspec's form, such as `security.rules[0]`."""
    found = _section(type_info(BrokerConfig))
    for name, _ in _STEPS.findall(path):
        if name:
            found = _section(next(one.type for one in found.fields if one.encode_name == name))
    return [one.encode_name for one in found.fields]


def _section(found: Type) -> StructType:
    """Return the section in the type of a field: a section, one or none, or a list or a mapping of sections."""
    match found:
        case UnionType():
            return next(_section(one) for one in found.types if not isinstance(one, NoneType))
        case VarTupleType():
            return _section(found.item_type)
        case DictType():
            return _section(found.value_type)
    assert isinstance(found, StructType)
    return found


def _value(raw: object, path: str) -> object:
    """Return the value at a path in msgspec's form, None if there is none. Where msgspec writes `[...]`, it does not
    say which value of an object is meant: then return the whole object."""
    value = raw
    for name, index in _STEPS.findall(path):
        if index == "...":
            break
        if index:
            value = value[int(index)] if isinstance(value, list) and int(index) < len(value) else None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value
