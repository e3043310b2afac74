"""Options that several commands have: number types, the brokers to connect to, the clusters on this machine, and the
client that is made from them."""

from __future__ import annotations

import logging
import math
import os
import ssl
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from migratory_client import Client

from migratory_cli.notices import Notices

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SERVERS = tuple(f"ws://127.0.0.1:{port}/ws" for port in (8800, 8801, 8802))
"""The URLs of the first three brokers of `migratory up` when these ports are free."""

TOKEN_HELP = (
    "Sent to the brokers. Others on this machine see it in the list of processes; a file or the environment hides it."
)

_MAX_TOKEN_BYTES = 64 * 1024
"""Bytes of a token's file, four times those of the longest token that brokers read."""
INSTALL_HINT = "run `make install` in a checkout of Migratory (docs/start/first-message.md)"
"""The end of every message about a missing library. No `pip install`: `migratory` on PyPI is another project."""


class FiniteFloat(click.FloatRange):
    """A parameter type for finite numbers in a range. Click's own type accepts "nan", and also "inf" if there is no
    upper bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not allowed; use a finite number.", param, ctx)
        return number


# ---- clusters on this machine -----------------------------------------------------------------------------------


class LocalRunnerMissing(Exception):
    """Raised when the local runner is not installed. The message names the missing package."""


def choose_cluster(name: str | None) -> Any | None:
    """Return the `migratory_local.cluster.state.ClusterState` of the cluster of this name on this machine, or of the
    only one if `name` is None. Return None if none runs and none is named.

    :param name: the value of --cluster.
    :raises LocalRunnerMissing: the local runner is not installed.
    :raises click.UsageError: several clusters match, or the named one does not run.
    """
    clusters = [state for state in _state_module().running_clusters() if name in (None, state.name)]
    if not clusters and name is not None:
        raise click.UsageError(f"no cluster named {name} runs on this machine: start it with `migratory up`")
    if len(clusters) > 1:
        names = sorted({state.name for state in clusters})
        if len(names) < len(clusters):  # clusters of the same name, in different work folders
            folders = ", ".join(sorted(f"{state.name} in {state.workdir}" for state in clusters))
            raise click.UsageError(
                f"several clusters of the same name run on this machine ({folders}): give the addresses of one instead"
            )
        raise click.UsageError(
            f"several clusters run on this machine ({', '.join(names)}): choose one with --cluster NAME"
        )
    return clusters[0] if clusters else None


def _state_module() -> ModuleType:
    """Import and return `migratory_local.cluster.state`. It is imported on demand, because `pub` and `sub` can run
    without the extra `local`. Raise LocalRunnerMissing if it is not installed."""
    try:
        return import_module("migratory_local.cluster.state")
    except ModuleNotFoundError as error:
        raise LocalRunnerMissing(error.name) from None


# ---- brokers to connect to --------------------------------------------------------------------------------------

cluster_option = click.option(
    "--cluster", metavar="NAME", help="The cluster to use, if several run on this machine."
)  # fmt: skip

server_option = click.option(
    "--server", "--servers", "-s", "servers", multiple=True, metavar="URL[,URL...]",
    help="URLs of brokers, separated by commas or with the option repeated; give all that you know. Default: "
    "$MIGRATORY_SERVERS, else the cluster that runs on this machine, else the first ports of `migratory up`, "
    "ws://127.0.0.1:8800/ws and the next two.",
)  # fmt: skip
"""The option of every command that connects as a client; `find_servers` evaluates it."""


def connection_options(command: F) -> F:
    """Add --server, --cluster, --token, --token-file, --wire, --connect-timeout and --quiet to a command."""
    for option in (
        click.option("--quiet", "-q", is_flag=True, help="Show only errors and gaps on stderr."),
        click.option(
            "--connect-timeout", type=FiniteFloat(0.1), default=10.0, show_default=True, metavar="SECONDS",
            help="Give up if no broker has accepted the connection by then.",
        ),
        click.option(
            "--wire", type=click.Choice(["msgpack", "json"]), default="msgpack", show_default=True,
            help="Encoding of the protocol. It does not change what is delivered.",
        ),
        token_options,
        cluster_option,
        server_option,
    ):  # fmt: skip
        command = option(command)
    return command


_TOKEN_FILE = "migratory_cli.token_file"
"""Key of the context's metadata for the path given as --token-file."""


def token_options(command: F) -> F:
    """Add --token and --token-file to a command, which gets the token as `token`, None if there is none. Without an
    option the token is that of $MIGRATORY_TOKEN. A wrong file or two tokens are a click.UsageError."""

    def remember(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
        ctx.meta[_TOKEN_FILE] = path

    def choose(ctx: click.Context, _: click.Parameter, token: str | None) -> str | None:
        path = ctx.meta[_TOKEN_FILE]
        if path is None:
            return token
        if token is not None and ctx.get_parameter_source("token") is ParameterSource.COMMANDLINE:
            raise click.UsageError("--token and --token-file are two tokens: give one of them")
        return read_token(path)

    for option in (
        click.option("--token", envvar="MIGRATORY_TOKEN", callback=choose, help=f"{TOKEN_HELP} [env: MIGRATORY_TOKEN]"),
        click.option(
            "--token-file", type=click.Path(path_type=Path, dir_okay=False), is_eager=True, expose_value=False,
            callback=remember, metavar="FILE", help="A file with the token, read for each connection and renewal.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def read_token(path: Path) -> str:
    """Return the token in a file, without white space around it.

    :raises click.UsageError: the file cannot be read, is no text, is empty, or has more than `_MAX_TOKEN_BYTES`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_TOKEN_BYTES + 1)
        token = data.decode().strip()
    except OSError as error:
        raise click.UsageError(f"--token-file: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"--token-file: {path} is not a token: it is not UTF-8 text") from None
    if len(data) > _MAX_TOKEN_BYTES:
        raise click.UsageError(f"--token-file: {path} is not a token: it has more than {_MAX_TOKEN_BYTES:,} bytes")
    if not token:
        raise click.UsageError(f"--token-file: {path} is empty")
    return token


def find_servers(given: tuple[str, ...], cluster: str | None = None) -> tuple[list[str], str]:
    """Return the server URLs to try, and the name of their local cluster ("" if the URLs are of no cluster found on
    this machine).

    Order of precedence: the command line, --cluster, $MIGRATORY_SERVERS, the cluster that runs on this machine, the
    default ports.

    :param given: the values of --server, each with one URL or several.
    :raises click.UsageError: several clusters run and none is named, the named one does not run, --cluster is given
        without the local runner, or --server is empty.
    """
    urls = _split_urls(given)
    if given and not urls:
        raise click.UsageError("--server: the list of URLs is empty; give at least one ws:// or wss:// URL")
    if not urls and cluster is None:
        urls = _split_urls((os.environ.get("MIGRATORY_SERVERS", ""),))
    if urls:
        return urls, ""
    try:
        state = choose_cluster(cluster)
    except LocalRunnerMissing as missing:
        if cluster is not None:
            raise click.UsageError(
                f"--cluster needs the local runner, but {missing} is not installed: {INSTALL_HINT}"
            ) from None
        state = None
    if state is None:
        return list(DEFAULT_SERVERS), ""
    return [broker.url for broker in state.brokers], state.name


def _split_urls(lists: tuple[str, ...]) -> list[str]:
    """Return the URLs in texts that separate them with commas or white space."""
    return " ".join(lists).replace(",", " ").split()


def _token_source(token: str | None) -> str | Callable[[], str] | None:
    """Return the token; with --token-file the function that reads the token from the file each time that it is
    called."""
    context = click.get_current_context(silent=True)
    path = context.meta.get(_TOKEN_FILE) if context is not None else None
    return token if path is None else partial(read_token, path)


def _trust(cluster: str) -> ssl.SSLContext | None:
    """Return a TLS context that trusts the authority of this cluster of this machine. Return None for "", and for a
    cluster without an authority of its own."""
    state = choose_cluster(cluster) if cluster else None
    return ssl.create_default_context(cafile=state.authority) if state is not None and state.authority else None


def make_client(
    servers: tuple[str, ...],
    cluster: str | None,
    token: str | None,
    wire: str,
    connect_timeout: float,
    notices: Notices,
) -> Client:
    """Return a client that is not connected yet and reports its status and receipts to `notices`. The parameters are
    the values of `connection_options`.

    :param connect_timeout: seconds after which the client gives up if no broker accepts the connection.
    :raises click.UsageError: no server URL can be used, --server and --cluster are both given, or as `find_servers`.
    """
    if servers and cluster is not None:
        raise click.UsageError("--cluster already determines the servers: leave out --server")
    logging.getLogger("migratory_client").addHandler(logging.NullHandler())  # `notices` shows what it logs
    try:
        urls, local_cluster = find_servers(servers, cluster)
        source = _token_source(token)
        notices.token_is_fixed = isinstance(source, str)
        return Client(
            urls, token=source, wire=wire, open_timeout=connect_timeout, on_status=notices.status,
            on_receipt=notices.receipt, ssl_context=_trust(local_cluster),
        )  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from None
