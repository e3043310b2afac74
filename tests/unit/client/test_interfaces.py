"""The package's interfaces: the exported names, that both clients have the same methods, and the text about a close
code."""

from __future__ import annotations

import inspect
import subprocess
import sys

import migratory_client
import pytest
from migratory_client import Client, Subscription, SyncClient
from migratory_client.core.links import describe_close
from migratory_client.sync_client import SyncSubscription
from migratory_protocol.errors import CloseCode

WITHIN = {"step", "start", "release", "put"}
"""Public names that only other parts of the package use; their docstrings or headings say so."""


def public(face: type) -> set[str]:
    return {name for name in vars(face) if not name.startswith("_")} - WITHIN


@pytest.mark.parametrize(("asynchronous", "synchronous"), [(Client, SyncClient), (Subscription, SyncSubscription)])
def test_blocking_client_has_the_methods_of_the_asyncio_client(asynchronous: type, synchronous: type) -> None:
    assert len(public(asynchronous)) >= 3
    assert public(asynchronous) - public(synchronous) == set()
    for name in sorted(public(asynchronous)):
        async_member, sync_member = vars(asynchronous)[name], vars(synchronous)[name]
        assert isinstance(async_member, property) == isinstance(sync_member, property), name
        if not isinstance(async_member, property):
            assert inspect.signature(async_member).parameters == inspect.signature(sync_member).parameters, name
    for way in ("enter", "exit", "iter", "next"):
        assert hasattr(asynchronous, f"__a{way}__") == hasattr(synchronous, f"__{way}__"), way


def test_every_exported_name_can_be_imported() -> None:
    for name in migratory_client.__all__:
        assert getattr(migratory_client, name).__name__ == name
    assert {"LinkUp", "LinkDown", "Ready", "Problem", "Receipt", "parse_position"} <= set(migratory_client.__all__)
    code = "import migratory_client as m; print(set(m.__all__) <= set(dir(m)))"  # where nothing was loaded yet
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"True\n"


@pytest.mark.parametrize(
    ("code", "reason", "line"),
    [
        (CloseCode.SLOW_CONSUMER, "", "closed by the broker: too slow"),
        (CloseCode.SLOW_CONSUMER, "9 bytes waited", "closed by the broker: too slow (9 bytes waited)"),
        (CloseCode.RESTARTING, "it restarts", "closed by the broker: it restarts"),
        (1006, "the connection was lost", "connection lost: the connection was lost"),
        (CloseCode.TRY_ANOTHER, "a subscribe request was not answered",
         "connection lost: a subscribe request was not answered"),
    ],
)  # fmt: skip
def test_describe_close_returns_one_line(code: int, reason: str, line: str) -> None:
    assert describe_close(code, reason) == line
