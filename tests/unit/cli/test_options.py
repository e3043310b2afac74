"""Where servers come from, and what usage errors say."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from migratory_cli.main import main
from migratory_cli.options import DEFAULT_SERVERS, server_list


def test_servers_come_from_the_line_the_environment_or_the_local_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIGRATORY_SERVERS", "ws://a/ws, ws://b/ws  ws://c/ws,")
    assert server_list(("ws://x",)) == ["ws://x"]
    assert server_list(()) == ["ws://a/ws", "ws://b/ws", "ws://c/ws"]
    monkeypatch.setenv("MIGRATORY_SERVERS", " ")
    assert server_list(()) == list(DEFAULT_SERVERS)
    monkeypatch.delenv("MIGRATORY_SERVERS")
    assert server_list(()) == list(DEFAULT_SERVERS)
    assert DEFAULT_SERVERS[0] == "ws://127.0.0.1:8800/ws"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (["pub"], "Missing argument 'TOPIC'"),
        (["pub", "t", "--repeat", "2"], "--repeat needs a PAYLOAD"),
        (["pub", "t", "x", "--qos", "2"], "0<=x<=1"),
        (["pub", "t", "x", "-s", "http://a"], "no usable server"),
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
