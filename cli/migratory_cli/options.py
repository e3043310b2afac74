"""What `pub` and `sub` have in common: servers, tokens, and how a failure is shown."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click
from migratory_client import Client, ConnectError, MigratoryError

from migratory_cli import running
from migratory_cli.failures import Failed
from migratory_cli.finite import Finite
from migratory_cli.notices import Notices

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SERVERS = tuple(f"ws://127.0.0.1:{port}/ws" for port in (8800, 8801, 8802))
"""Where `migratory up` puts three brokers when the ports are free."""

INTERRUPTED = 130

TOKEN_HELP = "Sent to the brokers, which do not check it yet: whoever reaches them may read and publish."

_HINT = "Start a cluster here with `migratory up`, or name the brokers with -s URL."

server_option = click.option(
    "--server", "--servers", "-s", "servers", multiple=True, metavar="URL[,URL...]",
    help="A broker's URL; give all that you know, separated by commas or with the option repeated. Without it "
    "$MIGRATORY_SERVERS, else the cluster that runs on this machine, else the ports that `migratory up` takes first, "
    "ws://127.0.0.1:8800/ws and so on.",
)  # fmt: skip
"""For every command that connects as clients do; `find_servers` reads it."""


def connection_options(command: F) -> F:
    """--server, --cluster, --token, --wire, --connect-timeout, --quiet."""
    for option in (
        click.option("--quiet", "-q", is_flag=True, help="On stderr only errors and what is missing."),
        click.option(
            "--connect-timeout", type=Finite(0.1), default=10.0, show_default=True, metavar="SECONDS",
            help="Give up when no broker said welcome by then.",
        ),
        click.option(
            "--wire", type=click.Choice(["msgpack", "json"]), default="msgpack", show_default=True,
            help="The wire format. What is delivered is the same.",
        ),
        click.option("--token", envvar="MIGRATORY_TOKEN", help=f"{TOKEN_HELP} [env: MIGRATORY_TOKEN]"),
        click.option(
            "--cluster", metavar="NAME", help="Which of the clusters that run on this machine, if there are several."
        ),
        server_option,
    ):  # fmt: skip
        command = option(command)
    return command


def find_servers(given: tuple[str, ...], cluster: str | None = None) -> tuple[list[str], str]:
    """The servers to try, and the name of the local cluster that they are of, "" when others were named.

    What is said outright goes first: the command line, then --cluster, then $MIGRATORY_SERVERS; then comes the cluster
    that runs on this machine, then the usual ports. Raises a usage error when several run, or the named one does not.
    """
    named = _split(given)
    if given and not named:
        raise click.UsageError("--server: the list of URLs is empty")
    if not named and cluster is None:
        named = _split((os.environ.get("MIGRATORY_SERVERS", ""),))
    if named:
        return named, ""
    try:
        found = running.choose(cluster)
    except running.NotInstalled as missing:
        if cluster is not None:
            raise click.UsageError(f'--cluster needs `pip install "migratory[local]"` ({missing} is missing)') from None
        found = None
    if found is None:
        return list(DEFAULT_SERVERS), ""
    return [broker.url for broker in found.brokers], found.name


def _split(lists: tuple[str, ...]) -> list[str]:
    return " ".join(lists).replace(",", " ").split()


def make_client(
    servers: tuple[str, ...],
    cluster: str | None,
    token: str | None,
    wire: str,
    connect_timeout: float,
    notices: Notices,
) -> Client:
    """Raises a usage error when no server can be used."""
    if servers and cluster is not None:
        raise click.UsageError("--cluster finds the servers of a cluster: leave out --server")
    logging.getLogger("migratory_client").addHandler(logging.NullHandler())  # it logs what `notices` shows
    try:
        return Client(
            find_servers(servers, cluster)[0], token=token, wire=wire, open_timeout=connect_timeout,
            on_status=notices.status, on_receipt=notices.receipt,
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def run(work: Coroutine[Any, Any, int], notices: Notices) -> int:
    """Run to the end; Ctrl-C and SIGTERM end it in order. Returns the exit code."""

    async def main() -> int:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            return INTERRUPTED

    try:
        return asyncio.run(main())
    except ConnectError as error:
        notices.error(error.code, f"{error}. {_HINT}")
    except MigratoryError as error:
        notices.error(error.code, str(error))
    except Failed as error:
        notices.error("failed", error.message)
    return Failed.exit_code
