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
    """Pull policy of all images: Always, IfNotPresent or Never."""
    pull_secrets: tuple[str, ...] = ()
    """Names of the Secrets with which images are pulled."""
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
    """Pods that may read the brokers' administration, as (namespace, label), where label is `NAME=VALUE`. The namespace
    "*" means all namespaces, the label "" all pods."""
    reports_enabled: bool = False
    """True if the operator makes reports, for which it needs permissions to create pods and Secrets."""
    allowed_images: tuple[str, ...] = ()
    """Images that reports may use beside `spark_image`. * stands for any letters, digits and "-._:@", so for no "/"."""
    allowed_prometheus: tuple[str, ...] = ()
    """URLs of the Prometheus servers that reports may read; empty for none. * stands for any letters, digits and "-._"
    without "..", so for a part of a host's name or of one folder of the path."""
    reports_pod_content: bool = False
    """True if reports may also add environment variables, volumes, containers and annotations to their pods. Labels,
    pull secrets and where the pods run are always allowed."""
    identity: str = ""
    """NAMESPACE/INSTALLATION/POD, by which other operators know this one (`leases.py`). Empty when it does not run in a
    pod."""
    broker_secret: str = ""
    """Folder with credentials; empty for none. `token` is sent with the requests for brokers' status pages; without the
    file no token is sent. `ca.crt` has the authority that signs the brokers' certificates; without it they are not
    checked. ZooKeeper members with TLS are asked only if `ca.crt`, `tls.crt` and `tls.key` are there."""


_PREFIX = "MIGRATORY_"
_URL_PATTERN = r"https?://[^\s/?#@]+(/[^\s?#@]*)?"
_MONITOR = r"\*|[a-z0-9][-a-z0-9]*(/[-a-zA-Z0-9._]+(/[-a-zA-Z0-9._]+)?=[-a-zA-Z0-9._]+)?"
_POLICIES = ("Always", "IfNotPresent", "Never")


def read_settings(environment: Mapping[str, str] = os.environ) -> OperatorSettings:
    """Return the settings from the environment variables `MIGRATORY_…`.

    :raises SettingsError: the image of the brokers or of ZooKeeper is missing, or a variable is invalid.
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
    """Return the pods that may read the brokers' administration: pairs of a namespace and a label, from words such as
    `*`, `NAMESPACE` or `NAMESPACE/LABEL=VALUE`. Raise SettingsError if a word has another form."""
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
    """Return the URLs, which may have `*` in them, from a list with commas. Raise SettingsError if one is not an HTTP
    URL."""
    words = _words(environment, name)
    for word in words:
        if not re.fullmatch(_URL_PATTERN, word):
            raise SettingsError(
                f"{_PREFIX}{name}: {word!r} is not allowed; allowed: URLs such as http://prometheus.monitoring:9090"
            )
    return words


def _pairs(environment: Mapping[str, str], name: str) -> tuple[tuple[str, str], ...]:
    """Return the names and values from a list `NAME=VALUE,NAME=VALUE`. Raise SettingsError if a part has no name or no
    value."""
    pairs = []
    for word in _words(environment, name):
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise SettingsError(f"{_PREFIX}{name}: {word!r} is not allowed; allowed: NAME=VALUE,NAME=VALUE")
        pairs.append((key, value))
    return tuple(pairs)


def _number(environment: Mapping[str, str], name: str, default: float, minimum: float, maximum: float) -> float:
    """Return the number in a variable, or `default` if it is unset or empty. Raise SettingsError if it is not a number
    from `minimum` to `maximum`."""
    text = environment.get(_PREFIX + name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = float("nan")
    if not minimum <= value <= maximum:
        raise SettingsError(f"{_PREFIX}{name}: {text!r} is not allowed; allowed: {minimum:g} to {maximum:g}")
    return value
