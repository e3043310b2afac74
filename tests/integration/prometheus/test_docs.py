"""docs/reference/prometheus-source.md and docs/how-to/notebook.md are right: their examples and SQL run, on a real
server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from migratory_testing.realprometheus import Prometheus, backfill
from migratory_testing.recordings import openmetrics, recording
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

DOCS = Path(__file__).parents[3] / "docs"
PAGE, NOTEBOOK = DOCS / "reference" / "prometheus-source.md", DOCS / "how-to" / "notebook.md"
DAY, HALF_HOUR = 1_793_491_200, 1800  # 2026-11-01T00:00:00Z
UP = 1_767_225_600


def blocks(language: str, page: Path = PAGE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def server(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("docs")
    requests = [
        f'http_requests_total{{code="{code}",job="web"}} {10 * number} {DAY + HALF_HOUR * number}'
        for number in range(48)
        for code in (200, 500)
    ]
    backfill(folder, requests)
    backfill(folder, openmetrics(recording()).splitlines()[:-1])
    backfill(folder, [f'up{{instance="i{number % 2}"}} {number % 2} {UP + 15 * number}' for number in range(8)])
    with Prometheus(folder) as prometheus:
        yield prometheus


def test_documented_python_example_runs(
    session: SparkSession, server: Prometheus, capsys: pytest.CaptureFixture[str]
) -> None:
    example = blocks("python")[0].replace("http://prometheus:9090", server.url)
    exec(compile(example, str(PAGE), "exec"), {})
    # 47 rises of 10; requests that failed are not asked for.
    assert re.search(r"\| *web\|2026-11-01\| *470.0\|", capsys.readouterr().out)


def test_documented_filters_select_their_rows(session: SparkSession, server: Prometheus) -> None:
    from migratory_spark.prometheus import register
    from migratory_spark.prometheus.source import PUSHDOWN

    register(session)
    variables: dict[str, Any] = {"spark": session}
    (example,) = (block for block in blocks("python") if "pushdown" in block)
    try:
        exec(compile(example.replace("http://prometheus:9090", server.url), str(PAGE), "exec"), variables)
        assert variables["failed"].count() == 48
    finally:
        session.conf.set(PUSHDOWN, "false")


def test_documented_sql_example_runs(session: SparkSession, server: Prometheus) -> None:
    from migratory_spark.prometheus import register

    register(session)
    create, select = blocks("sql")[0].replace("http://prometheus:9090", server.url).rstrip(";\n").split(";")
    session.sql(create)
    assert sorted(map(tuple, session.sql(select).collect())) == [("i0", 0.0), ("i1", 1.0)]


def test_the_notebook_runs_cell_by_cell(
    session: SparkSession,
    server: Prometheus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells: dict[str, Any] = {}
    for cell in blocks("python", NOTEBOOK):
        exec(compile(cell.replace("http://prometheus:9090", server.url), str(NOTEBOOK), "exec"), cells)
    # Of the recording: 50 deliveries a second by each broker, for a minute and half of one, all between 5 and 10 ms.
    # Those of the first second precede the first sample.
    printed = capsys.readouterr().out
    assert re.search(r"\| *b0\| *\+Inf\| *2950\.0\|\n\| *b1\| *\+Inf\| *1450\.0\|", printed)
    assert re.search(r"\| *b0\| *1\.0\|\n\| *b1\| *1\.0\|", printed)
    assert cells["percentiles"].round(6).drop_duplicates().to_numpy().tolist() == [[7.5, 9.95]]
    assert (tmp_path / "latency.png").stat().st_size > 10_000
    cells["buckets"].unpersist()
    cells["plt"].close("all")
