"""`migratory up`: what it starts, what it starts again, and that nothing of it is ever left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import ANY

import psutil
import pyarrow.parquet as pq
import pytest
from migratory_local.cluster.state import ClusterState, running_clusters
from migratory_local.metrics.prometheus import find_prometheus
from migratory_testing.families import descendants, runs
from migratory_testing.waiting import poll

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

CLUSTER = """\
apiVersion: migratory.dev/v1alpha1
kind: MigratoryCluster
metadata: {name: test}
spec:
  brokers: {replicas: 3, resources: {}}
  topics: {groups: 8}
"""


class Runner:
    """`migratory up` on a cluster of three, with a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.workdir = folder / "work"
        self.states = folder / "state" / "migratory"
        self._file = folder / "cluster.yaml"
        self._file.write_text(CLUSTER)
        self._output = folder / "output"
        self._environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        self._started: list[subprocess.Popen[bytes]] = []

    def up(self, *more: str, stdout: int | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "migratory_cli.main", "up", "-f", str(self._file)]
        with self._output.open("ab") as output:
            process = subprocess.Popen(
                [*command, "--workdir", str(self.workdir), "--metrics", "recorder", *more],
                stdout=output if stdout is None else stdout,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def said(self) -> str:
        return self._output.read_text()

    def state(self, process: subprocess.Popen[bytes]) -> ClusterState:
        """Waits until the cluster is up."""

        def there() -> list[ClusterState]:
            assert process.poll() is None, f"ended with {process.returncode}:\n{self.said()}"
            return running_clusters(self.states)

        poll(there, limit=90)
        return there()[0]

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait(10)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    made = Runner(tmp_path)
    yield made
    made.end()


def all_gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=10)[1]


def ready(admin: str) -> bool:
    try:
        with urllib.request.urlopen(f"{admin}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def named(processes: list[psutil.Process], text: str) -> psutil.Process:
    return next(process for process in processes if runs(process, text))


def test_up_starts_all_restarts_what_dies_and_ends_all(runner: Runner) -> None:
    process = runner.up()
    state = runner.state(process)
    assert [broker.name for broker in state.brokers] == ["test-broker-0", "test-broker-1", "test-broker-2"]
    assert all(ready(broker.admin) for broker in state.brokers)
    assert "warning: spec.brokers.resources has no effect on one machine" in runner.said()
    before = descendants(process.pid)
    assert len(before) == 6

    broker = named(before, "--name=test-broker-1")
    broker.kill()
    poll(lambda: "test-broker-1 started again" in runner.said())
    poll(lambda: ready(state.brokers[1].admin), limit=60)
    member = named(before, "zookeeper-0/zoo.cfg")
    member.kill()
    poll(lambda: "zookeeper-0 started again" in runner.said())

    now = descendants(process.pid)
    assert len(now) == 6
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130, runner.said()
    assert all_gone([*before, *now])
    assert running_clusters(runner.states) == []
    recorded = pq.read_table(runner.workdir / "samples")
    assert "migratory_clients" in recorded.column("metric").to_pylist()


@pytest.mark.parametrize("reader", ["gone", "asleep"])
def test_whoever_reads_what_up_says_holds_nothing_up(runner: Runner, reader: str) -> None:
    """`migratory up | tee log`, and tee dies or its terminal is held: brokers that died once stayed away for ever."""
    runner._file.write_text(
        CLUSTER.replace("replicas: 3", "replicas: 1") + "  zookeeper: {replicas: 1}\n  delivery: {minCopies: 1}\n"
    )
    read, write = os.pipe()
    process = runner.up(stdout=write)
    os.close(write)
    state = runner.state(process)
    if reader == "gone":
        os.close(read)
    else:  # until the pipe is full, whatever its size is
        with open(f"/proc/{process.pid}/fd/1", "wb", buffering=0) as more:
            os.set_blocking(more.fileno(), False)
            while more.write(bytes(4096)) is not None:
                pass
    started = descendants(process.pid)
    for _ in range(2):  # the first death may be all that the pipe takes
        named(descendants(process.pid), "--name=test-broker-0").kill()
        poll(lambda: not ready(state.brokers[0].admin))
        poll(lambda: ready(state.brokers[0].admin), limit=60)
    started += descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert all_gone(started)
    assert running_clusters(runner.states) == []
    if reader == "asleep":
        os.close(read)


def test_nothing_is_left_of_a_runner_that_was_killed(runner: Runner) -> None:
    process = runner.up()
    runner.state(process)
    started = descendants(process.pid)
    assert len(started) == 6
    process.kill()
    process.wait(10)
    assert all_gone(started)
    # Neither its lock nor its state stands in the way of the next one.
    assert running_clusters(runner.states) == []
    again = runner.up()
    runner.state(again)
    again.send_signal(signal.SIGTERM)
    assert again.wait(30) == 143


def test_sigint_while_it_starts_ends_all(runner: Runner) -> None:
    process = runner.up()
    poll(lambda: any(runs(child, "zoo.cfg") for child in descendants(process.pid)))
    started = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(40) == 130
    assert all_gone(started)


def test_a_busy_port(runner: Runner) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = runner.up("--ports", str(port))
        assert process.wait(60) == 2
    assert f"port {port} for test-broker-0's clients is in use" in runner.said()


def test_one_work_folder_one_runner(runner: Runner) -> None:
    first = runner.up()
    poll(lambda: (runner.workdir / "lock").exists() and (runner.workdir / "lock").read_text())
    second = runner.up()
    assert second.wait(60) == 2
    assert f"is in use by another runner (pid {first.pid})" in runner.said()
    first.send_signal(signal.SIGINT)
    assert first.wait(40) == 130


def test_a_benchs_metrics_are_kept_beside_the_brokers(runner: Runner, tmp_path: Path) -> None:
    """docs/local.md, "Load and an SLA report", up to the report: what it reads is all there, to the last delivery."""
    targets, result = tmp_path / "targets.json", tmp_path / "result.json"
    process = runner.up("--scrape", str(targets))
    urls = ",".join(broker.url for broker in runner.state(process).brokers)
    size = ["--subscribers", "30", "--topics", "10", "--duration", "4", "--warmup", "0"]
    subprocess.run(
        [sys.executable, "-m", "migratory_cli.main", "bench", "run", "--servers", urls, *size,
         "--metrics-targets", str(targets), "--json", str(result)],
        check=False, capture_output=True, timeout=100,
    )  # fmt: skip
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130, runner.said()
    assert "warning: --scrape" not in runner.said()
    received: dict[str, float] = {}
    for row in pq.read_table(runner.workdir / "samples").to_pylist():
        labels = dict(row["labels"])
        if row["metric"] == "migratory_received_total":
            assert labels["job"] == "migratory-bench"
            received[str(sorted(labels.items()))] = row["value"]
    assert sum(received.values()) == json.loads(result.read_text())["received"] > 0


def test_a_real_prometheus_scrapes_the_brokers(runner: Runner) -> None:
    if find_prometheus() is None:
        pytest.skip("no prometheus on PATH (Debian: apt-get install prometheus)")
    process = runner.up("--metrics", "prometheus")
    metrics = runner.state(process).metrics
    assert metrics.startswith("http://127.0.0.1:")

    def members() -> dict[str, str]:
        try:
            with urllib.request.urlopen(f"{metrics}/api/v1/query?query=migratory_member", timeout=2) as answer:
                found = json.load(answer)["data"]["result"]
        except (urllib.error.URLError, OSError):
            return {}  # it is starting
        return {series["metric"]["broker"]: series["value"][1] for series in found}

    wanted = {"test-broker-0": "1", "test-broker-1": "1", "test-broker-2": "1"}
    poll(lambda: members() == wanted, limit=60)
    everything = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130, runner.said()
    assert all_gone(everything)


def test_a_broker_is_drained_and_comes_back(runner: Runner) -> None:
    """`migratory up` starts a broker that ended again, but not one that somebody took out of service."""
    process = runner.up()
    state = runner.state(process)
    first, second = (named(descendants(process.pid), f"--name=test-broker-{number}") for number in (0, 1))

    def migratory(*command: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "migratory_cli.main", *command], env=runner._environment, check=False, timeout=100,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return done.returncode, done.stdout

    answers = json.loads(migratory("status", "--json")[1])
    assert {answer["pid"] for answer in answers.values()} >= {first.pid, second.pid}
    runner._file.write_text(CLUSTER.replace("groups: 8", "groups: 9"))
    assert migratory("drain", "test-broker-9")[0] == 2
    assert migratory("drain", "--back", "test-broker-0") == (2, ANY)
    code, text = migratory("drain", "test-broker-0")
    assert (code, not first.is_running()) == (0, True), text
    code, text = migratory("drain", "test-broker-1")
    assert code == 2, text
    assert "1 other broker is ready, and publications need 2 (delivery.minCopies)" in text
    assert "was drained before" in migratory("drain", "test-broker-0")[1]
    # Supervision has gone on meanwhile.
    second.kill()
    poll(lambda: "test-broker-1 started again" in runner.said())
    assert "test-broker-0 ended with 0; it stays away" in runner.said()
    assert not ready(state.brokers[0].admin)
    assert "cluster.yaml has changed; changes take effect at the next start" in runner.said()

    assert migratory("drain", "--back", "test-broker-0")[0] == 0, runner.said()
    assert ready(state.brokers[0].admin)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130


def test_an_invalid_file_starts_nothing(runner: Runner) -> None:
    runner._file.write_text(CLUSTER.replace("replicas: 3", "replicas: 2"))
    assert runner.up().wait(60) == 2
    assert "spec.brokers.replicas: 2 is not allowed; allowed: 3 or more" in runner.said()
    assert not runner.workdir.exists()
