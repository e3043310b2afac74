"""The section `security` of the broker's configuration: tokens, rules, and whether clients need a token.

Without the section every client may do everything. With it, every operation that no rule and no token allows is denied.
`security_config` checks the section and turns it into the configuration of the authorizer.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct, field

from migratory_broker.core.security.authorizer import SecurityConfig
from migratory_broker.core.security.rules import Operation, Rule
from migratory_broker.core.security.tokens import ALGORITHMS, KeySource, StaticToken, TokenConfig
from migratory_broker.runtime.errors import ConfigError

Text = Annotated[str, Meta(min_length=1, max_length=1024)]
MAX_RULES = 200
"""The largest number of rules of a cluster. Each of them is examined at `connect`."""


class Section(Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """The base of the sections: names in camel case; unknown fields are refused."""


class KeysSection(Section, frozen=True):
    """A source of keys: exactly one of a file and a URL, and the algorithms for which its keys may be used."""

    algorithms: Annotated[tuple[str, ...], Meta(min_length=1, max_length=10)]
    file: Text | None = None
    url: Annotated[str, Meta(pattern=r"^https?://[^\s]+\Z", max_length=1024)] | None = None


class StaticTokenSection(Section, frozen=True):
    """A token that is known by its SHA-256, in hexadecimal digits, and the subject and claims of the clients that send
    it."""

    subject: Annotated[str, Meta(min_length=1, max_length=255)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    claims: dict[str, tuple[str, ...]] = field(default_factory=dict)


class TokensSection(Section, frozen=True):
    """The tokens that are accepted: signed by one of `keys`, or one of `static`. `issuer` and `audience` are those that
    a signed token must have; with an empty `issuer` any is accepted, with an empty `audience` only tokens without one.
    `leeway` is the seconds by which clocks may differ, `allow_no_expiry` whether signed tokens without an end are
    accepted, `in_query` whether a token may be in the URL, `refresh` the seconds between two fetches of keys from URLs,
    and `revoked` the file with the list of revocations."""

    keys: Annotated[tuple[KeysSection, ...], Meta(max_length=20)] = ()
    static: Annotated[tuple[StaticTokenSection, ...], Meta(max_length=100)] = ()
    issuer: str = ""
    audience: str = ""
    leeway: Annotated[float, Meta(ge=0, le=300)] = 10.0
    allow_no_expiry: bool = False
    in_query: bool = False
    refresh: Annotated[float, Meta(ge=1, le=86_400)] = 300.0
    revoked: Text | None = None


class RuleSection(Section, frozen=True):
    """A rule: it allows the operations `allow` on topics that match one of the patterns `topics`. It is for clients
    with one of the `subjects` (patterns; none: any) and, for each of the `claims`, one of its values. With `anonymous`
    it is for clients without a token as well, and has no subjects or claims."""

    topics: Annotated[tuple[str, ...], Meta(min_length=1, max_length=100)]
    allow: Annotated[tuple[Operation, ...], Meta(min_length=1, max_length=3)]
    subjects: Annotated[tuple[Text, ...], Meta(max_length=100)] = ()
    claims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    anonymous: bool = False


class SecuritySection(Section, frozen=True):
    """The section `security`: tokens, rules, and whether clients without a token may connect (`anonymous`). Without
    `tokens` no token is accepted."""

    tokens: TokensSection | None = None
    rules: Annotated[tuple[RuleSection, ...], Meta(max_length=MAX_RULES)] = ()
    anonymous: bool = False


def security_config(section: SecuritySection) -> SecurityConfig:
    """Return the configuration of the authorizer. Raises ConfigError, which names the field, for a source of keys
    without or with both of file and URL, for algorithms that are unknown or do not fit the source, and for a rule that
    is not valid."""
    return SecurityConfig(
        tokens=None if section.tokens is None else _tokens(section.tokens),
        rules=tuple(_rule(number, rule) for number, rule in enumerate(section.rules)),
        anonymous=section.anonymous,
    )


def _tokens(section: TokensSection) -> TokenConfig:
    """Return the configuration of the tokens. Raises ConfigError for a source of keys that is not valid."""
    for number, source in enumerate(section.keys):
        path = f"security.tokens.keys[{number}]"
        if (source.file is None) == (source.url is None):
            raise ConfigError(f"{path}: allowed is either file or url")
        for name in source.algorithms:
            if name not in ALGORITHMS:
                raise ConfigError(f"{path}.algorithms: {name!r}; allowed are {', '.join(ALGORITHMS)}")
            if source.url is not None and name.startswith("HS"):
                raise ConfigError(f"{path}.algorithms: {name!r}; a secret is not published, use file for HS algorithms")
        if len({name.startswith("HS") for name in source.algorithms}) > 1:
            raise ConfigError(f"{path}.algorithms: HS algorithms and others together; use a source of keys for each")
    return TokenConfig(
        sources=tuple(KeySource(source.algorithms, source.url is not None) for source in section.keys),
        static=tuple(
            StaticToken(token.subject, bytes.fromhex(token.sha256), _claims(token.claims)) for token in section.static
        ),
        issuer=section.issuer,
        audience=section.audience,
        leeway=section.leeway,
        allow_no_expiry=section.allow_no_expiry,
    )


def _claims(claims: dict[str, tuple[str, ...]]) -> dict[str, object]:
    return {name: list(values) for name, values in claims.items()}


def _rule(number: int, section: RuleSection) -> Rule:
    """Return the rule at this place in the section. Raises ConfigError if it is not valid."""
    try:
        return Rule(
            topics=section.topics,
            allow=section.allow,
            subjects=section.subjects,
            claims=section.claims,
            anonymous=section.anonymous,
        )
    except ValueError as error:
        raise ConfigError(f"security.rules[{number}]: {error}") from error
