"""Spark reads from a real Prometheus that scrapes exporters: the increase equals the exporters' own counts, although
one of three is killed and restarted. A stream reads every sample once, and one of available samples ends."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from migratory_local.processes.network import free_ports
from migratory_spark.prometheus import read_samples, register
from migratory_spark.prometheus.blocks import STALE
from migratory_spark.read.samples import table_source
from migratory_testing.counter_increases import increases
from migratory_testing.realprometheus import Prometheus
from migratory_testing.waiting import poll
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]

INTERVAL = 500
EXPORTER = """
import json, sys, threading, time
from prometheus_client import REGISTRY, Counter, start_http_server
from prometheus_client.core import CounterMetricFamily

port, log = int(sys.argv[1]), open(sys.argv[2], "a", buffering=1)
lock = threading.Lock()
done = 0

class Work:
    def collect(self):
        with lock:
            family = CounterMetricFamily("work", "Pieces of work.", labels=["broker"])
            family.add_metric(["b0"], done)
            print(json.dumps({"served": done}), file=log)
        yield family

REGISTRY.register(Work())
start_http_server(port, addr="127.0.0.1")
going = True

def work():
    global done
    while going:
        with lock:
            done += 3
            print(json.dumps({"done": done}), file=log)
        time.sleep(0.001)

worker = threading.Thread(target=work)
worker.start()
sys.stdin.readline()  # a line ends the work, the end of input the process
going = False
worker.join()
print(json.dumps({"final": done}), file=log)
sys.stdin.read()
"""


class Exporter:
    """A process with a counter `work_total` that rises all the time, and a log of the counter's values: one line for
    each increase (done), for each scrape (served), and for the end (final)."""

    def __init__(self, folder: Path, name: str, port: int) -> None:
        self.target = f"127.0.0.1:{port}"
        self._log = folder / f"{name}.jsonl"
        command = [sys.executable, "-c", EXPORTER, str(port), str(self._log)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def told(self, kind: str) -> list[int]:
        """Return the values of all log lines of one kind (done, served or final), in order; an empty list without a
        log."""
        if not self._log.exists():
            return []
        lines = self._log.read_text().splitlines()
        found = (json.loads(line) for line in lines if line.endswith("}"))
        return [one[kind] for one in found if kind in one]

    def rest(self) -> int:
        """Stop the counter and return its last value. The exporter's process continues to serve the value."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return poll(lambda: self.told("final"), f"{self.target} rests")[0]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)
        if self._process.stdin is not None:
            self._process.stdin.close()


@pytest.fixture
def exporters(tmp_path: Path) -> Iterator[list[Exporter]]:
    all_exporters = [Exporter(tmp_path, f"e{number}", port) for number, port in enumerate(free_ports(3))]
    yield all_exporters
    for exporter in all_exporters:
        exporter.kill()


def scraped(server: Prometheus, exporter: Exporter) -> float:
    return server.value(f'work_total{{instance="{exporter.target}"}}') or 0.0


def total(session: SparkSession, samples: DataFrame, began: int, ended: int) -> float:
    return sum(each.increase for each in increases(session, table_source(samples), began, ended, ["work_total"]))


def test_totals_equal_the_truth(session: SparkSession, tmp_path: Path, exporters: list[Exporter]) -> None:
    began = round(time.time() * 1000) - 1000
    targets = [exporter.target for exporter in exporters]
    for exporter in exporters:
        poll(lambda exporter=exporter: exporter.told("done"), "it works")  # type: ignore[misc]
    with Prometheus(tmp_path / "server", targets, INTERVAL) as server:
        victim = exporters[2]
        poll(lambda: all(scraped(server, exporter) > 0 for exporter in exporters), "all are scraped")
        poll(lambda: len(victim.told("served")) >= 4, "it is scraped some times more")
        victim.kill()
        first_life, second_life = victim.told("done")[-1], victim.told("served")[-1]
        port = int(victim.target.rpartition(":")[2])
        poll(lambda: server.value(f'up{{instance="{victim.target}"}}') == 0, "it is found to be down")
        exporters[2] = again = Exporter(tmp_path, "again", port)
        poll(lambda: 0 < scraped(server, again) < first_life or len(again.told("served")) >= 2, "it is scraped again")
        truth = {exporter.target: exporter.rest() for exporter in exporters}
        for exporter in exporters:
            poll(lambda exporter=exporter: scraped(server, exporter) == truth[exporter.target], "the rest is scraped")  # type: ignore[misc]
        ended = round(time.time() * 1000) + 1
        samples = read_samples(session, server.url, '{job="load"}', began, ended).cache()
        last = samples.where((F.col("metric") == "work_total") & (F.col("labels")["instance"] == victim.target))
        stale = [row for row in last.collect() if math.isnan(row.value)]
        # All rises of one instance; the label stands in the samples, not among what reports group by.
        by_instance = {
            target: total(session, samples.where(F.col("labels")["instance"] == target), began, ended)
            for target in targets
        }
        together = total(session, samples, began, ended)
    assert [by_instance[target] for target in targets[:2]] == [truth[target] for target in targets[:2]]
    # What the killed one did after its last scrape is gone with it, and nothing else.
    assert by_instance[victim.target] == second_life + truth[victim.target]
    assert first_life >= second_life
    assert together == sum(by_instance.values())
    # Its death is in the samples: Prometheus marked the series' end.
    assert [struct.unpack(">Q", struct.pack(">d", row.value))[0] for row in stale] == [STALE]


def test_a_stream_reads_every_sample_once(session: SparkSession, tmp_path: Path, exporters: list[Exporter]) -> None:
    register(session)
    targets = [exporter.target for exporter in exporters]
    with Prometheus(tmp_path / "server", targets, INTERVAL) as server:
        began = round(time.time() * 1000) - 1000
        options = {"url": server.url, "matchers": "work_total", "start": str(began // 1000), "delay": "2s"}
        frame = session.readStream.format("prometheus").options(**options).load()
        query = (
            frame.writeStream.format("memory")
            .queryName("followed")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="200 milliseconds")
            .start()
        )
        try:
            poll(
                lambda: len(session.sql("SELECT DISTINCT timestamp FROM followed").collect()) >= 12,
                "four scrapes of three exporters are told",
                120,
            )
            assert query.exception() is None
        finally:
            query.stop()
        rows = session.sql("SELECT labels['instance'] AS instance, timestamp, value FROM followed").collect()
        until = max(row.timestamp for row in rows)
        exact = read_samples(session, server.url, "work_total", began // 1000 * 1000, until + 1)
        truth = [(row.labels["instance"], row.timestamp, row.value) for row in exact.collect()]
    assert sorted(map(tuple, rows)) == sorted(truth)
    assert {row.instance for row in rows} == set(targets)


def test_a_stream_of_available_samples_ends(session: SparkSession, known: Prometheus, tmp_path: Path) -> None:
    register(session)
    options = {
        "url": known.url, "matchers": "work_total", "start": "2026-01-01T00:00:00Z", "end": "2026-01-01T01:00:00Z",
        "shape": "series", "columns": "metric,timestamps", "partition": "20m",
    }  # fmt: skip
    frame = session.readStream.format("prometheus").options(**options).load()
    writer = frame.writeStream.format("memory").queryName("there").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert query.awaitTermination(120)
    sizes = [row[0] for row in session.sql("SELECT size(timestamps) FROM there").collect()]
    assert sizes == [80] * 9
