"""`migratory status`: request and show the status of brokers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from http.client import NOT_FOUND, UNAUTHORIZED
from pathlib import Path
from typing import Any

import aiohttp
import click
import msgspec
from migratory_client.transport import describe_connect_error

from migratory_cli.commands.status_view import format_remarks, format_table
from migratory_cli.options import (
    INSTALL_HINT,
    FiniteFloat,
    LocalRunnerMissing,
    choose_cluster,
    cluster_option,
    read_token,
)
from migratory_cli.output import open_console
from migratory_cli.terminal import echo, printable, to_json

_HINT = (
    "give the brokers' administration addresses, which `migratory up` prints (`migratory status http://HOST:PORT ...`)"
)

_HINTS = {
    NOT_FOUND: ": there is no status at this address; use the broker's administration port, not its port for clients",
    UNAUTHORIZED: ": the status needs a token of spec.security.administration; give it with --token-file",
}
"""Explanations of the HTTP status codes of answers."""


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@cluster_option
@click.option(
    "--timeout",
    type=FiniteFloat(0.1),
    default=3.0,
    show_default=True,
    metavar="SECONDS",
    help="Limit for the answer of each broker.",
)
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File with the token for the status pages, if they need one. Not needed without addresses.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the complete answers as one JSON object, by address.")
def status(urls: tuple[str, ...], cluster: str | None, timeout: float, token_file: Path | None, as_json: bool) -> None:
    """Show the status of the brokers at these administration addresses.

    Without an address, show those of the cluster that `migratory up` or `migratory demo` runs on this machine.
    Certificates of https:// addresses are checked against the system's authorities, or those in $SSL_CERT_FILE.

    \b
    Examples:
      migratory status
      migratory status http://127.0.0.1:8900 http://127.0.0.1:8901
      migratory status --json | jq '.[].logic.groups[] | select(.waiting)'

    \b
    Exit codes: 0 every broker is ready, 1 a broker is not ready or does not answer, 2 wrong usage or no cluster.
    """
    state = None if urls else _local_cluster(cluster)
    names = (
        {broker.admin: broker.name for broker in state.brokers} if state else dict.fromkeys(map(_base_url, urls), "")
    )
    token = read_token(token_file) if token_file is not None else state.token if state else ""
    answers = asyncio.run(request_all(names, timeout, token, check_certificates=state is None))
    for answer in answers.values():
        if state and "error" in answer and state.is_drained(answer["broker"]):
            answer["error"] = f"drained; `migratory drain --back {answer['broker']}` starts it again"
    if as_json:
        echo(to_json(answers, indent=2))
    else:
        console = open_console()
        for line in format_table(answers, console.width):
            console.print(line, soft_wrap=True)
        for remark in format_remarks(answers):
            echo(printable(remark))
    sys.exit(0 if all(answer.get("ready") is True for answer in answers.values()) else 1)


def _base_url(url: str) -> str:
    """Return the base URL of an administration listener: with a scheme, without `/v1/status` and a slash at the end.
    Raise click.UsageError for another scheme."""
    text = url if "://" in url else f"http://{url}"
    if not text.startswith(("http://", "https://")):
        raise click.UsageError(
            f"{url!r} is not allowed; use the http:// or https:// address of an administration listener"
        )
    return text.rstrip("/").removesuffix("/v1/status")


def _local_cluster(cluster: str | None) -> Any:
    """Return the `migratory_local.cluster.state.ClusterState` of the cluster that runs on this machine. Raise
    click.UsageError if not exactly one matches, or if the local runner is not installed."""
    try:
        state = choose_cluster(cluster)
    except LocalRunnerMissing as missing:
        raise click.UsageError(
            f"{_HINT}; without addresses the local runner is needed, but {missing} is not installed: {INSTALL_HINT}"
        ) from None
    if state is None:
        raise click.UsageError(f"no cluster runs on this machine: start one with `migratory up`, or {_HINT}")
    return state


async def request_all(
    names: Mapping[str, str], seconds: float, token: str, *, check_certificates: bool
) -> dict[str, dict[str, Any]]:
    """Return the brokers' status pages by address. A broker that does not answer with one has {"error": the reason}
    instead.

    :param names: a broker's name by address, "" if it is unknown. The name completes an answer without one.
    :param seconds: the time limit for each answer.
    :param token: sent to each broker, unless it is "".
    :param check_certificates: False to accept any certificate.
    """
    limit = aiohttp.ClientTimeout(total=seconds)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connector = aiohttp.TCPConnector(ssl=check_certificates)
    async with aiohttp.ClientSession(timeout=limit, headers=headers, connector=connector) as session:
        answers = await asyncio.gather(*(_request(session, base) for base in names))
    for name, answer in zip(names.values(), answers, strict=True):
        if name:
            answer.setdefault("broker", name)
    return dict(zip(names, answers, strict=True))


async def _request(session: aiohttp.ClientSession, base: str) -> dict[str, Any]:
    """Return a broker's status page, or {"error": the reason} if it does not answer with one."""
    try:
        async with session.get(f"{base}/v1/status") as response:
            body = await response.read()
            if response.status != 200:
                return {"error": f"HTTP {response.status}{_HINTS.get(response.status, '')}"}
    except TimeoutError:
        return {"error": "does not answer (timeout)"}
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return {"error": f"does not answer ({describe_connect_error(error)})"}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return {"error": "invalid answer: this is not a broker's administration listener"}
