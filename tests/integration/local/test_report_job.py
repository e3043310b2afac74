"""From scrapes to Spark's report on a machine without Java on its PATH: the recorder, the Java of a package, and the
process that makes the report."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web
from migratory_local.demo.report_job import write_request
from migratory_local.metrics.recorder import Recorder
from migratory_local.processes.java import find_java, spark_home
from migratory_resources import Objective

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

OBJECTIVE = {"name": "complete", "type": "delivery", "target": "100"}


async def record(folder: Path, lost: int) -> None:
    """Record 21 scrapes, one second apart, of a client that receives ten deliveries per second, as samples in the
    folder. The last scrape counts `lost` lost deliveries."""
    second = 0

    async def metrics(_: web.Request) -> web.Response:
        lines = [
            f'migratory_expected_total{{cluster="c"}} {10 * second}',
            f'migratory_received_total{{cluster="c",broker="b"}} {10 * second}',
            f'migratory_lost_total{{cluster="c",broker="b"}} {lost if second == 20 else 0}',
            'migratory_duplicates_total{cluster="c",broker="b"} 0',
            'migratory_reordered_total{cluster="c",broker="b"} 0',
        ]
        return web.Response(text="\n".join(lines) + "\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    recorder = Recorder(folder, now=lambda: 1000.0 + second)
    recorder.add(runner.addresses[0][1], "load")
    for second in range(21):  # noqa: B007 - read by `metrics` and the clock
        await recorder.scrape()
    await recorder.flush()
    await recorder.aclose()
    await runner.cleanup()


async def test_report_on_recorded_files_finds_the_lost_delivery(tmp_path: Path) -> None:
    """The report process, with Java from a package, finds the one lost delivery in recorded files: the verdict is
    "missed", and the page shows the incident and the note."""
    await record(tmp_path / "samples", lost=1)
    request, answer = tmp_path / "request.json", tmp_path / "report.json"
    write_request(
        request,
        samples=tmp_path / "samples",
        start=1000.0,
        end=1020.0,
        objectives=[Objective.model_validate(OBJECTIVE)],
        incidents=[{"kind": "kill broker", "broker": "b", "at": 1008.0, "until": 1010.0}],
        java_home=spark_home(find_java({"PATH": ""}), tmp_path),
        page=tmp_path / "report.html",
        notes=["the latency does not measure the brokers"],
    )
    completed = subprocess.run(  # noqa: ASYNC221 - nothing else runs here
        [sys.executable, "-m", "migratory_local.demo.report_job", str(request), str(answer)],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
    report = json.loads(answer.read_text())
    assert report["verdict"] == "missed"
    assert report["delivery"]["expected"] == 200
    assert report["delivery"]["lost"] == 1
    assert report["coverage"]["share"] == 1.0
    assert report["incidents"][0]["broker"] == "b"
    page = (tmp_path / "report.html").read_text()
    assert "missed" in page
    assert page.count("<svg") == 2  # the wide and the narrow plot of deliveries; there is no latency to plot
    assert "kill broker" in page
    # The notes are on the page as well.
    assert report["notes"][0] == "the latency does not measure the brokers"
    assert "the latency does not measure the brokers" in page
