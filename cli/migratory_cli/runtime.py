"""Runs a command until its work is done, or until Ctrl-C, SIGTERM or the end of the terminal, and returns its exit
code. Errors of a client command are shown, with a hint for a failure to connect."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine
from typing import Any

import click
from migratory_client import ConnectError, MigratoryError
from migratory_protocol.errors import TOKEN_EXPIRED, UNAUTHENTICATED

from migratory_cli.notices import Notices

SIGNAL_EXIT_BASE = 128
"""Added to a signal's number, this is the exit code of a command that the signal ended, as in shells."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_CONNECT_HINT = "Start a cluster here with `migratory up`, or name the brokers with -s URL."
_TOKEN_HINT = "Give a token that the cluster accepts with --token-file FILE; `migratory explain` says what it allows."
_EXPIRED = "the token has expired: give a new one with --token, $MIGRATORY_TOKEN or --token-file FILE"
_HINTS = {
    TOKEN_EXPIRED: "Write a new token to the file of --token-file.",
    "mismatch, certificate is not valid for": "Name the brokers as their certificate does.",
    "CERTIFICATE_VERIFY_FAILED": "Set SSL_CERT_FILE to the file of the brokers' authority (with `up --dev-tls`: "
    "WORKDIR/tls/ca.crt).",
}
"""Hints for a failure to connect, by a part of its last reason, the most specific first."""


class CommandFailed(click.ClickException):
    """Raised for a failure of the cluster, the network or this machine; the command exits with 1. (Usage errors exit
    with 2.)"""

    exit_code = 1


def run_client(work: Coroutine[Any, Any, int], notices: Notices) -> int:
    """Run the work of a client command, as `run_until_signal` does, and return the exit code. Show errors of the
    client, and `CommandFailed`, in `notices`, and return 1 for them. Cancel the work, and return 1, when a token that
    cannot change has expired."""
    try:
        return run_until_signal(_run_until_token_expires(work, notices))
    except ConnectError as error:
        notices.error(error.code, f"{error}. {_hint(error)}")
    except MigratoryError as error:
        notices.error(error.code, str(error))
    except CommandFailed as error:
        notices.error("failed", error.message)
    return CommandFailed.exit_code


def _hint(error: ConnectError) -> str:
    """Return what a user can do about a failure to connect."""
    if error.code == UNAUTHENTICATED:
        return _TOKEN_HINT
    return next((hint for reason, hint in _HINTS.items() if reason in str(error)), _CONNECT_HINT)


async def _run_until_token_expires(work: Coroutine[Any, Any, int], notices: Notices) -> int:
    """Run the work, and return its exit code. Cancel it and raise MigratoryError when a token that cannot change has
    expired: every further attempt to connect would fail."""
    task = asyncio.ensure_future(work)
    expired = asyncio.ensure_future(notices.token_expired.wait())
    try:
        await asyncio.wait((task, expired), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise MigratoryError(TOKEN_EXPIRED, _EXPIRED)
    finally:
        task.cancel()
        expired.cancel()
        await asyncio.gather(task, expired, return_exceptions=True)


def run_until_signal(work: Coroutine[Any, Any, int]) -> int:
    """Run the work. Return its exit code, or 128 + the signal's number if SIGINT, SIGTERM or SIGHUP ended it. Raise
    what the work raises.

    The first signal cancels the work, whose `finally` blocks end what was started. A second signal ends this process at
    once, and the kernel then ends all processes that it started (see `migratory_local.processes.launcher`). A SIGHUP
    that is ignored, by nohup for example, stays ignored.
    """
    return asyncio.run(_run_until_signal(work))


async def _run_until_signal(work: Coroutine[Any, Any, int]) -> int:
    task = asyncio.ensure_future(work)
    received: list[signal.Signals] = []

    def end(number: signal.Signals) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(SIGNAL_EXIT_BASE + number)
        task.cancel()

    loop = asyncio.get_running_loop()
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    handled = [number for number in _SIGNALS if number not in ignored]
    for number in handled:
        loop.add_signal_handler(number, end, number)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            return await task
        if not received:
            raise asyncio.CancelledError
        return SIGNAL_EXIT_BASE + received[0]
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
