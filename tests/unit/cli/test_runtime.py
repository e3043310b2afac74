"""How a command ends by itself, after a signal, and after an error."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from migratory_cli.notices import Notices
from migratory_cli.runtime import run_client, run_until_signal
from migratory_client import ConnectError, Problem


def test_run_returns_the_exit_code_of_the_work() -> None:
    async def work() -> int:
        return 7

    assert run_until_signal(work()) == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_cancels_the_work_and_lets_it_clean_up(number: signal.Signals) -> None:
    cleaned = []

    async def work() -> int:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)
        return 0

    assert run_until_signal(work()) == 128 + number
    assert cleaned == [True]


def test_run_raises_the_error_of_the_work() -> None:
    async def work() -> int:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        run_until_signal(work())


def test_cancellation_without_a_signal_is_raised() -> None:
    async def work() -> int:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_until_signal(work())


SLOW_CLEANUP = """
import asyncio
from migratory_cli.runtime import run_until_signal

async def work():
    print("up", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        print("cleaning", flush=True)
        await asyncio.sleep(60)

run_until_signal(work())
"""


def test_second_signal_ends_the_process_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", SLOW_CLEANUP], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "cleaning\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


@pytest.mark.parametrize(
    ("code", "text", "hint"),
    [
        ("connect_failed", "no broker within 1 s: ws://a: connection refused", "Start a cluster here"),
        ("connect_failed", "no broker within 1 s: ws://a: token_expired: x (4002)", "Write a new token to the file"),
        ("connect_failed", "wss://a: [SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate", "Set SSL_CERT_FILE to"),
        (
            "connect_failed",
            "wss://a: [SSL: CERTIFICATE_VERIFY_FAILED] IP address mismatch, certificate is not valid for 'a'",
            "Name the brokers as their certificate does.",
        ),
        ("unauthenticated", "ws://a: unauthenticated: x (4001)", "Give a token that the cluster accepts"),
    ],
)
def test_hint_belongs_to_the_last_cause(capsys: pytest.CaptureFixture[str], code: str, text: str, hint: str) -> None:
    async def work() -> int:
        raise ConnectError(code, text)

    assert run_client(work(), Notices(as_json=False, quiet=False)) == 1
    assert capsys.readouterr().err.startswith(f"Error: {text}. {hint}")


@pytest.mark.parametrize("fixed", [True, False])
def test_expired_token_ends_a_command_at_once_if_it_cannot_change(
    capsys: pytest.CaptureFixture[str], fixed: bool
) -> None:
    notices = Notices(as_json=True, quiet=True)
    notices.token_is_fixed = fixed
    cleaned = []

    async def work() -> int:
        notices.status(Problem("token_expired", "the token has expired", True))
        try:
            await asyncio.sleep(60 if fixed else 0)
        finally:
            cleaned.append(True)
        return 0

    assert run_client(work(), notices) == (1 if fixed else 0)
    assert cleaned == [True]
    assert ('"error": "token_expired"' in capsys.readouterr().err) == fixed
