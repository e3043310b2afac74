"""Tokens, keys and revocations with any contents. Byte 0 selects what the rest is: a token, the claims or the header of
a correctly signed token, a document of keys, or a list of revocations.

Oracles: a token is accepted or refused, nothing else. One that was not signed here is refused. An accepted one has
`sub`, `exp` and `aud` as RFC 7519 and the configuration ask, by a check of its own. A refusal does not quote the token.
Keys are bound to algorithms of their kind, or the document raises BadKeys with a text. Revocations are read, or raise
ValueError or RecursionError.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from migratory_broker.core.security.authorizer import (
    Authorizer,
    ClientAccess,
    Denial,
    SecurityConfig,
    parse_revocations,
)
from migratory_broker.core.security.rules import OPERATIONS, Rule
from migratory_broker.core.security.tokens import ALGORITHMS, BadKeys, KeySource, TokenConfig, parse_keys

from migratory_fuzz.labels import seen, seen_error

SHAPE = "bytes"
SKIP = 1
MAX_LEN = 1500
TOKENS = (
    b'"alg":"HS256"', b'"alg":"none"', b'"kid":', b'"crit":["exp"]', b'"exp":', b'"nbf":', b'"iat":', b'"sub":"ann"',
    b'"aud":"m"', b'"aud":["m"]', b'"iss":', b'"jti":', b"1800000300", b"true", b"null", b"1e400", b"-0", b"NaN",
    b'"migratory":{"subscribe":["**"]}', b'"publish":["a/*"]', b'{"keys":[', b'"kty":"oct"', b'"kty":"RSA"',
    b'"n":"AQAB"',
    b'"use":"sig"', b'"crv":"P-256"', b"-----BEGIN PUBLIC KEY-----\n", b'{"tokens":[', b'"subjects":{"ann":1}', b".",
)  # fmt: skip

NOW = 1_800_000_000.0
SECRET = b"the secret of this target, which no fuzzer will find"
_TOKEN, _CLAIMS, _HEADER, _KEYS, _REVOCATIONS = range(5)


def _authorizer() -> Authorizer:
    tokens = TokenConfig((KeySource(("HS256",)),), audience="m")
    made = Authorizer(SecurityConfig(tokens, (Rule(("own/{subject}",), ("publish",)),)))
    made.update([SECRET], b"")
    return made


_AUTHORIZER = _authorizer()


def _part(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")


def signed(head: bytes, claims: bytes) -> str:
    text = _part(head) + b"." + _part(claims)
    return (text + b"." + _part(hmac.digest(SECRET, text, "sha256"))).decode()


def run(data: bytes) -> None:
    kind, rest = (data[0] % 5 if data else 0), data[1:]
    if kind == _TOKEN:
        token = rest.decode("utf-8", "surrogateescape")
        result = _AUTHORIZER.connect(token, NOW)
        assert isinstance(result, Denial), "nobody else knows the secret"
        _check_denial(result, token)
    elif kind == _CLAIMS:
        _check_claims(rest)
    elif kind == _HEADER:
        token = signed(rest, json.dumps({"sub": "ann", "aud": "m", "exp": NOW + 1}).encode())
        result = _AUTHORIZER.connect(token, NOW)
        if isinstance(result, Denial):
            _check_denial(result, token)
        else:
            header = json.loads(rest)
            assert header["alg"] == "HS256"
            assert header.get("crit") is None
            seen(f"header of {len(header)}")
    elif kind == _KEYS:
        _check_keys(rest)
    else:
        with suppress(ValueError, RecursionError):
            revoked = parse_revocations(rest)
            seen(f"revoked {bool(revoked.tokens)} {bool(revoked.subjects)}")


def _check_denial(denial: Denial, token: str) -> None:
    assert len(denial.text) < 300
    assert not len(token) > 20 or token[:20] not in denial.text
    seen_error(denial.text)


def _check_claims(text: bytes) -> None:
    token = signed(b'{"alg":"HS256"}', text)
    result = _AUTHORIZER.connect(token, NOW)
    if isinstance(result, Denial):
        _check_denial(result, token)
        assert not any(len(part) > 20 and part in result.text for part in text.decode("utf-8", "replace").split('"'))
        return
    claims: dict[str, Any] = json.loads(text)
    expires = claims["exp"]
    assert type(expires) in (int, float)
    assert expires + 10.0 > NOW
    assert "m" in (claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]])
    assert result.subject == claims["sub"] != ""
    _check_access(result, claims)


def _check_access(access: ClientAccess, claims: dict[str, Any]) -> None:
    assert access.allows("publish", "own/" + access.subject) is ("/" not in access.subject) or "migratory" in claims
    for operation in OPERATIONS:
        allowed = access.allows(operation, "some/topic")
        assert not allowed or (claims.get("migratory") or {}).get(operation)
        seen(f"{operation} {allowed} {sorted(claims)}")


def _check_keys(document: bytes) -> None:
    try:
        keys = parse_keys(document, ALGORITHMS)
    except BadKeys as error:
        seen_error(str(error))
        return
    for key in keys:
        secret = isinstance(key.material, bytes)
        assert key.algorithms
        assert {name.startswith("HS") for name in key.algorithms} == {secret}
        seen(f"keys {len(keys)} {key.algorithms} {key.id is None}")


def seeds() -> Iterator[bytes]:
    claims: list[dict[str, Any]] = [
        {"sub": "ann", "exp": NOW + 300, "aud": "m"},
        {"sub": "ann", "exp": NOW + 300, "aud": ["m", "n"], "nbf": NOW, "iat": NOW - 5, "jti": "7", "iss": "x"},
        {"sub": "ann", "exp": "1800000300", "aud": "m"},
        {"sub": "ann", "exp": NOW + 300, "aud": "m", "migratory": {"subscribe": ["some/*"], "publish": ["**"]}},
        {"sub": "ann", "exp": NOW + 300, "aud": "m", "migratory": {"a made-up operation of a token": []}},
        {"sub": "ann", "exp": NOW + 300, "aud": "m", "migratory": {"publish": ["a made-up pattern of a token *"]}},
        {"sub": "ann", "exp": NOW - 300, "aud": "m"},
    ]
    for each in claims:
        yield bytes((_CLAIMS,)) + json.dumps(each).encode()
    for head in (
        b'{"alg":"HS256"}',
        b'{"alg":"HS256","kid":"a","typ":"JWT"}',
        b'{"alg":"none"}',
        b'{"alg":"HS256","crit":[]}',
    ):
        yield bytes((_HEADER,)) + head
        yield bytes((_TOKEN,)) + signed(head, b"{}")[:-2].encode()
    yield bytes((_KEYS,)) + json.dumps({"keys": [{"kty": "oct", "k": "A" * 44, "kid": "a", "alg": "HS256"}]}).encode()
    yield (
        bytes((_KEYS,))
        + json.dumps(
            {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "use": "sig"}
        ).encode()
    )
    yield bytes((_KEYS,)) + (
        b"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n"
        b"-----END PUBLIC KEY-----\n"
    )
    yield bytes((_KEYS,)) + b"x" * 64
    yield bytes((_REVOCATIONS,)) + b'{"tokens": ["7"], "subjects": {"ann": 1800000000}}'
