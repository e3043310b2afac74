"""`migratory status`: tables, remarks and errors for the answers of brokers."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from migratory_cli import options
from migratory_cli.commands import status_view
from migratory_cli.main import main
from migratory_local.cluster import state as local_state

READY: dict[str, Any] = {
    "cluster": "quotes",
    "broker": "quotes-broker-0",
    "uptime_seconds": 3725.5,
    "ready": True,
    "reason": "",
    "zookeeper_connected": True,
    "logic": {
        "topics": 1200, "roles": {"coordinator": 34, "member": 66}, "waiting_groups": 0, "replication_lag": 2,
        "cache_bytes": 3 * 1024 * 1024,
    },
    "edge": {"clients": 10000, "queue_bytes": 512, "draining": False, "slow": [{"client": "c7", "queue_bytes": 99}]},
}  # fmt: skip


class FakeBroker(ThreadingHTTPServer):
    """A server that answers /v1/status with `answer`, a status code and a body."""

    answer: tuple[int, bytes] = (200, b"{}")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert self.path == "/v1/status"
        assert isinstance(self.server, FakeBroker)
        code, body = self.server.answer
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing, so that the test's output has no line for each request."""


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    with FakeBroker(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("COLUMNS", "200")
    return CliRunner()


def test_status_shows_a_table_and_slow_consumers(fake: FakeBroker, runner: CliRunner) -> None:
    fake.answer = (200, json.dumps(READY).encode())
    result = runner.invoke(main, ["status", fake.url.removeprefix("http://")])
    assert result.exit_code == 0, result.output
    for shown in ("cluster quotes", "quotes-broker-0", "ready", "10,000", "1,200", "34", "3.0 MiB", "512 B", "1h02m"):
        assert shown in result.output
    assert 'slow consumer at quotes-broker-0: {"client": "c7"' in result.output


def test_json_has_the_complete_answers(fake: FakeBroker, runner: CliRunner) -> None:
    fake.answer = (200, json.dumps(READY).encode())
    result = runner.invoke(main, ["status", fake.url + "/v1/status", "--json"])
    assert json.loads(result.output) == {fake.url: READY}


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ((200, json.dumps(READY | {"ready": False, "reason": "learning [3 groups]"}).encode()), "learning [3 groups]"),
        ((200, b'{"broker":"b","edge":{"draining":true}}'), "draining"),
        ((200, b'{"edge":null}'), "not ready"),
        ((404, b""), "HTTP 404: there is no status at this address; use the broker's administration port"),
        ((500, b""), "HTTP 500"),
        ((200, b"<html>"), "this is not a broker's administration listener"),
    ],
)
def test_broker_that_is_not_ready_ends_with_1(
    fake: FakeBroker, runner: CliRunner, answer: tuple[int, bytes], shown: str
) -> None:
    fake.answer = answer
    result = runner.invoke(main, ["status", fake.url])
    assert result.exit_code == 1, result.output
    assert shown in result.output


def test_broker_that_does_not_answer_is_named(fake: FakeBroker, runner: CliRunner) -> None:
    fake.answer = (200, json.dumps(READY).encode())
    result = runner.invoke(main, ["status", fake.url, "http://127.0.0.1:1"])
    assert result.exit_code == 1
    assert "http://127.0.0.1:1" in result.output
    assert "quotes-broker-0" in result.output


def test_linked_brokers_that_were_not_queried_are_named(fake: FakeBroker, runner: CliRunner) -> None:
    """`status` names a broker that the queried one is linked to or lists, but that was not queried, such as one that
    was started by hand."""
    servers = [{"url": f"ws://127.0.0.1:880{port}/ws", "weight": 100} for port in (0, 3)]
    links = {"quotes-broker-3": {"incarnation": 1, "waiting_bytes": 0}}
    fake.answer = (200, json.dumps(READY | {"pid": 4711, "servers": servers, "peer_links": links}).encode())
    result = runner.invoke(main, ["status", fake.url])
    assert result.exit_code == 0, result.output
    assert "4711" in result.output.splitlines()[2]
    remark = next(line for line in result.output.splitlines() if line.startswith("not queried"))
    assert "brokers: quotes-broker-3 (" in remark
    assert "ws://127.0.0.1:8803/ws" in remark


FULL = READY | {
    "broker": "quotes-broker-1",
    "logic": {**READY["logic"], "topics": 100000, "waiting_groups": 100, "zookeeper": {"connected": True, "age": 0.3}},
}


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_table_has_one_line_per_broker_within_the_width(width: int) -> None:
    dead = {"error": "does not answer (connection refused)", "broker": "quotes-broker-2"}
    frozen = FULL | {"logic": {**FULL["logic"], "zookeeper": {"connected": True, "age": 3599.0}}}
    draining = FULL | {"ready": False, "reason": "draining"}
    answers = {f"http://127.0.0.1:890{port}": each for port, each in enumerate((READY, frozen, dead, draining))}
    lines = [str(line) for line in status_view.format_table(answers, width)]
    if width < 120:
        note = lines.pop()
        assert note.startswith("columns omitted, because the terminal is narrow: queued")
        assert ("topics" in lines[1]) != ("topics" in note)
    assert len(lines) == 2 + len(answers)
    assert max(map(len, lines)) <= width
    assert lines[0] == "cluster quotes"
    assert lines[1].startswith("broker           state")
    assert lines[1].endswith("ZooKeeper")
    assert ("queued" in lines[1]) == (width >= 120)
    assert lines[2].endswith("connected")
    assert lines[3].endswith("no answer for 3599 s")
    assert lines[4] == "quotes-broker-2  does not answer (connection refused)"
    assert "draining" in lines[5]


def test_status_wraps_no_line_at_80_columns(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    fake.answer = (200, json.dumps(FULL).encode())
    result = CliRunner().invoke(main, ["status", fake.url, "http://127.0.0.1:1"])
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["broker", "quotes-broker-1", "http://127.0.0.1:1"]
    for column in ("queued", "pid", "topics", "up", "lag", "cache"):  # a pipe has unlimited width
        assert f" {column} " in lines[1]
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    result = CliRunner().invoke(main, ["status", fake.url, "http://127.0.0.1:1"])
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in result.output.splitlines()]
    assert [line.split()[0] for line in lines[1:4]] == ["broker", "quotes-broker-1", "http://127.0.0.1:1"]
    assert max(map(len, lines[:4])) <= 80
    assert lines[4].startswith("columns omitted, because the terminal is narrow: queued, pid")


@pytest.mark.parametrize(
    ("connected", "reported", "shown"),
    [
        (True, {"connected": True, "age": 4.0}, "connected"),
        (True, {"connected": True, "age": 4.6}, "no answer for 5 s"),
        (True, {"connected": True, "age": -1.0}, "connected"),
        (True, {}, "connected"),
        (False, {"connected": False, "age": 60.0}, "away"),
    ],
)
def test_zookeeper_is_connected_only_while_it_answers(
    fake: FakeBroker, runner: CliRunner, connected: bool, reported: dict[str, object], shown: str
) -> None:
    answer = FULL | {"zookeeper_connected": connected, "logic": {**FULL["logic"], "zookeeper": reported}}
    fake.answer = (200, json.dumps(answer).encode())
    result = runner.invoke(main, ["status", fake.url])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[2].endswith(shown)


def states(*names: str) -> Callable[[], list[SimpleNamespace]]:
    def state(name: str) -> SimpleNamespace:
        return SimpleNamespace(
            name=name, brokers=[SimpleNamespace(name=f"{name}-broker-0", admin="http://127.0.0.1:1")],
            is_drained=lambda broker: name == "away", token="",
        )  # fmt: skip

    return lambda: [state(name) for name in names]


def test_status_without_address_queries_the_local_cluster(monkeypatch: pytest.MonkeyPatch, runner: CliRunner) -> None:
    monkeypatch.setattr(local_state, "running_clusters", states("one", "two"))
    assert "several clusters run on this machine (one, two)" in runner.invoke(main, ["status"]).output
    result = runner.invoke(main, ["status", "--cluster", "two", "--json"])
    assert result.exit_code == 1
    assert list(json.loads(result.output)) == ["http://127.0.0.1:1"]
    result = runner.invoke(main, ["status", "--cluster", "two"])
    assert "two-broker-0  does not answer (connection refused)" in result.output
    result = runner.invoke(main, ["status", "--cluster", "three"])
    assert result.exit_code == 2
    assert "no cluster named three runs on this machine" in result.output
    monkeypatch.setattr(local_state, "running_clusters", states())
    assert "no cluster runs on this machine" in runner.invoke(main, ["status"]).output


def test_drained_broker_is_shown_as_drained(monkeypatch: pytest.MonkeyPatch, runner: CliRunner) -> None:
    monkeypatch.setattr(local_state, "running_clusters", states("away"))
    result = runner.invoke(main, ["status"])
    assert result.exit_code == 1
    assert "away-broker-0  drained; `migratory drain --back away-broker-0` starts it again" in result.output


def test_status_without_the_local_runner_needs_addresses(monkeypatch: pytest.MonkeyPatch, runner: CliRunner) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(name, name="psutil")

    monkeypatch.setattr(options, "import_module", missing)
    result = runner.invoke(main, ["status"])
    assert result.exit_code == 2
    assert "psutil is not installed: run `make install`" in result.output


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        ("size", 5 * 1024**3, "5.0 GiB"), ("size", None, "-"), ("number", None, "-"), ("age", None, "-"),
        ("age", 61, "1m01s"),
    ],
)  # fmt: skip
def test_numbers_are_formatted_with_units(function: str, value: object, text: str) -> None:
    assert getattr(status_view, function)(value) == text


@pytest.mark.parametrize("hostile", [False, True])
def test_answer_of_a_broker_controls_neither_lines_nor_the_terminal(fake: FakeBroker, hostile: bool) -> None:
    """A server at a wrong address answers what it likes; what it says stays in its own line."""
    inside = "\x1b[2J\x9b31m\u202e\nmore" if hostile else ""
    answer = json.loads(json.dumps(READY).replace("quotes-broker-0", "quotes" + json.dumps(inside)[1:-1]))
    answer |= {"cluster": f"quotes{inside}", "ready": False, "reason": f"late{inside}", "pid": f"7{inside}"}
    fake.answer = 200, json.dumps(answer).encode()
    result = CliRunner().invoke(main, ["status", fake.url])
    assert result.exit_code == 1
    assert all(line.isprintable() for line in result.output.splitlines())
    assert len(result.output.splitlines()) == 5
    assert ("quotes\\x1b[2J\\x9b31m\\u202e\\nmore is not ready: late\\x1b" in result.output) == hostile
    as_json = CliRunner().invoke(main, ["status", fake.url, "--json"]).output
    assert all(line.isprintable() for line in as_json.splitlines())
    assert json.loads(as_json) == {fake.url: answer}
