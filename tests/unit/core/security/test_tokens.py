"""Tokens: which are accepted at which time, and that no token chooses how it is verified. Also documents of keys, the
permissions of a token, and static tokens."""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import dsa, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from migratory_broker.core.security.tokens import (
    ALGORITHMS,
    MAX_TOKEN,
    OWN_RULE,
    BadKeys,
    KeySource,
    StaticToken,
    TokenConfig,
    TokenRefused,
    TokenVerifier,
    VerifiedToken,
    parse_keys,
)
from migratory_testing.tokens import SECRET, key_set, private_key, public_jwk, public_pem, sign

NOW = 1_800_000_000.0
CLAIMS: dict[str, Any] = {"sub": "ann", "exp": NOW + 300}


def verifier(*documents: tuple[tuple[str, ...], bytes], remote: bool = False, **config: Any) -> TokenVerifier:
    sources = tuple(KeySource(algorithms, remote) for algorithms, _ in documents)
    made = TokenVerifier(TokenConfig(sources, **config))
    made.set_documents([document for _, document in documents])
    return made


def accepted(claims: dict[str, Any], now: float = NOW, **config: Any) -> VerifiedToken:
    return verifier((("HS256",), SECRET.encode()), **config).verify(sign(claims), now)


def refusal(token: str, by: TokenVerifier, now: float = NOW) -> tuple[str, str]:
    with pytest.raises(TokenRefused) as caught:
        by.verify(token, now)
    return caught.value.kind, str(caught.value)


def refused(claims: dict[str, Any], now: float = NOW, **config: Any) -> tuple[str, str]:
    return refusal(sign(claims), verifier((("HS256",), SECRET.encode()), **config), now)


# ---- keys and algorithms ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_verifies(algorithm: str) -> None:
    if algorithm.startswith("HS"):
        jwk = {"kty": "oct", "k": urlsafe_b64encode(SECRET.encode()).decode().rstrip("="), "kid": "k"}
        documents = [SECRET.encode(), key_set(jwk)]
    else:
        documents = [public_pem(algorithm), key_set(public_jwk(algorithm)), json.dumps(public_jwk(algorithm)).encode()]
    for document in documents:
        assert verifier(((algorithm,), document)).verify(sign(CLAIMS, algorithm), NOW).subject == "ann"


def test_certificate_is_a_key() -> None:
    key = private_key("ES256", "certificate")
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "issuer")])
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), 1, datetime(2026, 1, 1, tzinfo=UTC), datetime(2036, 1, 1, tzinfo=UTC)
    )
    pem = builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
    assert verifier((("ES256",), pem)).verify(sign(CLAIMS, "ES256", "certificate"), NOW).subject == "ann"


def test_public_key_is_no_secret() -> None:
    """Algorithm confusion: a token signed by HMAC with the text of the public key as its secret is refused, also beside
    an HS256 key, and a PEM key is not accepted for HS256."""
    pem = public_pem("RS256")
    # the library refuses to sign so; the attacker's own does not
    head = urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').rstrip(b"=")
    body = urlsafe_b64encode(json.dumps(CLAIMS).encode()).rstrip(b"=")
    mac = urlsafe_b64encode(hmac.digest(pem, head + b"." + body, "sha256")).rstrip(b"=")
    forged = b".".join((head, body, mac)).decode()
    for algorithms in (("RS256",), ("RS256", "PS256")):
        assert refusal(forged, verifier((algorithms, pem)))[0] == "unauthenticated"
    both = verifier((("RS256",), pem), (("HS256",), SECRET.encode()))
    assert refusal(forged, both) == ("unauthenticated", "the token's signature is wrong")
    with pytest.raises(BadKeys, match="the PEM key is not for HS256"):
        parse_keys(pem, ("HS256",))


def test_token_without_signature_is_refused() -> None:
    unsigned = jwt.encode(CLAIMS, "", "none")
    assert refusal(unsigned, verifier((("HS256",), SECRET.encode()))) == (
        "unauthenticated",
        "the token's key or algorithm is not accepted",
    )
    signed = sign(CLAIMS)
    stripped = signed.rpartition(".")[0] + "."
    assert refusal(stripped, verifier((("HS256",), SECRET.encode())))[1] == "the token's signature is wrong"


def test_key_is_bound_to_the_algorithms_of_its_source_and_of_its_own() -> None:
    by = verifier((("RS256",), public_pem("RS256")))
    assert refusal(sign(CLAIMS, "PS256"), by)[1] == "the token's key or algorithm is not accepted"
    key = public_jwk("RS256", "a", alg="RS256")
    by = verifier((("RS256", "PS256"), key_set(key)))
    assert by.verify(sign(CLAIMS, "RS256", "a"), NOW).subject == "ann"
    assert refusal(sign(CLAIMS, "PS256", "a"), by)[1] == "the token's key or algorithm is not accepted"


def test_unusable_keys_of_a_set_are_left_out() -> None:
    weak = rsa.generate_private_key(65537, 1024)
    keys = [
        public_jwk("RS256", "enc", use="enc"),
        public_jwk("RS256", "other", alg="RS512"),
        public_jwk("ES256", "curve"),
        {"kty": "oct", "k": "c2hvcnQ", "kid": "short"},
        {"kty": "oct", "k": "!\u00e9", "kid": "not base64"},
        {"kty": "new", "kid": "kind"},
        {"kty": "RSA", "kid": "empty"},
        json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(weak.public_key())),
        {"kty": "EC", "crv": "secp256k1", "kid": "k1", "x": "AA", "y": "AA"},
    ]
    with pytest.raises(BadKeys, match="no key for RS256"):
        parse_keys(key_set(*keys), ("RS256",))
    (key,) = parse_keys(key_set(*keys, public_jwk("RS256", "good", use="sig")), ("RS256",))
    assert key.id == "good"
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private_key("RS256", "good"))) | {"kid": "private"}
    (key,) = parse_keys(key_set(private), ("RS256",))
    assert not hasattr(key.material, "private_numbers")


def test_secret_is_base64url_and_nothing_else() -> None:
    """Regression: other characters were skipped, so that the secret was another one."""
    with pytest.raises(BadKeys, match="no key for HS256"):
        parse_keys(key_set({"kty": "oct", "k": "c2hvcnQ!" * 8}), ("HS256",))


@pytest.mark.parametrize(
    ("document", "text"),
    [
        # an object identifier that cryptography does not know: seen to raise more than ValueError
        (
            b"-----BEGIN PUBLIC KEY-----\nMCowBQYDK1VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n"
            b"-----END PUBLIC KEY-----",
            "not a public key",
        ),
        (b"{", "not a JWK"),
        (b'{"keys": 1}', "not a JWK"),
        (b'{"keys": [{"kid": "a"}]}', "not a JWK"),
        (b'{"keys": ' + b"[" * 100_000, "not a JWK"),
        (b"-----BEGIN PUBLIC KEY-----\n!\n-----END PUBLIC KEY-----", "not a public key"),
        (b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----", "not a public key"),
        (private_key("ES256").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), "not a public key"),
        (
            dsa.generate_private_key(1024).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
            "the PEM key is not for",
        ),
        (b"a secret", "a secret of 8 bytes for RS256"),
        (b"", "a secret of 0 bytes"),
    ],
)
def test_bad_documents_of_keys(document: bytes, text: str) -> None:
    with pytest.raises(BadKeys, match=text):
        parse_keys(document, ("RS256",))


def test_secret_must_be_as_long_as_its_hash() -> None:
    (key,) = parse_keys(b"x" * 48, ("HS256", "HS384", "HS512"))
    assert key.algorithms == ("HS256", "HS384")
    with pytest.raises(BadKeys, match="32 bytes or more for HS256"):
        parse_keys(b"x" * 31, ("HS256",))


@pytest.mark.parametrize(
    "secret",
    [
        b"\n" + b"\xff" * 31,
        b"\xff" * 31 + b" ",
        b"\xff" * 32 + b"\n",
        b"{" + b"\xff" * 31,
        b" -----BEGIN \xff" + b"x" * 32,
        b" text that begins with a space ...",
        b"text that ends with a line end \n\n",
    ],
)
def test_secret_loses_no_byte(secret: bytes) -> None:
    """Random bytes are used as they are, and of text one line end is removed. Regression: white space at both ends was
    removed, and a secret that began with { was taken for a JWK."""
    documents = [secret] if b"\xff" in secret else [secret + b"\n", secret + b"\r\n"]
    for document in documents:
        (key,) = parse_keys(document, ("HS256",))
        assert key.material == secret


def test_keys_are_chosen_by_their_ids() -> None:
    document = key_set(public_jwk("ES256", "a"), public_jwk("ES256", "b"))
    by = verifier((("ES256",), document))
    assert by.verify(sign(CLAIMS, "ES256", "b"), NOW).subject == "ann"
    assert by.verify(sign(CLAIMS, "ES256", "b", {"kid": None}), NOW).subject == "ann", "no id: all are tried"
    assert refusal(sign(CLAIMS, "ES256", "b", {"kid": "a"}), by)[1] == "the token's signature is wrong"
    assert refusal(sign(CLAIMS, "ES256", "c"), by) == (
        "unauthenticated",
        "the token's key or algorithm is not accepted",
    )
    remote = verifier((("ES256",), document), remote=True)
    assert refusal(sign(CLAIMS, "ES256", "c"), remote) == ("unknown_key", "the token's key is not known here")
    assert refusal(sign(CLAIMS, "ES256", "c", {"kid": None}), remote)[0] == "unauthenticated"
    remote.set_documents([b""])
    assert refusal(sign(CLAIMS, "ES256", "a"), remote)[0] == "unknown_key", "the keys were not fetched yet"


# ---- tokens ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a",
        "a.b.c",
        ".",
        "\u00e9.b.c",
        "\ud800",
        "e30.e30.e30",
        "bnVsbA.e30.e30",
        "x" * 1000,
        urlsafe_b64encode(b'{"alg": "HS256", "x": ' + b"[" * 9000).decode() + ".e30.e30",
    ],
)
def test_text_that_is_no_token(token: str) -> None:
    assert refusal(token, verifier((("HS256",), SECRET.encode()))) == (
        "unauthenticated",
        "the token is not accepted: it is neither known nor a signed JSON Web Token",
    )


def test_long_token_is_refused_unread() -> None:
    assert "characters; allowed are 16384" in refusal("x" * (MAX_TOKEN + 1), TokenVerifier(TokenConfig()))[1]


def test_critical_extensions_and_payloads_that_are_no_claims_are_refused() -> None:
    by = verifier((("HS256",), SECRET.encode()))
    assert "(crit)" in refusal(sign(CLAIMS, headers={"crit": ["exp"], "exp": 1}), by)[1]
    for payload in (b"[]", b"not json", b"1"):
        text = jwt.PyJWS().encode(payload, SECRET, "HS256")
        assert refusal(text, by)[1] == "the token's signature is wrong"


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("value", [0, -1, "1800000300", True, False, None, [], {}, 1e13, -0.5])
def test_malformed_time_never_counts_as_absent(name: str, value: object) -> None:
    kind, text = refused(CLAIMS | {name: value}, allow_no_expiry=True)
    assert (kind, text) == ("unauthenticated", f"the token's {name} must be a positive number of seconds since 1970")


def test_token_without_expiry_only_where_it_is_allowed() -> None:
    claims = {"sub": "ann"}
    assert refused(claims) == ("unauthenticated", "the token has no expiry (exp)")
    assert accepted(claims, allow_no_expiry=True).expires_at is None


def test_expiry_and_leeway() -> None:
    assert accepted(CLAIMS | {"exp": NOW - 9}).expires_at == NOW + 1, "the leeway is part of the lifetime"
    assert refused(CLAIMS | {"exp": NOW - 10})[0] == "token_expired"
    assert refused(CLAIMS | {"exp": NOW}, leeway=0.0)[0] == "token_expired"
    assert accepted(CLAIMS | {"exp": NOW + 0.5}, leeway=0.0).expires_at == NOW + 0.5
    assert accepted(CLAIMS | {"nbf": NOW + 10}).subject == "ann"
    assert refused(CLAIMS | {"nbf": NOW + 11}) == ("unauthenticated", "the token is not valid yet (nbf)")
    assert accepted(CLAIMS | {"iat": NOW - 7}).issued_at == NOW - 7


def test_issuer_and_audience() -> None:
    assert accepted(CLAIMS | {"iss": "a"}, issuer="a").subject == "ann"
    for issuer in ("ab", "", ["a"], None):
        assert "issuer" in refused(CLAIMS | {"iss": issuer} if issuer is not None else CLAIMS, issuer="a")[1]
    for audience in ("m", ["x", "m"]):
        assert accepted(CLAIMS | {"aud": audience}, audience="m").subject == "ann"
    wrong: list[Any] = ["x", ["x"], "mm", {"m": 1}, []]
    for audience in wrong:
        assert "audience" in refused(CLAIMS | {"aud": audience}, audience="m")[1]
    assert "audience" in refused(CLAIMS, audience="m")[1]
    assert "audience" in refused(CLAIMS | {"aud": "m"})[1], "a token for somebody"


@pytest.mark.parametrize("subject", [None, "", 7, "x" * 256, "a\0b", "a\nb", ["ann"]])
def test_subject_is_required(subject: object) -> None:
    assert "subject (sub)" in refused(CLAIMS | {"sub": subject})[1]
    assert "subject (sub)" in refused({"exp": NOW + 1})[1]


def test_token_id() -> None:
    assert accepted(CLAIMS | {"jti": "7"}).id == "7"
    assert accepted(CLAIMS).id == ""
    for token_id in (7, "x" * 256):
        assert "(jti)" in refused(CLAIMS | {"jti": token_id})[1]


def test_own_permissions() -> None:
    own = accepted(CLAIMS | {"migratory": {"subscribe": ["quotes/**"], "publish": []}}).own
    assert own is not None
    assert own["subscribe"].find("quotes/eur", "ann", OWN_RULE) == OWN_RULE
    assert own["history"].find("quotes/eur", "ann", OWN_RULE) == 0
    assert accepted(CLAIMS).own is None
    secret = "nobody-may-read-this"
    malformed: list[Any] = [
        {secret: []},
        {"publish": [f"{secret}*"]},
        {"publish": {secret: 1}},
        [],
        {"subscribe": "quotes/**"},
        {"read": []},
        {"publish": ["a*"]},
        {"publish": ["a"] * 1001},
        {"publish": ["a/b"] * 400, "subscribe": ["a/b/c"] * 100},
    ]
    for permissions in malformed:
        text = refused(CLAIMS | {"migratory": permissions})[1]
        assert "(claim migratory) are malformed" in text
        assert secret not in text


def test_static_tokens() -> None:
    tokens = tuple(StaticToken(name, sha256(f"token of {name}".encode()).digest(), {"role": ["x"]}) for name in "ab")
    by = TokenVerifier(TokenConfig(static=tokens))
    assert by.verify("token of a", NOW).claims == {"role": ["x"]}
    assert by.verify("token of b", NOW)[0] == "b"
    assert refusal("token of c", by) == ("unauthenticated", "the token is not accepted")
