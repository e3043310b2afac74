"""Ports: free ones, below those of outgoing connections, none given twice; a busy one is named."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from migratory_local import ports
from migratory_local.errors import LocalError
from migratory_local.ports import HOST, check_free, free_ports, is_free, reserve


def test_free_ports_are_different_and_not_given_twice() -> None:
    first, second = free_ports(20), free_ports(20)
    assert len({*first, *second}) == 40
    assert all(map(is_free, first))


def test_free_ports_are_no_ports_of_outgoing_connections() -> None:
    assert max(free_ports(20)) < ports._ephemeral_start()


def test_a_busy_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(LocalError, match=rf"port {port} for the test is in use .* --ports"):
            check_free(port, "the test")


def test_a_reserved_port_is_nobody_elses_until_it_is_released() -> None:
    (port,) = free_ports(1)
    holder = reserve(port)
    assert holder is not None
    assert not is_free(port)
    assert reserve(port) is None
    holder.close()
    assert is_free(port)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_no_port(port: int) -> None:
    with pytest.raises(LocalError, match="allowed are 1 to 65535"):
        check_free(port, "x")


def test_too_many_ports() -> None:
    with pytest.raises(LocalError, match="free ports of 100000"):
        ports.free_ports(100_000)


def test_an_unreadable_range_falls_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ports, "_RANGE_FILE", tmp_path / "none")
    assert ports._ephemeral_start() == 32_768
