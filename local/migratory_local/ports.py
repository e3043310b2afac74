"""TCP ports on the loopback address that stay usable over a restart of the process that listens on them.

Not ports that the kernel picks (`bind` to 0): those lie in the range of outgoing connections, and while a killed broker
is away, one of thousands of reconnecting clients may be given its port, or even connect to itself.
"""

from __future__ import annotations

import errno
import random
import socket
from pathlib import Path

from migratory_local.errors import LocalError

HOST = "127.0.0.1"
LOWEST = 10_000
_EPHEMERAL_FALLBACK = 32_768
_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_free(port: int) -> bool:
    """Whether a listener can take the port now (a port in TIME_WAIT counts as free, as it does for servers)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def reserve(port: int) -> socket.socket | None:
    """Keeps a free port from every other process until the socket is closed; None when that can't be.

    Bound without SO_REUSEADDR, for only then a second binding is refused. While old connections of the port are in
    TIME_WAIT it can't be reserved, though a server could take it.
    """
    holder = socket.socket()
    try:
        holder.bind((HOST, port))
    except OSError:
        holder.close()
        return None
    return holder


def check_free(port: int, purpose: str) -> None:
    """:raises LocalError: naming the port and what it was wanted for."""
    if not 1 <= port <= 65_535:
        raise LocalError(f"port {port} for {purpose}: allowed are 1 to 65535")
    if not is_free(port):
        raise LocalError(f"port {port} for {purpose} is in use or not allowed: choose others with --ports BASE")


_handed_out: set[int] = set()
"""What this process has chosen, though nobody may listen there yet."""


def free_ports(count: int) -> list[int]:
    """`count` different free ports, none twice in a process, below the range of outgoing connections; at random, so
    that runners rarely collide.

    :raises LocalError: when so many can't be found.
    """
    top = min(_ephemeral_start(), 65_536)
    candidates = list(range(LOWEST, top)) if top > LOWEST + 1000 else list(range(1024, 65_536))
    random.shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if port not in _handed_out and is_free(port):
            found.append(port)
            if len(found) == count:
                _handed_out.update(found)
                return found
    raise LocalError(f"only {len(found)} free ports of {count} on {HOST}")


def _ephemeral_start() -> int:
    try:
        return int(_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _EPHEMERAL_FALLBACK
