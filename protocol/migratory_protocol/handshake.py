"""The opening handshake of WebSocket (RFC 6455, 4), for brokers and the load generator: the client's request and
response, and the server's negotiation.

Pure functions. The HTTP of the server's side belongs to its HTTP library; this module only negotiates subprotocol and
permessage-deflate. `origins.py` checks Origin and Host.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Sequence
from hashlib import sha1

from msgspec import Struct

from migratory_protocol import limits
from migratory_protocol.codec import CODECS, JSON, Codec

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_HEAD_LIMIT = 16 * 1024
_HEADER_TEXT = re.compile(r"[\x21-\x7e\x80-\xff]([\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?")
_RECEIVED_TEXT = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_STATUS = re.compile(rb"HTTP/1\.1 ([1-9][0-9]{2})(?: [\x20-\x7e\x80-\xff]*)?")
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PARAMETER = re.compile(rf'\s*({_TOKEN})\s*(?:=\s*(?:({_TOKEN})|"({_TOKEN})")\s*)?')
_WINDOW_BITS = re.compile(r"8|9|1[0-5]")

DEFLATE_OFFER = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"


class HandshakeError(Exception):
    """The error for a handshake that failed. `text` says why. `status` is the server's HTTP status, 0 when its response
    was not HTTP."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.status = status


class HandshakeResponse(Struct, frozen=True):
    """A server's response that opens the WebSocket: the chosen subprotocol (None: none), whether permessage-deflate was
    accepted, and the bytes after the response (`rest`), the beginning of the first frames."""

    subprotocol: str | None
    deflate: bool
    rest: bytes


def accept_key(key: str) -> str:
    """Return the header value Sec-WebSocket-Accept that answers a client's Sec-WebSocket-Key (4.2.2)."""
    return b64encode(sha1(key.encode("ascii") + _GUID, usedforsecurity=False).digest()).decode("ascii")


def is_valid_key(key: str) -> bool:
    """Return whether a client's Sec-WebSocket-Key is 16 bytes encoded in base64."""
    try:
        return len(b64decode(key.encode("ascii"), validate=True)) == 16
    except (NotBase64, UnicodeEncodeError):
        return False


def build_request(
    host: str,
    path: str,
    nonce: bytes,
    subprotocols: Sequence[str] = (),
    *,
    deflate: bool = False,
    headers: Iterable[tuple[str, str]] = (),
) -> bytes:
    """Return the bytes of the client's upgrade request. `host` is "name:port", `nonce` 16 random bytes, new for each
    request. `deflate` offers permessage-deflate, `headers` are added.

    Raises ValueError for a nonce of another length, and for text that is not allowed in a header or path, such as a
    line break.
    """
    if len(nonce) != 16:
        raise ValueError(f"the nonce has {len(nonce)} bytes, expected 16")
    lines = [
        ("Host", host),
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Key", b64encode(nonce).decode("ascii")),
        ("Sec-WebSocket-Version", "13"),
    ]
    if subprotocols:
        lines.append(("Sec-WebSocket-Protocol", ", ".join(subprotocols)))
    if deflate:
        lines.append(("Sec-WebSocket-Extensions", DEFLATE_OFFER))
    lines += headers
    for name, value in lines:
        if not re.fullmatch(_TOKEN, name) or not _HEADER_TEXT.fullmatch(value):
            raise ValueError(f"{name!a}: {value!a} cannot be sent as a header")
    if not re.fullmatch(r"/[\x21-\x7e]*", path):
        raise ValueError(f"path {path!a} cannot be requested: expected / and printable ASCII without spaces")
    head = f"GET {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines) + "\r\n"
    return head.encode("latin-1")


def parse_response(
    data: bytes | bytearray, nonce: bytes, subprotocols: Sequence[str] = (), *, deflate: bool = False
) -> HandshakeResponse | None:
    """Return the server's response to the request with `nonce`, or None while `data` is incomplete.

    `subprotocols` and `deflate` are what the request offered. Raises HandshakeError when the server refuses the
    request, agrees to something that was not offered, or answers with a malformed or too long head.
    """
    end = data.find(b"\r\n\r\n", 0, _HEAD_LIMIT)
    if end < 0:
        if len(data) >= _HEAD_LIMIT:
            raise HandshakeError(f"the server's response has more than {_HEAD_LIMIT} bytes of headers")
        return None
    first, *lines = bytes(data[:end]).split(b"\r\n")
    match = _STATUS.fullmatch(first)
    if match is None:
        raise HandshakeError(f"the server did not answer with HTTP/1.1 but with {first[:60].decode('latin-1')!a}")
    status = int(match[1])
    if status != 101:
        # as ASCII, so that a server cannot send control sequences to a terminal by way of an error
        shown = ascii(first.decode("latin-1").removeprefix("HTTP/1.1 ")[:100])[1:-1]
        raise HandshakeError(f"the server refused the WebSocket: {shown}", status)
    headers = _headers(lines)
    if headers.get("upgrade", "").lower() != "websocket":
        raise HandshakeError("the response has no `Upgrade: websocket`", status)
    if "upgrade" not in [item.strip().lower() for item in headers.get("connection", "").split(",")]:
        raise HandshakeError("the response has no `Connection: Upgrade`", status)
    if headers.get("sec-websocket-accept") != accept_key(b64encode(nonce).decode("ascii")):
        raise HandshakeError("Sec-WebSocket-Accept does not answer the key that was sent", status)
    chosen = headers.get("sec-websocket-protocol")
    if chosen is not None and chosen not in subprotocols:
        raise HandshakeError(f"the server chose the subprotocol {chosen[:60]!a}, which was not requested", status)
    return HandshakeResponse(
        chosen, _accepted_deflate(headers.get("sec-websocket-extensions"), deflate), bytes(data[end + 4 :])
    )


def _headers(lines: list[bytes]) -> dict[str, str]:
    """Return the headers in these lines, by name in lower case; several of one name are joined with commas. Raises
    HandshakeError for a malformed line."""
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        value = value.strip(" \t")
        if not colon or not re.fullmatch(_TOKEN, name) or not _RECEIVED_TEXT.fullmatch(value):
            raise HandshakeError(f"the response has the malformed header line {line[:60].decode('latin-1')!a}", 101)
        known = headers.get(name.lower())
        headers[name.lower()] = value if known is None else f"{known}, {value}"
    return headers


def _accepted_deflate(extensions: str | None, offered: bool) -> bool:
    """Return whether the server accepted permessage-deflate, by its header `extensions` (None: no such header). Raises
    HandshakeError when it accepted something that was not `offered`."""
    if extensions is None:
        return False
    parsed = _parse_extension(extensions)
    if not offered or parsed is None or parsed[0] != "permessage-deflate":
        raise HandshakeError(f"the server uses the extension {extensions[:60]!a}, which was not requested", 101)
    parameters = parsed[1]
    for name, value in parameters.items():
        plain = name in ("server_no_context_takeover", "client_no_context_takeover") and value is None
        # a server may limit its own window, as the largest one inflates it; no limit of the client's was offered
        window = name == "server_max_window_bits" and value is not None and _WINDOW_BITS.fullmatch(value)
        if not plain and not window:
            raise HandshakeError(
                f"the server answers permessage-deflate with the parameter {name[:60]!a}, which was not requested", 101
            )
    if "server_no_context_takeover" not in parameters:
        raise HandshakeError("the server does not agree to server_no_context_takeover", 101)
    return True


def negotiate_deflate(offers: str) -> str | None:
    """Return the server's Sec-WebSocket-Extensions for the client's one (several joined with commas): the answer to the
    first acceptable offer of permessage-deflate, of at most `limits.OFFERS` offers. None if there is none: then no
    extension is used.

    Neither side keeps a context and the server's window is the largest one, because a publication is compressed once
    for all its subscribers (RFC 7692, 7.1).
    """
    for offer in offers.split(",", limits.OFFERS)[: limits.OFFERS]:
        parsed = _parse_extension(offer)
        if parsed is None or parsed[0] != "permessage-deflate":
            continue
        parameters = parsed[1]
        if all(_is_acceptable(name, value) for name, value in parameters.items()):
            window = "; server_max_window_bits=15" if "server_max_window_bits" in parameters else ""
            return DEFLATE_OFFER + window
    return None


def _is_acceptable(name: str, value: str | None) -> bool:
    """Return whether the server can agree to a parameter of an offer of permessage-deflate. It does not limit its own
    window."""
    if name in ("server_no_context_takeover", "client_no_context_takeover"):
        return value is None
    if name == "client_max_window_bits":
        return value is None or _WINDOW_BITS.fullmatch(value) is not None
    return name == "server_max_window_bits" and value == "15"


def _parse_extension(text: str) -> tuple[str, dict[str, str | None]] | None:
    """Return the name and the parameters of one extension in a header, or None when it is malformed, repeats a
    parameter or has more than `limits.OFFERS` of them."""
    parameters: dict[str, str | None] = {}
    name, *arguments = text.split(";", limits.OFFERS)
    for item in arguments:
        match = _PARAMETER.fullmatch(item)
        if match is None or match[1] in parameters:
            return None
        parameters[match[1]] = match[2] or match[3]
    return name.strip(), parameters


def negotiate_codec(offered: str | None) -> Codec | None:
    """Return the codec for the client's Sec-WebSocket-Protocol: the first known one in the client's order, of at most
    `limits.OFFERS`.

    `offered` None, no such header, means JSON. Returns None when all are unknown: then the server must refuse.
    """
    if offered is None:
        return JSON
    for name in offered.split(",", limits.OFFERS)[: limits.OFFERS]:
        for codec in CODECS:
            if codec.subprotocol == name.strip():
                return codec
    return None
