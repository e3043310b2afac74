"""Keys and JSON Web Tokens for tests. Keys are made once for each process: an RSA key takes a while."""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha256
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

SECRET = "a secret of sixty-four bytes or more, for each of the HS algorithms"
CURVES: dict[str, ec.EllipticCurve] = {"ES256": ec.SECP256R1(), "ES384": ec.SECP384R1(), "ES512": ec.SECP521R1()}


@cache
def private_key(algorithm: str, name: str = "") -> Any:
    """Return the private key of this name for an algorithm, the same at each call in a process. For HS algorithms it is
    a text, the secret."""
    if algorithm.startswith("HS"):
        return SECRET + name
    if algorithm == "EdDSA":
        return ed25519.Ed25519PrivateKey.generate()
    if algorithm in CURVES:
        return ec.generate_private_key(CURVES[algorithm])
    return rsa.generate_private_key(65537, 2048)


def public_jwk(algorithm: str, name: str = "", **fields: Any) -> dict[str, Any]:
    """Return the public key of this name as JWK, with `fields` added or replaced. Its id (`kid`) is the name; with an
    empty name it has none."""
    key = private_key(algorithm, name).public_key()
    library: Any = {"E": ECAlgorithm, "R": RSAAlgorithm, "P": RSAAlgorithm}[algorithm[0]]
    if algorithm == "EdDSA":
        library = OKPAlgorithm
    jwk: dict[str, Any] = json.loads(library.to_jwk(key))
    jwk |= {"kid": name} if name else {}
    return jwk | fields


def key_set(*keys: dict[str, Any]) -> bytes:
    """Return a JWK set of these keys, as JSON."""
    return json.dumps({"keys": keys}).encode()


def public_pem(algorithm: str, name: str = "") -> bytes:
    pem: bytes = private_key(algorithm, name).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return pem


def sign(
    claims: dict[str, Any], algorithm: str = "HS256", name: str = "", headers: dict[str, Any] | None = None
) -> str:
    """Return a JSON Web Token with these claims, signed by the private key of this name. A name is the key id as well,
    unless `headers` has another one or None for none."""
    all_headers = {"typ": "JWT"} | ({"kid": name} if name else {}) | (headers or {})
    present = {field: value for field, value in all_headers.items() if value is not None}
    return jwt.PyJWS().encode(json.dumps(claims).encode(), private_key(algorithm, name), algorithm, present)


def digest(token: str) -> str:
    """Return the hash by which a configuration names a static token: its SHA-256 in hex."""
    return sha256(token.encode()).hexdigest()
