"""Whole jobs that make reports, from a folder and from a real Prometheus, run by the command and by spark-submit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyspark
import pytest
from migratory_local.demo.report_job import JAVA_OPTIONS
from migratory_local.metrics.prometheus import find_prometheus
from migratory_local.processes.java import find_java, spark_home
from migratory_local.processes.network import LOOPBACK, free_ports
from migratory_local.processes.process import Process
from migratory_spark.jobs import sla_report as job
from migratory_spark.jobs.command_line import BadInput, SamplesUnreadable
from migratory_spark.jobs.inputs import PrometheusServers, RecorderFolder
from migratory_spark.jobs.recorder_compact import content_digest, run_compact
from migratory_spark.jobs.sla_report import ReportOptions, run_report
from migratory_spark.prometheus.blocks import STALE
from migratory_testing.prometheus_wire import of_bits
from migratory_testing.recordings import DELIVERIES, SECONDS, START, openmetrics, recording, write_parquet
from migratory_testing.waiting import poll
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]
LIMIT = 600.0
NAN = (STALE, 0x7FF8000000000001)
SCHEMA = Path(__file__).parents[3] / "docs" / "schemas" / "sla-report.v1alpha2.json"
WINDOW = ["--start", str(START), "--end", str(START + SECONDS)]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a Prometheus that has the recordings of two clusters, and yield its URL. Skip the test where Prometheus is
    not installed."""
    executable, promtool = find_prometheus(), shutil.which("promtool")
    if executable is None or promtool is None:
        pytest.skip("no prometheus and promtool on PATH: install Debian's prometheus (make debian)")
    folder = tmp_path_factory.mktemp("prometheus")
    text = folder / "samples.txt"
    text.write_text(openmetrics([*recording(), *recording(cluster="other", lost=4)]))
    subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    (folder / "prometheus.yml").write_text("{}\n")
    port = free_ports(1)[0]
    server = Process(
        "prometheus",
        [
            str(executable),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address={LOOPBACK}:{port}",
        ],
        folder / "log",
    )
    server.start()
    url = f"http://{LOOPBACK}:{port}"
    try:
        poll(lambda: ready(url), "prometheus is ready", 60)
        yield url
    finally:
        server.kill()
        server.wait(10)


def ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def run(session: SparkSession, folder: Path, **changes: Any) -> tuple[int, dict[str, Any]]:
    """Make a report with the Spark session that all of these tests share; `changes` replace options. Return the exit
    code and the report."""
    target = folder / "report.json"
    values: dict[str, Any] = {
        "samples": None, "prometheus": None, "settings": (), "start": float(START), "end": float(START + SECONDS),
        "objectives": None, "cluster": None, "window": 5.0, "zone": "UTC", "replica_labels": (), "json_file": target,
        "html_file": None, "history": None,
    }  # fmt: skip

    def shared() -> AbstractContextManager[SparkSession]:
        return nullcontext(session)

    code = run_report(ReportOptions(**(values | changes)), shared)
    report: dict[str, Any] = json.loads(target.read_text())
    return code, report


@pytest.fixture(scope="module")
def made(session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, dict[str, Any]]:
    """Make the recording's report with all its files. Return the folder of the files, the exit code and the report."""
    folder = tmp_path_factory.mktemp("made")
    samples = write_parquet(recording(), folder / "samples")
    code, report = run(session, folder, samples=samples, html_file=folder / "page.html", history=folder / "history")
    return folder, code, report


def test_a_report_has_every_form_and_the_same_figures(made: tuple[Path, int, dict[str, Any]]) -> None:
    folder, code, report = made
    assert code == 0, report["objectives"]
    assert report["verdict"] == "met"
    assert report["cluster"] == "quotes"
    assert report["delivery"]["received"] == report["delivery"]["expected"] == DELIVERIES
    schema = json.loads(SCHEMA.read_text())
    for definition in schema["$defs"].values():
        definition["additionalProperties"] = False
    jsonschema.Draft202012Validator(schema).validate(report)
    text = (folder / "page.html").read_text()
    assert text.count("<svg") >= 10
    assert f"{DELIVERIES:,}" in text
    rows = ds.dataset(folder / "history" / "latency", format="parquet", partitioning="hive").to_table().to_pylist()
    assert sum(row["count"] for row in rows if row["broker"] == "") == DELIVERIES


def test_an_unscraped_window_is_insufficient_with_code_three(session: SparkSession, tmp_path: Path) -> None:
    samples = write_parquet(recording(), tmp_path / "samples")
    code, report = run(session, tmp_path, samples=samples, start=START + 7200.0, end=START + 7260.0)
    assert code == 3
    assert report["verdict"] == "insufficient"


def test_files_that_are_not_samples_are_unreadable(session: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    (folder / "samples-0.parquet").write_bytes(b"this is no Parquet file")
    with pytest.raises(
        SamplesUnreadable, match=r"Spark could not read the samples: \S+samples-0.parquet is no Parquet file"
    ):
        run(session, tmp_path, samples=folder)


def test_compacted_samples_are_the_same_samples(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    day_before = recording(start=START - 86_400)
    # The end of a series, and a sample without a number.
    first = day_before[0]
    day_before += [
        first._replace(timestamp=first.timestamp + 1 + place, value=of_bits(bits)) for place, bits in enumerate(NAN)
    ]
    samples = write_parquet([*recording(), *day_before], tmp_path / "samples", files=40)
    to = tmp_path / "compact"

    def shared() -> AbstractContextManager[SparkSession]:
        return nullcontext(session)

    assert run_compact(samples, to, shared) == 0
    captured = capsys.readouterr()
    assert "40 files" in captured.out
    assert [line.split()[0] for line in captured.err.splitlines()] == ["reading", "writing", "comparing"]
    files = list(to.rglob("*.parquet"))
    assert {file.parent.name for file in files} == {"day=2025-12-31", "day=2026-01-01"}
    assert len(files) == 2
    count = len(day_before) + len(recording())
    assert sum(pq.read_metadata(file).num_rows for file in files) == count
    values = np.concatenate([pq.read_table(file)["value"].to_numpy() for file in files])
    assert sorted(values[np.isnan(values)].view(np.uint64).tolist()) == sorted(NAN)
    # Of both days and found below the folder, too.
    original, copy = (content_digest(RecorderFolder(folder, None).read(session)) for folder in (samples, to))
    assert original == copy
    assert original.rows == count
    for wrong in (to, samples / "inside"):
        with pytest.raises(BadInput, match="--to"):
            run_compact(samples, wrong, shared)


def test_the_command_reports_from_prometheus_what_the_folder_says(
    prometheus: str, made: tuple[Path, int, dict[str, Any]], tmp_path: Path
) -> None:
    target, page = tmp_path / "report.json", tmp_path / "report.html"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "migratory_cli.main", "sla", "report", "--prometheus", prometheus, *WINDOW),
            *("--cluster", "quotes", "--window", "5", "--json", str(target), "--html", str(page)),
        ],
        capture_output=True, text=True, check=False, timeout=LIMIT, env={**os.environ, "COLUMNS": "80"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # The other cluster of this server lost something.
    assert json.loads(target.read_text()) == made[2]
    assert page.read_text() == (made[0] / "page.html").read_text()
    assert "verdict: met" in done.stdout
    assert str(page) in done.stdout
    assert "…" not in done.stdout
    assert done.stderr == "", "a JVM that announces its defaults and warns of what does not matter"


def test_prometheus_has_the_samples_that_the_folder_has(prometheus: str, session: SparkSession, tmp_path: Path) -> None:
    folder = RecorderFolder(write_parquet(recording(), tmp_path / "samples"), None)
    servers = PrometheusServers(prometheus, "quotes", START * 1000, (START + SECONDS) * 1000, {})
    servers.check()
    there, here = (content_digest(source.read(session)) for source in (servers, folder))
    assert there == here
    assert there.rows == len(recording())
    # Without a name it is both clusters'; what names none, such as when a process began, is there once.
    both = PrometheusServers(prometheus, None, START * 1000, (START + SECONDS) * 1000, {})
    shared = sum("cluster" not in sample.labels for sample in recording())
    assert shared
    assert content_digest(both.read(session)).rows == 2 * there.rows - shared


def test_an_unknown_cluster_is_bad_input(prometheus: str, session: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nobody"):
        run(session, tmp_path, prometheus=prometheus, cluster="nobody")


def test_spark_submit_runs_the_job_and_exits_with_its_code(tmp_path: Path) -> None:
    samples, target = write_parquet(recording(lost=2), tmp_path / "samples"), tmp_path / "report.json"
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [
            *(str(submit), "--master", "local[2]", "--conf", "spark.ui.enabled=false"),
            *("--driver-java-options", JAVA_OPTIONS, f"local://{job.__file__}"),
            *("--samples", str(samples), *WINDOW, "--json", str(target)),
        ],
        capture_output=True, text=True, check=False, timeout=LIMIT, cwd=tmp_path,
        env={
            **os.environ,
            "JAVA_HOME": str(spark_home(find_java(), tmp_path)),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": LOOPBACK,
        },
    )  # fmt: skip
    assert done.returncode == 1, done.stderr[-4000:]
    assert json.loads(target.read_text())["delivery"]["lost"] == 2
    assert "verdict: missed" in done.stdout
