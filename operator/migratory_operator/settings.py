"""Settings of the operator, from environment variables: images, namespaces, intervals, port, monitoring, reports,
identity, access to brokers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass


class SettingsError(Exception):
    """A missing or invalid environment variable. The message names it and says what is allowed."""


@dataclass(frozen=True)
class OperatorSettings:
    """The settings of an operator, which its Deployment gives as environment variables."""

    broker_image: str
    zookeeper_image: str
    spark_image: str = ""
    """Empty: only reports that name an image can be made."""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    """Namespaces to watch. Empty: all."""
    resync: float = 15.0
    """Seconds between two lists of all clusters and reports."""
    listen: int = 8080
    """Port of the health endpoints and metrics."""
    monitor_interval: str = ""
    """Scrape interval of the ServiceMonitors. Empty: Prometheus's default."""
    monitor_labels: tuple[tuple[str, str], ...] = ()
    """Labels of the ServiceMonitors, by which a Prometheus selects them."""
    own_namespace: str = ""
    """Namespace of the operator's pod. Empty when it does not run in a pod."""
    monitors: tuple[tuple[str, str], ...] = ()
    """Pods that may read the brokers' administration, as (namespace, label). The namespace "*" means all, the label ""
    all pods."""
    reports_enabled: bool = False
    """True if the operator makes reports, for which it needs permissions to create pods and Secrets."""
    allowed_images: tuple[str, ...] = ()
    """Images that reports may use beside `spark_image`, with * for any characters but "/"."""
    allowed_prometheus: tuple[str, ...] = ()
    """URLs of the Prometheus servers that reports may read, with * for a part of a host's name or of a path."""
    reports_pod_content: bool = False
    """True if reports may add more to their pods than where these run: environment, volumes, containers and
    annotations."""
    identity: str = ""
    """NAMESPACE/INSTALLATION/POD, by which the operator is known to others (`leases.py`). Empty when it does not run in
    a pod."""
    broker_secret: str = ""
    """Folder with the files `token`, for the brokers' status pages, and `ca.crt`, the authority of their certificates.
    Empty, or without a file: none is sent, or none is checked. With `tls.crt` and `tls.key` the operator can ask
    ZooKeeper's members that have TLS."""


_PREFIX = "MIGRATORY_"
_URL_PATTERN = r"https?://[^\s/?#@]+(/[^\s?#@]*)?"
_MONITOR = r"\*|[a-z0-9][-a-z0-9]*(/[-a-zA-Z0-9._]+(/[-a-zA-Z0-9._]+)?=[-a-zA-Z0-9._]+)?"
_POLICIES = ("Always", "IfNotPresent", "Never")


def read_settings(environment: Mapping[str, str] = os.environ) -> OperatorSettings:
    """Return the settings from the environment variables `MIGRATORY_…`.

    :raises SettingsError: a variable is missing or invalid.
    """
    policy = environment.get(f"{_PREFIX}PULL_POLICY", "IfNotPresent")
    if policy not in _POLICIES:
        raise SettingsError(f"{_PREFIX}PULL_POLICY: {policy!r} is not allowed; allowed: {', '.join(_POLICIES)}")
    return OperatorSettings(
        broker_image=_required(environment, "BROKER_IMAGE"),
        zookeeper_image=_required(environment, "ZOOKEEPER_IMAGE"),
        spark_image=environment.get(f"{_PREFIX}SPARK_IMAGE", ""),
        pull_policy=policy,
        pull_secrets=_words(environment, "PULL_SECRETS"),
        namespaces=_words(environment, "NAMESPACES"),
        resync=_number(environment, "RESYNC_SECONDS", 15.0, 1.0, 3600.0),
        listen=int(_number(environment, "LISTEN_PORT", 8080, 1, 65535)),
        monitor_interval=environment.get(f"{_PREFIX}MONITOR_INTERVAL", ""),
        monitor_labels=_pairs(environment, "MONITOR_LABELS"),
        own_namespace=environment.get(f"{_PREFIX}OWN_NAMESPACE", ""),
        monitors=_monitors(environment, "MONITORS"),
        reports_enabled=_flag(environment, "REPORTS_ENABLED"),
        allowed_images=_words(environment, "REPORTS_ALLOWED_IMAGES"),
        allowed_prometheus=_url_patterns(environment, "REPORTS_ALLOWED_PROMETHEUS"),
        reports_pod_content=_flag(environment, "REPORTS_POD_CONTENT"),
        identity=environment.get(f"{_PREFIX}IDENTITY", ""),
        broker_secret=environment.get(f"{_PREFIX}BROKER_SECRET", ""),
    )


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(_PREFIX + name, "")
    if not value:
        raise SettingsError(f"{_PREFIX}{name} is not set; set it to the name of an image")
    return value


def _words(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in environment.get(_PREFIX + name, "").split(",") if word.strip())


def _flag(environment: Mapping[str, str], name: str) -> bool:
    text = environment.get(_PREFIX + name, "") or "false"
    if text not in ("true", "false"):
        raise SettingsError(f"{_PREFIX}{name}: {text!r} is not allowed; allowed: true, false")
    return text == "true"


def _monitors(environment: Mapping[str, str], name: str) -> tuple[tuple[str, str], ...]:
    monitors = []
    for word in _words(environment, name):
        namespace, _, label = word.partition("/")
        if not re.fullmatch(_MONITOR, word):
            raise SettingsError(
                f"{_PREFIX}{name}: {word!r} is not allowed; allowed: *, NAMESPACE, NAMESPACE/LABEL=VALUE"
            )
        monitors.append((namespace, label))
    return tuple(monitors)


def _url_patterns(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    words = _words(environment, name)
    for word in words:
        if not re.fullmatch(_URL_PATTERN, word):
            raise SettingsError(
                f"{_PREFIX}{name}: {word!r} is not allowed; allowed: URLs such as http://prometheus.monitoring:9090"
            )
    return words


def _pairs(environment: Mapping[str, str], name: str) -> tuple[tuple[str, str], ...]:
    pairs = []
    for word in _words(environment, name):
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise SettingsError(f"{_PREFIX}{name}: {word!r} is not allowed; allowed: NAME=VALUE,NAME=VALUE")
        pairs.append((key, value))
    return tuple(pairs)


def _number(environment: Mapping[str, str], name: str, default: float, minimum: float, maximum: float) -> float:
    text = environment.get(_PREFIX + name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = float("nan")
    if not minimum <= value <= maximum:
        raise SettingsError(f"{_PREFIX}{name}: {text!r} is not allowed; allowed: {minimum:g} to {maximum:g}")
    return value
