"""The models of clients' tokens and rules and of the brokers' user in ZooKeeper, the fields `tokens`, `rules`,
`anonymous` and `zookeeper` of `spec.security`, and the brokers' configuration that follows from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from migratory_resources.fields import Duration, OneOf, PatternText, ResourceModel

Algorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
ALGORITHMS: tuple[Algorithm, ...] = (
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
Operation = Literal["subscribe", "publish", "history"]
OPERATIONS: tuple[Operation, ...] = ("subscribe", "publish", "history")

_LEVEL = r"[^*/\x00-\x1f\x7f]*"
RULE_PATTERN = rf"(({_LEVEL}|\*)/)*([^*/\x00-\x1f\x7f]+|\*|\*\*)"
RULE_PATTERN_FORM = (
    "topic names with * for one level, ** for all further levels at the end, and {subject} for the level of the "
    'client\'s subject, such as "quotes/**"'
)
TEXT = r"[^\x00-\x1f\x7f]+"
PATH = r"/[^\x00-\x1f\x7f]+"
ZOOKEEPER_USER = r"[!-9;-~]+"
SECRET_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
SECRET_KEY = r"[-._a-zA-Z0-9]+"
KEYS_URL = r"https://[^\s/]+(/[^\s]*)?|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?(/[^\s]*)?"


class SecretKeySpec(ResourceModel):
    """An entry of a Kubernetes Secret in the cluster's namespace."""

    name: Annotated[str, PatternText(SECRET_NAME, 253, "a Secret's name")] = Field(description="Name of the Secret")
    key: Annotated[str, PatternText(SECRET_KEY, 253, "a key of a Secret")] = Field(description="Key in the Secret")


class KeysSpec(ResourceModel):
    """A source of keys by which brokers check the signatures of tokens: a JWK set, a public key or certificate in PEM,
    or a secret. Validation requires exactly one of `file`, `secret` and `url`."""

    algorithms: list[Annotated[Algorithm, OneOf(ALGORITHMS)]] = Field(
        max_length=10,
        description="Algorithms for which these keys may be used; HS algorithms need a source of their own",
    )
    file: Annotated[str, PatternText(PATH, 1024, "an absolute path")] | None = Field(
        default=None, description="Path of a file; brokers notice a change"
    )
    secret: SecretKeySpec | None = Field(
        default=None, description="On Kubernetes: an entry of a Secret; brokers notice a change"
    )
    url: Annotated[str, PatternText(KEYS_URL, 1024, "an https:// URL; http:// for loopback addresses only")] | None = (
        Field(default=None, description="URL of a JWK set, which brokers fetch regularly and for unknown key ids")
    )


class StaticTokenSpec(ResourceModel):
    """A token that does not expire, for small set-ups. The cluster knows its hash only."""

    subject: Annotated[str, PatternText(TEXT, 255, "printable text")] = Field(
        description="Subject of the client, as sub of a JSON Web Token"
    )
    sha256: Annotated[str, PatternText(r"[0-9a-f]{64}", 64, "64 hexadecimal digits in lower case")] = Field(
        description="SHA-256 of the token: `printf %s TOKEN | sha256sum`"
    )
    claims: dict[str, list[Annotated[str, PatternText(TEXT, 255, "printable text")]]] = Field(
        default_factory=dict, description="Claims for the rules, each with its values"
    )


class TokensSpec(ResourceModel):
    """The tokens that brokers accept, and how they check them: `spec.security.tokens`."""

    keys: list[KeysSpec] = Field(default_factory=list, max_length=20, description="Keys that sign JSON Web Tokens")
    static: list[StaticTokenSpec] = Field(
        default_factory=list, max_length=100, description="Tokens of this resource, by their hashes"
    )
    issuer: Annotated[str, PatternText(TEXT, 1024, "printable text")] | None = Field(
        default=None, description="Value that a token's iss must have; any when not given"
    )
    audience: Annotated[str, PatternText(TEXT, 1024, "printable text")] | None = Field(
        default=None,
        description="Value that a token's aud must have or contain; when not given, a token with aud is refused",
    )
    leeway: Annotated[float, Duration("0s", "5m")] = Field(
        default=10.0, description="Time by which the clocks of issuer and brokers may differ"
    )
    allow_no_expiry: bool = Field(
        default=False, description="Accept tokens without exp. A malformed exp is refused in any case"
    )
    in_query: bool = Field(
        default=False,
        description="Accept a token in the URL's query as well (access_token); proxies and browsers may record it",
    )
    refresh: Annotated[float, Duration("1s", "1d")] = Field(
        default=300.0, description="Interval at which keys are fetched from URLs"
    )
    revoked_file: Annotated[str, PatternText(PATH, 1024, "an absolute path")] | None = Field(
        default=None, description="Path of the list of revoked tokens, in JSON; brokers notice a change"
    )
    revoked_secret: SecretKeySpec | None = Field(
        default=None, description="On Kubernetes: an entry of a Secret with the list of revoked tokens"
    )


class _ZooKeeperUser(ResourceModel):
    """The fields of the brokers' user in ZooKeeper that one machine and Kubernetes have in common."""

    user: Annotated[str, PatternText(ZOOKEEPER_USER, 255, "visible ASCII characters without a colon")] = Field(
        default="migratory", description="User by which the brokers authenticate to ZooKeeper"
    )
    protect: bool = Field(
        default=True,
        description="Give the nodes in ZooKeeper to this user alone; false while brokers without the password run",
    )


class ZooKeeperUserSpec(_ZooKeeperUser):
    """The brokers' user in ZooKeeper, with a password in a file, on one machine: `spec.security.zookeeper`."""

    password_file: Annotated[str, PatternText(PATH, 1024, "an absolute path")] | None = Field(
        default=None, description="Path of a file with the password; `migratory up` makes one when not given"
    )


class KubernetesZooKeeperUserSpec(_ZooKeeperUser):
    """The brokers' user in ZooKeeper, with a password in a Secret, on Kubernetes: `spec.security.zookeeper`."""

    password_secret: SecretKeySpec = Field(description="The entry of a Secret with the password")


class RuleSpec(ResourceModel):
    """A rule that allows operations on topics: an entry of `spec.security.rules`. It is for clients that have one of
    `subjects` and all of `claims`, each with one of its values; with `anonymous` also for clients without a token."""

    topics: list[Annotated[str, PatternText(RULE_PATTERN, 255, RULE_PATTERN_FORM)]] = Field(
        max_length=100, description="Patterns of topic names: * is one level, ** all further levels"
    )
    allow: list[Annotated[Operation, OneOf(OPERATIONS)]] = Field(
        max_length=3, description="subscribe, publish, and history: replay after a position, and snapshots"
    )
    subjects: list[Annotated[str, PatternText(TEXT, 255, "printable text")]] = Field(
        default_factory=list,
        max_length=100,
        description="Subjects for which the rule is, with * for any characters but /; any subject when empty",
    )
    claims: dict[str, list[Annotated[str, PatternText(TEXT, 255, "printable text")]]] = Field(
        default_factory=dict, description="Claims that a token must have, each with one of these values"
    )
    anonymous: bool = Field(
        default=False, description="The rule is for clients without a token as well; not with subjects or claims"
    )


def secrets_of(tokens: TokensSpec | None) -> list[SecretKeySpec]:
    """Return the entries of Secrets that the tokens need: those with keys, and the one with the revoked tokens. Return
    none for None."""
    if tokens is None:
        return []
    return [
        secret for secret in (*(source.secret for source in tokens.keys), tokens.revoked_secret) if secret is not None
    ]


def zookeeper_credentials(
    user: ZooKeeperUserSpec | KubernetesZooKeeperUserSpec | None, secrets_folder: str
) -> dict[str, Any]:
    """Return what the user adds to the section `zookeeper` of the brokers' configuration: the field `credentials` with
    its value, or {} without a user or a password.

    :param secrets_folder: the folder in which each Secret is mounted as a folder of the Secret's name.
    """
    if isinstance(user, KubernetesZooKeeperUserSpec):
        path: str | None = f"{secrets_folder}/{user.password_secret.name}/{user.password_secret.key}"
    else:
        path = user.password_file if user is not None else None
    if user is None or path is None:
        return {}
    return {"credentials": {"user": user.user, "passwordFile": path, "protect": user.protect}}


def identity_config(
    tokens: TokensSpec | None, rules: list[RuleSpec], anonymous: bool, secrets_folder: str
) -> dict[str, Any]:
    """Return what tokens and rules add to the brokers' configuration: the section `security`, or {} if there are
    neither, so that everybody may do everything.

    :param anonymous: whether clients without a token may connect.
    :param secrets_folder: the folder in which each Secret is mounted as a folder of the Secret's name.
    """
    if tokens is None and not rules:
        return {}

    def path(file: str | None, secret: SecretKeySpec | None) -> str | None:
        return f"{secrets_folder}/{secret.name}/{secret.key}" if secret is not None else file

    section: dict[str, Any] = {"rules": [rule.model_dump(by_alias=True) for rule in rules], "anonymous": anonymous}
    if tokens is not None:
        accepted = tokens.model_dump(
            by_alias=True, exclude={"keys", "revoked_file", "revoked_secret"}, exclude_none=True
        )
        accepted["keys"] = [
            {"algorithms": source.algorithms}
            | ({"url": source.url} if source.url is not None else {"file": path(source.file, source.secret)})
            for source in tokens.keys
        ]
        if (revoked := path(tokens.revoked_file, tokens.revoked_secret)) is not None:
            accepted["revoked"] = revoked
        section["tokens"] = accepted
    return {"security": section}
