"""`migratory pub` and `migratory sub` when standard input or output is closed, broken, full, or not read."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import pytest
from migratory_testing.fakebroker import FakeBroker
from migratory_testing.waiting import until


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker() as running:
        yield running


async def start(broker: FakeBroker, line: str, stdout: int | None = PIPE) -> Process:
    """Start a shell command, in which `$M` is the `migratory` program and the fake broker is its server. Return the
    process."""
    environment = {**os.environ, "MIGRATORY_SERVERS": broker.url, "M": f"{sys.executable} -m migratory_cli.main"}
    return await asyncio.create_subprocess_exec(
        "bash", "-c", line, stdin=subprocess.DEVNULL, stdout=stdout, stderr=PIPE, env=environment
    )


async def run(broker: FakeBroker, line: str) -> tuple[int | None, str, str]:
    process = await start(broker, line)
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert "Traceback" not in err.decode()
    return process.returncode, out.decode(), err.decode()


async def test_commands_run_with_closed_standard_streams(broker: FakeBroker) -> None:
    code, _, err = await run(broker, "$M pub t <&-")
    assert (code, re.findall("Error: .*", err)) == (2, ["Error: standard input is closed: give a PAYLOAD"])
    assert (await run(broker, "$M pub t x >&-"))[0] == 0
    assert (await run(broker, "$M sub t --snapshot -n 1 >&-"))[0] == 0
    assert (await run(broker, "$M sub t --snapshot -n 1 2>&-"))[:2] == (0, "x\n")
    assert (await run(broker, "$M status http://127.0.0.1:1 <&- >&- 2>&-"))[0] == 1


async def test_endless_line_is_refused_without_buffering(broker: FakeBroker) -> None:
    """`migratory pub` refuses a line of input that is longer than the largest payload, after it published the lines
    before; shorter lines are published. Regression: `migratory pub t < /dev/zero` used all memory of the machine."""
    code, out, err = await run(broker, "(echo first; yes | head -c 140000000 | tr -d '\\n') | $M pub t")
    assert (code, out) == (1, "1:1\n")
    assert "Error: line 2 of standard input is longer than 67108864 bytes, the largest payload" in err
    lines = "(printf 'a\\r\\n\\n'; yes b | head -c 200000 | tr -d '\\n'; printf '\\nend') | $M pub t"
    assert (await run(broker, lines))[0] == 0
    assert [entry.payload for entry in broker.memory.topics["t"]] == [b"first", b"a", b"", b"b" * 100_000, b"end"]


async def test_pub_ends_silently_when_its_output_is_closed(broker: FakeBroker) -> None:
    """`migratory pub` whose output is closed exits with 1, prints no error, and stops publishing. Regression: it
    continued, printed a traceback for each position, and exited with 0."""
    code, out, err = await run(broker, "$M pub t x --repeat 100000 | head -1; exit ${PIPESTATUS[0]}")
    assert (code, out) == (1, "1:1\n")
    assert "Error" not in err
    assert len(broker.memory.topics["t"]) < 100_000


async def test_sub_ends_with_its_reader_without_a_later_message(broker: FakeBroker) -> None:
    """`migratory sub` ends when the reader of its output has ended, without waiting for another message. Regression:
    `sub | head -1` ran until the next publication, which may never come."""
    broker.memory.append("t", b"1")
    process = await start(broker, "$M sub t --snapshot --quiet | head -1; exit ${PIPESTATUS[0]}")
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, out, err) == (1, b"1\n", b"")


async def test_pub_ends_with_its_reader_without_a_later_line(broker: FakeBroker) -> None:
    """`migratory pub` ends when the reader of its output has ended, without waiting for another line of input.
    Regression: `pub | head -1` ran until the next line."""
    process = await start(broker, "(echo 1; exec sleep 25) | $M pub t --quiet | head -1; exit ${PIPESTATUS[1]}")
    reading = asyncio.create_task(process.communicate())
    await until(lambda: broker.connections and broker.connections[0].ended.is_set(), "`pub` has left", limit=20)
    process.terminate()  # the shell, which waits for `sleep`
    await asyncio.wait_for(reading, 35)
    assert [entry.payload for entry in broker.memory.topics["t"]] == [b"1"]


async def test_sub_ends_when_its_output_is_closed(broker: FakeBroker) -> None:
    process = await start(broker, "$M sub t --quiet | head -1; exit ${PIPESTATUS[0]}")
    await until(lambda: broker.live and broker.live[0].topics, "subscribed")
    publishing = asyncio.create_task(_publish(broker, b"1"))
    out, err = await asyncio.wait_for(process.communicate(), 30)
    publishing.cancel()
    assert (process.returncode, out, err) == (1, b"1\n", b"")


@pytest.mark.parametrize("line", ["$M pub t x > /dev/full", "$M sub t --snapshot > /dev/full"])
async def test_full_disk_is_named(broker: FakeBroker, line: str) -> None:
    broker.memory.append("t", b"1")
    process = await start(broker, f"exec {line}")
    there = broker.connections  # not those that live: `pub` may be gone already
    await until(lambda: there, "there")
    publishing = asyncio.create_task(_publish(broker, b"1"))
    _, err = await asyncio.wait_for(process.communicate(), 30)
    publishing.cancel()
    assert process.returncode == 1
    assert err.decode().splitlines()[-1] == "Error: cannot write standard output: No space left on device"


async def _publish(broker: FakeBroker, payload: bytes) -> None:
    """Publish the payload to topic `t` every 20 ms while a client is subscribed, until this task is cancelled."""
    while True:
        if broker.live and broker.live[0].topics:
            broker.publish("t", payload)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stalled_reader_blocks_neither_signals_nor_the_connection(
    broker: FakeBroker, number: signal.Signals
) -> None:
    """A `migratory sub` whose output nobody reads still sends pings and ends at the first signal. Regression: only
    SIGKILL ended it."""
    broker.heartbeat = 0.5
    read, write = os.pipe()
    process = await start(broker, "exec $M sub t", write)
    os.close(write)
    await until(lambda: broker.live and broker.live[0].topics, "subscribed")
    for _ in range(20):
        broker.publish("t", bytes(30_000))
    before = len(broker.live[0].received)
    await until(lambda: len(broker.live[0].received) >= before + 3, "it still sends pings")
    process.send_signal(number)
    await asyncio.wait_for(process.communicate(), 15)
    os.close(read)
    assert process.returncode == 128 + number
