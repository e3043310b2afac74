"""Case A4 on a raw socket: the broker checks Origin and Host for every page of its client port."""

from __future__ import annotations

import pytest
from migratory_testing.processes import Broker
from migratory_testing.rawclient import answer, request

pytestmark = [pytest.mark.real, pytest.mark.timeout(60)]

SETTINGS = {
    "origins": {
        "allowed": ["https://app.example.com", "https://*.example.org"],
        "hosts": ["push.example.com", "localhost"],
        "withoutOrigin": False,
    }
}
HOST = "push.example.com"
PAGES = {"/ws": 101, "/": 101, "/v1/servers": 200}


def get(path: str, host: str, *origins: str) -> bytes:
    headers = [("Origin", origin) for origin in origins]
    if PAGES[path] == 101:
        return request(path, host, "json", False, *headers)
    lines = [f"GET {path} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize(
    "origin",
    ["https://app.example.com", "HTTPS://APP.EXAMPLE.COM", "https://app.example.com:443", "https://a.example.org"],
)
async def test_allowed_origins_are_accepted(broker: Broker, path: str, origin: str) -> None:
    status, headers, _ = await answer(broker.address("clients"), get(path, HOST, origin))
    assert status == PAGES[path]
    allowed = headers.get("access-control-allow-origin")
    assert allowed in (None, origin)
    assert (path == "/v1/servers") is (allowed == origin), "a page in the browser may read the list"


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize(
    "origin",
    [
        "http://app.example.com", "https://app.example.com:8443", "https://app.example.com.evil.test",
        "https://evilapp.example.com", "https://example.org", "https://a.example.org.evil.test", "null",
    ],
)  # fmt: skip
async def test_other_origins_are_refused(broker: Broker, path: str, origin: str) -> None:
    status, headers, body = await answer(broker.address("clients"), get(path, HOST, origin))
    assert status == 403
    assert b"origin" in body.lower(), "the answer says why"
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize(
    ("host", "origins", "status", "says"),
    [
        (HOST, ("https://app.example.com", "https://app.example.com"), 400, b"origin"),
        ("evil.test:8080", ("https://app.example.com",), 421, b"host"),
        (HOST, (), 403, b"origin"),
    ],
)
async def test_requests_with_two_origins_a_foreign_host_or_no_origin_are_refused(
    broker: Broker, path: str, host: str, origins: tuple[str, ...], status: int, says: bytes
) -> None:
    code, _, body = await answer(broker.address("clients"), get(path, host, *origins))
    assert code == status
    assert says in body.lower()


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "PUT"])
async def test_other_methods_than_get_are_refused_for_every_origin(broker: Broker, method: str) -> None:
    for origin, statuses in (
        ("https://evil.test", {403}),
        ("https://app.example.com", {204 if method == "OPTIONS" else 405, 400}),
    ):
        for path in PAGES:
            request = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nOrigin: {origin}\r\nContent-Length: 0\r\n\r\n"
            status, headers, _ = await answer(broker.address("clients"), request.encode())
            assert status in statuses, (path, origin)
            # A preflight is answered to an allowed origin only, so it need not name that.
            assert status == 204 or headers.get("access-control-allow-origin") != "*"
            assert "access-control-allow-credentials" not in headers
