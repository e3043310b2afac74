"""Limits of each client address: connections at a time, and new connections a second.

They are checked when a connection is accepted, before anything is read from it, and for all listeners of clients in one
place: the broker's process accepts for its I/O processes as well. An IPv6 address counts with its network of 64 bits,
which is what one customer gets. Networks that are exempt, such as those of proxies, are not counted.

`address_key` and `CountedAddresses` give the name under which an address counts, which rates of publishing and the
turns of TLS handshakes use as well.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

BURST = 1.0
"""Seconds of an address's rate that it may use at once: browsers open several connections, and a proxy many."""

MIN_RATES = 4096
"""The number of addresses whose rate is remembered. Above it those are forgotten whose earlier connections no longer
reduce what they may use."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def address_key(host: str) -> str:
    """Return the name under which an IP address counts: of an IPv6 address its network of 64 bits, of an IPv4 address
    the address itself. An IPv4 address in the form `::ffff:192.0.2.1` counts as IPv4. Return "" for "". Raises
    ValueError for another text that is no IP address."""
    if not host:
        return ""
    address = _address(host)
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address.packed, 64), strict=False))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the parsed address, an IPv4 address that is mapped into IPv6 as IPv4. Raises ValueError for a text that is
    no IP address."""
    address = ipaddress.ip_address(host)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


class CountedAddresses:
    """The addresses that count for limits: all outside the `exempt` networks. Raises ValueError when a text in `exempt`
    is not a network, or is one with bits set behind its prefix (`10.0.0.1/8`)."""

    def __init__(self, exempt: Sequence[str]) -> None:
        self._exempt: tuple[Network, ...] = tuple(ipaddress.ip_network(network) for network in exempt)

    def key(self, host: str) -> str:
        """Return the name under which an IP address counts, as `address_key` does, or "" if it is exempt or `host` is
        "". Raises ValueError for another text that is no IP address."""
        if not host or any(_address(host) in network for network in self._exempt):
            return ""
        return address_key(host)


class AddressLease:
    """The place of one connection within the limit of its address. `key` is the name under which the address counts.
    `release` gives the place back at its first call and makes `key` empty; later calls do nothing."""

    __slots__ = ("_release", "key")

    def __init__(self, key: str, release: Callable[[str], object]) -> None:
        self.key = key
        self._release = release

    def release(self) -> None:
        if self.key:
            key, self.key = self.key, ""
            self._release(key)


@dataclass(frozen=True, slots=True)
class AddressRefusal:
    """The refusal of a connection at a limit of its address. `limit` is the label of the limit in the metric
    `migratory_refusals_total`, `text` the reason in words, `retry_after` the seconds after which the client may try
    again."""

    limit: str
    text: str
    retry_after: int


class AddressLimits:
    """The limits of each client address, and the connections that each one has now. A limit of 0 is off, as both are
    until `configure`, and with both off nothing is counted. `refused` is the number of refused connections so far, by
    limit.

    Connections that were accepted while both were off are not counted later.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._max_connections = 0
        self._rate = 0
        self._counted = CountedAddresses(())
        self._connections: Counter[str] = Counter()
        self._due: dict[str, float] = {}  # when an address that stays at its rate may connect next
        self._max_due = MIN_RATES
        self.refused: Counter[str] = Counter()  # by limit

    def configure(self, connections: int, rate: int, exempt: Sequence[str]) -> None:
        """Set the limits of each address: its `connections` at a time, and its new connections a second (`rate`); 0 for
        none. Addresses in the networks `exempt` have none. Connections that were counted before stay counted, and none
        is closed. Raises ValueError for a text in `exempt` that is not a network, and then changes nothing."""
        self._counted = CountedAddresses(exempt)
        self._max_connections, self._rate = connections, rate

    def admit(self, host: str) -> AddressLease | AddressRefusal | None:
        """Count a new connection from the IP address `host`, and return its lease, which the caller releases when the
        connection ends. Return None when the connection does not count: both limits are off, or the address is exempt.
        At a limit, count the connection in `refused` only, and return its refusal."""
        if not (self._max_connections or self._rate):
            return None
        key = self._counted.key(host)
        if not key:
            return None
        refusal = self._refusal(key)
        if refusal is not None:
            self.refused[refusal.limit] += 1
            return refusal
        self._connections[key] += 1
        return AddressLease(key, self.release)

    def release(self, key: str) -> None:
        """Give back the place of one connection of the address that counts as `key`: it has ended.
        `AddressLease.release` calls this."""
        self._connections[key] -= 1
        if not self._connections[key]:
            del self._connections[key]

    def _refusal(self, key: str) -> AddressRefusal | None:
        """Return the refusal of one more connection from the address that counts as `key`, or None if it is allowed. An
        allowed connection is counted for the rate here (GCRA: one time is stored for each address), but not for the
        number of connections."""
        if 0 < self._max_connections <= self._connections[key]:
            text = f"{key}: limit of connections of one address reached ({self._max_connections})"
            return AddressRefusal("address_connections", text, 5)
        if not self._rate:
            return None
        now = self._clock()
        due = max(now, self._due.get(key, 0.0))
        wait = due - now - BURST + 1 / self._rate
        if wait > 1e-9:
            text = f"{key}: limit of new connections of one address reached ({self._rate} a second)"
            return AddressRefusal("address_rate", text, math.ceil(wait))
        self._due[key] = due + 1 / self._rate
        if len(self._due) > self._max_due:
            self._due = {other: due for other, due in self._due.items() if due > now}
            self._max_due = max(MIN_RATES, 2 * len(self._due))
        return None
