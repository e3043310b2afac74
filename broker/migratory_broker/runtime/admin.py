"""What the administration's pages say: /healthz, /readyz, /metrics, /v1/status, and the clients' /v1/servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from migratory_protocol.messages import Server

from migratory_broker.runtime.server import Page

JSON = "application/json; charset=utf-8"


def health() -> tuple[int, str, bytes]:
    """Alive: the loop answers. Says nothing about taking clients."""
    return 200, JSON, b'{"status":"alive"}\n'


def readiness(reason: Callable[[], str]) -> Page:
    """Ready: clients are taken. `reason` says why not, "" when they are."""

    def page() -> tuple[int, str, bytes]:
        why = reason()
        body = {"ready": not why, "reason": why}
        return 503 if why else 200, JSON, msgspec.json.encode(body) + b"\n"

    return page


def status(read: Callable[[], Mapping[str, object]]) -> Page:
    """Everything that a person who looks into a broker wants to see."""

    def page() -> tuple[int, str, bytes]:
        body = msgspec.json.format(msgspec.json.encode(read(), enc_hook=str), indent=2)
        return 200, JSON, body + b"\n"

    return page


def servers(read: Callable[[], Sequence[Server]]) -> Page:
    def page() -> tuple[int, str, bytes]:
        entries = [{"url": server.url, "weight": server.weight} for server in read()]
        return 200, JSON, msgspec.json.encode({"servers": entries}) + b"\n"

    return page
