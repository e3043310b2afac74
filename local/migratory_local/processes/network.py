"""Free TCP ports, network placement of processes, and small HTTP requests to them.

Ports are not chosen by the kernel (`bind` to port 0). Those lie in the range of outgoing connections: while a killed
broker is down, one of thousands of reconnecting clients may get the broker's port as source port, or even connect to
itself.
"""

from __future__ import annotations

import errno
import random
import socket
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from migratory_local import LocalError

LOOPBACK = "127.0.0.1"
LOWEST_PORT = 10_000
"""The lowest port that `free_ports` hands out. Well-known services listen below it."""
_DEFAULT_EPHEMERAL_START = 32_768
"""The kernel's default start of the range of outgoing connections, for systems that do not say."""
_EPHEMERAL_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True)
class Placement:
    """The network in which a process runs: this machine's loopback address by default.

    :param address: the address on which the process listens and under which others reach it.
    :param command_prefix: command words that enter the network, such as those that enter a network namespace. The last
        of them must replace itself by the process (exec), because signals go to the process that was started.
    """

    address: str = LOOPBACK
    command_prefix: tuple[str, ...] = ()


LOCAL_PLACEMENT = Placement()


def is_free(port: int) -> bool:
    """Return whether a server can listen on the port of the loopback address now. Raise OSError if that cannot be found
    out.

    A port in TIME_WAIT counts as free, as it does for servers. A port that this user may not use counts as not free.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def claim(port: int) -> socket.socket | None:
    """Claim a port among the runners of this machine until the returned socket is closed. Return None if another runner
    has claimed it.

    The port itself stays free, so that a broker can listen on it, end, and listen on it again; no other runner takes
    the port meanwhile. The claim is a name in Linux's abstract socket namespace: the kernel drops it when this process
    ends.
    """
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(f"\0migratory-port-{port}")
    except OSError:
        holder.close()
        return None
    return holder


def check_free(port: int, purpose: str) -> None:
    """Check that a server can listen on the port of the loopback address.

    :raises LocalError: it cannot, or the number is no port; the message names the port and its purpose.
    """
    if not 1 <= port <= 65_535:
        raise LocalError(f"port {port} for {purpose} is not allowed; ports are 1 to 65535")
    if not is_free(port):
        raise LocalError(f"port {port} for {purpose} is in use or not permitted; choose other ports with --ports BASE")


_handed_out: set[int] = set()
"""Ports that this process has already returned, even if nothing listens on them yet."""


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports from `LOWEST_PORT` up to the range of outgoing connections. If that range
    begins too low, they are any free ports from 1024 on. No port is returned twice in a process.

    They are chosen at random, so that runners that start at the same time rarely collide.

    :raises LocalError: there are not enough.
    """
    top = min(_ephemeral_start(), 65_536)
    candidates = list(range(LOWEST_PORT, top)) if top > LOWEST_PORT + 1000 else list(range(1024, 65_536))
    random.shuffle(candidates)
    chosen: list[int] = []
    for port in candidates:
        if port not in _handed_out and is_free(port):
            chosen.append(port)
            if len(chosen) == count:
                _handed_out.update(chosen)
                return chosen
    raise LocalError(
        f"{count} free ports are needed on {LOOPBACK}, but only {len(chosen)} were found; end other servers"
    )


def _ephemeral_start() -> int:
    """Return the first port of the range of outgoing connections, or the kernel's default if the system does not
    say."""
    try:
        return int(_EPHEMERAL_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _DEFAULT_EPHEMERAL_START


class HttpClient:
    """An HTTP client for small GET requests to processes of this machine that may be down.

    Connections are not pooled: a frozen process must not block the next request, and a restarted one needs a new
    connection. Certificates are not checked, as with probes of Kubernetes: a wrong one does not mean that the process
    is down.
    """

    def __init__(self, timeout: float, token: str = "") -> None:
        """`timeout` is the limit in seconds for a whole request. `token` is sent as bearer token, if it is not
        empty."""
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    async def get(self, port: int, path: str) -> tuple[int, str] | None:
        """Request a path from a port of the loopback address, without TLS. Return what `get_from` returns."""
        return await self.get_from(f"{LOOPBACK}:{port}", path)

    async def get_from(self, address: str, path: str) -> tuple[int, str] | None:
        """Request a path from `address`, which is `host:port` or `https://host:port`. Return status and body, or None
        if the request fails or takes too long. An error status is returned like any other."""
        if self._session is None:
            connector = aiohttp.TCPConnector(force_close=True, limit=0, ssl=False)
            self._session = aiohttp.ClientSession(
                timeout=self._timeout, connector=connector, headers=self._headers, trust_env=False
            )
        base = address if "://" in address else f"http://{address}"
        try:
            async with self._session.get(base + path) as response:
                return response.status, await response.text()
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
