"""Where servers come from, and what usage errors say."""

from __future__ import annotations

import socket
import subprocess
import sys
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from migratory_cli import running
from migratory_cli.main import main
from migratory_cli.options import DEFAULT_SERVERS, find_servers


def clusters(*names: str) -> SimpleNamespace:
    def state(name: str) -> SimpleNamespace:
        return SimpleNamespace(name=name, workdir=f"/runs/{name}", brokers=[SimpleNamespace(url=f"ws://{name}-0/ws")])

    return SimpleNamespace(running_clusters=lambda: [state(name) for name in names])


@pytest.fixture(autouse=True)
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "migratory_local.state", clusters())
    monkeypatch.delenv("MIGRATORY_SERVERS", raising=False)


def test_servers_come_from_the_line_the_environment_what_runs_here_or_the_usual_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert find_servers(()) == (list(DEFAULT_SERVERS), "")
    assert DEFAULT_SERVERS[0] == "ws://127.0.0.1:8800/ws"
    monkeypatch.setitem(sys.modules, "migratory_local.state", clusters("one"))
    assert find_servers(()) == (["ws://one-0/ws"], "one")
    monkeypatch.setenv("MIGRATORY_SERVERS", "ws://a/ws, ws://b/ws  ws://c/ws,")
    assert find_servers(()) == (["ws://a/ws", "ws://b/ws", "ws://c/ws"], "")
    assert find_servers((), "one") == (["ws://one-0/ws"], "one")
    assert find_servers(("ws://x",)) == (["ws://x"], "")
    assert find_servers(("ws://x,ws://y", "ws://z")) == (["ws://x", "ws://y", "ws://z"], "")
    monkeypatch.setenv("MIGRATORY_SERVERS", " ")
    assert find_servers(()) == (["ws://one-0/ws"], "one")


def test_without_the_local_extra_the_usual_ports_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(name, name="psutil")

    monkeypatch.setattr(running, "import_module", missing)
    assert find_servers(()) == (list(DEFAULT_SERVERS), "")
    with pytest.raises(click.UsageError, match="psutil is missing"):
        find_servers((), "one")


@pytest.mark.parametrize(
    "command", [["pub", "t", "x"], ["sub", "t"], ["bench", "run"], ["bench", "pub"], ["bench", "sub"]]
)
def test_of_several_clusters_one_must_be_chosen(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.setitem(sys.modules, "migratory_local.state", clusters("one", "two"))
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2, result.output
    assert "several clusters run on this machine (one, two): choose with --cluster NAME" in result.output
    result = CliRunner().invoke(main, [*command, "--cluster", "three"])
    assert result.exit_code == 2
    assert "no cluster named three runs on this machine" in result.output


def test_a_failure_to_connect_is_told_once_and_ends_with_what_to_do() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # taken, and nobody listens
        url = f"ws://127.0.0.1:{closed.getsockname()[1]}/ws"
        line = [sys.executable, "-m", "migratory_cli.main", "sub", "t", "-s", url, "--connect-timeout", "2"]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"cannot connect to {url}: connection refused",
        f"Error: no broker within 2 s: {url}: connection refused. "
        "Start a cluster here with `migratory up`, or name the brokers with -s URL.",
    ]


def test_help_of_bench_names_the_ports_that_clusters_have() -> None:
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
        (["sub", "t", "u", "--after", "1:2"], "--after goes with a single TOPIC"),
        (["sub", "t", "--after", "1:x"], 'is not "epoch:sequence"'),
        (["sub", "t", "--count", "0"], "x>=1"),
        (["status", "ftp://a"], "http:// or https:// address"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_wrong(line: list[str], what: str) -> None:
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 2
    assert what in result.output


@pytest.mark.parametrize("more", [[], ["--cluster", "one"]])
def test_of_two_clusters_of_one_name_the_addresses_must_be_given(
    monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """--cluster was once asked for, and then asked for again."""
    monkeypatch.setitem(sys.modules, "migratory_local.state", clusters("one", "one"))
    result = CliRunner().invoke(main, ["pub", "t", "x", *more])
    assert result.exit_code == 2
    assert "(one in /runs/one, one in /runs/one): give the addresses" in " ".join(result.output.split())


@pytest.mark.parametrize("command", [["pub"], ["sub"], ["bench", "run"]])
def test_help_says_that_tokens_are_not_checked(command: list[str]) -> None:
    shown = " ".join(CliRunner().invoke(main, [*command, "--help"]).output.split())
    assert "--token TEXT Sent to the brokers, which do not check it yet" in shown
