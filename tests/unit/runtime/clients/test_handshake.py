"""The check of a request's source before anything else is read of it: the form of Host, and the server of its URL."""

from __future__ import annotations

from ipaddress import IPv6Address
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from migratory_broker.runtime.clients.handshake import check_source, is_authority
from migratory_protocol.origins import OriginPolicy
from multidict import CIMultiDict

EVERYTHING = OriginPolicy(["*"], ["*"])


@pytest.mark.parametrize(
    ("host", "is_valid"),
    [
        ("localhost", True),
        ("LocalHost:8800", True),
        ("quotes_1.market.svc.", True),
        ("quotes.market.svc.:8080", True),
        ("127.0.0.1:65535", True),
        ("[::1]", True),
        ("[2001:DB8::1]:8800", True),
        ("[::ffff:192.0.2.1]:80", True),
        ("", False),
        (".", False),
        (":80", False),
        ("a..b", False),
        ("a.b..", False),
        ("a:", False),
        ("a:-1", False),
        ("a:65536", False),
        ("a:80:80", False),
        ("a:８０", False),
        ("a, b", False),
        ("a b", False),
        ("a/b", False),
        ("a?b", False),
        ("a#b", False),
        ("a\\b", False),
        ("a%2eb", False),
        ("ann@a", False),
        ("ann:secret@a:80", False),
        ("http://a", False),
        ("\u212aube.example", False),  # in lower case it is "kube.example"
        ("::1", False),
        ("[::1", False),
        ("[::1]x", False),
        ("[::1]]", False),
        ("[fe80::1%eth0]", False),
        ("[:::]", False),
        ("[127.0.0.1]", False),
        ("[localhost]", False),
    ],
)
def test_host_is_a_name_or_an_address_and_nothing_else(host: str, is_valid: bool) -> None:
    """Regression: where every Host is served, any text was one."""
    refused = check_source("/ws", CIMultiDict({"Host": host}), EVERYTHING)
    assert (refused is None) is is_valid
    if refused is not None:
        assert (refused.status, "Host must be a name" in refused.text) == (400, True)


names = st.from_regex(r"[a-zA-Z0-9_-]{1,5}(\.[a-zA-Z0-9_-]{1,5}){0,3}\.?", fullmatch=True)
addresses = st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map("[{}]".format)
ports = st.just("") | st.integers(0, 65_535).map(":{}".format)
valid = st.tuples(names | addresses, ports).map("".join)


@given(valid)
def test_names_and_addresses_are_accepted_with_any_port(host: str) -> None:
    assert is_authority(host)


@given(valid, st.integers(0, 50), st.text("aZ0.-_:[]@/\\?#%, \t\0\x7f\xe9\u212a\udc80", max_size=3))
def test_what_is_accepted_is_read_in_one_way(host: str, place: int, other: str) -> None:
    """Whatever is accepted is, for a parser of URLs, a server without a user, and nothing of it becomes a path."""
    text = host[:place] + other + host[place:]
    if is_authority(text):
        found = urlsplit(f"http://{text}/ws?a#b")
        assert (found.netloc, found.path, found.query, found.fragment) == (text, "/ws", "a", "b")
        assert (found.username, found.password) == (None, None)
        assert found.hostname
        assert text.startswith("[") is (":" in found.hostname)
        assert not text.startswith("[") or IPv6Address(found.hostname)
        assert found.port is None or 0 <= found.port <= 65_535


@pytest.mark.parametrize(
    ("target", "host", "is_same"),
    [
        ("http://localhost:8800/ws", "localhost:8800", True),
        ("HTTPS://LOCALHOST?a", "localhost", True),
        ("http://localhost#a", "localhost", True),
        ("http://[::1]:80", "[::1]:80", True),
        ("*", "localhost", True),
        ("//evil.example/ws", "localhost", True),  # a path that begins with two slashes
        ("http://evil.example/ws", "localhost", False),
        ("http://localhost:80/ws", "localhost", False),
        ("http://localhost@evil.example/ws", "localhost", False),
        ("http://ann@localhost/ws", "localhost", False),
        ("http://evil.example\\@localhost/ws", "localhost", False),
        ("http://localhost./ws", "localhost", False),
        ("http:///ws", "localhost", False),
        ("http:/localhost/ws", "localhost", False),
        ("ftp://localhost/ws", "localhost", False),
        ("localhost:80", "localhost:80", False),  # as CONNECT has it
    ],
)
def test_a_whole_url_as_target_has_the_server_of_host(target: str, host: str, is_same: bool) -> None:
    """Regression: the server in the URL was ignored, which is the one that a proxy takes."""
    refused = check_source(target, CIMultiDict({"Host": host}), OriginPolicy([], [host]))
    assert (refused is None) is is_same
    if refused is not None:
        assert (refused.status, "the server that Host says" in refused.text) == (400, True)


def test_a_missing_or_repeated_host_is_refused() -> None:
    for hosts in ([], ["a", "a"], ["a", "b"]):
        refused = check_source("/ws", CIMultiDict([("Host", host) for host in hosts]), EVERYTHING)
        assert refused is not None
        assert (refused.status, refused.text) == (400, "expected one Host header")
