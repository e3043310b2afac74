"""The end of a command: its own, by a signal, by an error."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from migratory_local.running import run


def test_its_own_end() -> None:
    async def work() -> int:
        return 7

    assert run(work()) == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_it_clean_up(number: signal.Signals) -> None:
    cleaned = []

    async def work() -> int:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)
        return 0

    assert run(work()) == 128 + number
    assert cleaned == [True]


def test_an_error_is_the_callers() -> None:
    async def work() -> int:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        run(work())


def test_a_cancellation_that_no_signal_asked_for_is_not_hidden() -> None:
    async def work() -> int:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run(work())


IMPATIENT = """
import asyncio
from migratory_local.running import run

async def work():
    print("up", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        print("cleaning", flush=True)
        await asyncio.sleep(60)

run(work())
"""


def test_a_second_signal_ends_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", IMPATIENT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "cleaning\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
