"""`migratory sub`: subscribe to topics and print their publications."""

from __future__ import annotations

import json
import os
import re
import sys
from base64 import b64encode

import click
from migratory_client import Client, Message, Position, Receipt, SubscribeError, parse_position

from migratory_cli.notices import Notices
from migratory_cli.options import connection_options, make_client
from migratory_cli.output import StdoutWriter
from migratory_cli.runtime import run_client
from migratory_cli.terminal import printable_payload, to_json

WILDCARDS = {"*", "#", "+", ">"}
"""Topic levels that are wildcards in other systems. Here they are ordinary names."""


def _position(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Position | None:
    """Return the position that --after gives, None without it. Raise click.BadParameter if it has neither form of a
    position."""
    if value is None:
        return None
    try:
        return parse_position(json.loads(value) if value.lstrip().startswith("[") else value.strip())
    except json.JSONDecodeError:
        raise click.BadParameter(f'{value!r} is neither "epoch:sequence" nor [epoch, sequence]') from None
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@connection_options
@click.option(
    "--after",
    callback=_position,
    metavar="EPOCH:SEQUENCE",
    help="Begin after this position, with a single TOPIC. Publications that are no longer cached are reported as a "
    "gap. The JSON form [EPOCH, SEQUENCE] is accepted as well.",
)
@click.option("--snapshot", is_flag=True, help="Begin with the latest publication of each topic.")
@click.option("--count", "-n", type=click.IntRange(1), help="End after this number of messages.")
@click.option("--positions", is_flag=True, help='Print the position of each message, "epoch:sequence".')
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a line of JSON for each message, and on stderr for each receipt, connection and problem.",
)
def sub(
    topics: tuple[str, ...], servers: tuple[str, ...], cluster: str | None, token: str | None, wire: str,
    connect_timeout: float, quiet: bool, after: Position | None, snapshot: bool, count: int | None, positions: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Print the publications of topics, one message per line, until Ctrl-C.

    With several topics each line begins with the topic. With --positions the position comes next. Each has a tab after
    it. Receipts are shown on stderr: whether the stream is complete, or what is missing. If the broker fails,
    another one resumes the stream where it stopped. Topics are exact names; there are no wildcards. A terminal gets
    control characters of payloads escaped; files and pipes get payloads as they are.

    \b
    Examples:
      migratory sub quotes/eur
      migratory sub quotes/eur quotes/usd --snapshot
      migratory sub quotes/eur --positions
      migratory sub quotes/eur --after 1764284400000:17 --count 10 --json

    \b
    Exit codes: 0 after --count messages, 1 no broker reached or a topic refused, 2 wrong usage, 128 + the
    signal's number after a signal (130 after Ctrl-C).
    """
    if after is not None and len(set(topics)) != 1:
        raise click.UsageError("--after is allowed with a single TOPIC only")

    notices = Notices(as_json, quiet)
    client = make_client(servers, cluster, token, wire, connect_timeout, notices)
    for topic in dict.fromkeys(topics):
        if WILDCARDS.intersection(re.split("[/.]", topic)):
            notices.hint(f"{topic}: there are no wildcards; this subscribes to the topic of exactly this name")
    sys.exit(run_client(_subscribe(client, notices, topics, after, snapshot, count, positions), notices))


async def _subscribe(
    client: Client, notices: Notices, topics: tuple[str, ...], after: Position | None, snapshot: bool,
    count: int | None, positions: bool,
) -> int:  # fmt: skip
    """Print the publications of the topics, and return the exit code: 1 if a broker refused a topic, else 0.

    :param after: the position after which to begin; None for none.
    :param count: the number of messages after which to end; None for no end.
    :param positions: True to print each message's position.
    """
    several = len(set(topics)) > 1
    terminal = os.isatty(1)
    refused = False
    remaining = count
    out = StdoutWriter()

    def gap(receipt: Receipt) -> None:
        if receipt.kind == "reset" and receipt.before == after is not None:
            notices.hint(
                f"{receipt.topic}: waiting for the next publication (--snapshot, without --after, shows the latest)"
            )

    async with client, out.required():
        stream = client.subscribe(*topics, after=after, snapshot=snapshot, on_gap=gap)
        while True:
            try:
                message = await anext(stream, None)
            except SubscribeError as error:
                notices.error(error.code, str(error))
                refused = True
                continue
            if message is None:
                break
            out.put(_format(message, several, positions, notices.as_json, terminal) + b"\n")
            await out.wait_for_room()
            if remaining is not None:
                remaining -= 1
                if remaining == 0:
                    break
        await out.wait_for_room(0)
    return 1 if refused else 0


def _format(message: Message, several: bool, positions: bool, as_json: bool, terminal: bool) -> bytes:
    """Return a message as a line without its end.

    :param several: True to begin with the topic.
    :param terminal: True to escape what could control a terminal.
    """
    if as_json:
        fields: dict[str, object] = {"topic": message.topic, "position": str(message.position)}
        try:
            fields["data"] = message.payload.decode()
        except UnicodeDecodeError:
            fields["data64"] = b64encode(message.payload).decode()
        fields |= {"sent": message.sent, "time": message.time, "replayed": message.replayed}
        return to_json(fields).encode()
    prefix = message.topic.encode() + b"\t" if several else b""
    if positions:
        prefix += f"{message.position}\t".encode()
    return prefix + (printable_payload(message.payload) if terminal else message.payload)
