"""Reloading the configuration file while the broker runs: the cluster's members, their weights, ZooKeeper's servers,
and the limits of client addresses and of rates, may change; everything else needs a restart.

Otherwise a cluster that grows or shrinks would restart every broker for one line. The file is read when it has changed,
and again while it cannot be read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from migratory_broker.runtime.config import BrokerConfig, parse
from migratory_broker.runtime.errors import ConfigError
from migratory_broker.runtime.logs import Log
from migratory_broker.runtime.watched_file import WatchedFile

CHECK_INTERVAL = 2.0
"""Seconds between two checks of the file."""


class ConfigReloader:
    """A watcher of the configuration file. When `brokers`, `leaving`, `weights`, `zookeeper.servers` or
    `LimitsSection.reloadable` changed, it calls `on_change` with the running configuration in which only these are
    replaced. `brokers` and `leaving` stay as they are if fewer than 2 x `minCopies` - 1 brokers would stay. Changes
    that need a restart and errors are logged."""

    def __init__(
        self, path: Path, config: BrokerConfig, name: str, log: Log, on_change: Callable[[BrokerConfig], None]
    ) -> None:
        self._file = WatchedFile(path)  # read at the first check, as it may have changed since the broker started
        self._config = config
        self._name = name
        self._log = log
        self._on_change = on_change
        self._unreadable = ""  # why the file cannot be read, once that was logged
        self._next_check = 0.0

    def tick(self, now: float) -> None:
        """Check the file if `CHECK_INTERVAL` seconds have passed since the last check. If it changed, call `on_change`
        if anything changed that a running broker applies, and log which sections need a restart."""
        if now < self._next_check:
            return
        self._next_check = now + CHECK_INTERVAL
        loaded = self._load()
        if loaded is None:
            return
        if self._name not in loaded.brokers:
            # This broker is being removed. It runs until it is stopped; its clients then go to those that stay.
            self._log("info", "broker_removed_from_configuration")
            loaded = replace(loaded, brokers=(*loaded.brokers, self._name))
        unapplied = replace(loaded, **self._applicable(self._config, loaded))
        if unapplied != self._config:
            self._log("warning", "configuration_needs_restart", sections=_differing_sections(unapplied, self._config))
        applied = self._applicable(loaded, self._config)
        # A list so short belongs to a smaller `minCopies`, which needs a restart: with the running one there would be
        # no quorum.
        if len(loaded.staying(self._name)) < 2 * self._config.delivery.min_copies - 1:
            applied = {name: value for name, value in applied.items() if name not in ("brokers", "leaving")}
        config = replace(self._config, **applied)
        if config != self._config:
            self._config = config
            self._on_change(config)

    @staticmethod
    def _applicable(source: BrokerConfig, rest: BrokerConfig) -> dict[str, Any]:
        """Return the sections of the configuration that a running broker can change, by name, as `source` has them. The
        limits that need a restart are as `rest` has them."""
        sections = {name: getattr(source, name) for name in ("brokers", "leaving", "weights")}
        zookeeper, servers = rest.zookeeper, source.zookeeper.servers
        # Another chroot is another tree.
        if servers.partition("/")[2] == zookeeper.servers.partition("/")[2]:
            zookeeper = replace(zookeeper, servers=servers)
        return {**sections, "zookeeper": zookeeper, "limits": replace(rest.limits, **source.limits.reloadable)}

    def _load(self) -> BrokerConfig | None:
        """Return the configuration in the file if it changed since the last successful read. Return None if it did not,
        while there is no such file, or if it cannot be read or is not valid. Log the reason, once for each change and
        each reason."""
        path = self._file.path
        try:
            data = self._file.read()
            self._unreadable = ""
            return None if data is None else parse(data)
        except FileNotFoundError:
            return None  # about to be replaced
        except OSError as error:
            reason = f"cannot read the configuration {path}: {error.strerror}"
            if reason != self._unreadable:
                self._unreadable = reason
                self._log("warning", "configuration_rejected", reason=reason)
        except ConfigError as error:
            self._log("warning", "configuration_rejected", reason=f"{path}: {error}")
        return None


def _differing_sections(first: BrokerConfig, second: BrokerConfig) -> list[str]:
    """Return the names of the fields in which two configurations differ."""
    return [name for name in first.__struct_fields__ if getattr(first, name) != getattr(second, name)]
