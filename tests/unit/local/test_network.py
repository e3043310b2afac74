"""Free ports: they lie below those of outgoing connections, and none is handed out twice. Claims and their errors."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from migratory_local import LocalError
from migratory_local.processes import network
from migratory_local.processes.network import LOOPBACK, check_free, claim, free_ports, is_free


def test_free_ports_are_different_and_handed_out_once() -> None:
    first, second = free_ports(20), free_ports(20)
    assert len({*first, *second}) == 40
    assert all(map(is_free, first))


def test_free_ports_are_below_the_ephemeral_range() -> None:
    assert max(free_ports(20)) < network._ephemeral_start()


def test_port_in_use_is_an_error() -> None:
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(LocalError, match=rf"port {port} for the test is in use .* --ports"):
            check_free(port, "the test")


def test_claimed_port_stays_free_and_is_claimed_once_until_released() -> None:
    (port,) = free_ports(1)
    holder = claim(port)
    assert holder is not None
    assert is_free(port)
    assert claim(port) is None
    holder.close()
    again = claim(port)
    assert again is not None
    again.close()


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_port_out_of_range_is_an_error(port: int) -> None:
    with pytest.raises(LocalError, match="is not allowed; ports are 1 to 65535"):
        check_free(port, "x")


def test_too_few_free_ports_is_an_error() -> None:
    with pytest.raises(LocalError, match="100000 free ports are needed"):
        network.free_ports(100_000)


def test_unreadable_ephemeral_range_falls_back_to_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(network, "_EPHEMERAL_RANGE_FILE", tmp_path / "none")
    assert network._ephemeral_start() == 32_768
