"""Case A4: allowed origins and similar-looking ones, served and foreign hosts."""

from __future__ import annotations

import pytest
from migratory_protocol.origins import OriginPolicy

POLICY = OriginPolicy(
    ["https://app.example.com", "https://*.example.org"], ["push.example.com", "localhost"], without_origin=True
)
HOST = ["push.example.com"]


def status(policy: OriginPolicy, origins: list[str], hosts: list[str]) -> int:
    refusal = policy.check(origins, hosts)
    if refusal is None:
        return 101
    assert refusal.text
    return refusal.status


@pytest.mark.parametrize(
    "origin",
    ["https://app.example.com", "HTTPS://APP.EXAMPLE.COM", "https://app.example.com:443", "https://a.example.org",
     "https://b.a.example.org"],
)  # fmt: skip
def test_allowed_origin_is_accepted(origin: str) -> None:
    assert status(POLICY, [origin], HOST) == 101


@pytest.mark.parametrize(
    "origin",
    ["http://app.example.com", "https://app.example.com:8443", "https://app.example.com.evil.test",
     "https://evilapp.example.com", "https://example.org", "https://a.example.org.evil.test", "null", "",
     "https://.example.org", "https://evil.test/https://app.example.com", "https://app.example.com@evil.test",
     "https://app.example.com/", "https://app.example.com.", "https://app.example.com:", "app.example.com", "*",
     "https://*.example.org", "https://app.example.com, https://evil.test", "https://app.example.com\n", "\u212a"],
)  # fmt: skip
def test_look_alike_origin_is_refused(origin: str) -> None:
    assert status(POLICY, [origin], HOST) == 403


def test_two_origins_are_refused() -> None:
    assert status(POLICY, ["https://app.example.com", "https://app.example.com"], HOST) == 400


@pytest.mark.parametrize("host", ["push.example.com", "PUSH.example.com:8080", "localhost:80", "push.example.com."])
def test_served_host_is_accepted(host: str) -> None:
    assert status(POLICY, ["https://app.example.com"], [host]) == 101


@pytest.mark.parametrize(
    "host", ["evil.test:8080", "push.example.com.evil.test", "", "push.example.com:x", "a@localhost", "[::1]"]
)
def test_foreign_host_is_refused(host: str) -> None:
    assert status(POLICY, ["https://app.example.com"], [host]) == 421
    assert status(POLICY, [], [host]) == 421


@pytest.mark.parametrize(
    ("host", "expected"),
    [("10.0.0.1:8082", 101), ("[::1]", 101), ("localhost", 101), ("evil.test", 421), ("10.0.0", 421),
     ("10.0.0.1.evil.test", 421), ("", 421)],
)  # fmt: skip
def test_host_that_is_an_address_can_be_served_in_any_case(host: str, expected: int) -> None:
    assert status(OriginPolicy((), ["localhost"], addresses=True), [], [host]) == expected


@pytest.mark.parametrize("hosts", [[], ["localhost", "localhost"]])
def test_request_without_exactly_one_host_is_refused(hosts: list[str]) -> None:
    assert status(POLICY, [], hosts) == 400


def test_request_without_origin_follows_configuration() -> None:
    assert status(POLICY, [], HOST) == 101
    assert status(OriginPolicy(["*"], ["*"], without_origin=False), [], HOST) == 403


def test_star_allows_everything() -> None:
    policy = OriginPolicy(["*"], ["*"])
    assert status(policy, ["null"], ["evil.test"]) == 101
    assert status(policy, ["https://x", "https://x"], ["evil.test"]) == 400


def test_patterns_may_have_ports_and_addresses() -> None:
    policy = OriginPolicy(["http://[::1]:8080", "http://localhost"], ["[::1]:8080", "*.example.org"])
    assert status(policy, ["http://[::1]:8080"], ["[::1]:8080"]) == 101
    assert status(policy, ["http://[::1]:8081"], ["[::1]:8080"]) == 403
    assert status(policy, ["http://localhost:80"], ["x.example.org:1"]) == 101
    assert status(policy, ["http://localhost"], ["[::1]:8081"]) == 421
    assert status(policy, ["http://localhost"], ["example.org"]) == 421


def test_origin_on_any_port() -> None:
    policy = OriginPolicy(["http://localhost:*", "http://[::1]:*"], ["*"])
    for origin in ("http://localhost", "http://localhost:80", "http://LOCALHOST:8080", "http://[::1]:5173"):
        assert status(policy, [origin], HOST) == 101
    for origin in ("https://localhost:8080", "http://localhost:*", "http://localhost.evil.test:8080", "http://a:8080"):
        assert status(policy, [origin], HOST) == 403


@pytest.mark.parametrize(
    "entry",
    [
        "https://a:*:1",
        "*:*",
        ":*",
        "app.example.com",
        "https://",
        "https://a/",
        "https://a.*.b",
        "https://*",
        "null",
        "",
    ],
)
def test_malformed_origin_entry_is_named(entry: str) -> None:
    with pytest.raises(ValueError, match=r"allowed\[0\]: .* is not an origin; use"):
        OriginPolicy([entry], ["*"])


@pytest.mark.parametrize("entry", ["https://a", "a/b", "*a", "a.*", "", "a:port"])
def test_malformed_host_entry_is_named(entry: str) -> None:
    with pytest.raises(ValueError, match=r"hosts\[1\]: .* is not a host; use"):
        OriginPolicy(["*"], ["*", entry])
