"""The memory of an access: it holds little of its token, and no more than counts for it."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
from migratory_broker.core.security.authorizer import Authorizer, ClientAccess, SecurityConfig
from migratory_broker.core.security.rules import Rule
from migratory_broker.core.security.tokens import KeySource, TokenConfig
from migratory_testing.tokens import SECRET, sign

NOW = 1_800_000_000.0


def accesses(claims: dict[str, Any], count: int = 1) -> list[ClientAccess]:
    authorizer = Authorizer(SecurityConfig(TokenConfig((KeySource(("HS256",)),)), (Rule(("**",), ("subscribe",)),)))
    authorizer.update([SECRET.encode()], b"")
    token = sign({"sub": "ann", "exp": NOW + 300, **claims})
    made = [authorizer.connect(token, NOW) for _ in range(count)]
    return [access for access in made if isinstance(access, ClientAccess)]


def memory(claims: dict[str, Any], topics: list[str]) -> tuple[float, int]:
    """Return the bytes that one access with these claims takes after a decision about each topic, and those that count
    for it."""
    accesses(claims)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        held = accesses(claims, 20)
        for access in held:
            for topic in topics:
                access.allows("publish", topic)
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / len(held), held[0].own_bytes
    finally:
        tracemalloc.stop()


def test_rules_and_own_permissions_are_named() -> None:
    (access,) = accesses({"migratory": {"publish": ["orders/*"]}})
    assert access.reason("subscribe", "a") == "spec.security.rules[0]"
    assert access.reason("publish", "orders/1") == "the token's claim migratory"
    assert access.reason("publish", "a") == access.reason("history", "orders/1") == ""


def test_claims_and_decisions_are_not_held() -> None:
    """Regression: an access held all claims, and the decisions about 256 topics, denied ones as well."""
    taken, counted = memory({"profile": "x" * 8000, "jti": "7"}, [f"{number:0250}" for number in range(300)])
    assert counted == 0
    assert taken < 1024


@pytest.mark.parametrize(
    "patterns",
    [
        {"subscribe": ["quotes/**"], "history": ["quotes/**"], "publish": ["orders/ann"]},
        {"subscribe": [f"quotes/{number:03}/last" for number in range(300)]},
        {"publish": ["/".join([chr(97 + number), *"bcdefghijklmnopqrstuvwxyz"]) for number in range(26)]},
        {"publish": ["{subject}/*/**", "*/a", "{subject}"]},
    ],
)
def test_counted_bytes_are_those_that_own_permissions_take(patterns: dict[str, list[str]]) -> None:
    plain, _ = memory({}, [])
    taken, counted = memory({"migratory": patterns}, [])
    assert 0.7 * (taken - plain) < counted < 2 * (taken - plain)
