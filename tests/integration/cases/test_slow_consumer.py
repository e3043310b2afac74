"""Test that a slow consumer that reads again in time gets the reason why the broker closed its connection."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process

import pytest
from migratory_testing.crowd import closed
from migratory_testing.processes import Broker
from migratory_testing.rawclient import RawClient

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

QUEUE = 256 * 1024
SETTINGS = {
    "topics": {"groups": 4, "cache": {"messagesPerTopic": 50, "minAge": 0.0}},
    "limits": {"queuePerClient": QUEUE},
}
SIZE = 65_536
AT_MOST = 400  # 25 MiB: more than the queue and what two kernels hold for a connection


async def until_closed(broker: Broker, topic: str) -> None:
    """Publish to the topic until the broker has closed one more connection for a slow consumer. Fail the test after
    `AT_MOST` publications."""
    before = closed(broker, "slow_consumer")
    writer = await RawClient.join(broker, "msgpack", name="writer")
    for number in range(1, AT_MOST):
        await writer.publish(topic, bytes(SIZE), number, topic)
        if closed(broker, "slow_consumer") > before:
            break
    else:
        pytest.fail(f"not closed after {AT_MOST * SIZE} bytes")
    writer.writer.transport.abort()


async def line_with(process: Process, text: bytes) -> bytes:
    assert process.stderr is not None
    while text not in (line := await asyncio.wait_for(process.stderr.readline(), 30)):
        assert line, f"it ended without saying {text!r}"
    return line


async def test_a_slow_consumer_that_reads_again_gets_the_close_reason(broker: Broker, bystander: object) -> None:
    """A stopped `migratory sub` that continues after the broker has closed its connection prints the broker's reason
    and resumes.

    The close frame comes after everything that was queued. A client that does not read for longer than the 2 s of the
    closing handshake sees a lost connection instead (docs/reference/protocol.md).
    """
    host, port = broker.address("clients")
    topic = "stopped"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "migratory_cli.main", "sub", topic, "-s", f"ws://{host}:{port}/ws",
        stdout=DEVNULL, stderr=PIPE,
    )  # fmt: skip
    try:
        await line_with(process, b"complete")
        process.send_signal(signal.SIGSTOP)
        await until_closed(broker, topic)
        process.send_signal(signal.SIGCONT)
        line = await line_with(process, b"slow")
        assert line.startswith(b"closed by the broker: too slow (slow consumer: ")
        assert b"over 262144 bytes, the limit of one client" in line
        await line_with(process, b"resumed after")
    finally:
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.communicate(), 30)
