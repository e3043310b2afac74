"""`migratory status`: what brokers say about themselves."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from http.client import NOT_FOUND
from typing import Any

import aiohttp
import click
import msgspec
from migratory_client.transport import why_not_connected

from migratory_cli import running
from migratory_cli.finite import Finite
from migratory_cli.status_view import remarks, table
from migratory_cli.tables import open_console

_HINT = (
    "give the brokers' administration addresses, which `migratory up` prints (`migratory status http://HOST:PORT ...`)"
)

_ELSEWHERE = ": no status is given there (a broker's port for clients? The administration has one of its own)"


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--cluster", metavar="NAME", help="Which of the clusters that run on this machine, if there are several.")
@click.option("--timeout", type=Finite(0.1), default=3.0, show_default=True, metavar="SECONDS", help="Per broker.")
@click.option("--json", "as_json", is_flag=True, help="All that the brokers answer, as one JSON object by address.")
def status(urls: tuple[str, ...], cluster: str | None, timeout: float, as_json: bool) -> None:
    """Show what the brokers at these administration addresses say; without an address, those of the cluster that
    `migratory up` or `migratory demo` runs on this machine.

    \b
    Examples:
      migratory status
      migratory status http://127.0.0.1:8900 http://127.0.0.1:8901
      migratory status --json | jq '.[].logic.groups[] | select(.waiting)'

    \b
    Exit codes: 0 every broker is ready, 1 some broker is not or does not answer, 2 wrong usage or no cluster.
    """
    found = None if urls else _local(cluster)
    names = {broker.admin: broker.name for broker in found.brokers} if found else dict.fromkeys(map(_base, urls), "")
    answers = asyncio.run(_ask_all(names, timeout))
    for answer in answers.values():
        if found and "error" in answer and found.stays_away(answer["broker"]):
            answer["error"] = f"drained; `migratory drain --back {answer['broker']}` starts it"
    if as_json:
        click.echo(json.dumps(answers, indent=2, ensure_ascii=False))
    else:
        console = open_console()
        for line in table(answers, console.width):
            console.print(line, soft_wrap=True)
        for remark in remarks(answers):
            click.echo(remark)
    sys.exit(0 if all(answer.get("ready") is True for answer in answers.values()) else 1)


def _base(url: str) -> str:
    text = url if "://" in url else f"http://{url}"
    if not text.startswith(("http://", "https://")):
        raise click.UsageError(f"{url!r}: the http:// or https:// address of an administration listener is needed")
    return text.rstrip("/").removesuffix("/v1/status")


def _local(cluster: str | None) -> Any:
    """The `migratory_local.state.ClusterState` of the cluster that runs on this machine."""
    try:
        found = running.choose(cluster)
    except running.NotInstalled as missing:
        raise click.UsageError(
            f'{_HINT}, or install what runs clusters here: pip install "migratory[local]" ({missing} is missing)'
        ) from None
    if found is None:
        raise click.UsageError(f"no cluster runs on this machine: start one with `migratory up`, or {_HINT}")
    return found


async def _ask_all(names: Mapping[str, str], seconds: float) -> dict[str, dict[str, Any]]:
    """The answers by address; where there is none, its broker's name if that is known."""
    limit = aiohttp.ClientTimeout(total=seconds)
    async with aiohttp.ClientSession(timeout=limit) as session:
        answers = await asyncio.gather(*(_ask(session, base) for base in names))
    for name, answer in zip(names.values(), answers, strict=True):
        if name:
            answer.setdefault("broker", name)
    return dict(zip(names, answers, strict=True))


async def _ask(session: aiohttp.ClientSession, base: str) -> dict[str, Any]:
    """A broker's answer, or {"error": why there is none}."""
    try:
        async with session.get(f"{base}/v1/status") as response:
            body = await response.read()
            if response.status != 200:
                return {"error": f"HTTP {response.status}{_ELSEWHERE if response.status == NOT_FOUND else ''}"}
    except TimeoutError:
        return {"error": "does not answer (no answer in time)"}
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return {"error": f"does not answer ({why_not_connected(error)})"}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return {"error": "no status: is this a broker's administration listener?"}
