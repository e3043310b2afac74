"""HTTP requests of clients: what they are translated into, and what is refused."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from migratory_broker.core.edge.events import HttpRequest
from migratory_broker.runtime.accepting.http import RefusedRequest
from migratory_broker.runtime.clients.requests import MAX_URL_TOPICS, TranslatedRequest, body_size, translate
from migratory_protocol.codec import MSGPACK
from migratory_protocol.frames import FrameParser, MessageReceived
from migratory_protocol.messages import Bye, Connect, Publish, Subscribe, TopicRequest
from multidict import CIMultiDict
from yarl import URL

TEXT = st.sampled_from(["", "1", "a", "1:1", "-1", "nan", "1e999", "\udcff", "\x00", "x" * 300]) | st.text()


def ask(url: str, headers: Any = (), method: str = "GET", body: bytes = b"") -> TranslatedRequest | RefusedRequest:
    split = URL(url)
    return translate(
        split.path.removeprefix("/v1/"), method, split.raw_query_string, CIMultiDict(headers), body, "unnamed"
    )


def post(url: str, body: Any, kind: str = "application/json") -> TranslatedRequest | RefusedRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ask(url, {"Content-Type": kind}, "POST", data)


def messages(request: TranslatedRequest | RefusedRequest) -> list[Any]:
    assert isinstance(request, TranslatedRequest), request
    events = FrameParser("server", 2**24).feed(request.frames)
    assert all(isinstance(event, MessageReceived) and not event.text for event in events)
    return [message for event in events for message in MSGPACK.decode_client(event.data)]  # type: ignore[union-attr]


def refusal(request: object) -> str:
    assert isinstance(request, RefusedRequest), request
    assert request.headers["Access-Control-Allow-Origin"] == "*"
    return f"{request.status} {request.text}"


def test_a_url_asks_for_a_stream_of_topics() -> None:
    request = ask("/v1/stream?topic=a%2Fb&client=me&access_token=secret")
    assert messages(request) == [Connect(client="me"), Subscribe(1, [TopicRequest("a/b")])]
    assert request.http == HttpRequest("stream")  # type: ignore[union-attr]
    request = ask("/v1/poll?topic=a&topic=b&after=1:2&after=&snapshot=true")
    assert messages(request)[1] == Subscribe(1, [TopicRequest("a", "1:2", True), TopicRequest("b", None, True)])
    assert request.http == HttpRequest("poll", (("a", "1:2"), ("b", "")))  # type: ignore[union-attr]


def test_the_last_event_id_comes_before_the_positions_of_the_url() -> None:
    request = ask("/v1/stream?topic=a&topic=b&after=1:2&after=1:2", {"Last-Event-ID": "1:5,1:7"})
    assert messages(request)[1] == Subscribe(1, [TopicRequest("a", "1:5"), TopicRequest("b", "1:7")])
    request = ask("/v1/stream?topic=a&after=1:2", {"Last-Event-ID": ""})
    assert messages(request)[1] == Subscribe(1, [TopicRequest("a", "1:2")])


@pytest.mark.parametrize(
    ("url", "headers", "text"),
    [
        ("/v1/stream", {}, "expected 1 to 32 different topics"),
        ("/v1/stream?" + "&".join(f"topic={n}" for n in range(MAX_URL_TOPICS + 1)), {}, "expected 1 to 32"),
        ("/v1/stream?topic=a&topic=a", {}, "expected 1 to 32 different topics"),
        ("/v1/stream?topic=a&after=1:1&after=1:2", {}, "number of positions: 2, number of topics: 1"),
        ("/v1/stream?topic=a", {"Last-Event-ID": "1:1,1:2"}, "number of positions: 2, number of topics: 1"),
        ("/v1/stream?topic=", {}, "bad_topic: "),
        ("/v1/stream?topic=a&topic=b%00", {}, "bad_topic: topic 'b\\x00' holds the control character U+0000"),
        ("/v1/stream?topic=a", {"Last-Event-ID": "junk"}, "bad_position: position 'junk' is not"),
        ("/v1/poll?topic=a&after=99999999999999999999:1", {}, "bad_position: "),
        ("/v1/stream?topic=%ff", {}, "a parameter of the URL is not UTF-8"),
        ("/v1/stream?topic=a&client=%e4", {}, "a parameter of the URL is not UTF-8"),
        ("/v1/stream?topic=a", [("Last-Event-ID", "1:1"), ("last-event-id", "1:2")], "more than one Last-Event-ID"),
        ("/v1/stream?topic=a&snapshot=yes", {}, "snapshot is 'yes'; use true or false"),
        ("/v1/stream?topic=a&token=x", {}, "unknown parameter 'token'; allowed are after, client, snapshot, topic"),
        ("/v1/stream?topic=a&client=x&client=y", {}, "the parameter client is given twice"),
        ("/v1/stream?topic=a", {"Last-Event-ID": "\udcff"}, "bad_position: position '\\udcff' is not"),
    ],
)
def test_a_malformed_url_of_a_stream_is_refused(url: str, headers: Any, text: str) -> None:
    assert refusal(ask(url, headers)).startswith(f"400 {text}")


@given(
    st.sampled_from(["stream", "poll", "publish"]),
    st.sampled_from(["GET", "POST"]),
    st.lists(st.tuples(st.sampled_from(["topic", "after", "qos", "publisher", "id", "mark", "sent", "client"]), TEXT)),
    st.dictionaries(st.sampled_from(["Last-Event-ID", "Content-Type"]), TEXT | st.just("application/json")),
    st.binary()
    | st.sampled_from([b"[]", b'{"op":"publish"}', b'[{"op":"connect"}]', b'{"op":"subscribe","topics":[]}']),
)
def test_any_request_is_translated_or_refused(kind: str, method: str, query: Any, headers: Any, body: bytes) -> None:
    if kind == "publish":
        method = "POST"
    raw = urlencode(query, errors="surrogatepass")
    request = translate(kind, method, raw, CIMultiDict(headers), body, "unnamed")
    if isinstance(request, RefusedRequest):
        assert 400 <= request.status < 500
    else:
        assert isinstance(messages(request)[0], Connect)


def test_a_body_holds_what_a_client_of_websocket_sends() -> None:
    subscribe = {"op": "subscribe", "request": 7, "topics": [{"topic": "a", "after": "1:2"}]}
    expected = Subscribe(7, [TopicRequest("a", "1:2")])
    assert messages(post("/v1/stream", subscribe)) == [Connect(), expected]
    request = post("/v1/poll", [{"op": "connect", "client": "me", "token": "t"}, subscribe, subscribe])
    assert messages(request) == [Connect(client="me", token="t"), expected, expected]
    assert request.http == HttpRequest("poll")  # type: ignore[union-attr]


def test_a_body_publishes() -> None:
    one = {"op": "publish", "topic": "a", "data": "x", "qos": 1, "publisher": "p", "id": 2, "mark": 1}
    request = post("/v1/publish", one, "application/json; charset=utf-8")
    assert messages(request) == [Connect(), Publish("a", b"x", 1, "p", 2, 1)]
    assert request.http == HttpRequest("publish", answers=1)  # type: ignore[union-attr]
    request = post("/v1/publish", [one, {**one, "id": 3}])
    assert request.http == HttpRequest("publish", answers=2, several=True)  # type: ignore[union-attr]
    request = post("/v1/publish", {"op": "publish", "topic": "a", "data": "x"})
    assert messages(request) == [Connect(), Publish("a", b"x"), Bye()]
    assert request.http == HttpRequest("publish")  # type: ignore[union-attr]


def test_a_url_and_raw_bytes_publish() -> None:
    url = "/v1/publish?topic=a&publisher=p&id=3&sent=1.5&client=me"
    assert messages(post(url, b"\xff", "text/plain")) == [
        Connect(client="me"),
        Publish("a", b"\xff", 1, "p", 3, 3, 1.5),
    ]
    (_, publication) = messages(post(url + "&mark=2", b"", ""))
    assert publication.mark == 2
    request = post("/v1/publish?topic=a", b"x", "")
    assert messages(request) == [Connect(), Publish("a", b"x", 1, "unnamed", 1, 1)]
    assert request.http == HttpRequest("publish", answers=1, publisher="unnamed")  # type: ignore[union-attr]
    request = post("/v1/publish?topic=a&qos=0", b"x", "")
    assert messages(request) == [Connect(), Publish("a", b"x"), Bye()]
    assert request.http == HttpRequest("publish")  # type: ignore[union-attr]


PUBLISH = {"op": "publish", "topic": "a", "data": "x"}


@pytest.mark.parametrize(
    ("url", "body", "kind", "text"),
    [
        ("/v1/stream", b"", "text/plain", "415 the Content-Type must be application/json"),
        ("/v1/stream?topic=a", {"op": "ping"}, "application/json", "400 unknown parameter 'topic'; allowed are none"),
        ("/v1/stream", {"op": "ping"}, "application/json", "400 the body must hold subscribe messages"),
        ("/v1/stream", {"op": "connect"}, "application/json", "400 the body must hold subscribe messages"),
        ("/v1/stream", b"{", "application/json", "400 bad_message: "),
        ("/v1/publish", {"op": "bye"}, "application/json", "400 the body must hold publish messages of one qos"),
        ("/v1/publish", {"op": "connect"}, "application/json", "400 the body must hold publish messages of one qos"),
        (
            "/v1/publish",
            [PUBLISH, {**PUBLISH, "qos": 1, "publisher": "p", "id": 1, "mark": 1}],
            "application/json",
            "400 the body must hold publish messages of one qos",
        ),
        ("/v1/publish", b"x", "", "400 the parameter topic is missing"),
        ("/v1/publish?topic=a&qos=2", b"x", "", "400 qos is '2'; use 0 or 1"),
        ("/v1/publish?topic=a&id=1", b"x", "", "400 id and mark without a publisher"),
        ("/v1/publish?topic=a&publisher=p", b"x", "", "400 bad_message: "),
        ("/v1/publish?topic=a&publisher=p&id=-1", b"x", "", "400 id is '-1'; use a whole number"),
        ("/v1/publish?topic=a&publisher=p&id=\u0663", b"x", "", "400 id is "),
        ("/v1/publish?topic=a&sent=now", b"x", "", "400 sent is 'now'; use seconds since 1970"),
        ("/v1/publish?topic=a&sent=nan", b"x", "", "400 sent is 'nan'; use seconds since 1970"),
        ("/v1/publish?topic=a&sent=" + "9" * 400, b"x", "", "400 bad_message: "),
        ("/v1/publish?topic=a&topic=b", b"x", "", "400 the parameter topic is given twice"),
    ],
)
def test_a_malformed_request_with_a_body_is_refused(url: str, body: Any, kind: str, text: str) -> None:
    assert refusal(post(url, body, kind)).startswith(text)


@pytest.mark.parametrize(
    ("method", "kind", "headers", "expected"),
    [
        ("GET", "stream", {}, 0),
        ("GET", "stream", {"Content-Length": "0"}, 0),
        ("POST", "publish", {"Content-Length": " 100 ", "Expect": "100-Continue", "Content-Encoding": "identity"}, 100),
        ("GET", "publish", {}, 405),
        ("PUT", "publish", {}, 405),
        ("DELETE", "stream", {}, 405),
        ("POST", "publish", {"Transfer-Encoding": "chunked"}, 411),
        ("POST", "stream", {}, 411),
        ("POST", "publish", {"Content-Length": "1", "Content-Encoding": "gzip"}, 415),
        ("POST", "publish", {"Content-Length": "1", "Expect": "magic"}, 417),
        ("POST", "publish", [("Content-Length", "1"), ("Content-Length", "1")], 400),
        ("POST", "publish", {"Content-Length": "+1"}, 400),
        ("POST", "publish", {"Content-Length": "1" * 16}, 400),
        ("POST", "publish", {"Content-Length": "\u0661"}, 400),
        ("GET", "poll", {"Content-Length": "1"}, 400),
        ("POST", "publish", {"Content-Length": "101"}, 413),
    ],
)
def test_the_size_of_a_body_is_known_before_it_is_read(method: str, kind: str, headers: Any, expected: int) -> None:
    size = body_size(method, kind, CIMultiDict(headers), 100)
    assert (size.status if isinstance(size, RefusedRequest) else size) == expected
