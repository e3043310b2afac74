"""The data source where people install it: from its own wheel in a virtual environment that is not activated, and from
the product's wheel on the executors of a Spark cluster."""

from __future__ import annotations

import json
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest
from migratory_testing.installations import build_wheel, install, make_environment
from migratory_testing.realprometheus import Prometheus, backfill
from migratory_testing.recordings import DELIVERIES, SECONDS, START, openmetrics, recording
from migratory_testing.sparkcluster import LIMIT, StandaloneCluster, spark_environment

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]

OWN_PROGRAM = """
import importlib.util, json, sys
from migratory_spark.prometheus import register
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
options = {"matchers": "work_total", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T02:30:00Z"}
samples = spark.read.format("prometheus").options(url=sys.argv[1], **options).load()
rows = samples.groupBy("labels.broker").sum("value").sort("broker").collect()
others = [name for name in ("migratory_resources", "pandas") if importlib.util.find_spec(name)]
print(json.dumps([[list(row) for row in rows], others]))
"""

CLUSTER_PROGRAM = """
import json, os, sys
from migratory_resources.objectives import Objective
from migratory_spark import prometheus
from migratory_spark.jobs.inputs import PrometheusServers
from migratory_spark.report.build import as_plain, build_report
from migratory_spark.session import submitted_session

url, start, end = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def where(batches):
    import pyarrow
    from migratory_spark import prometheus

    for batch in batches:
        package = os.path.abspath(prometheus.__file__)
        yield pyarrow.RecordBatch.from_pydict({"folder": [os.getcwd()], "package": [package]})


with submitted_session("standalone") as session:
    samples = prometheus.read_samples(session, url, "migratory_received_total", start * 1000, end * 1000 + 1)
    highest = samples.groupBy("labels.broker").max("value").collect()
    delivery = Objective.model_validate({"name": "all", "type": "delivery", "target": "100"})
    servers = PrometheusServers(url, None, (start - 3600) * 1000, end * 1000, {})
    report = as_plain(build_report(session, servers.samples(session), start, end, [delivery]))
    executors = session.range(1).mapInArrow(where, "folder string, package string").collect()
print(json.dumps({
    "received": sum(row[1] for row in highest), "objective": report["objectives"][0],
    "executors": [list(row) for row in executors],
}))
"""


@pytest.fixture(scope="module")
def own_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT / "spark", tmp_path_factory.mktemp("own"))


def test_the_own_wheel_has_the_data_source_alone(own_wheel: Path) -> None:
    source = ROOT / "spark" / "migratory_spark" / "prometheus"
    modules = {f"migratory_spark/prometheus/{path.name}" for path in source.iterdir() if path.is_file()}
    names = set(zipfile.ZipFile(own_wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == modules
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    own, product = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text("utf-8"))["project"] for folder in ("spark", ".")
    )
    assert own["version"] == product["version"]
    assert set(own["dependencies"]) <= {*product["dependencies"], *product["optional-dependencies"]["spark"]}


def test_workers_run_the_interpreter_of_an_environment_that_is_not_activated(
    own_wheel: Path, known: Prometheus, tmp_path: Path
) -> None:
    python = make_environment(tmp_path / "venv", own_wheel)
    install(python, own_wheel)
    program = tmp_path / "program.py"
    program.write_text(OWN_PROGRAM)
    done = subprocess.run(
        [str(python), str(program), known.url],
        env=spark_environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    rows, others = json.loads(done.stdout.splitlines()[-1])
    assert rows == [[f"b{broker}", 7.0 * (broker + 1) * sum(range(600))] for broker in range(3)]
    assert others == []


def test_a_standalone_cluster_reads_and_reports_on_its_executors(installed: None, tmp_path: Path) -> None:
    wheel = build_wheel(ROOT, tmp_path / "wheel")
    python = make_environment(tmp_path / "venv", wheel, "spark")
    # Spark takes packages by these endings only: .py, .zip, .egg.
    package, program = wheel.rename(tmp_path / "migratory.zip"), tmp_path / "program.py"
    program.write_text(CLUSTER_PROGRAM)
    data = backfill(tmp_path / "data", openmetrics(recording()).splitlines()[:-1])
    with Prometheus(data) as server, StandaloneCluster(tmp_path / "cluster") as cluster:
        printed = cluster.submit(python, package, program, server.url, str(START), str(START + SECONDS))
    result = json.loads(printed.splitlines()[-1])
    assert result["received"] == DELIVERIES
    objective = result["objective"]
    assert (objective["good"], objective["total"], objective["verdict"]) == (DELIVERIES, DELIVERIES, "met")
    # Executors of their own, with the package that was submitted.
    ((folder, file),) = result["executors"]
    assert Path(folder).is_relative_to(cluster.work)
    assert Path(file).is_relative_to(cluster.work), file
