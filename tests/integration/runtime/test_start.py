"""A broker that cannot start logs the reason, and its exit code informs the supervisor. A broker that runs continues
without room for logs or free descriptors."""

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
from kazoo.client import KazooClient
from migratory_testing.processes import Brokers, broker_command
from migratory_testing.rawclient import request
from migratory_testing.waiting import poll

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


def run(folder: Path, settings: dict[str, Any] | str, *options: str) -> subprocess.CompletedProcess[str]:
    config = folder / "cluster.json"
    config.write_text(settings if isinstance(settings, str) else json.dumps(settings))
    return subprocess.run(broker_command(config, *options), capture_output=True, text=True, timeout=60, check=False)


def leads_to(descriptors: Path) -> list[str]:
    """Return the targets of the open descriptors in a folder of /proc. Leave out a descriptor that is closed
    meanwhile."""
    lines = []
    for each in descriptors.iterdir():
        with suppress(FileNotFoundError):
            lines.append(os.readlink(each))
    return lines


def has_joined(port: int) -> bool:
    """Return whether the broker with this administration port answers and has an incarnation in ZooKeeper."""
    with socket.socket() as asking:
        if asking.connect_ex(("127.0.0.1", port)) != 0:
            return False
        asking.sendall(b"GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = b""
        while part := asking.recv(65536):
            answer += part
        return b'"incarnation": ' in answer and b'"incarnation": 0,' not in answer


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
    """A broker that is started with standard input, output and error closed opens /dev/null in their place, so that
    no socket gets their descriptors. Regression: log lines went to a client's connection."""
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
        poll(lambda: has_joined(port), "it runs without a log")
    finally:
        process.terminate()
        process.terminate()
        assert process.wait(20) in (0, 1)


def test_clusters_of_one_name_with_two_paths_share_no_node(zookeepers: Any, tmp_path: Path) -> None:
    """On one path, the second broker would wait until the first one's session ends."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for path in ("/migratory.dev/one/twin", "/staging/migratory.dev/two/twin"):
            with socket.create_server(("127.0.0.1", 0)) as probe:
                port = probe.getsockname()[1]
            config = tmp_path / f"{len(processes)}.json"
            zookeeper = {"servers": zookeepers.servers, "path": path}
            config.write_text(json.dumps(settings(cluster="twin", zookeeper=zookeeper)))
            command = broker_command(config, "--name", "b0", "--admin", f"127.0.0.1:{port}")
            processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            poll(lambda port=port: has_joined(port), f"the broker below {path} has joined")  # type: ignore[misc]
        client = KazooClient(zookeepers.servers)
        client.start(10)
        try:
            assert client.exists("/migratory.dev/one/twin/brokers/b0")
            assert client.exists("/staging/migratory.dev/two/twin/brokers/b0")
            assert not client.exists("/migratory/twin")
        finally:
            client.stop()
            client.close()
        assert [process.poll() for process in processes] == [None, None]
    finally:
        for process in processes:
            process.terminate()
            process.terminate()
            process.wait(20)


def test_a_broker_with_too_few_descriptors_does_not_start(tmp_path: Path) -> None:
    """A broker that may open only 40 files does not start: it exits with 7 and logs how many it needs. Regression:
    it became ready, and most connections got no answer."""
    settings = {"cluster": "few", "brokers": ["b0"], "zookeeper": {"servers": "127.0.0.1:1"}}
    settings["delivery"] = {"minCopies": 1}
    config = tmp_path / "cluster.json"
    config.write_text(json.dumps(settings))
    command = shlex.join(broker_command(config, "--name", "b0"))
    done = subprocess.run(
        ["sh", "-c", f"ulimit -n 40; exec {command}"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 7, done.stderr
    (line,) = [json.loads(line) for line in done.stderr.splitlines() if '"start_failed"' in line]
    assert line["reason"] == (
        "a process may open 40 files here (ulimit -n), but a broker needs 144 or more: 128 for itself, and one for "
        "each client; raise the limit (ulimit -n, LimitNOFILE=)"
    )


@pytest.mark.parametrize("processes", [0, 1], ids=["one process", "one I/O process"])
def test_a_limit_of_descriptors_that_is_lowered_costs_clients_only(
    zookeepers: Any, tmp_path: Path, processes: int
) -> None:
    """When a running broker's limit of open files is lowered, it closes the clients beyond the new limit and refuses
    others at once, while its links to peers, ZooKeeper and the administration remain. It uses a raised limit again."""
    settings: dict[str, Any] = {"ioProcesses": processes, "limits": {"heartbeat": 100.0}}
    with Brokers(tmp_path / "b", zookeepers.servers, cluster=f"less{processes}", **settings) as brokers:
        brokers.start_all()
        broker = brokers["b0"]
        assert broker.process is not None
        pids = [broker.process.pid, *(each["pid"] for each in broker.status().get("io_processes", []))]
        before, _ = resource.prlimit(pids[-1], resource.RLIMIT_NOFILE)
        assert broker.metric("migratory_connection_capacity") == before - 128
        clients = [connected(broker.address("clients")) for _ in range(60)]
        poll(lambda: broker.metric("migratory_clients") == 60, "all are connected")

        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (158, before))
        poll(lambda: broker.metric("migratory_clients") == 30, "the oldest are closed")
        assert broker.event("descriptor_limit_changed")["limit"] == 158
        assert [ended(client) for client in clients] == [True] * 30 + [False] * 30
        for _ in range(5):
            begin = time.monotonic()
            assert refused(broker.address("clients"))
            assert time.monotonic() - begin < 2

        for pid in pids:  # below what is open already, and above the spare descriptors, which are opened first
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (40, before))
        poll(lambda: broker.metric("migratory_clients") == 0, "no client is left")
        for _ in range(60):
            assert refused(broker.address("clients"))
        # one administration connection at a time has the spare descriptor, and the last one may not have ended yet
        poll(lambda: broker.get("/metrics")[0] == 200, "the administration answers")
        assert broker.metric("migratory_connections_refused_total") >= 65
        time.sleep(6)  # longer than a session
        assert broker.get("/healthz")[0] == 200
        status = broker.status()
        assert status["zookeeper_connected"] is True
        assert sorted(status["peer_links"]) == ["b1", "b2"]
        assert [line for line in broker.lines() if line["event"] == "zookeeper_state"][1:] == []
        assert len([line for line in broker.lines() if line["event"] == "accept_failed"]) <= 3  # one in 10 s

        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (before, before))
        poll(lambda: broker.metric("migratory_connection_capacity") == before - 128, "the limit is read again")
        connected(broker.address("clients")).close()
        for client in clients:
            client.close()


def connected(address: tuple[str, int]) -> socket.socket:
    """Connect a client, send its `connect`, and return the socket."""
    client = socket.create_connection(address, timeout=10)
    client.sendall(request())
    answer = client.recv(1000)
    assert answer.startswith(b"HTTP/1.1 101"), answer
    message = b'{"op":"connect","version":1,"client":"me"}'
    client.sendall(bytes((0x81, 0x80 | len(message))) + bytes(4) + message)  # masked with zeros
    return client


def refused(address: tuple[str, int]) -> bool:
    """Return whether a new connection is answered with HTTP status 503, or is closed at once."""
    with socket.create_connection(address, timeout=5) as client:
        try:
            answer = client.recv(1000)
        except ConnectionResetError:
            return True
        return answer == b"" or answer.startswith(b"HTTP/1.1 503")


def ended(client: socket.socket) -> bool:
    """Return whether the broker has closed the connection, without waiting."""
    client.setblocking(False)
    try:
        while client.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_a_broker_out_of_descriptors_refuses_and_recovers(zookeepers: Any, tmp_path: Path) -> None:
    """A broker that has no free descriptor for new connections does not use up the CPU and serves again once the
    connections have ended and the limit is raised."""
    with Brokers(tmp_path / "b", zookeepers.servers, cluster="few") as brokers:
        brokers.start_all()
        broker = brokers["b0"]
        assert broker.process is not None
        pid = broker.process.pid
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        # below what the broker saw at its start: accepting itself fails, without a reserve
        before, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 20, most))
        held = [socket.create_connection(broker.address("clients"), timeout=10) for _ in range(60)]
        broker.event("accept_failed")
        busy = cpu_seconds(pid)
        time.sleep(1.0)
        assert cpu_seconds(pid) - busy < 0.7, "it does not spin"
        assert broker.process.poll() is None
        for item in held:
            item.close()
        poll(broker.ready, "it goes on")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (before, most))
        again = socket.create_connection(broker.address("clients"), timeout=10)
        again.sendall(b"GET /v1/servers HTTP/1.1\r\nHost: a\r\n\r\n")
        assert again.recv(100).startswith(b"HTTP/1.1 200 OK")
        again.close()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
