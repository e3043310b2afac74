"""`migratory up`: it starts a cluster, restarts processes that die, and never leaves a process behind. Also the
metrics that it records, drained brokers, TLS for development, and errors at the start."""

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
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import ANY

import psutil
import pyarrow.parquet as pq
import pytest
from migratory_local.cluster.state import ClusterState, running_clusters
from migratory_local.metrics.prometheus import find_prometheus
from migratory_testing.processes import descendants, runs
from migratory_testing.waiting import poll
from websockets.sync.client import connect

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
    """Runs of `migratory up` on a cluster of three brokers, with a state folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.workdir = folder / "work"
        self.states = folder / "state" / "migratory"
        self._file = folder / "cluster.yaml"
        self._file.write_text(CLUSTER)
        self._output_file = folder / "output"
        self._environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
        self._started: list[subprocess.Popen[bytes]] = []

    def up(self, *options: str, stdout: int | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "migratory_cli.main", "up", "-f", str(self._file)]
        with self._output_file.open("ab") as output:
            process = subprocess.Popen(
                [*command, "--workdir", str(self.workdir), "--metrics", "recorder", *options],
                stdout=output if stdout is None else stdout,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def output(self) -> str:
        return self._output_file.read_text()

    def state(self, process: subprocess.Popen[bytes]) -> ClusterState:
        """Wait until the cluster is up, at most 90 seconds, and return its state. Fail if the process ends before."""

        def clusters() -> list[ClusterState]:
            assert process.poll() is None, f"ended with {process.returncode}:\n{self.output()}"
            return running_clusters(self.states)

        poll(clusters, limit=90)
        return clusters()[0]

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait(10)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    instance = Runner(tmp_path)
    yield instance
    instance.end()


def all_ended(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=10)[1]


def is_ready(admin: str) -> bool:
    try:
        with urllib.request.urlopen(f"{admin}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def find_process(processes: list[psutil.Process], text: str) -> psutil.Process:
    return next(process for process in processes if runs(process, text))


def test_up_starts_restarts_and_ends_all_processes(runner: Runner) -> None:
    process = runner.up()
    state = runner.state(process)
    assert [broker.name for broker in state.brokers] == ["test-broker-0", "test-broker-1", "test-broker-2"]
    assert all(is_ready(broker.admin) for broker in state.brokers)
    assert "warning: spec.brokers.resources has no effect on one machine" in runner.output()
    before = descendants(process.pid)
    assert len(before) == 6

    broker = find_process(before, "--name=test-broker-1")
    broker.kill()
    poll(lambda: "test-broker-1 started again" in runner.output())
    poll(lambda: is_ready(state.brokers[1].admin), limit=60)
    member = find_process(before, "zookeeper-0/zoo.cfg")
    member.kill()
    poll(lambda: "zookeeper-0 started again" in runner.output())

    now = descendants(process.pid)
    assert len(now) == 6
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(broker.url)) for broker in state.brokers]
        for client in clients:
            client.send('{"op":"connect","version":1,"client":"sees the end"}')
            assert "welcome" in str(client.recv(10))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130, runner.output()
        for client in clients:  # a broker that is killed in its drain would send no close frame
            list(client)
            assert client.close_code == 1001
    assert all_ended([*before, *now])
    assert running_clusters(runner.states) == []
    recorded = pq.read_table(runner.workdir / "samples")
    assert "migratory_clients" in recorded.column("metric").to_pylist()


@pytest.mark.parametrize("reader", ["closed", "paused"])
def test_reader_of_standard_output_does_not_block_the_cluster(runner: Runner, reader: str) -> None:
    """`migratory up` still restarts dead brokers and ends at SIGTERM when the reader of its standard output has
    ended or is paused, as in `migratory up | tee log`."""
    runner._file.write_text(
        CLUSTER.replace("replicas: 3", "replicas: 1") + "  zookeeper: {replicas: 1}\n  delivery: {minCopies: 1}\n"
    )
    read, write = os.pipe()
    process = runner.up(stdout=write)
    os.close(write)
    state = runner.state(process)
    if reader == "closed":
        os.close(read)
    else:  # fill the pipe, whatever its size
        with open(f"/proc/{process.pid}/fd/1", "wb", buffering=0) as pipe:
            os.set_blocking(pipe.fileno(), False)
            while pipe.write(bytes(4096)) is not None:
                pass
    started = descendants(process.pid)
    for _ in range(2):  # the pipe may have room for the messages of the first death
        find_process(descendants(process.pid), "--name=test-broker-0").kill()
        poll(lambda: not is_ready(state.brokers[0].admin))
        poll(lambda: is_ready(state.brokers[0].admin), limit=60)
    started += descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert all_ended(started)
    assert running_clusters(runner.states) == []
    if reader == "paused":
        os.close(read)


def test_killed_runner_leaves_no_process_lock_or_state(runner: Runner) -> None:
    process = runner.up()
    runner.state(process)
    started = descendants(process.pid)
    assert len(started) == 6
    process.kill()
    process.wait(10)
    assert all_ended(started)
    # Neither its lock nor its state file blocks the next run.
    assert running_clusters(runner.states) == []
    again = runner.up()
    runner.state(again)
    again.send_signal(signal.SIGTERM)
    assert again.wait(30) == 143


def test_sigint_during_start_ends_all_processes(runner: Runner) -> None:
    process = runner.up()
    poll(lambda: any(runs(child, "zoo.cfg") for child in descendants(process.pid)))
    started = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(40) == 130
    assert all_ended(started)


def test_port_in_use_is_an_error(runner: Runner) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        process = runner.up("--ports", str(port))
        assert process.wait(60) == 2
    assert f"port {port} for test-broker-0's clients is in use" in runner.output()


def test_second_runner_on_a_work_folder_is_an_error(runner: Runner) -> None:
    first = runner.up()
    poll(lambda: (runner.workdir / "lock").exists() and (runner.workdir / "lock").read_text())
    second = runner.up()
    assert second.wait(60) == 2
    assert f"is in use by another runner (pid {first.pid})" in runner.output()
    first.send_signal(signal.SIGINT)
    assert first.wait(40) == 130


def test_metrics_of_the_load_generator_are_recorded(runner: Runner, tmp_path: Path) -> None:
    """With `up --scrape`, the samples recorded from a `bench run` include every delivery that the run counted
    (docs/start/local.md, "Load and an SLA report")."""
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
    assert process.wait(30) == 130, runner.output()
    assert "warning: --scrape" not in runner.output()
    received: dict[str, float] = {}
    for row in pq.read_table(runner.workdir / "samples").to_pylist():
        labels = dict(row["labels"])
        if row["metric"] == "migratory_received_total":
            assert labels["job"] == "migratory-bench"
            received[str(sorted(labels.items()))] = row["value"]
    assert sum(received.values()) == json.loads(result.read_text())["received"] > 0


def test_prometheus_scrapes_the_brokers(runner: Runner) -> None:
    if find_prometheus() is None:
        pytest.skip("no prometheus on PATH (Debian: apt-get install prometheus)")
    process = runner.up("--metrics", "prometheus")
    metrics = runner.state(process).metrics
    assert metrics.startswith("http://127.0.0.1:")

    def members() -> dict[str, str]:
        try:
            with urllib.request.urlopen(f"{metrics}/api/v1/query?query=migratory_member", timeout=2) as answer:
                series_list = json.load(answer)["data"]["result"]
        except (urllib.error.URLError, OSError):
            return {}  # Prometheus is starting
        return {series["metric"]["broker"]: series["value"][1] for series in series_list}

    expected = {"test-broker-0": "1", "test-broker-1": "1", "test-broker-2": "1"}
    poll(lambda: members() == expected, limit=60)
    processes = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130, runner.output()
    assert all_ended(processes)


def test_broker_is_drained_and_started_again(runner: Runner) -> None:
    """`migratory drain` ends a broker, which stays away until `drain --back` starts it again; a broker that was
    killed meanwhile is restarted. A drain that would leave too few brokers for minCopies is refused."""
    process = runner.up()
    state = runner.state(process)
    first, second = (find_process(descendants(process.pid), f"--name=test-broker-{number}") for number in (0, 1))

    def migratory(*command: str) -> tuple[int, str]:
        completed = subprocess.run(
            [sys.executable, "-m", "migratory_cli.main", *command], env=runner._environment, check=False, timeout=100,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        return completed.returncode, completed.stdout

    answers = json.loads(migratory("status", "--json")[1])
    assert {answer["pid"] for answer in answers.values()} >= {first.pid, second.pid}
    runner._file.write_text(CLUSTER.replace("groups: 8", "groups: 9"))
    assert migratory("drain", "test-broker-9")[0] == 2
    assert migratory("drain", "--back", "test-broker-0") == (2, ANY)
    code, text = migratory("drain", "test-broker-0")
    assert (code, not first.is_running()) == (0, True), text
    code, text = migratory("drain", "test-broker-1")
    assert code == 2, text
    assert "1 other broker is ready, but publications need 2 (delivery.minCopies)" in text
    assert "is already drained" in migratory("drain", "test-broker-0")[1]
    # Supervision continued meanwhile.
    second.kill()
    poll(lambda: "test-broker-1 started again" in runner.output())
    assert "test-broker-0 ended with 0; it stays away" in runner.output()
    assert not is_ready(state.brokers[0].admin)
    assert "cluster.yaml has changed; changes take effect at the next start" in runner.output()

    assert migratory("drain", "--back", "test-broker-0")[0] == 0, runner.output()
    assert is_ready(state.brokers[0].admin)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130


def test_invalid_cluster_file_starts_nothing(runner: Runner) -> None:
    runner._file.write_text(CLUSTER.replace("replicas: 3", "replicas: 2"))
    assert runner.up().wait(60) == 2
    assert "spec.brokers.replicas: 2 is not allowed; allowed: 3 or more" in runner.output()
    assert not runner.workdir.exists()


def test_dev_tls_makes_certificates_that_commands_trust(runner: Runner) -> None:
    """With tokens for the status pages, of which the runner has one of its own for the commands of this machine."""
    runner._file.write_text(CLUSTER + f"  security: {{administration: {{tokens: ['{'0' * 64}']}}}}\n")
    process = runner.up("--dev-tls")
    state = runner.state(process)
    assert all(broker.url.startswith("wss://") for broker in state.brokers)
    assert all(broker.admin.startswith("https://") for broker in state.brokers)
    assert Path(state.token_file).stat().st_mode & 0o777 == 0o600
    assert state.authority == str(runner.workdir / "tls" / "ca.crt")
    assert {path.stat().st_mode & 0o777 for path in runner.workdir.glob("tls/*.key")} == {0o600}
    command = [sys.executable, "-m", "migratory_cli.main", "pub", "quotes/eur", "1.08"]
    done = subprocess.run(command, env=runner._environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "Authority" in runner.output()
    status = [*command[:3], "status", "--json"]
    environment = {**runner._environment, "SSL_CERT_FILE": state.authority}
    for more, ready in (
        ([], True),
        ([state.brokers[0].admin], False),
        ([state.brokers[0].admin, "--token-file", state.token_file], True),
    ):
        done = subprocess.run(
            [*status, *more], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert all(answer.get("ready", False) is ready for answer in json.loads(done.stdout).values()), done.stdout
