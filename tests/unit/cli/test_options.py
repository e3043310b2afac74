"""Shared options: discovery of servers, number types, and the texts of usage errors."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner
from migratory_cli import options
from migratory_cli.main import main
from migratory_cli.options import DEFAULT_SERVERS, FiniteFloat, find_servers, read_token
from migratory_local.cluster import state as local_state


def clusters(*names: str) -> Callable[[], list[SimpleNamespace]]:
    def state(name: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, workdir=f"/runs/{name}", brokers=[SimpleNamespace(url=f"ws://{name}-0/ws")])

    return lambda: [state(name) for name in names]


@pytest.fixture(autouse=True)
def no_cluster_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_state, "running_clusters", clusters())
    monkeypatch.delenv("MIGRATORY_SERVERS", raising=False)


def test_servers_come_from_option_environment_local_cluster_or_default_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert find_servers(()) == (list(DEFAULT_SERVERS), "")
    assert DEFAULT_SERVERS[0] == "ws://127.0.0.1:8800/ws"
    monkeypatch.setattr(local_state, "running_clusters", clusters("one"))
    assert find_servers(()) == (["ws://one-0/ws"], "one")
    monkeypatch.setenv("MIGRATORY_SERVERS", "ws://a/ws, ws://b/ws  ws://c/ws,")
    assert find_servers(()) == (["ws://a/ws", "ws://b/ws", "ws://c/ws"], "")
    assert find_servers((), "one") == (["ws://one-0/ws"], "one")
    assert find_servers(("ws://x",)) == (["ws://x"], "")
    assert find_servers(("ws://x,ws://y", "ws://z")) == (["ws://x", "ws://y", "ws://z"], "")
    monkeypatch.setenv("MIGRATORY_SERVERS", " ")
    assert find_servers(()) == (["ws://one-0/ws"], "one")


def test_default_ports_are_tried_without_the_local_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(name, name="psutil")

    monkeypatch.setattr(options, "import_module", missing)
    assert find_servers(()) == (list(DEFAULT_SERVERS), "")
    with pytest.raises(click.UsageError, match="psutil is not installed: run `make install`"):
        find_servers((), "one")


@pytest.mark.parametrize(
    "command", [["pub", "t", "x"], ["sub", "t"], ["bench", "run"], ["bench", "pub"], ["bench", "sub"]]
)
def test_several_clusters_need_the_option_cluster(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setattr(local_state, "running_clusters", clusters("one", "two"))
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2, result.output
    assert "several clusters run on this machine (one, two): choose one with --cluster NAME" in result.output
    result = CliRunner().invoke(main, [*command, "--cluster", "three"])
    assert result.exit_code == 2
    assert "no cluster named three runs on this machine" in result.output


def test_failure_to_connect_is_shown_once_with_a_hint() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # in use, but not listening
        url = f"ws://127.0.0.1:{closed.getsockname()[1]}/ws"
        line = [sys.executable, "-m", "migratory_cli.main", "sub", "t", "-s", url, "--connect-timeout", "2"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"cannot connect to {url}: connection refused",
        f"Error: no broker within 2 s: {url}: connection refused. "
        "Start a cluster here with `migratory up`, or name the brokers with -s URL.",
    ]


def test_help_of_bench_names_no_outdated_port() -> None:
    shown = (
        CliRunner().invoke(main, ["bench", "--help"]).output + CliRunner().invoke(main, ["bench", "run", "-h"]).output
    )
    assert "8080" not in shown
    assert "MIGRATORY_SERVERS" in shown


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (["pub"], "Missing argument 'TOPIC'"),
        (["pub", "t", "--repeat", "2"], "--repeat needs a PAYLOAD"),
        (["pub", "t", "x", "--qos", "2"], "0<=x<=1"),
        (["pub", "t", "x", "-s", "http://a"], "no usable server"),
        (["pub", "t", "x", "-s", "ws://a", "--cluster", "c"], "leave out --server"),
        (["bench", "run", "-s", ","], "the list of URLs is empty"),
        (["sub"], "Missing argument 'TOPIC...'"),
        (["sub", "t", "u", "--after", "1:2"], "--after is allowed with a single TOPIC only"),
        (["sub", "t", "--after", "1:x"], 'is not "epoch:sequence"'),
        (["sub", "t", "--count", "0"], "x>=1"),
        (["status", "ftp://a"], "http:// or https:// address"),
    ],
)
def test_wrong_usage_ends_with_2_and_names_the_problem(line: list[str], what: str) -> None:
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 2
    assert what in result.output


@pytest.mark.parametrize("selection", [[], ["--cluster", "one"]])
def test_two_clusters_of_the_same_name_need_addresses(monkeypatch: pytest.MonkeyPatch, selection: list[str]) -> None:
    monkeypatch.setattr(local_state, "running_clusters", clusters("one", "one"))
    result = CliRunner().invoke(main, ["pub", "t", "x", *selection])
    assert result.exit_code == 2
    assert "(one in /runs/one, one in /runs/one): give the addresses" in " ".join(result.output.split())


@pytest.mark.parametrize("command", [["pub"], ["sub"], ["bench", "run"]])
def test_help_says_who_sees_a_token(command: list[str]) -> None:
    shown = " ".join(CliRunner().invoke(main, [*command, "--help"]).output.split())
    assert "--token TEXT Sent to the brokers. Others on this machine see it" in shown


def float_options(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Option]]:
    """Return the path and the option for every option of a command and its subcommands that takes a floating-point
    number."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        subcommands = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
        return [
            option
            for name, command in subcommands
            if command is not None
            for option in float_options(command, (*path, name))
        ]
    return [
        (path, option)
        for option in command.params
        if isinstance(option, click.Option) and isinstance(option.type, click.types.FloatParamType | click.FloatRange)
    ]


def test_no_option_accepts_nan_or_infinity() -> None:
    """Every floating-point option refuses NaN and infinity, which click accepts: with them the commands would wait for
    ever.

    `bench` leaves the check to the scenario, and `sla report` has the options of its Spark job.
    """
    options = float_options(main)
    assert {path[0] for path, _ in options} >= {"pub", "sub", "demo", "status", "bench"}
    for path, option in options:
        if path[0] != "bench" and path != ("sla", "report"):
            assert isinstance(option.type, FiniteFloat), (path, option.name)
    for text in ("nan", "inf", "-inf"):
        done = CliRunner().invoke(main, ["pub", "t", "x", "--rate", text])
        assert done.exit_code == 2
        assert "--rate" in done.output
        done = CliRunner().invoke(main, ["bench", "run", "-s", "ws://127.0.0.1:1/ws", "--duration", text])
        assert done.exit_code == 2
        assert "duration" in done.output


def test_token_of_a_file_is_read_again_for_each_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(Exception):
        pass

    given: list[Any] = []

    fixed: list[bool] = []

    def client(servers: list[str], *, token: Any, on_status: Any, **_: Any) -> Any:
        given.append(token)
        fixed.append(on_status.__self__.token_is_fixed)
        raise Ended

    monkeypatch.setattr(options, "Client", client)
    file = tmp_path / "token"
    file.write_text("first\n")
    for line in (["--token-file", str(file)], ["--token", "t"], []):
        assert isinstance(CliRunner().invoke(main, ["sub", "t", "-s", "ws://a", *line]).exception, Ended)
    source, plain, none = given
    assert (plain, none) == ("t", None)
    assert fixed == [False, True, False]
    assert source() == "first"
    file.write_text("second")
    assert source() == "second"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot read {path}: No such file or directory"),
        (b"", "is empty"),
        (b"\xff", "it is not UTF-8 text"),
        (b"x" * 65_537, "it has more than 65,536 bytes"),
    ],
)
def test_file_that_has_no_token_is_named_with_the_reason(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(click.UsageError, match=re.escape(reason.format(path=path))):
        read_token(path)


def test_full_standard_output_is_an_error_without_a_traceback() -> None:
    """Regression: commands that print with `echo` ended with a traceback on a full disk."""
    command = [sys.executable, "-m", "migratory_cli.main", "--version"]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, timeout=60.0)
    assert (ended.returncode, b"Traceback" in ended.stderr) == (1, False)
    assert b"cannot write to standard output: No space left on device" in ended.stderr
