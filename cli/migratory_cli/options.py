"""What `pub` and `sub` have in common: servers, tokens, and how a failure is shown."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click
from migratory_client import Client, MigratoryError
from migratory_client import events as ev

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SERVERS = tuple(f"ws://127.0.0.1:{port}/ws" for port in (8800, 8801, 8802))
"""Where `migratory up` puts three brokers when the ports are free."""

INTERRUPTED = 130


class Failed(click.ClickException):
    """A failure of the cluster or the network; usage errors end with 2."""

    exit_code = 1


def connection_options(command: F) -> F:
    """--server, --token, --wire, --connect-timeout, --quiet."""
    for option in (
        click.option("--quiet", "-q", is_flag=True, help="Show no connections, receipts and problems on stderr."),
        click.option(
            "--connect-timeout", type=click.FloatRange(0.1), default=10.0, show_default=True, metavar="SECONDS",
            help="Give up when no broker said welcome by then.",
        ),
        click.option(
            "--wire", type=click.Choice(["msgpack", "json"]), default="msgpack", show_default=True,
            help="The wire format. What is delivered is the same.",
        ),
        click.option("--token", envvar="MIGRATORY_TOKEN", help="Who you are, to the brokers. [env: MIGRATORY_TOKEN]"),
        click.option(
            "--server", "-s", "servers", multiple=True, metavar="URL",
            help="A broker's URL; give all that you know. Without it $MIGRATORY_SERVERS (URLs separated by commas or "
            "spaces), else the ports that `migratory up` takes first, ws://127.0.0.1:8800/ws and so on.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def server_list(given: tuple[str, ...]) -> list[str]:
    """The servers to try: from the command line, the environment, or the local default."""
    named = list(given) or os.environ.get("MIGRATORY_SERVERS", "").replace(",", " ").split()
    return named or list(DEFAULT_SERVERS)


def make_client(
    servers: tuple[str, ...],
    token: str | None,
    wire: str,
    connect_timeout: float,
    quiet: bool,
    on_receipt: Callable[[ev.Receipt], None] | None = None,
) -> Client:
    """Raises a usage error when no server can be used."""

    def show(status: ev.LinkUp | ev.LinkDown | ev.Ready | ev.Problem) -> None:
        line = _describe(status)
        if line and not quiet:
            click.echo(line, err=True)

    try:
        return Client(
            server_list(servers), token=token, wire=wire, open_timeout=connect_timeout, on_status=show,
            on_receipt=on_receipt,
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def run(work: Coroutine[Any, Any, int]) -> int:
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
        except MigratoryError as error:
            raise Failed(str(error)) from None

    return asyncio.run(main())


def _describe(status: ev.LinkUp | ev.LinkDown | ev.Ready | ev.Problem) -> str:
    match status:
        case ev.LinkUp():
            return f"connected to {status.broker} at {status.url}"
        case ev.LinkDown(moved=True):
            return "moved: the broker before is being drained"
        case ev.LinkDown():
            return f"connection lost: {status.reason}"
        case ev.Ready(seconds=float() as seconds) if seconds > 0:
            return f"resumed after {seconds:.3f} s"
        case ev.Problem(code="connect_failed"):
            return f"cannot connect: {status.text}"
        case ev.Problem():
            return f"{status.code}: {status.text}"
        case _:
            return ""
