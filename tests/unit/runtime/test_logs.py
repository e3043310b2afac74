"""Logs: JSON lines, and a broker that continues when they cannot be written."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

import pytest
from migratory_broker.runtime.logs import LibraryLog, Log


def read(descriptor: int) -> list[dict[str, object]]:
    os.set_blocking(descriptor, False)
    return [json.loads(line) for line in os.read(descriptor, 1 << 20).splitlines()]


def test_a_log_line_is_json_with_common_and_own_fields() -> None:
    out, into = os.pipe()
    log = Log(into, common={"broker": "b0"})
    log("debug", "not_shown")
    log("warning", "peer_silent", peer="b1", seconds=5.5, where=Path("/x"))
    log.close()
    (line,) = read(out)
    assert abs(float(str(line.pop("time"))) - time.time()) < 5
    assert line == {
        "level": "warning",
        "event": "peer_silent",
        "broker": "b0",
        "peer": "b1",
        "seconds": 5.5,
        "where": "/x",
    }
    os.close(out)
    os.close(into)


def test_a_full_disk_drops_log_lines_and_counts_them() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    log = Log(full)
    for number in range(100):
        log("info", "event", number=number)
    deadline = time.monotonic() + 5
    while log._dropped < 100 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert log._dropped == 100
    out, into = os.pipe()
    os.dup2(into, full)  # there is room again
    log("info", "again")
    log.close()
    assert read(out)[0]["dropped_lines"] == 100
    for descriptor in (out, into, full):
        os.close(descriptor)


def test_a_blocked_reader_does_not_block_the_log() -> None:
    out, into = os.pipe()
    log = Log(into, capacity=50)
    begun = time.monotonic()
    for _ in range(1000):
        log("info", "event", text="x" * 1000)
    log.close(0.2)
    assert time.monotonic() - begun < 5
    while not log._dropped and time.monotonic() < begun + 5:  # the writer may have come late to its full pipe
        log("info", "event", text="x" * 1000)
    assert log._dropped > 0
    os.close(out)  # from here on each line fails at once
    deadline = time.monotonic() + 5
    while not log._queue.empty() and time.monotonic() < deadline:
        time.sleep(0.005)
    log.close(5)
    assert not log._thread.is_alive()
    os.close(into)


def test_library_messages_become_log_lines() -> None:
    out, into = os.pipe()
    log = Log(into)
    logger = logging.getLogger("test.library")
    handler = LibraryLog(log)
    logger.addHandler(handler)
    logger.propagate = False
    logger.info("not shown")
    try:
        raise ArithmeticError("why")
    except ArithmeticError:
        logger.exception("it %s", "failed")
    logger.removeHandler(handler)
    log.close()
    (line,) = read(out)
    assert (line["level"], line["logger"], line["message"]) == ("error", "test.library", "it failed")
    assert "ArithmeticError: why" in str(line["trace"])
    os.close(out)
    os.close(into)


def test_the_log_rejects_an_unknown_level() -> None:
    with pytest.raises(KeyError):
        Log(level="loud")
