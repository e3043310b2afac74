"""`migratory explain`: whether a cluster accepts a token, and which rule allows what to it.

The decision is the brokers' own code with the cluster file's rules, and the keys of the files and URLs that it names.
Nothing is sent to a broker.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import aiohttp
import click
import msgspec
from migratory_broker.core.security.authorizer import Authorizer, ClientAccess, Denial, parse_revocations
from migratory_broker.core.security.rules import OPERATIONS, Operation
from migratory_broker.core.security.tokens import parse_keys
from migratory_broker.runtime.errors import ConfigError
from migratory_broker.runtime.security.config import KeysSection, SecuritySection, security_config
from migratory_broker.runtime.security.credentials import MAX_DOCUMENT, check_length, fetch_document
from migratory_resources import ClusterFileError, broker_config, load_cluster_file
from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_cli.options import token_options
from migratory_cli.terminal import echo


@click.command()
@click.option(
    "--file", "-f", "cluster_file", required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The cluster file.",
)  # fmt: skip
@token_options
@click.option("--topic", "-t", "topics", multiple=True, metavar="TOPIC", help="A topic to decide about; repeatable.")
@click.option(
    "--operation", "-o", "operations", multiple=True, type=click.Choice(OPERATIONS),
    help="An operation to decide about; repeatable. Default: all.",
)  # fmt: skip
@click.option(
    "--keys", "keys_file", type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Keys to use for a source that cannot be read here, such as a Secret.",
)  # fmt: skip
def explain(
    cluster_file: Path, token: str | None, topics: tuple[str, ...], operations: tuple[Operation, ...],
    keys_file: Path | None,
) -> None:  # fmt: skip
    """Say whether a cluster accepts a token, and which rule allows an operation on a topic.

    Without a token it decides about a client that has none.

    \b
    Examples:
      migratory explain -f cluster.yaml --token-file token.txt --topic quotes/eur
      migratory explain -f cluster.yaml --topic public/news --operation subscribe

    \b
    Exit codes: 0 all is allowed, 1 the token or an operation is refused, 2 wrong usage.
    """
    section = _security_section(cluster_file)
    if section is None:
        echo("allowed: the cluster has no tokens and no rules, so every client may do everything")
        return
    authorizer = Authorizer(security_config(section))
    authorizer.update(*_documents(section, keys_file))
    access = authorizer.connect(token, time.time())
    if isinstance(access, Denial):
        echo(f"refused: {access.text}")
        sys.exit(1)
    echo(_describe(access))
    denied = False
    for topic in topics:
        for operation in operations or OPERATIONS:
            reason = access.reason(operation, topic)
            echo(f"{operation} {topic}: " + (f"allowed by {reason}" if reason else "denied: nothing allows it"))
            denied = denied or not reason
    sys.exit(1 if denied else 0)


def _security_section(path: Path) -> SecuritySection | None:
    """Return the section `security` of the brokers' configuration, None if the cluster has neither tokens nor rules.
    Warn on standard error of fields without effect.

    :raises click.UsageError: the file is not a valid cluster.
    """
    try:
        loaded = load_cluster_file(path, KubernetesCluster)  # it may name Secrets
        for warning in loaded.warnings:
            echo(f"warning: {warning}", err=True)
        config = broker_config(loaded.cluster, "unused:1", secrets_folder="/Secret").get("security")
        return None if config is None else msgspec.convert(config, SecuritySection)
    except (ClusterFileError, ConfigError, msgspec.ValidationError) as error:
        raise click.UsageError(str(error)) from None


def _documents(section: SecuritySection, keys_file: Path | None) -> tuple[list[bytes], bytes]:
    """Return the document with the keys of each source, empty where a broker could not use it, and the document with
    the revocations, empty if there is none or it cannot be used. Say on standard error what is not used.

    :param keys_file: a file with keys that replaces each source that cannot be read here; None for none.
    :raises click.UsageError: `keys_file` replaces a source, and its keys cannot be used.
    """
    if section.tokens is None:
        return [], b""
    keys = []
    for number, source in enumerate(section.tokens.keys):
        try:
            content = _read_keys(source)
            parse_keys(content, source.algorithms)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if keys_file is None:
                echo(f"spec.security.tokens.keys[{number}] is not used: {_describe_error(error)}", err=True)
                content = b""
            else:
                content = _read_stand_in(keys_file, source)
        keys.append(content)
    revoked = b""
    if section.tokens.revoked is not None:
        try:
            content = _read_file(Path(section.tokens.revoked))
            parse_revocations(content)
            revoked = content
        except (OSError, ValueError) as error:
            echo(f"the list of revoked tokens is not used: {error}", err=True)
    return keys, revoked


def _read_keys(source: KeysSection) -> bytes:
    """Return the document of a source, not parsed, under the rules of brokers: they follow no redirects, and use no
    document that is too long. Raise an OSError, aiohttp.ClientError or ValueError if a broker could not read it
    either."""
    return _read_file(Path(source.file or "")) if source.url is None else asyncio.run(fetch_document(source.url))


def _read_file(path: Path) -> bytes:
    """Return the content of a file. Raise OSError if it cannot be read, and ValueError if it is longer than brokers
    accept."""
    with path.open("rb") as file:
        content = file.read(MAX_DOCUMENT + 1)
    check_length(content)
    return content


def _read_stand_in(path: Path, source: KeysSection) -> bytes:
    """Return the content of the file given by --keys. Raise click.UsageError if a broker could not use it for this
    source."""
    try:
        content = _read_file(path)
        parse_keys(content, source.algorithms)
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--keys {path}: {error}") from None
    return content


def _describe_error(error: Exception) -> str:
    return str(error) or type(error).__name__  # a TimeoutError has no text


def _describe(access: ClientAccess) -> str:
    """Return in words that a client is accepted, as which subject and for how long."""
    if access.token is None:
        return "accepted: a client without a token"
    lifetime = "does not expire" if access.lifetime is None else f"ends in {access.lifetime:.0f} s"
    return f"accepted: subject {access.subject}, {lifetime}"
