"""`migratory pub`: publish an argument or the lines of standard input."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError

import click
from migratory_client import Client, MigratoryError, Position
from migratory_protocol.errors import NOT_ALLOWED

from migratory_cli.notices import Notices
from migratory_cli.options import FiniteFloat, connection_options, make_client
from migratory_cli.output import StdoutWriter
from migratory_cli.runtime import CommandFailed, run_client

_MAX_PENDING = 500
"""The largest number of publications without an answer. Below `Settings.max_waiting`, so that the client never refuses
one for their number."""
_READ_AHEAD = 16
"""Chunks of standard input (64 KiB each) that are read ahead."""
_MAX_LINE_BYTES = 67_108_864
"""Bytes of the longest line that is accepted. No cluster accepts a larger payload."""


@click.command()
@click.argument("topic")
@click.argument("payload", required=False)
@connection_options
@click.option(
    "--qos",
    type=click.IntRange(0, 1),
    default=1,
    show_default=True,
    help="1: acknowledged when it is replicated, delivered exactly once. 0: sent once, may be lost.",
)
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Publish PAYLOAD this many times.")
@click.option(
    "--rate", type=FiniteFloat(0.001), metavar="PER_SECOND", help="Maximum number of publications per second."
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for each publication and each failure.")
def pub(
    topic: str, payload: str | None, servers: tuple[str, ...], cluster: str | None, token: str | None, wire: str,
    connect_timeout: float, quiet: bool, qos: int, repeat: int, rate: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Publish PAYLOAD to TOPIC, or every line of standard input.

    Prints the position of each acknowledged publication, "epoch:sequence". If a broker fails meanwhile, publications
    that were not acknowledged are sent again with the same id.

    \b
    Examples:
      migratory pub quotes/eur 1.0842
      tail -f ticks.log | migratory pub quotes/eur --qos 0
      migratory pub quotes/eur tick --repeat 100 --rate 10 --json
      MIGRATORY_SERVERS=ws://a:8800/ws,ws://b:8800/ws migratory pub quotes/eur 1.0842

    \b
    Exit codes: 0 all acknowledged, 1 not all acknowledged or no broker reached, 2 wrong usage, 128 + the
    signal's number after a signal (130 after Ctrl-C).
    """
    if payload is None and repeat != 1:
        raise click.UsageError("--repeat needs a PAYLOAD: give one, or leave out --repeat")
    if payload is None and sys.stdin is None:
        raise click.UsageError("standard input is closed: give a PAYLOAD")
    notices = Notices(as_json, quiet)
    if payload is None and sys.stdin.isatty():
        notices.hint("publishing every line of standard input; Ctrl-D ends")
    client = make_client(servers, cluster, token, wire, connect_timeout, notices)
    sys.exit(run_client(_publish(client, notices, topic, payload, qos, repeat, rate), notices))


async def _publish(
    client: Client, notices: Notices, topic: str, payload: str | None, qos: int, repeat: int, rate: float | None
) -> int:
    """Publish, print an answer for each publication, and return the exit code: 1 if one failed, else 0.

    :param payload: what to publish `repeat` times; None to publish the lines of standard input.
    :param rate: the largest number of publications per second; None for no limit.
    """
    failures = 0
    as_json = notices.as_json
    window = asyncio.Semaphore(_MAX_PENDING)
    pending: set[asyncio.Task[None]] = set()

    async def report(number: int, future: asyncio.Future[Position | None], submitted_at: float) -> None:
        nonlocal failures
        try:
            position = await future
        except MigratoryError as error:
            failures += 1
            if out.error is not None:
                return  # the command ends because of that error
            if as_json:
                out.put_line(json.dumps({"number": number, "error": error.code, "text": str(error)}))
            else:
                notices.error(error.code, f"publication {number}: {_describe_failure(error, topic)}")
        else:
            seconds = round(time.monotonic() - submitted_at, 6)
            if as_json:
                shown = None if position is None else str(position)
                out.put_line(json.dumps({"number": number, "topic": topic, "position": shown, "seconds": seconds}))
            elif position is not None:
                out.put_line(str(position))
            elif qos == 1:
                out.put_line("acknowledged; its position is no longer known")
        finally:
            window.release()

    out = StdoutWriter()
    async with client, out.required():
        start = time.monotonic()
        number = 0
        source = _lines() if payload is None else _repeated(payload.encode("utf-8", "surrogateescape"), repeat)
        async for data in source:
            if rate is not None:
                await asyncio.sleep(start + number / rate - time.monotonic())
            await out.wait_for_room()
            await window.acquire()
            number += 1
            future = client.submit(topic, data, qos=qos)
            task = asyncio.create_task(report(number, future, time.monotonic()))
            pending.add(task)
            task.add_done_callback(pending.discard)
        while pending:
            await asyncio.wait(list(pending))
        await out.wait_for_room(0)
    return 1 if failures else 0


def _describe_failure(error: MigratoryError, topic: str) -> str:
    """Return the text of a failed publication, with a hint if the client may not publish to the topic."""
    if error.code == NOT_ALLOWED:
        return f"{error} ({topic}): `migratory explain` says what a token allows"
    return str(error)


async def _repeated(data: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield data


async def _lines() -> AsyncIterator[bytes]:
    """Yield the lines of standard input (file, pipe or terminal) as they arrive, without the line ends. Raise
    CommandFailed if it cannot be read or a line is longer than _MAX_LINE_BYTES.

    A daemon thread reads, because nothing can interrupt a read from a terminal when Ctrl-C ends the command. The thread
    reads the descriptor, because a lock of `sys.stdin` that is held at the interpreter's end aborts the process.
    """
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(_READ_AHEAD)
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def read() -> None:
        try:
            while True:
                chunk: bytes | OSError
                try:
                    chunk = os.read(descriptor, 65536)
                except OSError as error:  # a directory, or a closed terminal
                    chunk = error
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()  # blocks while the queue is full
                if not chunk or isinstance(chunk, OSError):
                    return
        except (RuntimeError, CancelledError):
            return  # the event loop has ended

    threading.Thread(target=read, name="stdin", daemon=True).start()
    partial = bytearray()
    number = 1
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise CommandFailed(f"cannot read standard input: {chunk.strerror}")
        *lines, end = chunk.split(b"\n")
        for line in lines:
            partial += line
            yield bytes(partial).rstrip(b"\r")
            partial.clear()
            number += 1
        partial += end
        if len(partial) > _MAX_LINE_BYTES:
            raise CommandFailed(
                f"line {number} of standard input is longer than {_MAX_LINE_BYTES} bytes, the largest payload"
            )
    if partial:
        yield bytes(partial).rstrip(b"\r")
