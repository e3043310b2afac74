"""A broker that cannot start or continue logs the reason, and its exit code tells the supervisor."""

from __future__ import annotations

import json
import os
import resource
import shlex
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from migratory_testing.processes import Brokers, broker_command
from migratory_testing.waiting import poll

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


def run(folder: Path, settings: dict[str, Any] | str, *options: str) -> subprocess.CompletedProcess[str]:
    config = folder / "cluster.json"
    config.write_text(settings if isinstance(settings, str) else json.dumps(settings))
    return subprocess.run(broker_command(config, *options), capture_output=True, text=True, timeout=60, check=False)


def leads_to(descriptors: Path) -> list[str]:
    """Return the targets of the open descriptors in a folder of /proc. Skip a descriptor that is closed meanwhile."""
    lines = []
    for each in descriptors.iterdir():
        with suppress(FileNotFoundError):
            lines.append(os.readlink(each))
    return lines


def settings(**changed: Any) -> dict[str, Any]:
    return {"cluster": "test", "brokers": ["b0", "b1", "b2"], "zookeeper": {"servers": "127.0.0.1:1"}, **changed}


def test_a_wrong_configuration_names_the_field(tmp_path: Path) -> None:
    ended = run(tmp_path, settings(limits={"heartbeet": 1}), "--name", "b0")
    assert ended.returncode == 2
    assert "limits.heartbeet: unknown field; allowed are connectsPerSecond," in " ".join(ended.stderr.split())
    ended = run(tmp_path, settings(), "--name", "b7")
    assert ended.returncode == 2
    assert "'b7' is not one of brokers" in " ".join(ended.stderr.split())


def test_no_socket_gets_the_descriptor_of_a_closed_stderr(tmp_path: Path) -> None:
    """`migratory broker 2>&-`: log lines used to go to the next opened descriptor, such as a client's connection."""
    config = tmp_path / "cluster.json"
    config.write_text(json.dumps(settings()))
    line = shlex.join(broker_command(config, "--name", "b0"))
    process = subprocess.Popen(["bash", "-c", f"exec {line} <&- >&- 2>&-"])
    try:
        opened = Path(f"/proc/{process.pid}/fd")
        poll(lambda: sum("socket:" in place for place in leads_to(opened)) >= 3, "it listens")
        assert [os.readlink(opened / str(number)) for number in range(3)] == ["/dev/null"] * 3
    finally:
        process.kill()
        process.wait(10)


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for option in ("--clients", "--peers", "--admin"):
            ended = run(tmp_path, settings(), "--name", "b0", option, f"127.0.0.1:{port}")
            assert ended.returncode == 5
            (line,) = [json.loads(line) for line in ended.stderr.splitlines()]
            assert line["event"] == "start_failed"
            assert f"127.0.0.1:{port}: the address is in use by another process" in line["reason"]


def test_a_missing_zookeeper_is_named_at_the_start_timeout(tmp_path: Path) -> None:
    ended = run(tmp_path, settings(zookeeper={"servers": "127.0.0.1:1", "startTimeout": 1.5}), "--name", "b0")
    assert ended.returncode == 4  # it ended by itself, within the minute that a command gets here
    last = json.loads(ended.stderr.splitlines()[-1])
    assert last["event"] == "start_failed"
    assert "no ZooKeeper answered at 127.0.0.1:1 within 1.5 s" in last["reason"]


def test_a_full_disk_under_the_log_does_not_stop_the_broker(zookeepers: Any, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = tmp_path / "cluster.json"
    config.write_text(json.dumps(settings(cluster="full", zookeeper={"servers": zookeepers.servers})))
    with open("/dev/full", "wb") as full:
        command = broker_command(config, "--name", "b0", "--admin", f"127.0.0.1:{port}")
        process = subprocess.Popen(command, stdout=full, stderr=full)
    try:

        def alive() -> bool:
            with socket.socket() as asking:
                if asking.connect_ex(("127.0.0.1", port)) != 0:
                    return False
                asking.sendall(b"GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n")
                answer = b""
                while part := asking.recv(65536):
                    answer += part
                return b'"incarnation": 1' in answer

        poll(alive, "it runs without a log")
    finally:
        process.terminate()
        process.terminate()
        assert process.wait(20) in (0, 1)


def test_a_broker_out_of_descriptors_refuses_and_recovers(zookeepers: Any, tmp_path: Path) -> None:
    """More clients than descriptors: connected ones stay, the rest is refused at once, and later there is room."""
    with Brokers(tmp_path / "b", zookeepers.servers, cluster="few") as brokers:
        brokers.start_all()
        broker = brokers["b0"]
        assert broker.process is not None
        pid = broker.process.pid
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        # below what the broker saw at its start: accepting itself fails, without a reserve
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 20, used + 20))
        held = [socket.create_connection(broker.address("clients"), timeout=10) for _ in range(60)]
        broker.event("accept_failed")
        busy = cpu_seconds(pid)
        time.sleep(1.0)
        assert cpu_seconds(pid) - busy < 0.7, "it does not spin"
        assert broker.process.poll() is None
        for item in held:
            item.close()
        poll(broker.ready, "it goes on")
        again = socket.create_connection(broker.address("clients"), timeout=10)
        again.sendall(b"GET /v1/servers HTTP/1.1\r\nHost: a\r\n\r\n")
        assert again.recv(100).startswith(b"HTTP/1.1 200 OK")
        again.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
