"""What whoever installs the operator decides: images and where to look. From the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


class SettingsError(Exception):
    """An environment variable is missing or makes no sense; names it and says what is allowed."""


@dataclass(frozen=True)
class Settings:
    """`spark_image` empty: no reports are made. `namespaces` empty: the whole of Kubernetes. `own_namespace`: where the
    operator's pod is, "" outside of any."""

    broker_image: str
    zookeeper_image: str
    spark_image: str = ""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    resync: float = 15.0
    listen: int = 8080
    monitor_interval: str = ""
    monitor_labels: tuple[tuple[str, str], ...] = ()
    own_namespace: str = ""


_PREFIX = "MIGRATORY_"
_POLICIES = ("Always", "IfNotPresent", "Never")


def read_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """:raises SettingsError:"""
    policy = environment.get(f"{_PREFIX}PULL_POLICY", "IfNotPresent")
    if policy not in _POLICIES:
        raise SettingsError(f"{_PREFIX}PULL_POLICY: {policy!r} is not allowed; allowed: {', '.join(_POLICIES)}")
    return Settings(
        broker_image=_needed(environment, "BROKER_IMAGE"),
        zookeeper_image=_needed(environment, "ZOOKEEPER_IMAGE"),
        spark_image=environment.get(f"{_PREFIX}SPARK_IMAGE", ""),
        pull_policy=policy,
        pull_secrets=_words(environment, "PULL_SECRETS"),
        namespaces=_words(environment, "NAMESPACES"),
        resync=_number(environment, "RESYNC_SECONDS", 15.0, 1.0, 3600.0),
        listen=int(_number(environment, "LISTEN_PORT", 8080, 1, 65535)),
        monitor_interval=environment.get(f"{_PREFIX}MONITOR_INTERVAL", ""),
        monitor_labels=_pairs(environment, "MONITOR_LABELS"),
        own_namespace=environment.get(f"{_PREFIX}OWN_NAMESPACE", ""),
    )


def _needed(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(_PREFIX + name, "")
    if not value:
        raise SettingsError(f"{_PREFIX}{name} is not set; an image's name is needed")
    return value


def _words(environment: Mapping[str, str], name: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in environment.get(_PREFIX + name, "").split(",") if word.strip())


def _pairs(environment: Mapping[str, str], name: str) -> tuple[tuple[str, str], ...]:
    found = []
    for word in _words(environment, name):
        key, equals, value = word.partition("=")
        if not (key and equals):
            raise SettingsError(f"{_PREFIX}{name}: {word!r} is no NAME=VALUE")
        found.append((key, value))
    return tuple(found)


def _number(environment: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    text = environment.get(_PREFIX + name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise SettingsError(f"{_PREFIX}{name}: {text!r} is not allowed; allowed: {least:g} to {most:g}")
    return value
