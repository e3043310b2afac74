"""Whole load test runs with real worker processes against fake brokers: what a run reports when all is well, when a
delivery, broker or worker fails on purpose, and when it ends early. Also its metrics."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import urllib.request
from pathlib import Path

import pytest
from migratory_loadtest import Load, LoadEvent, LoadResult, Scenario
from migratory_loadtest.api import LoadFailed
from migratory_loadtest.records import write_records
from migratory_protocol.messages import Message
from migratory_testing.accounts import recount
from migratory_testing.fakebroker import Memory, fake_cluster


def scenario(brokers: Memory, **changes: object) -> Scenario:
    values: dict[str, object] = {
        "servers": brokers.urls,
        "subscribers": 60,
        "topics": 6,
        "publishers": 3,
        "rate": 4.0,
        "warmup": 0.5,
        "duration": 1.5,
        "workers": 2,
        "patience": 5.0,
    }
    return Scenario(**{**values, **changes})  # type: ignore[arg-type]


async def run(cluster: Memory, **changes: object) -> LoadResult:
    async with Load(scenario(cluster, **changes)) as load:
        return await load.result()


def judged(result: LoadResult) -> tuple[str, list[str]]:
    """Return the verdict and its reasons as on a machine that is not too busy to publish in time."""
    reasons = [reason for reason in result.reasons if not reason.startswith("the load generator itself was late")]
    return result.verdict if reasons else "met", reasons


async def test_clean_run_is_met_and_its_counts_equal_an_independent_count(tmp_path: Path) -> None:
    events: list[LoadEvent] = []
    async with fake_cluster(3) as cluster, Load(scenario(cluster), events.append) as load:
        result = await load.result()
        write_records(tmp_path / "account.jsonl", load.records)
        published = {name: len(log) for name, log in cluster.topics.items()}
    assert (judged(result), result.problems) == (("met", []), [])
    assert result.published == result.acknowledged == result.scheduled == sum(published.values()) == 48
    assert set(published.values()) == {8}
    assert result.expected == result.delivered == result.received == 60 * 8
    assert (result.lost, result.duplicates, result.reordered, result.unexpected, result.reconnects) == (0, 0, 0, 0, 0)
    counted = recount(tmp_path / "account.jsonl")
    assert counted == {name: getattr(result, name) for name in counted}
    before = result.latency_ms.before
    assert before.count == 60 * 6
    assert before.median is not None
    assert before.p99 is not None
    assert 0 < before.median <= before.p99 < 1000
    assert result.latency_ms.after.median is None
    assert sum(result.connections.before.values()) == sum(result.connections.after.values()) == 60
    assert set(result.connections.before) == {"broker-0", "broker-1", "broker-2"}
    assert result.traffic_gbps > 0
    assert next(event.phase for event in events if event.phase != "connecting") == "warmup"
    assert events[-1].phase == "done"
    decoded = json.loads(result.to_json())
    assert {"median", "mean", "stdev", "p90", "p95", "p99"} <= set(decoded["latency_ms"]["after"])
    assert {"p50", "p99", "max"} <= set(decoded["resume_seconds"]) & set(decoded["publish_gap_seconds"])


async def test_clients_of_a_killed_broker_resume_without_loss() -> None:
    async with fake_cluster(3) as cluster, Load(scenario(cluster, duration=4.0, settle=1.0)) as load:
        await load.measuring()
        on_broker = (await load.connections())["broker-1"]
        await load.mark("kill", "broker-1")
        await cluster.brokers[1].stop()
        result = await load.result()
    assert judged(result) == ("met", [])
    (mark,) = result.marks
    assert mark.clients >= on_broker > 0  # publishers count as well
    assert mark.clients == mark.disconnected == mark.resumed == mark.within_limit
    assert mark.others_disconnected == 0
    assert result.reconnects == result.resume_seconds.count == mark.clients
    assert result.clients_by_reconnects["1"] == mark.clients
    assert result.resume_seconds.max is not None
    assert 0 < result.resume_seconds.max < 5
    assert result.publish_gap_seconds.count > 0
    assert "broker-1" not in result.connections.after
    assert result.latency_ms.during.count > 0
    assert result.latency_ms.after.count > 0
    assert result.lost == 0


def sources(port: int) -> set[str]:
    """Return the local addresses of this machine's established connections to the port, from the kernel."""
    addresses = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        local, remote, state = line.split()[1:4]
        if state == "01" and int(remote.split(":")[1], 16) == port:
            addresses.add(socket.inet_ntoa(bytes.fromhex(local.split(":")[0])[::-1]))
    return addresses


async def test_connections_use_all_sources_and_generator_usage_is_reported() -> None:
    async with fake_cluster(1) as cluster, Load(scenario(cluster, sources=3)) as load:
        await load.measuring()
        assert sources(int(cluster.urls[0].rsplit(":", 1)[1].split("/")[0])) == {"127.0.0.2", "127.0.0.3", "127.0.0.4"}
        result = await load.result()
    assert result.delivered == result.expected > 0
    assert result.generator.workers == 2
    assert result.generator.cpu_seconds > 0
    assert result.generator.cpu_us_per_delivery == pytest.approx(
        result.generator.cpu_seconds / result.received * 1e6, rel=0.1
    )
    assert result.generator.peak_mib > 10


class PlantOnce:
    """A fault that a fake broker makes in one delivery: sequence number 5 of a topic is sent to the topic's first
    subscriber `copies` times (0: not at all)."""

    def __init__(self, copies: int) -> None:
        self.copies = copies
        self.done: Message | None = None

    def __call__(self, message: Message) -> int:
        if self.done is None and message.position.sequence == 5:
            self.done = message
            return self.copies
        return 1


async def test_single_lost_delivery_is_found_and_named() -> None:
    planted = PlantOnce(0)
    async with fake_cluster(1, planted) as cluster:
        result = await run(cluster, patience=2.0)
    assert planted.done is not None
    (problem,) = result.problems
    assert (result.verdict, result.lost, problem.kind) == ("missed", 1, "lost")
    assert (problem.topic, problem.positions) == (planted.done.topic, ["1:5"])
    assert result.delivered == result.expected - 1
    assert any("without a receipt" in error for error in result.errors)


async def test_repeated_delivery_is_dropped_and_counted() -> None:
    planted = PlantOnce(2)
    async with fake_cluster(1, planted) as cluster:
        result = await run(cluster)
    assert planted.done is not None
    assert (judged(result), result.duplicates, result.repeated) == (("met", []), 0, 1)


async def test_run_without_answers_is_missed() -> None:
    async with fake_cluster(1) as cluster:
        cluster.brokers[0].answers = False
        result = await run(cluster, patience=0.5)
    assert (result.acknowledged, result.unanswered) == (0, result.published)
    assert result.unknown == result.received == 60 * 8
    unanswered = f"{result.published} publications were never answered"
    assert judged(result) == ("missed", [unanswered, "nothing was acknowledged"])


async def test_mark_without_a_fault_is_insufficient() -> None:
    async with fake_cluster(1) as cluster, Load(scenario(cluster)) as load:
        await load.mark("kill", "broker-0")
        result = await load.result()
    assert result.verdict == "insufficient"
    assert "never lost their link" in result.reasons[0]


async def test_unreachable_broker_fails_the_run_with_the_reason() -> None:
    async with fake_cluster(1) as cluster:
        parameters = scenario(cluster, connect_timeout=1.5)
    load = Load(parameters)
    with pytest.raises(LoadFailed, match=r"0 of 60 subscribers .*connect_failed"):
        await load.__aenter__()
    assert load.pids


async def test_killed_worker_fails_the_run() -> None:
    async with fake_cluster(1) as cluster, Load(scenario(cluster)) as load:
        os.kill(load.pids[1], signal.SIGKILL)
        with pytest.raises(LoadFailed, match="worker 1 ended early"):
            await load.result()


async def test_metrics_equal_the_result_and_stay_for_the_last_scrapes() -> None:
    async with fake_cluster(2) as cluster:
        parameters = scenario(cluster, metrics=True, cluster="quotes", scrape_interval=0.2)
        async with Load(parameters) as load:
            result = await load.result()
            pages = [await asyncio.to_thread(scrape, target) for target in load.targets]
    assert len(pages) == 2
    totals: dict[str, float] = {}
    for page in pages:
        for line in page.splitlines():
            if line.startswith("migratory_"):
                name, value = line.rsplit(" ", 1)
                family = name.split("{")[0]
                totals[family] = totals.get(family, 0.0) + float(value)
                assert 'cluster="quotes"' in name
    assert totals["migratory_received_total"] == result.received == 480
    assert totals["migratory_expected_total"] == result.expected == 480
    assert totals["migratory_delivery_latency_seconds_count"] == 480
    assert totals["migratory_publish_seconds_count"] == result.acknowledged
    assert totals["migratory_delivery_latency_seconds_squared_total"] > 0
    for name in ("lost", "duplicates", "reordered", "gaps"):
        assert totals[f"migratory_{name}_total"] == 0
    assert any('clock="same"' in page and 'phase="live"' in page for page in pages)


async def test_workers_wait_for_a_late_scrape_of_their_last_counts() -> None:
    """The scrapes of a busy machine may fail at the end of a run."""
    async with fake_cluster(2) as cluster:
        parameters = scenario(cluster, metrics=True, cluster="quotes", scrape_interval=0.2)

        async def scrape_late(target: str) -> str:
            await asyncio.sleep(10 * parameters.scrape_interval)
            return await asyncio.to_thread(scrape, target)

        async with Load(parameters) as load:
            await load.measuring()
            for target in load.targets:
                await asyncio.to_thread(scrape, target)
            result = await load.result()
            late = asyncio.gather(*map(scrape_late, load.targets))
        received = re.findall(r"^migratory_received_total\{.*\} (.*)$", "".join(await late), re.MULTILINE)
    assert sum(map(float, received)) == result.received == 480


def scrape(target: str) -> str:
    with urllib.request.urlopen(f"http://{target}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


async def test_run_that_is_stopped_early_verifies_what_was_published() -> None:
    events: list[LoadEvent] = []
    published_enough = asyncio.Event()

    def on_event(event: LoadEvent) -> None:
        events.append(event)
        if event.acknowledged >= 48:
            published_enough.set()

    async with fake_cluster(3) as cluster, Load(scenario(cluster, duration=600.0), on_event) as load:
        await load.measuring()
        await load.mark("nothing", None)
        async with asyncio.timeout(60):
            await published_enough.wait()
        load.stop_publishing()
        result = await load.result()
    assert judged(result) == ("met", [])
    assert 48 <= result.published == result.acknowledged == result.scheduled < 600
    assert result.delivered == result.expected > 0
    assert result.marks[0].publish_gap_seconds.count == result.publish_gap_seconds.count > 0
    assert result.traffic_gbps > 1e-6, "over the measured time, not the planned duration"
    last = events[-1]
    assert (last.publishers, last.oldest) == (3, 0.0)
