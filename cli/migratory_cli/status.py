"""`migratory status`: what brokers say about themselves."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import aiohttp
import click
import msgspec
from rich.console import Console
from rich.table import Table

_HINT = "give the brokers' administration addresses (`migratory status http://127.0.0.1:8900`)"


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--cluster", metavar="NAME", help="Which of the clusters that run on this machine, if there are several.")
@click.option(
    "--timeout", type=click.FloatRange(0.1), default=3.0, show_default=True, metavar="SECONDS", help="Per broker."
)
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
    bases = [_base(url) for url in urls] if urls else _local(cluster)
    answers = asyncio.run(_ask_all(bases, timeout))
    if as_json:
        click.echo(json.dumps(answers, indent=2, ensure_ascii=False))
    else:
        Console().print(_table(answers))
        for line in _remarks(answers):
            click.echo(line)
    sys.exit(0 if all(answer.get("ready") is True for answer in answers.values()) else 1)


def _base(url: str) -> str:
    text = url if "://" in url else f"http://{url}"
    if not text.startswith(("http://", "https://")):
        raise click.UsageError(f"{url!r}: the http:// or https:// address of an administration listener is needed")
    return text.rstrip("/").removesuffix("/v1/status")


def _local(cluster: str | None) -> list[str]:
    """The administration addresses of the cluster that runs on this machine."""
    try:
        state = import_module("migratory_local.state")
    except ModuleNotFoundError as error:
        raise click.UsageError(
            f'{_HINT}, or install what runs clusters here: pip install "migratory[local]" ({error.name} is missing)'
        ) from None
    found = [item for item in state.running_clusters() if cluster in (None, item.name)]
    if not found:
        what = f"no cluster named {cluster}" if cluster else "no cluster"
        raise click.UsageError(f"{what} runs on this machine: start one with `migratory up`, or {_HINT}")
    if len(found) > 1:
        names = ", ".join(sorted(item.name for item in found))
        raise click.UsageError(f"several clusters run on this machine ({names}): choose with --cluster")
    return [broker.admin for broker in found[0].brokers]


async def _ask_all(bases: list[str], seconds: float) -> dict[str, dict[str, Any]]:
    limit = aiohttp.ClientTimeout(total=seconds)
    async with aiohttp.ClientSession(timeout=limit) as session:
        answers = await asyncio.gather(*(_ask(session, base) for base in bases))
    return dict(zip(bases, answers, strict=True))


async def _ask(session: aiohttp.ClientSession, base: str) -> dict[str, Any]:
    """A broker's answer, or {"error": why there is none}."""
    try:
        async with session.get(f"{base}/v1/status") as response:
            body = await response.read()
            if response.status != 200:
                return {"error": f"HTTP {response.status}"}
    except TimeoutError:
        return {"error": "no answer in time"}
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return {"error": str(error) or type(error).__name__}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return {"error": "the answer is no status: is this a broker's administration listener?"}


def _table(answers: Mapping[str, Mapping[str, Any]]) -> Table:
    clusters = sorted({str(answer["cluster"]) for answer in answers.values() if answer.get("cluster")})
    table = Table(title=f"cluster {', '.join(clusters)}" if clusters else None, title_justify="left")
    table.add_column("broker")
    table.add_column("state")
    for heading in ("clients", "topics", "coordinates", "waiting", "lag", "cache", "queued", "up"):
        table.add_column(heading, justify="right")
    table.add_column("ZooKeeper")
    for base, answer in answers.items():
        if "error" in answer:
            table.add_row(base, f"[red]{_escape(str(answer['error']))}[/red]", *["-"] * 9)
            continue
        logic: Mapping[str, Any] = answer.get("logic") or {}
        edge: Mapping[str, Any] = answer.get("edge") or {}
        table.add_row(
            str(answer.get("broker", base)),
            _state(answer, edge),
            _number(edge.get("clients")),
            _number(logic.get("topics")),
            _number((logic.get("roles") or {}).get("coordinator")),
            _number(logic.get("waiting_groups")),
            _number(logic.get("replication_lag")),
            _size(logic.get("cache_bytes")),
            _size(edge.get("queue_bytes")),
            _age(answer.get("uptime_seconds")),
            "connected" if answer.get("zookeeper_connected") else "[yellow]away[/yellow]",
        )
    return table


def _state(answer: Mapping[str, Any], edge: Mapping[str, Any]) -> str:
    if answer.get("ready") is True:
        return "[green]ready[/green]"
    why = answer.get("reason") or ("draining" if edge.get("draining") else "not ready")
    return f"[yellow]{_escape(str(why))}[/yellow]"


def _remarks(answers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Slow consumers, by name: the metrics only count them."""
    lines = []
    for answer in answers.values():
        slow = (answer.get("edge") or {}).get("slow") or []
        for client in slow:
            lines.append(f"slow consumer at {answer.get('broker')}: {json.dumps(client, ensure_ascii=False)}")
    return lines


def _escape(text: str) -> str:
    return text.replace("[", "\\[")


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "-"


def _size(value: object) -> str:
    if not isinstance(value, int):
        return "-"
    size = float(value)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _age(value: object) -> str:
    if not isinstance(value, int | float):
        return "-"
    minutes, seconds = divmod(int(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{seconds:02}s"
