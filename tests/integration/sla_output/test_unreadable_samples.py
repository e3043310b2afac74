"""Samples that cannot be read, by the command and on Spark's executors: exit code 4, one sentence that names the file
or the server, no traceback and no raw bytes. Ctrl-C ends a report with one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from migratory_spark.jobs.command_line import SamplesUnreadable
from migratory_spark.jobs.sla_report import ReportOptions, run_report
from migratory_testing import prometheus_wire as made
from migratory_testing.fakeprometheus import FakePrometheus, Reply, Request
from migratory_testing.recordings import SECONDS, START, recording, write_parquet
from migratory_testing.waiting import poll
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
READ = "/api/v1/read"
GARBAGE = bytes(range(128, 256)) * 20
RECEIVED = [
    ({"__name__": "migratory_received_total", "job": "load"}, [(1000 * (START + second), 1.0) for second in range(60)])
]
Damage = Callable[[bytes], bytes]


def command(*options: str) -> list[str]:
    window = ("--start", str(START), "--end", str(START + SECONDS))
    return [sys.executable, "-m", "migratory_cli.main", "sla", "report", *window, *options]


def unreadable(session: SparkSession, **options: Any) -> str:
    """Make a report with the shared session. Check that it fails with SamplesUnreadable and a printable message without
    a traceback, and return the message."""
    values: dict[str, Any] = {
        "samples": None, "prometheus": None, "settings": (), "start": float(START), "end": float(START + SECONDS),
        "objectives": None, "cluster": None, "window": None, "zone": "UTC", "replica_labels": (), "json_file": None,
        "html_file": None, "history": None,
    }  # fmt: skip
    with pytest.raises(SamplesUnreadable) as caught:
        run_report(ReportOptions(**(values | options)), lambda: nullcontext(session))
    message: str = caught.value.message
    assert message.isprintable()
    assert "Traceback" not in message
    return message


def after_the_check(later: Reply) -> Callable[[Request], Reply]:
    """Return the function by which a server answers: to reads with samples, until it is asked for the number of samples
    at the end of the check before Spark's start, and from then on with `later`; to all other requests with 404."""
    counted = threading.Event()

    def answer(request: Request) -> Reply:
        if request.path != READ:
            counted.set()
            return Reply(b"", 404)
        return later if counted.is_set() else Reply(made.streamed(RECEIVED))

    return answer


def reads_after_check(server: FakePrometheus) -> bool:
    """Return whether a read was requested after the number of samples."""
    paths = [request.path for request in server.requests]
    return paths[-1:] == [READ] and paths[0] == READ and set(paths) != {READ}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-200] + bytes(byte ^ 0xFF for byte in data[-200:-8]) + data[-8:],
        lambda data: data[:900] + bytes(byte ^ 0x5A for byte in data[900:1300]) + data[1300:],
    ],
    ids=["half", "footer", "page"],
)
def test_a_damaged_file_is_named(session: SparkSession, tmp_path: Path, damage: Damage) -> None:
    samples = write_parquet(recording(), tmp_path / "samples", files=2)
    file = samples / "samples-00001.parquet"
    file.write_bytes(damage(file.read_bytes()))
    message = unreadable(session, samples=samples)
    assert f"{file} is no Parquet file of samples, damaged, or only a part of one" in message


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (Reply(b"overloaded", 503), "answers HTTP 503: overloaded"),
        (Reply(GARBAGE, 500), "answers HTTP 500: 2560 bytes that are no text"),
        (Reply(made.streamed(RECEIVED)[:-9] + GARBAGE[:9]), "checksum is wrong"),
        (Reply(GARBAGE), "bytes that are no text"),
        (Reply(made.streamed(RECEIVED), cut=20), "broke off: Connection broken"),
        (Reply(b"<html>", kind="text/html"), "text/html"),
    ],
    ids=["unavailable", "failed", "flipped", "garbage", "cut", "page"],
)
def test_a_server_that_fails_after_the_check_is_named(session: SparkSession, later: Reply, words: str) -> None:
    with FakePrometheus(after_the_check(later)) as server:
        message = unreadable(session, prometheus=server.url, settings=[("retries", "0")])
    assert server.url in message
    assert words in message


def test_the_command_names_the_server_and_exits_with_code_four(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    with FakePrometheus(after_the_check(Reply(b"overloaded", 503))) as server:
        done = subprocess.run(
            command("--prometheus", server.url, "--prometheus-option", "retries=0", "--json", str(target)),
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (4, ""), done.stderr
    assert done.stderr == f"Error: Spark could not read the samples: {server.url}: answers HTTP 503: overloaded\n"
    assert os.listdir(tmp_path) == []


def test_ctrl_c_ends_a_report_with_one_line(tmp_path: Path) -> None:
    """At an interrupt of the whole process group while Spark's workers read, the command exits with 130, prints only
    "Interrupted", and leaves no file."""
    target = tmp_path / "report.json"
    waiting = Reply(made.streamed(RECEIVED), wait=threading.Event())
    with FakePrometheus(after_the_check(waiting)) as server:
        process = subprocess.Popen(
            command("--prometheus", server.url, "--json", str(target)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            poll(lambda: reads_after_check(server), "a task reads", 120)
            os.killpg(process.pid, signal.SIGINT)
            out, errors = process.communicate(timeout=60)
        finally:
            process.kill()
            assert waiting.wait is not None
            waiting.wait.set()
    assert (process.returncode, out, errors) == (130, "", "Interrupted\n")
    assert os.listdir(tmp_path) == []
