"""`migratory sub`: print what is published."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode

import click
from migratory_client import Client, Message, Position, Receipt, SubscribeError, parse_position

from migratory_cli.notices import Notices
from migratory_cli.options import connection_options, make_client, run
from migratory_cli.output import Output

WILDCARDS = {"*", "#", "+", ">"}
"""What other systems take as a level of a topic that stands for many."""


def _position(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Position | None:
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
    help="Begin behind this position, with a single TOPIC; what is no longer cached is reported. [EPOCH, SEQUENCE], as "
    "JSON has it, will do as well.",
)
@click.option("--snapshot", is_flag=True, help="Begin with the latest publication of each topic.")
@click.option("--count", "-n", type=click.IntRange(1), help="End after this many messages.")
@click.option("--positions", is_flag=True, help='Each line tells the position of its message, "epoch:sequence".')
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One line of JSON for each message, and on stderr for each receipt, connection and problem.",
)
def sub(
    topics: tuple[str, ...], servers: tuple[str, ...], cluster: str | None, token: str | None, wire: str,
    connect_timeout: float, quiet: bool, after: Position | None, snapshot: bool, count: int | None, positions: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Print what is published to the topics, one message a line, until Ctrl-C.

    With several topics each line begins with the topic, with --positions the position follows, each with a tab behind
    it. Receipts are shown on stderr: whether the stream is complete, or what is missing. When the broker dies, another
    one takes over where this one stopped. Topics are exact names: there are no wildcards.

    \b
    Examples:
      migratory sub quotes/eur
      migratory sub quotes/eur quotes/usd --snapshot
      migratory sub quotes/eur --positions
      migratory sub quotes/eur --after 1764284400000:17 --count 10 --json

    \b
    Exit codes: 0 after --count messages, 1 no broker or a topic refused, 2 wrong usage, 130 ended by Ctrl-C.
    """
    if after is not None and len(set(topics)) != 1:
        raise click.UsageError("--after goes with a single TOPIC")

    notices = Notices(as_json, quiet)
    client = make_client(servers, cluster, token, wire, connect_timeout, notices)
    for topic in dict.fromkeys(topics):
        if WILDCARDS.intersection(re.split("[/.]", topic)):
            notices.hint(f"{topic}: there are no wildcards, this is the topic of that very name")
    sys.exit(run(_subscribe(client, notices, topics, after, snapshot, count, positions), notices))


async def _subscribe(
    client: Client, notices: Notices, topics: tuple[str, ...], after: Position | None, snapshot: bool,
    count: int | None, positions: bool,
) -> int:  # fmt: skip
    several = len(set(topics)) > 1
    refused = False
    left = count
    out = Output()

    def gap(receipt: Receipt) -> None:
        if receipt.kind == "reset" and receipt.before == after is not None:
            notices.hint(
                f"{receipt.topic}: waits for the next publication (--snapshot, without --after, shows the latest)"
            )

    async with client:
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
            out.put(_line(message, several, positions, notices.as_json) + b"\n")
            await out.room()
            if left is not None:
                left -= 1
                if left == 0:
                    break
        await out.room(0)
    return 1 if refused else 0


def _line(message: Message, several: bool, positions: bool, as_json: bool) -> bytes:
    if as_json:
        found: dict[str, object] = {"topic": message.topic, "position": str(message.position)}
        try:
            found["data"] = message.payload.decode()
        except UnicodeDecodeError:
            found["data64"] = b64encode(message.payload).decode()
        found |= {"sent": message.sent, "time": message.time, "replayed": message.replayed}
        return json.dumps(found, ensure_ascii=False).encode()
    prefix = message.topic.encode() + b"\t" if several else b""
    if positions:
        prefix += f"{message.position}\t".encode()
    return prefix + message.payload
