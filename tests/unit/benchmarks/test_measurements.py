"""Measurements of servers that stall, die or lose clients: delays count in the figures, a loss fails the measurement.

Also the search for the highest rate, and results without a compiler or a tracer of system calls.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from migratory_loadtest.histogram import Histogram, bucket_bounds
from msgspec import structs

from benchmarks import ipc, machine
from benchmarks.benchmark import TINY, Benchmark
from benchmarks.measurements import failover, fanout, latency, memory, storm
from benchmarks.processes import MeasurementFailed
from benchmarks.receivers import ReceiverTotals
from benchmarks.rig import Rig
from benchmarks.systems import System, Workload, nats


def totals(latencies: list[float], **more: Any) -> ReceiverTotals:
    histogram = Histogram(bucket_bounds())
    for value in latencies:
        histogram.observe(value)
    own: dict[str, Any] = {"counts": histogram.counts, "total": histogram.total, "squares": histogram.squares,
                           "largest": histogram.largest, "subscribed": [20, 20, 20]}  # fmt: skip
    return ReceiverTotals([ipc.ReceiverReport(**{**own, **more})])


def bench(tmp_path: Path, **sizes: Any) -> Benchmark:
    return Benchmark(structs.replace(TINY, **sizes), tmp_path, lambda _: None)


class Cluster:
    """A stand-in for the product's brokers that runs no processes."""

    protocol = "product"
    urls = ("ws://a/ws",)

    def __init__(self, **_: Any) -> None:
        self.addresses = [("127.0.0.1", 1)]
        self.cluster = self
        self.pids = [1]
        self.brokers = [SimpleNamespace(name=name, process=SimpleNamespace(pid=None)) for name in "abc"]

    async def start(self, *_: Any) -> None:
        pass

    async def stop(self) -> None:
        pass

    def kill_broker(self, name: str, *, restart: bool) -> None:
        assert (name, restart) == ("b", False)


class Windows:
    """A stand-in for receivers that return the given reports one after another."""

    def __init__(self, *given: ReceiverTotals) -> None:
        self.given = list(given)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def report(self, reset: bool = False) -> ReceiverTotals:
        return self.given.pop(0)

    async def wait_for(self, deliveries: int, limit: float = 30.0) -> ReceiverTotals:
        return self.given.pop(0) if limit == failover.CATCH_UP else totals([])


class Publishing:
    acknowledged = late = 0

    def __init__(self, *_: Any) -> None:
        pass

    async def run(self, seconds: float) -> None:
        pass

    async def __aenter__(self) -> Publishing:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


async def test_deliveries_delayed_by_a_takeover_count_as_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliveries of a takeover that came 25 s late count in the latency after it: the P99 is more than 100 times
    that before, and the lost clients count as resumed."""
    quick, late = [0.01] * 200, [25.0] * 100
    given = Windows(
        totals([]), totals(quick * 2), totals(quick, disconnected=20, resumes=[0.5] * 20),
        totals(quick + late, disconnected=20, subscribed=[30, 0, 30]),
    )  # fmt: skip
    monkeypatch.setattr(failover, "Product", Cluster)
    monkeypatch.setattr(failover, "Receivers", lambda *_: given)
    monkeypatch.setattr(failover, "OpenLoopPublisher", Publishing)
    monkeypatch.setattr(failover, "SETTLE", 0.0)
    outcome = await failover.kill_one(bench(tmp_path), Workload(subscribers=60, topics=6, payload=140, rate=1.0), 0.0)
    assert outcome["p99_ratio"] > 100
    assert outcome["after_ms"]["count"] == 300
    assert (outcome["resumed"], outcome["others_disconnected"]) == (20, 0)


async def test_publishing_lasts_as_long_as_the_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []

    class Nothing:
        late = 0

        def __init__(self, _offsets: object, _rate: float, count: int) -> None:
            counts.append(count)

        def next_due(self) -> None:
            return None

    monkeypatch.setattr(failover, "SendSchedule", Nothing)
    monkeypatch.setattr(failover, "Client", lambda _: None)
    for rate, seconds in ((0.1, 34.0), (0.1, 30.0), (1.0, 0.2)):
        await failover.OpenLoopPublisher([], Workload(subscribers=60, topics=6, payload=140, rate=rate)).run(seconds)
    assert counts == [4, 3, 1]


async def test_late_deliveries_of_live_clients_are_counted() -> None:
    steps = [totals([0.01], deliveries=5), totals([0.01], deliveries=5), totals([0.01, 3.0], deliveries=10)]
    last = await storm.wait_for_deliveries(Windows(*steps), 10)  # type: ignore[arg-type]
    assert last.latency.max == pytest.approx(3000.0)
    with pytest.raises(MeasurementFailed, match="5 of 10 deliveries came within 0 s"):
        await storm.wait_for_deliveries(Windows(*steps), 10, 0.0)  # type: ignore[arg-type]


class Returning:
    """A stand-in for the receivers of a storm: one delivery is missing until the first wait, as in a process of low
    priority."""

    connections = 20

    def __init__(self, published: list[int]) -> None:
        self.published = published
        self.behind = 1
        self.expected: list[int] = []

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def open(self, max_pending: int) -> ReceiverTotals:
        return totals([], resumes=[0.5] * self.connections)

    def total(self) -> ReceiverTotals:
        return totals([0.01], deliveries=sum(self.published) * 2 - self.behind)

    async def report(self, reset: bool = False) -> ReceiverTotals:
        return self.total()

    async def wait_for(self, deliveries: int, limit: float = 30.0) -> ReceiverTotals:
        self.behind = 0
        self.expected.append(deliveries)
        assert self.total().deliveries == deliveries
        return self.total()


async def test_storm_counts_after_the_warmup_is_delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[int] = []
    groups: list[Returning] = []

    class Publishes(Cluster):
        async def start_publisher(self, *_: Any) -> None:
            pass

        async def publish_open_loop(self, rate: float, seconds: float) -> ipc.PublishReport:
            count = 10 * max(1, round(rate * seconds))
            published.append(count)
            return ipc.PublishReport(scheduled=count, sent=count, answered=count)

    def receivers(*_: Any, **__: Any) -> Returning:
        groups.append(Returning(published))
        return groups[-1]

    monkeypatch.setattr(storm, "Product", Publishes)
    monkeypatch.setattr(storm, "Receivers", receivers)
    monkeypatch.setattr(storm, "MIN_STORM_SECONDS", 0.0)
    outcome = await storm.measure(bench(tmp_path, storm_live=20, storm_clients=20, storm_seconds=0.1))
    assert (outcome["returned"], outcome["live_disconnected"]) == (20, 0)
    assert all(group.expected == [20, sum(published) * 2] for group in groups)


class Dies:
    """A stand-in for a rig, whose server and clients fail when a test takes `system.pids` or `connected` away."""

    def __init__(self, system: System, work: Workload, **_: Any) -> None:
        self.name = "product"
        self.work = work
        self.system = SimpleNamespace(pids=[1], name="product", last_log_lines=" (killed)")
        self.receivers = SimpleNamespace(pids=[], report=self.report)
        self.connected = work.subscribers

    async def report(self) -> ReceiverTotals:
        return totals([], connected=self.connected)

    async def serve(self) -> None:
        pass

    async def connect(self) -> None:
        pass

    async def stop(self) -> None:
        pass


async def test_memory_of_a_dead_server_fails_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Dies(System("product"), Workload(subscribers=40, topics=10, payload=140, rate=0.0))

    def pss(pids: list[int]) -> int:
        there = 30 * 2**20 if rig.system.pids else 0
        rig.system.pids = []  # it dies behind the first look
        return there

    monkeypatch.setattr(machine, "pss", pss)
    monkeypatch.setattr(memory, "SETTLE_SECONDS", 0.0)
    with pytest.raises(MeasurementFailed, match=r"product: a server ended .* \(killed\)"):
        await memory.settled_pss(rig)  # type: ignore[arg-type]


async def test_memory_of_lost_clients_fails_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When clients are lost while memory is measured, the measurement fails with their number: an I/O process that
    dies takes the memory of its clients with it."""

    class Loses(Dies):
        async def connect(self) -> None:
            self.connected -= 3

    monkeypatch.setattr(machine, "pss", lambda _: 2**20)
    monkeypatch.setattr(memory, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(memory, "Rig", Loses)
    with pytest.raises(MeasurementFailed, match="product: 37 of 40 clients are connected"):
        await memory.measure_system(bench(tmp_path), System("product"), 40)


async def test_max_rate_is_the_scheduled_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The highest rate is the rate that was scheduled, and not the number of deliveries divided by the seconds of a
    round, which may differ at low rates."""
    rates: list[float] = []

    class Carries(Dies):
        async def start_publisher(self) -> None:
            pass

        async def run_round(self, rate: float, seconds: float, limit: float) -> tuple[Any, ReceiverTotals]:
            rates.append(rate)
            if len(rates) == 3:
                return SimpleNamespace(deliveries=0), totals([2.0])
            count = max(1, round(rate * seconds)) * self.work.subscribers
            return SimpleNamespace(deliveries=count), totals([0.01])

    rig = Carries(System("product"), Workload(subscribers=50_000, topics=100, payload=140, rate=0.0))
    outcome = await memory._max_rate(bench(tmp_path, seconds=4.0), rig)  # type: ignore[arg-type]
    assert rates == [0.25, 0.375, 0.5625]
    assert outcome["deliveries_per_s"] == 18_750.0
    assert outcome["not_carried"].startswith("28,125 deliveries/s: P99 2")


def test_missing_compiler_leaves_no_raw_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a C compiler only the loop in Python is measured as a limit, and the result says why the C loop is
    missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    here = bench(tmp_path)
    assert [system.name for system in here.limits()] == ["raw loop in Python"]
    assert here.dropped == {"raw loop in C": "no C compiler is installed"}


class Capacity:
    """A stand-in for a rig that sustains a given rate of deliveries."""

    def __init__(self, most: float) -> None:
        self.upper = most
        self.asked: list[float] = []

    async def run_round(self, deliveries: float, _seconds: float) -> latency.LatencyResult:
        self.asked.append(deliveries)
        return (
            latency.LatencyResult(1.0, 5.0)
            if deliveries <= self.upper
            else latency.LatencyResult(problem="99 of 100 deliveries came")
        )


@pytest.mark.parametrize(
    ("most", "rates", "saturation", "more"),
    [
        (250.0, [200.0, 270.0], 200.0, False),
        (300.0, [200.0, 270.0, 364.5], 270.0, False),
        (1000.0, [200.0, 270.0, 364.5], 364.5, True),  # the search ended, the peer did not
        (60.0, [200.0, 100.0, 50.0], 50.0, False),
        (10.0, [200.0, 100.0, 50.0, 25.0], 0.0, False),
    ],
)
async def test_saturation_of_a_slow_peer_is_found_below_the_first_rate(
    tmp_path: Path, most: float, rates: list[float], saturation: float, more: bool
) -> None:
    peer = Capacity(most)
    context = bench(tmp_path, highest=400.0)
    sustained = await latency._saturation(context, "nats", peer)  # type: ignore[arg-type]
    assert sustained == pytest.approx(saturation)
    assert latency.unsaturated({"nats": sustained}, 400.0) == (["nats"] if more else [])
    assert peer.asked == pytest.approx(rates)


async def test_latency_fails_when_no_peer_sustains_a_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> float:
        return 0.0

    monkeypatch.setattr(latency, "_saturation", nothing)
    monkeypatch.setattr(latency, "PEERS", {"nats": System})
    context = bench(tmp_path)
    context.missing = []
    async with context.stack:
        with pytest.raises(MeasurementFailed, match="no peer keeps up"):
            await latency.measure(context)


async def test_jetstream_request_to_a_dead_server_has_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request to a JetStream server that hangs up or does not listen returns an empty dict instead of raising."""

    async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n")
        writer.write(b"MSG _INBOX.setup 1 500\r\n{")
        writer.close()

    listening = await asyncio.start_server(hangs_up, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    assert await nats._request(port, "$JS.API.STREAM.CREATE.bench", {}) == {}
    listening.close()
    await listening.wait_closed()
    assert await nats._request(port, "$JS.API.STREAM.CREATE.bench", {}) == {}


class Slow:
    """A stand-in for the counter of system calls, which takes a given time to attach."""

    def __init__(self, attaches_after: float) -> None:
        self.since = float("inf")
        self.after = attaches_after

    def start(self) -> None:
        self.since = time.monotonic()

    @property
    def attached(self) -> bool:
        return time.monotonic() > self.since + self.after

    def stop(self) -> dict[str, int]:
        return {"sendto": 40}


@pytest.mark.parametrize(("after", "expected"), [(0.7, 1.0), (99.0, None)])
async def test_syscalls_are_counted_after_strace_attached(
    monkeypatch: pytest.MonkeyPatch, after: float, expected: float | None
) -> None:
    """System calls are counted in a second round, which begins when the counter is attached; if it does not attach
    in time, the result is None."""
    counter = Slow(after)
    attached: list[bool] = []

    async def run_round(*_: Any, **__: Any) -> tuple[Any, None]:
        attached.append(counter.attached)
        return SimpleNamespace(deliveries=40), None

    made: Any = lambda _: counter  # noqa: E731
    made.available = lambda: True
    monkeypatch.setattr(machine, "CallCounter", made)
    monkeypatch.setattr(fanout, "_ATTACH_TIMEOUT", 1.0)
    rig: Any = SimpleNamespace(system=SimpleNamespace(pids=[1]), work=SimpleNamespace(rate=1.0), run_round=run_round)
    assert await fanout._count_syscalls(rig) == expected
    assert attached == ([False, True] if expected else [False])


def test_untraced_process_is_not_attached() -> None:
    assert not machine.CallCounter([os.getpid()]).attached


async def test_round_lasts_until_its_last_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round lasts until its last delivery, because the CPU is counted up to then: divided by a shorter time it
    could exceed 100%."""

    class Server(System):
        async def publish_open_loop(self, *_: Any) -> ipc.PublishReport:
            return ipc.PublishReport(scheduled=10, sent=10, answered=10, seconds=0.001)

    class Late(Windows):
        async def wait_for(self, deliveries: int, limit: float = 30.0) -> ReceiverTotals:
            await asyncio.sleep(0.2)
            return totals([0.2], deliveries=deliveries)

    rig = Rig(Server("product"), Workload(subscribers=20, topics=10, payload=140, rate=1.0), pinned=False)
    rig._receivers = Late(totals([]))  # type: ignore[assignment]
    result, _ = await rig.run_round(1.0, 1.0)
    assert 0.2 <= result.seconds < 10.0
    assert result.deliveries == 20
