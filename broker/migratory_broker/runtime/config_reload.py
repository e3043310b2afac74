"""The configuration file while the broker runs: who belongs to the cluster may change, all else needs a restart.

A cluster that grows or shrinks would otherwise restart every broker for the sake of one line. The file is read when it
looks different, so that one that is swapped as a whole (as Kubernetes does it) is noticed like one that is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from migratory_broker.runtime.config import BrokerConfig, load
from migratory_broker.runtime.errors import ConfigError
from migratory_broker.runtime.logs import Log

EVERY = 2.0
"""Seconds between two looks."""


class ConfigReloader:
    """:param take: told when there are other brokers, or others of them leave."""

    def __init__(
        self, path: Path, config: BrokerConfig, name: str, log: Log, take: Callable[[BrokerConfig], None]
    ) -> None:
        self._path = path
        self._config = config
        self._name = name
        self._log = log
        self._take = take
        # read once at first: it may have changed since the broker began
        self._seen: tuple[int, int, int] | None = None
        self._next = 0.0

    def tick(self, now: float) -> None:
        if now < self._next:
            return
        self._next = now + EVERY
        seen = self._look()
        if seen == self._seen or seen is None:
            return
        self._seen = seen
        try:
            fresh = load(self._path)
        except ConfigError as error:
            self._log("warning", "configuration_rejected", reason=str(error))
            return
        if self._name not in fresh.brokers:
            # It is being taken out, and goes on until it is told to end: its clients then go to those that stay.
            self._log("info", "broker_removed_from_configuration")
            fresh = msgspec.structs.replace(fresh, brokers=(*fresh.brokers, self._name))
        ours = {"brokers": self._config.brokers, "leaving": self._config.leaving}
        rest = msgspec.structs.replace(fresh, **ours)
        if rest != self._config:
            self._log("warning", "configuration_needs_restart", sections=_differing(rest, self._config))
        # So few that go with fewer copies, which this process has not taken: its own copies would have no quorum.
        if len(fresh.staying(self._name)) < 2 * self._config.delivery.min_copies - 1:
            return
        if (fresh.brokers, fresh.leaving) != (self._config.brokers, self._config.leaving):
            self._config = msgspec.structs.replace(self._config, brokers=fresh.brokers, leaving=fresh.leaving)
            self._take(self._config)

    def _look(self) -> tuple[int, int, int] | None:
        """None while there is no file, such as between two of its versions."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def _differing(one: BrokerConfig, other: BrokerConfig) -> list[str]:
    return [name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)]
