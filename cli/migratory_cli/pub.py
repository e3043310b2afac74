"""`migratory pub`: publish from the command line."""

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

from migratory_cli.failures import Failed
from migratory_cli.finite import Finite
from migratory_cli.notices import Notices
from migratory_cli.options import connection_options, make_client, run
from migratory_cli.output import Output

_WINDOW = 500  # publications under way; below the client's own bound
_CHUNKS = 16  # of standard input, read ahead
_LONGEST = 67_108_864  # bytes of a line: no cluster takes a longer payload


@click.command()
@click.argument("topic")
@click.argument("payload", required=False)
@connection_options
@click.option(
    "--qos",
    type=click.IntRange(0, 1),
    default=1,
    show_default=True,
    help="1: acknowledged once it is safe, never doubled. 0: sent once, perhaps lost.",
)
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Publish PAYLOAD this many times.")
@click.option("--rate", type=Finite(0.001), metavar="PER_SECOND", help="At most so many per second.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON for each publication, and for each failure.")
def pub(
    topic: str, payload: str | None, servers: tuple[str, ...], cluster: str | None, token: str | None, wire: str,
    connect_timeout: float, quiet: bool, qos: int, repeat: int, rate: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Publish PAYLOAD to TOPIC; without PAYLOAD, every line of standard input.

    Prints the position of each acknowledged publication, "epoch:sequence". A broker that dies meanwhile costs nothing
    but time: what was not acknowledged is sent again, under the same id.

    \b
    Examples:
      migratory pub quotes/eur 1.0842
      tail -f ticks.log | migratory pub quotes/eur --qos 0
      migratory pub quotes/eur tick --repeat 100 --rate 10 --json
      MIGRATORY_SERVERS=ws://a:8800/ws,ws://b:8800/ws migratory pub quotes/eur 1.0842

    \b
    Exit codes: 0 all acknowledged, 1 some were not, or no broker was there, 2 wrong usage.
    """
    if payload is None and repeat != 1:
        raise click.UsageError("--repeat needs a PAYLOAD")
    if payload is None and sys.stdin is None:
        raise click.UsageError("standard input is closed: give a PAYLOAD")
    notices = Notices(as_json, quiet)
    if payload is None and sys.stdin.isatty():
        notices.hint("every line of standard input is published; Ctrl-D ends")
    client = make_client(servers, cluster, token, wire, connect_timeout, notices)
    sys.exit(run(_publish(client, notices, topic, payload, qos, repeat, rate), notices))


async def _publish(
    client: Client, notices: Notices, topic: str, payload: str | None, qos: int, repeat: int, rate: float | None
) -> int:
    failures = 0
    as_json = notices.as_json
    window = asyncio.Semaphore(_WINDOW)
    under_way: set[asyncio.Task[None]] = set()

    async def one(number: int, data: bytes, future: asyncio.Future[Position | None], began: float) -> None:
        nonlocal failures
        try:
            position = await future
        except MigratoryError as error:
            failures += 1
            if out.error is not None:
                return  # the command ends for that, and what was under way with it
            if as_json:
                out.line(json.dumps({"number": number, "error": error.code, "text": str(error)}))
            else:
                notices.error(error.code, f"publication {number}: {error}")
        else:
            seconds = round(time.monotonic() - began, 6)
            if as_json:
                where = None if position is None else str(position)
                out.line(json.dumps({"number": number, "topic": topic, "position": where, "seconds": seconds}))
            elif position is not None:
                out.line(str(position))
            elif qos == 1:
                out.line("acknowledged; its position is no longer known")
        finally:
            window.release()

    out = Output()
    async with client:
        start = time.monotonic()
        number = 0
        source = _lines() if payload is None else _repeated(payload.encode("utf-8", "surrogateescape"), repeat)
        async for data in source:
            if rate is not None:
                await asyncio.sleep(start + number / rate - time.monotonic())
            await out.room()
            await window.acquire()
            number += 1
            future = client.submit(topic, data, qos=qos)
            task = asyncio.create_task(one(number, data, future, time.monotonic()))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        while under_way:
            await asyncio.wait(list(under_way))
        await out.room(0)
    return 1 if failures else 0


async def _repeated(data: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield data


async def _lines() -> AsyncIterator[bytes]:
    """Standard input, line by line, as it comes, without the line's end. Works for files, pipes and terminals alike.

    The reading thread is a daemon, because nothing can end a read from a terminal when Ctrl-C ends the command; it
    reads the descriptor, because a lock of `sys.stdin` that is held at the interpreter's end aborts the process."""
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue(_CHUNKS)
    loop = asyncio.get_running_loop()
    descriptor = sys.stdin.fileno()

    def read() -> None:
        try:
            while True:
                chunk: bytes | OSError
                try:
                    chunk = os.read(descriptor, 65536)
                except OSError as error:  # a directory, a terminal that is gone
                    chunk = error
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()  # waits while the queue is full
                if not chunk or isinstance(chunk, OSError):
                    return
        except (RuntimeError, CancelledError):
            return  # the loop has ended: nobody reads

    threading.Thread(target=read, name="stdin", daemon=True).start()
    rest = bytearray()
    number = 1
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise Failed(f"cannot read standard input: {chunk.strerror}")
        *lines, end = chunk.split(b"\n")
        for line in lines:
            rest += line
            yield bytes(rest).rstrip(b"\r")
            rest.clear()
            number += 1
        rest += end
        if len(rest) > _LONGEST:
            raise Failed(
                f"line {number} of standard input has over {_LONGEST} bytes: no cluster takes so long a payload"
            )
    if rest:
        yield bytes(rest).rstrip(b"\r")
