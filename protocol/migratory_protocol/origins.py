"""The Origin and Host check of a connection request, for the broker's WebSocket and HTTP requests.

WebSocket is exempt from the same-origin policy. Without this check any page that a user visits could connect with the
user's cookies (cross-site WebSocket hijacking). By DNS rebinding a page could reach the broker with a foreign Host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://([a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")
_HOST = re.compile(r"([a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?")
_DEFAULT_PORTS = {"http": "80", "ws": "80", "https": "443", "wss": "443"}


@dataclass(slots=True, frozen=True)
class OriginRefusal:
    """The refusal of a request for its Origin or Host header: the HTTP status to answer with, and the text."""

    status: int
    text: str


@dataclass(slots=True, frozen=True)
class _Pattern:
    scheme: str  # "" for a Host
    name: str  # a host name, or "*.example.org": every name below that one, not itself
    port: str  # "": any

    def matches(self, scheme: str, name: str, port: str) -> bool:
        """Return whether an origin or a host, in its parts, is one that the pattern stands for."""
        if scheme != self.scheme or self.port not in ("", port):
            return False
        if self.name.startswith("*."):
            return name.endswith(self.name[1:]) and len(name) > len(self.name) - 1
        return name == self.name


class OriginPolicy:
    """The allowed origins and hosts of a listener, parsed once.

    origins          "https://app.example.com", "https://*.example.org" (names below it), "http://localhost:*" (any
                     port), "*" for all
    hosts            "push.example.com" (with any port), "localhost:8080", "*.example.org" (names below it), "*" for all
    without_origin   whether requests without Origin are allowed: programs send none, browsers always send one
    addresses        whether a Host that is an IP address is allowed in any case: DNS rebinding needs a name

    Raises ValueError for a malformed entry; the text names it as `allowed[0]` or `hosts[0]`.
    """

    __slots__ = ("_addresses", "_any_host", "_any_origin", "_hosts", "_origins", "_without_origin")

    def __init__(
        self, origins: Sequence[str], hosts: Sequence[str], without_origin: bool = True, addresses: bool = False
    ) -> None:
        self._addresses = addresses
        self._any_origin = "*" in origins
        self._any_host = "*" in hosts
        self._origins = [_origin_pattern(index, entry) for index, entry in enumerate(origins) if entry != "*"]
        self._hosts = [_host_pattern(index, entry) for index, entry in enumerate(hosts) if entry != "*"]
        self._without_origin = without_origin

    def check(self, origins: Sequence[str], hosts: Sequence[str]) -> OriginRefusal | None:
        """Return None when a request with these Origin and Host headers is allowed, else the refusal: with status 400
        unless there is one Host and at most one Origin, 421 for the Host, 403 for the Origin. The arguments are all
        values of each header, not joined."""
        if len(hosts) != 1:
            return OriginRefusal(400, "expected one Host header")
        if len(origins) > 1:
            return OriginRefusal(400, "more than one Origin header")
        if not self._any_host and not self._is_served(hosts[0]):
            return OriginRefusal(421, "this Host is not served here: see spec.security.hosts of the cluster")
        if not origins:
            return None if self._without_origin else OriginRefusal(403, "an Origin header is required here")
        if not self._any_origin and not _matches(_split_origin(origins[0]), self._origins):
            text = "this Origin is not allowed: see spec.security.origins of the cluster"
            return OriginRefusal(403, text)
        return None

    def _is_served(self, host: str) -> bool:
        """Return whether a Host header is one of the allowed hosts, or an IP address if addresses are allowed."""
        split = _split_host(host)
        return _matches(split, self._hosts) or (self._addresses and split is not None and _is_address(split[1]))


def _matches(address: tuple[str, str, str] | None, patterns: list[_Pattern]) -> bool:
    return address is not None and any(pattern.matches(*address) for pattern in patterns)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _split_origin(text: str) -> tuple[str, str, str] | None:
    """Return scheme, name and port of an origin, in lower case, with the scheme's own port if none is given ("" if it
    has none); None for a malformed one."""
    match = _ORIGIN.fullmatch(text.strip(" \t").lower())
    if match is None:
        return None
    scheme, name, port = match.groups()
    return scheme, name, port or _DEFAULT_PORTS.get(scheme, "")


def _split_host(text: str) -> tuple[str, str, str] | None:
    """Return "", name and port of a Host header, in lower case, "" for no port; None for a malformed one."""
    match = _HOST.fullmatch(text.strip(" \t").lower())
    if match is None:
        return None
    name, port = match.groups()
    return "", name.removesuffix("."), port or ""


def _origin_pattern(index: int, entry: str) -> _Pattern:
    """Return the pattern of an entry of the allowed origins. Raises ValueError, which names the entry by its index."""
    any_port = entry.endswith(":*")
    origin = _split_origin(entry.removesuffix(":*").replace("://*.", "://", 1))
    if origin is None:
        raise ValueError(
            f'allowed[{index}]: {entry!a} is not an origin; use "https://NAME[:PORT]", "https://*.NAME[:PORT]" or "*"; '
            'the port "*" is any'
        )
    scheme, name, port = origin
    return _Pattern(scheme, f"*.{name}" if "://*." in entry else name, "" if any_port else port)


def _host_pattern(index: int, entry: str) -> _Pattern:
    """Return the pattern of an entry of the allowed hosts. Raises ValueError, which names the entry by its index."""
    host = _split_host(entry.removeprefix("*."))
    if host is None:
        raise ValueError(f'hosts[{index}]: {entry!a} is not a host; use "NAME", "NAME:PORT", "*.NAME" or "*"')
    _, name, port = host
    return _Pattern("", f"*.{name}" if entry.startswith("*.") else name, port)
