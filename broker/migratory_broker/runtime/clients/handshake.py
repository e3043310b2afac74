"""The server's part of the WebSocket handshake, for `ClientServer`: checks the head of an upgrade, negotiates wire
format and compression, and builds the answer (RFC 6455, section 4.2). Also checks Host, Origin and bearer tokens of any
request, for the clients' listener, the console and the administration."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal, Protocol, cast
from urllib.parse import urlsplit

from migratory_protocol.codec import CODECS
from migratory_protocol.handshake import accept_key, is_valid_key, negotiate_codec, negotiate_deflate
from migratory_protocol.messages import Server
from migratory_protocol.origins import OriginPolicy

from migratory_broker.runtime.accepting.http import RefusedRequest

Wire = Literal["json", "msgpack"]


class Headers(Protocol):
    """The interface of a request's headers: names are case-insensitive, and one name may have several values."""

    def get(self, key: str, default: str, /) -> str: ...

    def getall(self, key: str, default: list[str], /) -> list[str]: ...

    def __contains__(self, key: object, /) -> bool: ...


@dataclass(frozen=True, slots=True)
class AcceptedUpgrade:
    """An accepted WebSocket upgrade: the negotiated wire format, and whether messages may be compressed (`deflate`).
    `answer` is the whole HTTP response, to be written unchanged."""

    wire: Wire
    deflate: bool
    answer: bytes


def negotiate(
    method: str, version: tuple[int, int], headers: Headers, compression: bool
) -> AcceptedUpgrade | RefusedRequest:
    """Check the head of an upgrade request whose source is allowed (`check_source`), and negotiate wire format and
    compression. Return the answer to the request, or its refusal with status 400 or 426. Without a subprotocol the wire
    format is JSON. Without `compression`, permessage-deflate is never accepted."""
    if method != "GET" or version < (1, 1):
        return RefusedRequest(400, "a WebSocket handshake must be a GET request of HTTP/1.1")
    if _tokens(headers, "Upgrade") != ["websocket"] or "upgrade" not in _tokens(headers, "Connection"):
        return RefusedRequest(
            426,
            "not a WebSocket handshake; see RFC 6455",
            {"Upgrade": "websocket", "Connection": "Upgrade"},
        )
    if headers.get("Content-Length", "0").strip() != "0" or "Transfer-Encoding" in headers:
        return RefusedRequest(400, "a WebSocket handshake must have no body")
    if headers.getall("Sec-WebSocket-Version", []) != ["13"]:
        return RefusedRequest(426, "Sec-WebSocket-Version must be 13", {"Sec-WebSocket-Version": "13"})
    keys = headers.getall("Sec-WebSocket-Key", [])
    if len(keys) != 1 or not is_valid_key(keys[0].strip()):
        return RefusedRequest(400, "Sec-WebSocket-Key must be 16 bytes in base64")
    offered = headers.getall("Sec-WebSocket-Protocol", [])
    codec = negotiate_codec(",".join(offered) if offered else None)
    if codec is None:
        known = ", ".join(codec.subprotocol for codec in CODECS)
        return RefusedRequest(400, f"unknown subprotocol; allowed are {known}")
    extensions = headers.getall("Sec-WebSocket-Extensions", [])
    deflate = negotiate_deflate(",".join(extensions)) if compression and extensions else None
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {accept_key(keys[0].strip())}",
    ]
    if offered:
        lines.append(f"Sec-WebSocket-Protocol: {codec.subprotocol}")
    if deflate is not None:
        lines.append(f"Sec-WebSocket-Extensions: {deflate}")
    answer = ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
    return AcceptedUpgrade(cast("Wire", codec.name), deflate is not None, answer)


_AUTHORITY = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([\w-]+(?:\.[\w-]+)*)\.?)(?::([0-9]{1,5}))?", re.ASCII)


def check_source(target: str, headers: Headers, policy: OriginPolicy) -> RefusedRequest | None:
    """Check Host and Origin of a request. Return None if they are allowed, else the refusal: with status 400 for a Host
    or an Origin that is missing, repeated or malformed, and for a `target` of another server than Host says, and else
    as `policy` refuses them.

    `target` is the request's target as it was sent: a path, or a whole URL (RFC 9112, 3.2.2), which proxies take for
    the server that is asked. Brokers read Host alone, so the two must agree.
    """
    hosts = headers.getall("Host", [])
    if len(hosts) == 1:
        host = hosts[0].strip(" \t")
        if not is_authority(host):
            return RefusedRequest(400, "Host must be a name or an address, IPv6 in brackets, with or without a port")
        if not target.startswith(("/", "*")) and _server_of(target) != host.lower():
            return RefusedRequest(400, "the request's URL must be of http or https, and have the server that Host says")
    refusal = policy.check(headers.getall("Origin", []), hosts)
    return RefusedRequest(refusal.status, refusal.text) if refusal is not None else None


def is_authority(text: str) -> bool:
    """Return whether a text is the server of a URL of http: a DNS name or an IPv4 address, or an IPv6 address in
    brackets and without a zone, and perhaps a port (RFC 3986, 3.2). User information, escapes and empty labels are not
    accepted, and no letters beyond ASCII: browsers send none of them as Host."""
    match = _AUTHORITY.fullmatch(text)
    if match is None or int(match[3] or 0) > 65_535:
        return False
    return match[1] is None or _is_address(match[1], ipaddress.IPv6Address)


def _server_of(target: str) -> str:
    """Return the server of a request target that is a URL of http or https, in lower case; "" of any other target."""
    scheme, _, rest = target.partition("://")
    return re.split("[/?#]", rest, maxsplit=1)[0].lower() if scheme.lower() in {"http", "https"} else ""


LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".svc")
"""The ends of names that nobody can register in the public DNS: of this host, its network or its Kubernetes cluster."""


def check_rebound(headers: Headers, servers: Sequence[Server]) -> RefusedRequest | None:
    """Check the Host of a GET request that has neither an Origin nor a token, where every Host is served that
    `check_source` accepts. Return None if no foreign web page can have it: it is an address, has no dot, ends in one of
    `LOCAL_SUFFIXES`, or is the name in a URL of `servers`. Otherwise return the refusal, with status 421.

    A page whose name was made to point to the broker (DNS rebinding) is of the same origin as its broker, and may read
    the answer. Its name is a registered one, and not that of a broker.
    """
    name = (urlsplit(f"//{headers.get('Host', '')}").hostname or "").removesuffix(".")
    if "." not in name or name.endswith(LOCAL_SUFFIXES) or _is_address(name):
        return None
    if name in {urlsplit(server.url).hostname for server in servers}:
        return None
    text = (
        f"this Host is not served here without an Origin: {name[:100]!a} is neither an address, a local name nor the "
        "name of a broker's URL; add it to spec.security.hosts of the cluster"
    )
    return RefusedRequest(421, text)


def _is_address(name: str, parse: Callable[[str], object] = ipaddress.ip_address) -> bool:
    try:
        parse(name)
    except ValueError:
        return False
    return True


def bearer_token(headers: Headers) -> str | None:
    """Return the token of the header `Authorization: Bearer TOKEN` (RFC 6750, 2.1). Return None when there is no such
    header, another scheme, or more than one such header."""
    values = headers.getall("Authorization", [])
    scheme, _, token = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else None


def has_token(headers: Headers, tokens: Sequence[str]) -> bool:
    """Return whether the request has a bearer token whose SHA-256, in hexadecimal digits, is one of `tokens`."""
    token = bearer_token(headers)
    digest = sha256((token or "").encode(errors="replace")).hexdigest()
    return bool(token) and any(hmac.compare_digest(digest, known) for known in tokens)


def _tokens(headers: Headers, name: str) -> list[str]:
    """Return the items of all headers with this name, which are divided by commas, in lower case."""
    return [token.strip().lower() for value in headers.getall(name, []) for token in value.split(",")]
