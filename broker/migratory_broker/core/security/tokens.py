"""Tokens: JSON Web Tokens (RFC 7519) signed by configured keys, and static tokens by their SHA-256.

The library verifies signatures; claims are checked here, because they need the time as an argument and are stricter
than what the library allows. RFC 8725 is the source of most rules: a key is bound to the algorithms of its own kind
that the configuration names, so that a token cannot choose how it is verified.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final, Literal, NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate
from jwt import PyJWK, PyJWS
from migratory_protocol.messages import LARGEST_SECONDS

from migratory_broker.core.security.rules import (
    OPERATIONS,
    BadPattern,
    Claims,
    Operation,
    TopicTrees,
    build_trees,
)

MAX_TOKEN: Final = 16_384
"""Characters of a token. A request's header allows half of it; a longer one is refused before it is read."""

MAX_SUBJECT: Final = 255
"""Characters of a subject, which is part of the names of its publishers."""

MAX_TRIES: Final = 8
"""The largest number of keys with which one token is tried, where no key id decides: an RSA signature costs 30 us."""

MAX_ID: Final = 255
"""Characters of a token's id, which is held while its client is connected."""

MAX_LEVELS: Final = 1000
"""Levels of all topic patterns together in a token's own permissions: 300 KB of memory, and 0.3 ms for the dearest
decision."""

PERMISSIONS: Final = "migratory"
"""The claim with a token's own permissions: lists of topic patterns by operation."""

OWN_RULE: Final = 1
"""The only rule of the trees of a token's own permissions."""

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_SECRET_BYTES: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
ALGORITHMS: Final = (*_SECRET_BYTES, *_RSA, *_CURVES.values(), "EdDSA")
"""The algorithms that a configuration may name. A secret has at least as many bytes as its hash (RFC 7518, 3.2)."""

MIN_RSA_BITS: Final = 2048
"""Bits of an RSA key (RFC 7518, 3.3)."""

_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*={0,2}")

RefusalKind = Literal["unauthenticated", "token_expired", "unknown_key"]


class BadKeys(ValueError):
    """The error for a document of keys that cannot be used. The text names no part of a key."""


class TokenRefused(Exception):
    """The error for a token that is not accepted. The text is for the client and quotes nothing of the token. `kind`:

    unauthenticated   final: another token is needed
    token_expired     a new token of the same kind is needed
    unknown_key       signed with a key, of the id `key`, that may have been published since the keys were read
    """

    def __init__(self, text: str, kind: RefusalKind = "unauthenticated", key: str = "") -> None:
        super().__init__(text)
        self.kind: RefusalKind = kind
        self.key = key


@dataclass(frozen=True, slots=True)
class KeySource:
    """A source of keys, and the algorithms for which its keys may be used. `remote`: the keys are fetched from a URL,
    so a token with an unknown key id may be signed with a key that was published since the last fetch. Keys from
    files may change too."""

    algorithms: tuple[str, ...]
    remote: bool = False


@dataclass(frozen=True, slots=True)
class StaticToken:
    """A token of the configuration, by the SHA-256 of its UTF-8 bytes, with the subject and claims that it stands for.
    It does not expire."""

    subject: str
    digest: bytes
    claims: Claims = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenConfig:
    """The tokens that are accepted: signed with a key of the `sources`, or one of `static`. `issuer` and `audience` are
    those that a signed token must have; "" for `issuer`: any, for `audience`: a token with one is refused. `leeway` is
    seconds by which clocks may differ. `allow_no_expiry`: a signed token need not expire."""

    sources: tuple[KeySource, ...] = ()
    static: tuple[StaticToken, ...] = ()
    issuer: str = ""
    audience: str = ""
    leeway: float = 10.0
    allow_no_expiry: bool = False


class VerifiedToken(NamedTuple):
    """The statements of a verified token. `expires_at` includes the leeway, and is None for one that does not expire;
    times are wall clock seconds since 1970. `own` are the topic patterns of its own permissions, None if it has none.
    `id` is "" if it has none."""

    subject: str
    claims: Claims
    own: TopicTrees | None = None
    expires_at: float | None = None
    issued_at: float | None = None
    id: str = ""


# ---- keys ------------------------------------------------------------------------------------------------------


class Key(NamedTuple):
    """A public key or secret (`material`), with the algorithms that it may verify. `id` is its key id, None if it has
    none."""

    id: str | None
    algorithms: tuple[str, ...]
    material: Any


def parse_keys(document: bytes, algorithms: Sequence[str]) -> tuple[Key, ...]:
    """Return the keys of a JWK set, a JWK, a public key or certificate in PEM, or a secret (any other bytes), each for
    those of `algorithms` that its kind allows.

    A secret is used as it is: bytes that are no UTF-8 text are never taken for a JWK or PEM, and lose nothing. Text
    loses one line end, which editors add.

    Keys of a JWK or a set that are malformed, for encryption, or fit none of `algorithms` are left out. Raises BadKeys
    for a document that is malformed as a whole, a PEM key or a secret that fits none of `algorithms`, and when no key
    is left.
    """
    is_text = _is_text(document)
    text = document.strip() if is_text else b""
    if text.startswith(b"{"):
        keys = _parse_jwks(text, algorithms)
    elif text.startswith(b"-----BEGIN"):
        keys = [_parse_pem(text, algorithms)]
    else:
        secret = document
        if is_text:
            secret = document.removesuffix(b"\r\n" if document.endswith(b"\r\n") else b"\n")
        fitting = _secret_algorithms(secret, algorithms)
        if not fitting:
            raise BadKeys(
                f"a secret of {len(secret)} bytes for {', '.join(algorithms)}; allowed: a JWK set, a public key in "
                "PEM, or a secret of 32 bytes or more for HS256, 48 for HS384, 64 for HS512"
            )
        keys = [Key(None, fitting, secret)]
    if not keys:
        raise BadKeys(f"no key for {', '.join(algorithms)}")
    return tuple(keys)


def _is_text(document: bytes) -> bool:
    """Return whether the document is text in UTF-8."""
    try:
        document.decode()
    except UnicodeDecodeError:
        return False
    return True


def _secret_algorithms(secret: bytes, algorithms: Sequence[str]) -> tuple[str, ...]:
    """Return those of `algorithms` that use a secret and for which this one is long enough."""
    return tuple(name for name in algorithms if len(secret) >= _SECRET_BYTES.get(name, len(secret) + 1))


def _public_algorithms(key: object, algorithms: Sequence[str]) -> tuple[str, ...]:
    """Return those of `algorithms` that the kind of a public key allows. None for an RSA key of fewer than
    `MIN_RSA_BITS`, and for a kind that is not supported."""
    allowed: tuple[str, ...] = ()
    if isinstance(key, RSAPublicKey) and key.key_size >= MIN_RSA_BITS:
        allowed = _RSA
    elif isinstance(key, EllipticCurvePublicKey):
        allowed = (_CURVES.get(key.curve.name, ""),)
    elif isinstance(key, Ed25519PublicKey):
        allowed = ("EdDSA",)
    return tuple(name for name in algorithms if name in allowed)


def _parse_pem(text: bytes, algorithms: Sequence[str]) -> Key:
    """Return the public key in PEM, or of a certificate in PEM. Raises BadKeys if it is malformed or fits none of
    `algorithms`."""
    try:
        key = (
            load_pem_x509_certificate(text).public_key()
            if text.startswith(b"-----BEGIN CERTIFICATE")
            else load_pem_public_key(text)
        )
    except Exception as error:  # the library raises more than ValueError, such as for unknown kinds of keys
        raise BadKeys("not a public key or certificate in PEM") from error
    fitting = _public_algorithms(key, algorithms)
    if not fitting:
        raise BadKeys(f"the PEM key is not for {', '.join(algorithms)}, or an RSA key below {MIN_RSA_BITS} bits")
    return Key(None, fitting, key)


class _Jwk(msgspec.Struct):
    """A JSON Web Key (RFC 7517), with the fields that are read of it."""

    kty: str
    kid: str | None = None
    alg: str | None = None
    use: str | None = None
    crv: str | None = None
    n: str = ""
    e: str = ""
    x: str = ""
    y: str = ""
    k: str = ""

    def key(self, algorithms: Sequence[str]) -> Key | None:
        """Return the key with those of `algorithms` that it fits. None when it is malformed, not for signatures, or
        fits none of them. Private parts are not read."""
        if self.use not in (None, "sig") or self.alg not in (None, *algorithms):
            return None
        names = algorithms if self.alg is None else (self.alg,)
        try:
            if self.kty == "oct":
                material: Any = _decode_base64(self.k)
                fitting = _secret_algorithms(material, names)
            else:
                fields = {"kty": self.kty, "crv": self.crv, "n": self.n, "e": self.e, "x": self.x, "y": self.y}
                material = PyJWK({name: value for name, value in fields.items() if value}).key
                fitting = _public_algorithms(material, names)
        except Exception:  # noqa: BLE001 - the library raises its own errors and those of cryptography
            return None
        return Key(self.kid, fitting, material) if fitting else None


class _JwkSet(msgspec.Struct):
    """A JSON Web Key set (RFC 7517, 5)."""

    keys: list[_Jwk]


def _parse_jwks(text: bytes, algorithms: Sequence[str]) -> list[Key]:
    """Return the usable keys of a JWK or a JWK set in JSON, perhaps none. Raises BadKeys for text that is neither."""
    try:
        content = msgspec.json.decode(text)
        document = msgspec.convert(content if "keys" in content else {"keys": [content]}, _JwkSet)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadKeys("not a JWK or a JWK set; a secret that is text must not begin with {") from error
    return [key for entry in document.keys if (key := entry.key(algorithms)) is not None]


# ---- verification ----------------------------------------------------------------------------------------------


class _Header(msgspec.Struct):
    """The fields that are read of a token's header: algorithm, key id, and the extensions that must be understood."""

    alg: str
    kid: str | None = None
    crit: Any = None


class TokenVerifier:
    """Verification of tokens with the present keys. There are none before `set_documents`; static tokens need none."""

    def __init__(self, config: TokenConfig) -> None:
        self._config = config
        self._keys: tuple[Key, ...] = ()
        self._jws = PyJWS()
        self._remote = any(source.remote for source in config.sources)

    def set_documents(self, documents: Sequence[bytes]) -> None:
        """Replace the keys: one document for each source of the configuration, in that order, b"" for one without keys.
        Raises BadKeys for one that cannot be used, and keeps the former keys then."""
        self._keys = tuple(
            key
            for source, document in zip(self._config.sources, documents, strict=True)
            if document
            for key in parse_keys(document, source.algorithms)
        )

    def verify(self, token: str, now: float) -> VerifiedToken:
        """Verify a token, and return what it says: subject, claims, permissions, expiry, time of issue and id.

        A static token of the configuration is valid at any time. Any other one needs a valid signature, an issuer and
        an audience that the configuration allows, and times that are valid at `now` (wall clock, seconds since 1970).
        Raises TokenRefused, with the reason, for every other token, for one of more than `MAX_TOKEN` characters, and
        for one with malformed claims or permissions.
        """
        if len(token) > MAX_TOKEN:
            raise TokenRefused(f"the token has {len(token)} characters; allowed are {MAX_TOKEN}")
        static = self._find_static(token)
        if static is not None:
            return VerifiedToken(static.subject, static.claims, _own_permissions(static.claims))
        if not self._config.sources:
            raise TokenRefused("the token is not accepted")
        return self._check_claims(self._verified_claims(token), now)

    def _find_static(self, token: str) -> StaticToken | None:
        """Return the static token of the configuration that this text is, None if it is none."""
        digest = sha256(token.encode("utf-8", "surrogatepass")).digest()
        found = None
        for static in self._config.static:  # all of them: the time must not say which one is nearly right
            if compare_digest(static.digest, digest):
                found = static
        return found

    def _verified_claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token whose signature one of the present keys verifies; they are not checked. Raises
        TokenRefused for any other token: as "unknown_key" if it names a key id, no present key has that and its
        algorithm, and some source is remote. At most `MAX_TRIES` keys are tried."""
        header = _read_header(token)
        if header.crit is not None:
            raise TokenRefused("the token needs extensions (crit) that are not supported")
        fitting = [key for key in self._keys if header.alg in key.algorithms]
        named = [key for key in fitting if header.kid is None or key.id in (None, header.kid)]
        if not named:
            if self._remote and header.kid is not None:
                raise TokenRefused("the token's key is not known here", "unknown_key", header.kid)
            raise TokenRefused("the token's key or algorithm is not accepted")
        for key in named[:MAX_TRIES]:
            try:
                content = self._jws.decode_complete(token, key.material, algorithms=list(key.algorithms))
                claims = msgspec.json.decode(content["payload"])
            except Exception:  # noqa: BLE001, S112 - foreign input in a library: whatever it raises, the token is wrong
                continue
            if isinstance(claims, dict):
                return claims
        raise TokenRefused("the token's signature is wrong")

    def _check_claims(self, claims: dict[str, Any], now: float) -> VerifiedToken:
        """Return what a token with these claims says. Raises TokenRefused unless it is valid at `now` within the
        leeway, its issuer and audience are accepted, and subject, id and permissions are well-formed. The refusal of an
        expired one is of kind "token_expired"."""
        config = self._config
        expires_at = _time(claims, "exp")
        if expires_at is None and not config.allow_no_expiry:
            raise TokenRefused("the token has no expiry (exp)")
        if expires_at is not None and now >= expires_at + config.leeway:
            raise TokenRefused("the token has expired; connect with a new one", "token_expired")
        not_before = _time(claims, "nbf")
        if not_before is not None and now < not_before - config.leeway:
            raise TokenRefused("the token is not valid yet (nbf)")
        if config.issuer and claims.get("iss") != config.issuer:
            raise TokenRefused("the token's issuer (iss) is not accepted")
        self._check_audience(claims.get("aud"))
        subject, token_id = claims.get("sub"), claims.get("jti", "")
        if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT or not subject.isprintable():
            raise TokenRefused(f"the token's subject (sub) must be printable text of 1 to {MAX_SUBJECT} characters")
        if not isinstance(token_id, str) or len(token_id) > MAX_ID:
            raise TokenRefused(f"the token's id (jti) must be text of up to {MAX_ID} characters")
        return VerifiedToken(
            subject,
            claims,
            _own_permissions(claims),
            None if expires_at is None else expires_at + config.leeway,
            _time(claims, "iat"),
            token_id,
        )

    def _check_audience(self, audience: object) -> None:
        """Raise TokenRefused unless the token is for this cluster: the configured audience is, or is one of, the
        token's. Where none is configured, a token without an audience is accepted, and one for somebody else is refused
        (RFC 7519, 4.1.3)."""
        if audience is None and not self._config.audience:
            return
        audiences = audience if isinstance(audience, list) else [audience]
        if not self._config.audience or self._config.audience not in audiences:
            raise TokenRefused("the token's audience (aud) is not this cluster")


def _read_header(token: str) -> _Header:
    """Return the header of a token: the part before the first dot. Raises TokenRefused if that is not the header of a
    signed JSON Web Token. The rest of the token is not looked at, and nothing is verified."""
    try:
        return msgspec.json.decode(_decode_base64(token.partition(".")[0]), type=_Header)
    except (ValueError, RecursionError):
        raise TokenRefused("the token is not accepted: it is neither known nor a signed JSON Web Token") from None


def _decode_base64(text: str) -> bytes:
    """Return the bytes of base64url text, which has no padding (RFC 7515, 2) or the right one. Raises ValueError for
    any other character, and for an impossible length."""
    if not _BASE64URL.fullmatch(text):
        raise ValueError("not base64url")
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _time(claims: Mapping[str, object], name: str) -> float | None:
    """Return a time claim in seconds since 1970, None when it is absent. Raises TokenRefused for a malformed one, which
    must never count as absent: null, text, a boolean, zero, a negative number or one that is too large."""
    if name not in claims:
        return None
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= LARGEST_SECONDS:
        raise TokenRefused(f"the token's {name} must be a positive number of seconds since 1970")
    return float(value)


def _own_permissions(claims: Claims) -> TopicTrees | None:
    """Return the patterns of a token's own permissions by operation, None when it has none. Raises TokenRefused when
    they are malformed or have more than `MAX_LEVELS` levels together: a permission that is ignored would be missed much
    later. The errors of the functions called here quote the token, so their texts are not used."""
    permissions = claims.get(PERMISSIONS)
    if permissions is None:
        return None
    try:
        lists = msgspec.convert(permissions, dict[Operation, list[str]])
        if sum(pattern.count("/") + 1 for patterns in lists.values() for pattern in patterns) > MAX_LEVELS:
            raise BadPattern
        return build_trees(
            (operation, pattern, OWN_RULE) for operation, patterns in lists.items() for pattern in patterns
        )
    except (msgspec.ValidationError, BadPattern):
        raise TokenRefused(
            f"the token's permissions (claim {PERMISSIONS}) are malformed; allowed are lists of topic patterns for "
            f"{', '.join(OPERATIONS)}, with {MAX_LEVELS} levels together, * for one level and ** for all further ones"
        ) from None
