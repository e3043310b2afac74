"""The clients' HTTP requests, for `ClientServer`: checks a request for a stream, a poll or a publication, and
translates it into the frames in which a client of WebSocket would have sent the same.

Only known parts of a request are accepted: no unknown parameters, no body without a length, no encoded body. The edge
checks the topics and positions of a body, one by one, and all permissions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from migratory_protocol import frames
from migratory_protocol.codec import JSON, MSGPACK, BadMessage
from migratory_protocol.errors import BAD_POSITION, BAD_TOPIC
from migratory_protocol.messages import (
    LARGEST_INTEGER,
    Bye,
    ClientMessage,
    Connect,
    Publish,
    Subscribe,
    TopicRequest,
)
from migratory_protocol.positions import parse_position
from migratory_protocol.topics import BadTopic, check_topic

from migratory_broker.core.edge.events import HttpRequest
from migratory_broker.runtime.accepting.http import RefusedRequest
from migratory_broker.runtime.clients.handshake import Headers

PATHS = {"/v1/stream": "stream", "/v1/poll": "poll", "/v1/publish": "publish"}
"""The kinds of requests that become connections, by path."""

MAX_URL_TOPICS = 32
"""Topics of a stream that is asked for by URL: each of its event ids has the positions of all, some 25 bytes each."""

PREFLIGHT_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Last-Event-ID",
    "Access-Control-Max-Age": "600",
}
"""The answer to the question of a browser whether a page, whose Origin is allowed, may send a request."""

_MASK = bytes(4)  # changes nothing, and the edge's parser demands one
_BYE = frames.binary_frame(MSGPACK.encode(Bye()), _MASK)
_TOKEN = "access_token"


Query = Mapping[str, list[str]]
"""The values of a URL's parameters, by name."""

_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TranslatedRequest:
    """A request as the edge gets it: its kind, and the frames of the messages that it stands for."""

    http: HttpRequest
    frames: bytes


class _Refused(Exception):
    """The error for a request that is refused with this text and status, 400 if none is given. `refusal` is the HTTP
    answer."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.refusal = RefusedRequest(status, text, {"Access-Control-Allow-Origin": "*"})


def body_size(method: str, kind: str, headers: Headers, limit: int) -> int | RefusedRequest:
    """Return the number of bytes of the body of a request. Return a refusal instead if its method or the headers of its
    body are not accepted, or if the body has more than `limit` bytes.

    :param kind: the kind of the request, a value of `PATHS`.
    """
    try:
        return _body_size(method, kind, headers, limit)
    except _Refused as error:
        return error.refusal


def _body_size(method: str, kind: str, headers: Headers, limit: int) -> int:
    """Return the number of bytes of the body of a request, as `body_size` does. Raises _Refused in place of a
    refusal."""
    if method != "POST" and (method != "GET" or kind == "publish"):
        raise _Refused(
            "method not allowed; use POST" if kind == "publish" else "method not allowed; use GET or POST", 405
        )
    if "Transfer-Encoding" in headers:
        raise _Refused("Transfer-Encoding is not accepted; send a Content-Length", 411)
    if headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise _Refused("Content-Encoding is not accepted; send the body as it is", 415)
    if headers.get("Expect", "100-continue").strip().lower() != "100-continue":
        raise _Refused("this Expect is not supported", 417)
    lengths = headers.getall("Content-Length", [])
    if not lengths and method == "POST":
        raise _Refused("a Content-Length is needed", 411)
    size = lengths[0].strip() if lengths else "0"
    if len(lengths) > 1 or not (size.isascii() and size.isdigit() and len(size) <= 15):
        raise _Refused("Content-Length must be one whole number")
    if method == "GET" and int(size):
        raise _Refused("a GET request must have no body")
    if int(size) > limit:
        raise _Refused(f"the body has {int(size)} bytes, the limit is {limit}", 413)
    return int(size)


def translate(
    kind: str, method: str, raw_query: str, headers: Headers, body: bytes, unnamed: str
) -> TranslatedRequest | RefusedRequest:
    """Return what the edge gets for a request whose body was read, or its refusal.

    :param kind: the kind of the request, a value of `PATHS`.
    :param raw_query: the parameters of the URL, encoded as they were sent.
    :param unnamed: the name under which the edge numbers publications without a publisher.
    """
    try:
        query = _decode_query(raw_query)
        if method == "GET":
            return _stream_of_url(kind, _parameters(query, {"after", "client", "snapshot"}), query, headers)
        if headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/json":
            _parameters(query, set())
            return _of_messages(kind, _decode(body))
        if kind == "publish":
            names = {"client", "id", "mark", "publisher", "qos", "sent", "topic"}
            return _publication_of_url(_parameters(query, names), body, unnamed)
        raise _Refused("the Content-Type must be application/json, and the body a JSON message of a client", 415)
    except UnicodeEncodeError:  # aiohttp passes such bytes on as lone surrogates
        return _Refused("the URL or a header holds bytes that are no UTF-8").refusal
    except _Refused as error:
        return error.refusal


def _decode_query(raw_query: str) -> Query:
    """Return the parameters of a URL. Raises _Refused if one is not UTF-8: with other bytes in their place it would be
    another topic."""
    try:
        return parse_qs(raw_query, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise _Refused("a parameter of the URL is not UTF-8") from None


def _parameters(query: Query, names: set[str]) -> dict[str, str]:
    """Return the parameters of a URL, by name. Allowed are `names` and `access_token`, each once. If `after` is one of
    `names`, `topic` and `after` may be there several times, and are left out of the result. Raises _Refused for any
    other parameter, and for one that is given twice."""
    several = {"topic", "after"} if "after" in names else set()
    for name in query:
        if name not in names | several | {_TOKEN}:
            allowed = ", ".join(sorted(names | several)) or "none, as the body has everything"
            raise _Refused(f"unknown parameter {name[:60]!a}; allowed are {allowed}")
        if name not in several and len(query[name]) > 1:
            raise _Refused(f"the parameter {name} is given twice")
    return {name: query[name][0] for name in query if name not in several}


def _stream_of_url(kind: str, parameters: Mapping[str, str], query: Query, headers: Headers) -> TranslatedRequest:
    """Return the stream or poll of the topics in a URL. They resume after the positions of the header Last-Event-ID if
    it has any, else after those of `after`, one for each topic in their order. Raises _Refused for no topic, more
    than MAX_URL_TOPICS or a repeated one, for a number of positions other than that of the topics, for several
    headers Last-Event-ID, and for an invalid `snapshot`, name or position: the same request fails everywhere."""
    topics = query.get("topic", [])
    if not 1 <= len(topics) <= MAX_URL_TOPICS or len(set(topics)) < len(topics):
        raise _Refused(
            f"expected 1 to {MAX_URL_TOPICS} different topics, as topic=NAME for each; use POST for more of them"
        )
    after = query.get("after", [])
    last = headers.getall("Last-Event-ID", [])
    if len(last) > 1:
        raise _Refused("more than one Last-Event-ID header")
    if last and last[0].strip():
        after = [part.strip() for part in last[0].split(",")]
    if after and len(after) != len(topics):
        counts = f"number of positions: {len(after)}, number of topics: {len(topics)}"
        raise _Refused(f"{counts}; give one position for each topic, in their order, or none")
    after = after or [""] * len(topics)
    for topic, start in zip(topics, after, strict=True):
        _check_start(topic, start)
    snapshot = _one_of(parameters, "snapshot", {"true": True, "false": False}, "false")
    requests = [TopicRequest(topic, start or None, snapshot) for topic, start in zip(topics, after, strict=True)]
    positions = tuple(zip(topics, after, strict=True)) if len(topics) > 1 else ()
    encoded = _encode([Connect(client=parameters.get("client", "")), Subscribe(1, requests)])
    return TranslatedRequest(HttpRequest("poll" if kind == "poll" else "stream", positions), encoded)


def _check_start(topic: str, start: str) -> None:
    """Raise _Refused for an invalid name of a topic, and for a text that is neither empty nor a position."""
    try:
        check_topic(topic)
    except BadTopic as error:
        raise _Refused(f"{BAD_TOPIC}: {error}") from None
    try:
        if start:
            parse_position(start)
    except ValueError as error:
        raise _Refused(f"{BAD_POSITION}: {error}") from None


def _publication_of_url(parameters: Mapping[str, str], body: bytes, unnamed: str) -> TranslatedRequest:
    """Return the publication whose topic and options are in a URL and whose payload is the body. With QoS 1 and no
    publisher it gets the publisher `unnamed`. Raises _Refused for a missing topic or an invalid option."""
    if "topic" not in parameters:
        raise _Refused("the parameter topic is missing")
    qos = _one_of(parameters, "qos", {"0": 0, "1": 1}, "1")
    publisher, number, mark = parameters.get("publisher", ""), _number(parameters, "id"), _number(parameters, "mark")
    is_unnamed = qos == 1 and not publisher
    if is_unnamed:
        if number or mark:
            raise _Refused("id and mark without a publisher; give all, or none for a publication that is not repeated")
        publisher, number = unnamed, 1  # the edge puts its own in their place
    sent = _seconds(parameters["sent"]) if "sent" in parameters else None
    message = Publish(parameters["topic"], body, qos, publisher, number, mark or number, sent)
    _check(message)
    encoded = _encode([Connect(client=parameters.get("client", "")), message])
    http = HttpRequest("publish", answers=qos, publisher=unnamed if is_unnamed else "")
    return TranslatedRequest(http, encoded if qos else encoded + _BYE)


def _check(message: Publish) -> None:
    """Raise _Refused for a publication with an invalid field."""
    try:
        MSGPACK.decode_client(MSGPACK.encode(message))
    except BadMessage as error:
        raise _Refused(f"{error.code}: {error.text}") from None


def _of_messages(kind: str, messages: Sequence[ClientMessage]) -> TranslatedRequest:
    """Return the request that consists of the messages in a body, of which the first may be `connect`. The others must
    be subscribe messages for a stream or a poll, and publish messages of one QoS for a publication; at least one.
    Raises _Refused otherwise."""
    connect = messages[0] if isinstance(messages[0], Connect) else Connect()
    rest = messages[1:] if messages[0] is connect else messages
    encoded = _encode([connect, *rest])
    if kind != "publish":
        if not rest or not all(isinstance(message, Subscribe) for message in rest):
            raise _Refused("the body must hold subscribe messages, and may hold a connect before them")
        return TranslatedRequest(HttpRequest("poll" if kind == "poll" else "stream"), encoded)
    levels = {message.qos if isinstance(message, Publish) else None for message in rest}
    if levels == {1}:
        return TranslatedRequest(HttpRequest("publish", answers=len(rest), several=len(rest) > 1), encoded)
    if levels == {0}:
        return TranslatedRequest(HttpRequest("publish"), encoded + _BYE)
    raise _Refused("the body must hold publish messages of one qos, and may hold a connect before them")


def _decode(data: bytes) -> Sequence[ClientMessage]:
    """Return the messages in a body of JSON, at least one. Raises _Refused if any of them is invalid."""
    try:
        return JSON.decode_client(data)
    except BadMessage as error:
        raise _Refused(f"{error.code}: {error.text}") from None


def _encode(messages: Sequence[ClientMessage]) -> bytes:
    """Return the messages as frames of MessagePack, one message in each frame, as a long publication must be alone."""
    return b"".join([frames.binary_frame(MSGPACK.encode(message), _MASK) for message in messages])


def _one_of(parameters: Mapping[str, str], name: str, values: Mapping[str, Any], default: str) -> Any:
    """Return the value of `values` that the parameter `name` stands for, or that `default` stands for if it is not
    given. Raises _Refused for a parameter with a text that is not in `values`."""
    given = parameters.get(name, default)
    if given not in values:
        raise _Refused(f"{name} is {given[:60]!a}; use {' or '.join(values)}")
    return values[given]


def _number(parameters: Mapping[str, str], name: str) -> int:
    """Return the parameter `name` as a whole number, 0 if it is not given. Raises _Refused if it is none, or has more
    than 16 digits."""
    text = parameters.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise _Refused(f"{name} is {text[:60]!a}; use a whole number from 1 to {LARGEST_INTEGER}")
    return int(text)


def _seconds(text: str) -> float:
    """Return the number in the text of the parameter `sent`. Raises _Refused if it is no decimal number."""
    if not _DECIMAL.fullmatch(text):
        raise _Refused(f"sent is {text[:60]!a}; use seconds since 1970")
    return float(text)
