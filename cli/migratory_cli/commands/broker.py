"""`migratory broker`: run one broker process until SIGTERM, which drains it. A second SIGTERM ends it at once."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from migratory_broker.runtime.config import Identity, load
from migratory_broker.runtime.errors import ConfigError
from migratory_broker.runtime.process import run


@click.command(context_settings={"show_default": True})
@click.option(
    "--config",
    "config_path",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The cluster's configuration in JSON, the same for all its brokers.",
)
@click.option(
    "--name", required=True, metavar="NAME", help="This broker's name, one of `brokers` in the configuration."
)
@click.option(
    "--clients", default="127.0.0.1:8080", metavar="HOST:PORT", help="Listen for clients; port 0 is a free one."
)
@click.option("--peers", default="127.0.0.1:8081", metavar="HOST:PORT", help="Listen for the other brokers.")
@click.option(
    "--admin",
    default="127.0.0.1:8082",
    metavar="HOST:PORT",
    help="Listen for /healthz, /readyz, /metrics and /v1/status.",
)
@click.option("--advertise-url", default="", metavar="URL", help="The URL that clients use. Default: ws://CLIENTS/ws.")
@click.option(
    "--advertise-peer",
    default="",
    metavar="HOST:PORT",
    help="The address that other brokers use. Default: that of --peers.",
)
@click.option(
    "--revision",
    envvar="MIGRATORY_REVISION",
    default="",
    metavar="TEXT",
    show_envvar=True,
    help="Revision of program and configuration. A draining broker moves its clients to brokers of another revision "
    "first.",
)
@click.option(
    "--log-level",
    default="info",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log this level and above, as JSON on stderr.",
)
def broker(
    config_path: Path,
    name: str,
    clients: str,
    peers: str,
    admin: str,
    advertise_url: str,
    advertise_peer: str,
    revision: str,
    log_level: str,
) -> None:
    """Run one broker of a cluster.

    SIGTERM drains it: it hands over its topic groups, asks its clients to move, and ends. A second SIGTERM ends it at
    once.

    \b
    Exit codes: 0 drained, 1 failed, 2 wrong configuration, 3 a broker of the same name was started later (the newest
    one stays), 4 no access to ZooKeeper, 5 an address is in use, 6 its event loop hung, 7 it may
    open too few files.
    """
    identity = Identity(name, clients, peers, admin, advertise_url, advertise_peer, revision)
    try:
        code = run(load(config_path), identity, log_level, config_path)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    sys.exit(code)
