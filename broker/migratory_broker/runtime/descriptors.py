"""Accepted sockets on their way to an I/O process: descriptors over a Unix socket that keeps the borders of messages.

The broker's process accepts and gives each socket away, so that connections are spread as it decides
(docs/decisions). What is under way is closed by the kernel when the other end dies.
"""

from __future__ import annotations

import socket


def pair() -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.setblocking(False)
    other.setblocking(False)
    return one, other


def give(way: socket.socket, accepted: socket.socket) -> bool:
    """Gives a socket away; it is closed here. False: it could not be given, and is still the caller's."""
    try:
        socket.send_fds(way, [b"c"], [accepted.fileno()])
    except OSError:
        return False
    accepted.close()
    return True


def take(way: socket.socket, most: int) -> tuple[int, list[socket.socket]]:
    """Of those that have come. `most` that were given are looked for, and not all may be there: the kernel drops what
    there is no descriptor for."""
    given = 0
    taken: list[socket.socket] = []
    while given < most:
        try:
            data, descriptors, _, _ = socket.recv_fds(way, 1, 1)
        except (BlockingIOError, InterruptedError):
            break
        if not data:
            break  # the other end is gone
        given += 1
        for descriptor in descriptors:
            accepted = socket.socket(fileno=descriptor)
            accepted.setblocking(False)
            taken.append(accepted)
    return given, taken
