"""Passing accepted sockets to another process: the connection stays the same, sending fails when the other end is gone,
and sockets in flight to a dead process are closed."""

from __future__ import annotations

import socket
from contextlib import suppress

from migratory_broker.runtime.io_processes.channel import receive_sockets, send_socket, socket_pair


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        return client, listening.accept()[0]


def test_a_sent_socket_is_the_same_connection_at_the_other_end() -> None:
    here, there = socket_pair()
    pairs = [connected() for _ in range(3)]
    for _, accepted in pairs:
        assert send_socket(here, accepted, "192.0.2.7")
        assert accepted.fileno() == -1
    taken = receive_sockets(there, 64)
    assert len(taken) == 3
    for (client, _), (received, key) in zip(pairs, taken, strict=True):
        assert key == "192.0.2.7"
        assert received is not None
        assert not received.getblocking()
        received.send(b"hello")
        assert client.recv(10) == b"hello"
        received.close()
        client.close()
    assert receive_sockets(there, 64) == []
    here.close()
    assert receive_sockets(there, 64) == []
    there.close()


def test_sending_a_socket_fails_when_the_other_end_is_gone() -> None:
    here, there = socket_pair()
    there.close()
    client, accepted = connected()
    assert not send_socket(here, accepted)
    assert accepted.fileno() != -1
    for sock in (client, accepted, here):
        sock.close()


def test_sockets_in_flight_are_closed_when_the_receiver_dies() -> None:
    here, there = socket_pair()
    client, accepted = connected()
    assert send_socket(here, accepted)
    there.close()
    client.settimeout(5)
    with suppress(ConnectionResetError):
        assert client.recv(1) == b""
    client.close()
    here.close()
