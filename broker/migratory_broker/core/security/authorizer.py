"""The authorizer: decides whether a client may connect, by its token, and what it may do, by the rules of
`spec.security` and of the token. Used where there are tokens or rules.

`Authorizer.connect` returns the `ClientAccess` of a client, which answers for each topic, or the `Denial` of a client
that may not connect. The authorizer holds keys and revocations, which `update` replaces, and has no clock: the wall
clock's time is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from migratory_broker.core.security.rules import LEVEL_BYTES, Operation, Rule, RuleSet, TopicTrees
from migratory_broker.core.security.tokens import (
    OWN_RULE,
    PERMISSIONS,
    RefusalKind,
    TokenConfig,
    TokenRefused,
    TokenVerifier,
    VerifiedToken,
)

_SEPARATOR = "\0"
"""Divides a publisher's name from its subject. No subject and no accepted name contains it."""


@dataclass(frozen=True, slots=True)
class SecurityConfig:
    """Tokens and rules of a cluster. `tokens` None: no token is accepted. `anonymous`: clients without a token may
    connect."""

    tokens: TokenConfig | None = None
    rules: tuple[Rule, ...] = ()
    anonymous: bool = False


class Revocations(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens that are not accepted any more: those with an id (`jti`) in `tokens`, and of each subject in `subjects`
    all that were issued before a wall clock time in seconds. A token of such a subject that does not say when it was
    issued is revoked as well."""

    tokens: frozenset[str] = frozenset()
    subjects: dict[str, float] = {}


def parse_revocations(document: bytes) -> Revocations:
    """Return the revocations in JSON text, none for empty text. Raises ValueError for any other text."""
    return msgspec.json.decode(document, type=Revocations) if document.strip() else Revocations()


class Denial(NamedTuple):
    """A refused `connect`. `text` is sent to the client. `key` is the id of the unknown key for which it is refused, ""
    if that is not the reason."""

    kind: RefusalKind
    text: str
    key: str = ""


class ClientAccess:
    """The identity of a client, and what it may do. Of its token it holds the permissions, and what revocations need.

    subject      the name of the identity, "" for a client without a token
    own_bytes    bytes of memory of the token's own permissions; the rules are shared
    lifetime     seconds from `connect` for which the access is valid, None without a limit
    expires_at   when the access ends by the edge's clock, which the edge sets; None without a limit
    notice_at    when the client is to be notified of the end, by the edge's clock; None once it was, or without a limit
    """

    __slots__ = (
        "_applicable",
        "_own",
        "_rules",
        "expires_at",
        "lifetime",
        "notice_at",
        "own_bytes",
        "subject",
        "token",
    )

    def __init__(self, token: VerifiedToken | None, rules: TopicTrees, applicable: int, lifetime: float | None) -> None:
        """Create the access of a token, or of a client without one (`token` None). Of the rules in `rules`, those in
        the set `applicable` apply to it; the set has a bit for each rule."""
        own = None if token is None else token.own
        self.token = None if token is None else token._replace(claims={}, own=None)
        self.own_bytes = 0 if own is None else LEVEL_BYTES * sum(tree.count_levels() for tree in own.values())
        self.subject = "" if token is None else token.subject
        self.lifetime = lifetime
        self.expires_at: float | None = None
        self.notice_at: float | None = None
        self._rules = rules
        self._applicable = applicable
        self._own = own

    def reason(self, operation: Operation, topic: str) -> str:
        """Return what allows the operation on the topic: "spec.security.rules[2]", the token's claim, or "" when
        nothing does. If several rules match, it may name any of them."""
        if found := self._rules[operation].find(topic, self.subject, self._applicable):
            first = (found & -found).bit_length() - 1
            return f"spec.security.rules[{first}]"
        return f"the token's claim {PERMISSIONS}" if self._token_allows(operation, topic) else ""

    def allows(self, operation: Operation, topic: str) -> bool:
        """Return whether the client may do this with the topic, by a rule or by its token. It costs about 1 us, so no
        decision is cached."""
        return bool(self._rules[operation].find(topic, self.subject, self._applicable)) or self._token_allows(
            operation, topic
        )

    def _token_allows(self, operation: Operation, topic: str) -> bool:
        """Return whether the token's own permissions allow the operation on the topic."""
        return self._own is not None and bool(self._own[operation].find(topic, self.subject, OWN_RULE))

    def qualify(self, publisher: str) -> str:
        """Return the name of a publisher of this identity within the cluster: with the subject added. Two subjects that
        use one name are two publishers: whoever learns a publisher's name cannot use up its message ids."""
        return f"{publisher}{_SEPARATOR}{self.subject}"


def unqualified(publisher: str) -> str:
    """Return the name that a publisher gave itself, without the subject that `qualify` may have added."""
    return publisher.partition(_SEPARATOR)[0]


class Authorizer:
    """The decisions of one broker or I/O process about all its clients: who may connect, and whose token was
    revoked."""

    def __init__(self, config: SecurityConfig) -> None:
        self._config = config
        self._rules = RuleSet(config.rules)
        self._verifier = TokenVerifier(config.tokens) if config.tokens is not None else None
        self._revoked = Revocations()

    def update(self, documents: Sequence[bytes], revoked: bytes) -> None:
        """Replace keys and revocations: a document for each source of keys, b"" for one without keys, and the list of
        revocations, b"" for none. Raises ValueError for a malformed one, and may have replaced the keys then; the
        runtime has checked them."""
        if self._verifier is not None:
            self._verifier.set_documents(documents)
        self._revoked = parse_revocations(revoked)

    def connect(self, token: str | None, now: float) -> ClientAccess | Denial:
        """Return the access of a client with this token (None: without one) at the wall clock time `now`, in seconds
        since 1970, or its refusal."""
        if token is None:
            if not self._config.anonymous:
                return Denial("unauthenticated", "a token is required")
            return ClientAccess(None, self._rules.trees, self._rules.applicable("", None), None)
        if self._verifier is None:
            return Denial("unauthenticated", "tokens are not accepted here; connect without one")
        try:
            verified = self._verifier.verify(token, now)
        except TokenRefused as error:
            return Denial(error.kind, str(error), error.key)
        if self._is_revoked(verified):
            return Denial("unauthenticated", "the token was revoked")
        applicable = self._rules.applicable(verified.subject, verified.claims)
        lifetime = None if verified.expires_at is None else verified.expires_at - now
        return ClientAccess(verified, self._rules.trees, applicable, lifetime)

    def is_revoked(self, access: ClientAccess) -> bool:
        """Return whether the token of a connected client has been revoked. False for a client without a token."""
        return access.token is not None and self._is_revoked(access.token)

    def _is_revoked(self, token: VerifiedToken) -> bool:
        """Return whether the present revocations name the token's id, or its subject with a time before which it was
        issued. A token that does not say when it was issued counts as issued before."""
        if token.id and token.id in self._revoked.tokens:
            return True
        before = self._revoked.subjects.get(token.subject)
        return before is not None and (token.issued_at is None or token.issued_at < before)
