"""Reloading the configuration file: changed brokers, weights and limits of addresses are applied, other changes need a
restart, and an invalid or missing file changes nothing."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from migratory_broker.core.edge.events import RateLimits, Rates
from migratory_broker.runtime.clients.service import rate_limits
from migratory_broker.runtime.config import BrokerConfig, load
from migratory_broker.runtime.config_reload import CHECK_INTERVAL, ConfigReloader

THREE = ["a", "b", "c"]


class File:
    """A configuration file, and the changes that broker "a" applied after it was written."""

    def __init__(self, path: Path, log: Any) -> None:
        self.path, self.log = path, log
        self.taken: list[tuple[str, ...]] = []
        self.now = 0.0
        self.write(THREE)
        self.rereading = ConfigReloader(path, load(path), "a", log, self._take)

    def _take(self, config: BrokerConfig) -> None:
        self.taken.append(config.staying("a"))

    def write(self, brokers: list[str], **fields: Any) -> None:
        """Replace the file in one step, as Kubernetes does."""
        config = {"cluster": "quotes", "brokers": brokers, "zookeeper": {"servers": "zk:2181"}} | fields
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(config))
        fresh.rename(self.path)

    def look(self) -> None:
        self.now += CHECK_INTERVAL
        self.rereading.tick(self.now)


@pytest.fixture
def file(tmp_path: Path, log: Any) -> File:
    return File(tmp_path / "broker.json", log)


def test_changed_servers_of_zookeeper_are_applied_unless_their_chroot_changes(file: File, log: Any) -> None:
    applied: list[str] = []
    reloader = ConfigReloader(
        file.path, load(file.path), "a", log, lambda config: applied.append(config.zookeeper.servers)
    )
    for servers in ("zk:2181,zk2:2181", "zk2:2181/other"):
        file.write(THREE, zookeeper={"servers": servers})
        reloader.tick(file.now)
        file.now += CHECK_INTERVAL
    assert applied == ["zk:2181,zk2:2181"]
    assert log.events() == ["configuration_needs_restart"]


def test_the_reloader_applies_a_changed_broker_list_once(file: File) -> None:
    file.look()
    file.write([*THREE, "d", "e"])
    file.look()
    file.look()
    assert file.taken == [("a", "b", "c", "d", "e")]
    file.write(THREE)
    file.look()
    assert file.taken[1:] == [("a", "b", "c")]
    assert file.log.events() == []


def test_the_reloader_notices_a_change_before_its_first_check(file: File) -> None:
    file.write([*THREE, "d"])
    file.look()
    assert file.taken == [("a", "b", "c", "d")]


def test_the_reloader_checks_the_file_once_per_interval(file: File) -> None:
    file.look()
    file.write([*THREE, "d"])
    file.rereading.tick(file.now + 0.9 * CHECK_INTERVAL)
    assert file.taken == []
    file.rereading.tick(file.now + CHECK_INTERVAL)
    assert file.taken != []


def test_the_reloader_applies_limits_of_addresses_without_a_restart(file: File) -> None:
    applied: list[BrokerConfig] = []
    file.rereading = ConfigReloader(file.path, load(file.path), "a", file.log, applied.append)
    file.write(THREE, limits={"addresses": {"connections": 7, "exempt": ["10.0.0.0/8"]}})
    file.look()
    file.look()
    (config,) = applied
    assert (config.limits.addresses.connections, config.limits.addresses.exempt) == (7, ("10.0.0.0/8",))
    assert file.log.events() == []
    file.write(["a"], limits={"addresses": {"connections": 8}, "heartbeat": 5}, delivery={"minCopies": 1})
    file.look()  # too few brokers for the running copies
    assert applied[1].limits.addresses.connections == 8
    assert (applied[1].limits.heartbeat, applied[1].brokers) == (15.0, ("a", "b", "c"))
    assert file.log.lines[0]["sections"] == ["limits", "delivery"]


def test_the_reloader_applies_rates_without_a_restart(file: File) -> None:
    applied: list[BrokerConfig] = []
    file.rereading = ConfigReloader(file.path, load(file.path), "a", file.log, applied.append)
    rates = {"publicationsPerSecond": 7, "bytesPerSecond": 8, "subscriptionsPerSecond": 9}
    file.write(THREE, limits={"clients": rates, "identities": {"bytesPerSecond": 5}})
    file.look()
    (config,) = applied
    assert rate_limits(config) == RateLimits(client=Rates(7, 8, 9), identity=Rates(bytes=5))
    assert file.log.events() == []


def test_the_reloader_applies_weights_without_a_restart(file: File) -> None:
    applied: list[BrokerConfig] = []
    file.rereading = ConfigReloader(file.path, load(file.path), "a", file.log, applied.append)
    file.write(THREE, weights={"a": 20, "b": 0})
    file.look()
    file.look()
    (config,) = applied
    assert [config.weight(name) for name in THREE] == [20, 0, 100]
    assert file.log.events() == []
    file.write(["a"], weights={"a": 30}, delivery={"minCopies": 1})
    file.look()  # too few brokers for the running copies
    assert (applied[1].weight("a"), applied[1].brokers) == (30, ("a", "b", "c"))


def test_the_reloader_names_changed_fields_that_need_a_restart(file: File) -> None:
    file.write([*THREE, "d"], limits={"heartbeat": 5})
    file.look()
    assert file.taken == [("a", "b", "c", "d")]
    assert file.log.lines == [{"level": "warning", "event": "configuration_needs_restart", "sections": ["limits"]}]


@pytest.mark.parametrize("text", ["{", '{"cluster": "quotes"}'])
def test_the_reloader_rejects_and_logs_an_invalid_file(file: File, text: str) -> None:
    file.path.write_text(text)
    file.look()
    file.look()
    assert file.taken == []
    (line,) = file.log.lines
    assert line["event"] == "configuration_rejected"
    assert str(file.path) in line["reason"]


def test_a_removed_broker_keeps_running_beside_the_others(file: File) -> None:
    file.write(["b", "c", "d"])
    file.look()
    file.look()
    assert file.taken == [("b", "c", "d", "a")]
    assert file.log.events() == ["broker_removed_from_configuration"]


def test_the_reloader_ignores_a_list_too_short_for_min_copies(file: File) -> None:
    file.look()
    file.write(["a"], delivery={"minCopies": 1})
    file.look()
    assert file.taken == []
    assert file.log.lines == [{"level": "warning", "event": "configuration_needs_restart", "sections": ["delivery"]}]
    file.write(THREE[:2], delivery={"minCopies": 1})
    file.look()
    file.write([*THREE, "d"], delivery={"minCopies": 1})
    file.look()
    assert file.taken == [("a", "b", "c", "d")]


def test_leaving_brokers_are_excluded_and_may_return(file: File) -> None:
    file.look()
    five = [*THREE, "d", "e"]
    file.write(five)
    file.look()
    file.write(five, leaving=["d", "e"])
    file.look()
    file.write(five, leaving=["e", "a"])
    file.look()
    file.write(five)
    file.look()
    assert file.taken == [tuple(five), ("a", "b", "c"), ("b", "c", "d", "a"), tuple(five)]
    assert file.log.events() == []


def test_the_reloader_waits_for_a_missing_file(file: File) -> None:
    file.look()
    file.path.unlink()
    file.look()
    file.write([*THREE, "d"])
    file.look()
    assert file.taken == [("a", "b", "c", "d")]
    assert file.log.events() == []


def test_the_reloader_reads_an_unreadable_file_again_though_it_did_not_change(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.look()
    file.write([*THREE, "d"])
    errors = iter([OSError(errno.EMFILE, "Too many open files"), *[PermissionError(errno.EACCES, "denied")] * 2])

    def unreadable(*_: Any) -> None:
        raise next(errors)

    with monkeypatch.context() as patched:
        for method in ("open", "read_bytes"):
            patched.setattr(Path, method, unreadable)
        for _ in range(3):
            file.look()
    assert [line["reason"] for line in file.log.lines] == [
        f"cannot read the configuration {file.path}: {reason}" for reason in ("Too many open files", "denied")
    ]
    assert file.taken == []
    file.look()
    assert file.taken == [("a", "b", "c", "d")]
    assert len(file.log.lines) == 2
