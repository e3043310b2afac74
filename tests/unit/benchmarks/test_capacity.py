"""The capacity model: its fit, sizes of clusters, simulated failovers, the pages on capacity and evaluation, and failed
or missing measurements."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from migratory_loadtest.result import LatencySummary
from msgspec import structs, to_builtins

from benchmarks import ipc
from benchmarks.capacity import __main__ as capacity
from benchmarks.capacity import broker, cluster, page
from benchmarks.capacity.__main__ import main
from benchmarks.capacity.broker import HELD_OUT, SIZES
from benchmarks.capacity.cluster import ClusterCosts, copy_cost
from benchmarks.capacity.model import Costs, Point, check, fit, relative_fit
from benchmarks.capacity.simulation import failover, fan_out, queue
from benchmarks.capacity.sizing import BrokerMachine, CapacityScenario, size_clusters
from benchmarks.evaluation import __main__ as evaluation
from benchmarks.evaluation.page import render as render_evaluation
from benchmarks.longrun import LongRun
from benchmarks.processes import MeasurementFailed
from benchmarks.rig import RoundResult

TRUE = Costs(
    idle=0.01, client=2e-6, publication=150e-6, delivery=7e-6, connect=400e-6, empty_bytes=30e6, client_bytes=2000.0,
    topic_bytes=5000.0, wire_bytes=190.0, kernel_bytes=3000.0,
)  # fmt: skip


def measured(clients: int, topics: int, rate: float, noise: float = 1.0) -> Point:
    point = Point(
        clients=clients, topics=topics, publications=topics * rate, deliveries=clients * rate, connect=400e-6,
        wire=190.0, kernel=6000.0,
    )  # fmt: skip
    return structs.replace(point, cpu=TRUE.cpu(point) * noise, memory=TRUE.memory(point) * noise)


POINTS = [measured(*size) for size in SIZES]


def test_fit_separates_every_cost() -> None:
    costs = structs.asdict(fit(POINTS, TRUE.idle))
    for name, right in structs.asdict(TRUE).items():
        assert costs[name] == pytest.approx(right, rel=1e-3), name


def test_noise_stays_small_at_the_held_out_size() -> None:
    noisy = [measured(*size, noise=1.05 if place % 2 else 0.95) for place, size in enumerate(SIZES)]
    held_out = measured(*HELD_OUT)
    costs = fit(noisy, TRUE.idle)
    assert check(held_out.cpu, costs.cpu(held_out)).error < 0.1
    assert check(held_out.memory, costs.memory(held_out)).error < 0.1
    assert check(10.0, 12.0).error == pytest.approx(0.2)
    assert check(10.0, 8.0).error == pytest.approx(0.2)
    assert HELD_OUT not in SIZES


def test_fit_has_no_negative_cost_and_requires_enough_sizes() -> None:
    # y falls with the second column: its coefficient would be negative
    assert relative_fit([(1, 1), (1, 2), (1, 3)], [3.0, 2.5, 2.0])[1] == 0.0
    with pytest.raises(ValueError, match="as many values"):
        relative_fit([(1, 1)], [1.0])
    with pytest.raises(ValueError, match="above 0"):
        relative_fit([(1,), (1,)], [1.0, 0.0])
    with pytest.raises(ValueError, match="five or more"):
        fit(POINTS[:4], TRUE.idle)


def scenario(clients: int, topics: int, rate: float = 1.0, payload: int = 140) -> CapacityScenario:
    return CapacityScenario(name="s", clients=clients, topics=topics, rate=rate, payload=payload)


def test_sizing_of_a_million_clients_adds_the_costs_up() -> None:
    sizing = size_clusters(TRUE, 20e-6, scenario(1_000_000, 100), BrokerMachine())
    assert (sizing.clusters, sizing.brokers, sizing.limited_by) == (1, 3, "minimum of a cluster")
    clients = 1_000_000 / 3
    copies = 20e-6 * 100 / 3 * 2
    assert sizing.cores == pytest.approx(0.01 + 2e-6 * clients + 150e-6 * 100 + 7e-6 * clients + copies, rel=1e-6)
    assert sizing.logic == pytest.approx(0.015 + copies)
    # six I/O processes beside the logic's
    assert sizing.user_gib == pytest.approx((7 * 30e6 + 2000 * clients + 5000 * 100) / 2**30, rel=1e-4)
    assert sizing.gbit == pytest.approx(clients * (190 + 66) * 8 / 1e9)
    assert sizing.kernel_gib == pytest.approx(clients * 3000 / 2**30)
    assert sizing.processes == 6
    assert sizing.descriptors * sizing.processes >= clients


def test_sizing_grows_with_clients_and_payload() -> None:
    few, many = (size_clusters(TRUE, 20e-6, scenario(count, 100), BrokerMachine()) for count in (1_000_000, 10_000_000))
    assert many.brokers > 3
    assert many.limited_by == "deliveries"
    assert many.cores / 16 <= 0.6
    assert max(many.gbit / 10, many.cores / 16, (many.user_gib + many.kernel_gib) / 64) > 0.5  # no more than needed
    assert size_clusters(TRUE, 20e-6, scenario(1_000_000, 100, payload=1140), BrokerMachine()).gbit > 3 * few.gbit
    with pytest.raises(ValueError, match="99 brokers are not enough"):
        size_clusters(TRUE, 20e-6, scenario(10**9, 100), BrokerMachine())


def test_publications_that_fill_the_logic_need_several_clusters() -> None:
    sizing = size_clusters(TRUE, 0.0, scenario(1_000_000, 1_000_000, rate=1 / 60), BrokerMachine())
    publications = 1_000_000 / 60
    assert sizing.clusters == -(-publications * 150e-6 // 0.6)
    assert sizing.logic <= 0.6
    copying = size_clusters(TRUE, 100e-6, scenario(1_000_000, 1_000_000, rate=1 / 60), BrokerMachine())
    assert copying.clusters > sizing.clusters
    assert copying.logic <= 0.6  # it is one process, whatever the other cores do


def test_copy_cost_is_the_slope_over_brokers() -> None:
    def seen(brokers: int, micros: float) -> ClusterCosts:
        return ClusterCosts(
            brokers=brokers, publication_us=micros, idle_cores=0.01, zookeeper_per_s=1.0, zookeeper_cores=0.001
        )  # fmt: skip

    assert copy_cost([seen(1, 100), seen(3, 300), seen(5, 380)]) == pytest.approx(40e-6)
    assert copy_cost([seen(1, 100), seen(3, 300), seen(5, 290)]) == 0.0
    with pytest.raises(ValueError, match="one number of brokers"):
        copy_cost([seen(1, 100), seen(3, 300)])


def test_queue_serves_in_order() -> None:
    import numpy as np

    assert list(queue(np.array([0.0, 1.0, 10.0]), 3.0)) == [3.0, 6.0, 13.0]


def test_fan_out_takes_as_long_as_its_deliveries() -> None:
    # 10,000 of a topic in one process at 10 us: 100 ms for all, half of it in the middle
    delays = fan_out(subscribers=10_000, processes=1, topics=1, rate=1.0, delivery=10e-6, publication=0.0)
    assert delays.median == pytest.approx(50.0, rel=0.01)
    assert delays.busy == pytest.approx(0.1)
    spread = fan_out(subscribers=10_000, processes=4, topics=1, rate=1.0, delivery=10e-6, publication=0.0)
    assert spread.median == pytest.approx(12.5, rel=0.01)


def test_simultaneous_topics_wait_for_each_other() -> None:
    def seen(staggered: bool) -> float:
        return fan_out(
            subscribers=50_000, processes=1, topics=100, rate=1.0, delivery=10e-6, publication=0.0,
            staggered=staggered,
        ).p99  # fmt: skip

    assert seen(True) < 10.0
    assert seen(False) > 450.0


def test_topics_with_less_than_one_subscriber_are_merged() -> None:
    delays = fan_out(
        subscribers=1000, processes=10, topics=10_000, rate=1.0, delivery=10e-6, publication=0.0, seconds=2.0
    )
    assert delays.busy == pytest.approx(100 * 10e-6, rel=0.05)


def test_clients_of_a_failed_broker_spread_over_time_and_brokers() -> None:
    outcome = failover(clients=10_000, brokers=2, processes=2, connect=100e-6, connects_per_second=1e6)
    assert outcome.given_up == 0
    assert outcome.median == pytest.approx(0.5, abs=0.1)
    assert outcome.p99 < 1.1
    assert sum(outcome.arrivals) == 10_000
    assert max(outcome.arrivals) < 1.2 * min(outcome.arrivals[:10])
    assert outcome == failover(clients=10_000, brokers=2, processes=2, connect=100e-6, connects_per_second=1e6)


def test_beyond_the_limit_of_connects_clients_wait_in_the_backlog() -> None:
    """When the clients of a failed broker connect faster than a broker accepts connections, they wait in its kernel:
    none is refused, and all arrive."""
    outcome = failover(clients=8000, brokers=2, processes=4, connect=1e-6, connects_per_second=500)
    assert outcome.given_up == 0
    assert outcome.largest == pytest.approx((4000 - 125) / 500, rel=0.1)  # half of them, but for a burst, one by one
    assert sum(outcome.arrivals) == sum(outcome.arrivals[:10]) == 8000


def test_unanswered_attempt_doubles_the_wait() -> None:
    outcome = failover(clients=5000, brokers=1, processes=4, connect=1e-6, connects_per_second=200)
    assert outcome.given_up > 2000  # 200 a second are accepted for 10 s, and some of those have left by then
    assert outcome.largest > 20.0
    assert sum(outcome.arrivals) == 5000 + outcome.given_up
    assert sum(outcome.arrivals[:10]) == 5000


def test_full_backlog_makes_the_clients_kernel_retry() -> None:
    outcome = failover(clients=4000, brokers=1, processes=4, connect=1e-6, connects_per_second=1000, backlog=100)
    assert outcome.median < 5.0
    assert 3.0 < outcome.largest < 30.0
    assert outcome == failover(
        clients=4000, brokers=1, processes=4, connect=1e-6, connects_per_second=1000, backlog=100
    )  # fmt: skip


def test_simulated_client_represents_several() -> None:
    few = failover(clients=5000, brokers=2, processes=1, connect=100e-6, connects_per_second=1250, backlog=205)
    many = failover(clients=100_000, brokers=2, processes=20, connect=100e-6, connects_per_second=25_000, backlog=4100)
    assert (many.median, many.p99) == (few.median, few.p99)
    assert (many.clients, many.given_up) == (100_000, 20 * few.given_up)


def test_slow_connects_queue() -> None:
    outcome = failover(clients=5000, brokers=1, processes=1, connect=2e-3, connects_per_second=1e6)
    assert outcome.largest == pytest.approx(10.0, rel=0.05)


def result() -> page.CapacityResult:
    machine = {"cores": 2, "cpu": "a CPU", "kernel": "6.1", "python": "3.11", "memory_gib": 24.0}
    medians = [
        ClusterCosts(brokers=brokers, publication_us=100.0 * brokers, idle_cores=0.01, zookeeper_per_s=2.0 * brokers,
             zookeeper_cores=0.001)
        for brokers in (1, 3, 5)
    ]  # fmt: skip
    return page.CapacityResult(machine=machine, points=POINTS, held_out=measured(*HELD_OUT), cluster=medians)


def test_capacity_page_shows_the_model() -> None:
    text = page.render(result())
    assert "| delivery | 7.00 us | 190 bytes on the wire (140 of payload) |" in text
    assert "CPU 0.0% and memory 0.0% (target 15%: reached)" in text
    assert "**held out**: 7,000" in text
    assert "{" not in text
    for scenario_ in page.SCENARIOS:
        assert scenario_.name in text
    off = structs.replace(result(), held_out=structs.replace(measured(*HELD_OUT), cpu=10.0))
    assert "MISSED" in page.render(off)


def test_command_renders_a_file_and_exits_with_1_on_a_large_error(tmp_path: Path) -> None:
    for off, code in ((False, 0), (True, 1)):
        document = to_builtins(result())
        if off:
            document["held_out"]["cpu"] = 10.0
        (tmp_path / "result.json").write_text(json.dumps(document))
        done = CliRunner().invoke(main, ["--from", str(tmp_path / "result.json"), "--page", str(tmp_path / "page.md")])
        assert done.exit_code == code, done.output
        assert "# Capacity" in (tmp_path / "page.md").read_text()


LATENCY = to_builtins(LatencySummary(count=9, median=1.5, mean=2.0, stdev=0.5, p90=3.0, p95=4.0, p99=5.0, max=6.0))
ROW = {"subscribers": 5000, "topics": 5, "latency_ms": LATENCY, "broker_cpu_percent": 3.25, "gbps": 0.0081,
       "clients_cpu_percent": 1.5, "broker_mib": 45.0, "io_processes": 0, "late_sends": 0}  # fmt: skip
THREE: dict[str, Any] = {
    "clients": 300, "topics": 30, "deliveries_per_s": 75.0, "cores": 2, "deliveries": 1234, "lost": 0,
    "repeated": 0, "resumed": 101, "killed_clients": 101, "others_disconnected": 0,
    "resume_seconds": {"median": 0.5, "p99": 0.9, "max": 1.1}, "before_ms": LATENCY, "after_ms": LATENCY,
    "cores_before": {"a": 0.1, "b": 0.1, "c": 0.1}, "cores_after": {"a": 0.2, "c": 0.2},
    "connections_before": [99, 101, 100], "connections_after": [150, 0, 150],
}  # fmt: skip


def test_failed_measurement_is_named_and_repeated_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    broken = {HELD_OUT, 3}

    async def point(_bench: Any, size: broker.Size, *_: Any) -> Point:
        calls.append(size)
        if size in broken:
            raise MeasurementFailed("closed by the server")
        return measured(*size)

    async def seen(_bench: Any, brokers: int, *_: Any) -> ClusterCosts:
        calls.append(brokers)
        if brokers in broken:
            raise OSError("no port")
        return next(costs for costs in result().cluster if costs.brokers == brokers)

    monkeypatch.setattr(broker, "measure", point)
    monkeypatch.setattr(cluster, "measure", seen)
    path, made = tmp_path / "r.json", tmp_path / "page.md"
    arguments = ["--json", str(path), "--page", str(made)]
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, made.exists()) == (2, False), done.output
    assert json.loads(path.read_text())["failed"] == {
        "7000 clients, 70 topics": "closed by the server", "3 brokers": "OSError: no port",
    }  # fmt: skip
    assert len(json.loads(path.read_text())["points"]) == len(SIZES)
    calls.clear()
    broken.clear()
    done = CliRunner().invoke(main, [*arguments, "--from", str(path)])
    assert (done.exit_code, made.exists()) == (0, True), done.output
    assert calls == [HELD_OUT, 3]
    assert json.loads(path.read_text())["failed"] == {}
    assert capacity.TINY_HELD_OUT not in capacity.TINY


def test_evaluation_keeps_the_successful_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured_parts: list[str] = []

    async def vertical(_bench: Any, sizes: list[int], *arguments: Any) -> str:
        measured_parts.append(f"vertical {sizes}")
        arguments[-1](ROW)
        return "10,000 subscribers: too slow"

    async def three(*_: Any) -> dict[str, Any]:
        measured_parts.append("three")
        if len(measured_parts) == 2:
            raise MeasurementFailed("not resumed")
        return THREE

    monkeypatch.setattr(evaluation, "run_one_server", vertical)
    monkeypatch.setattr(evaluation, "run_three_servers", three)
    path, made = tmp_path / "r.json", tmp_path / "page.md"
    arguments = ["--json", str(path), "--page", str(made), "--largest", "10000", "--rows", "2"]
    done = CliRunner().invoke(evaluation.main, arguments)
    assert (done.exit_code, made.exists()) == (2, False), done.output
    written = json.loads(path.read_text())
    assert (written["failed"], written["vertical"]["rows"]) == ({"three": "not resumed"}, [ROW])
    done = CliRunner().invoke(evaluation.main, [*arguments, "--from", str(path)])
    assert (done.exit_code, measured_parts) == (0, ["vertical [5000, 10000]", "three", "three"]), done.output
    assert "Not sustained: 10,000 subscribers: too slow." in made.read_text()


def test_evaluation_page_has_the_published_columns() -> None:
    text = render_evaluation({
        "machine": {"cores": 2, "cpu": "a CPU", "kernel": "6.1", "memory_gib": 24.0}, "warmup": 4.0, "seconds": 20.0,
        "vertical": {"rows": [ROW], "ended": "10,000 subscribers: too slow"}, "three": THREE,
    })  # fmt: skip
    assert "| subscribers | topics | median | mean | stdev | P90 | P95 | P99 | CPU | Gbps |" in text
    assert "| 5,000 | 5 | 1.50 | 2.00 | 0.50 | 3.00 | 4.00 | 5.00 | 3.25% | 0.008 | 1.50% | 45 |" in text
    assert "5.00%, 5.00%, 5.00% | 99 / 101 / 100 |" in text
    assert "10.00%, 10.00% | 150 / 0 / 150 |" in text
    assert "Not sustained: 10,000 subscribers: too slow." in text
    assert "Each topic has 1,000 subscribers" in text
    assert "{" not in text


def test_evaluation_page_shows_the_subscribers_of_a_topic() -> None:
    text = render_evaluation({
        "machine": {"cores": 2, "cpu": "a CPU", "kernel": "6.1", "memory_gib": 24.0}, "warmup": 4.0, "seconds": 20.0,
        "vertical": {"rows": [{**ROW, "topics": 50}], "ended": ""}, "three": THREE,
    })  # fmt: skip
    assert "Each topic has 100 subscribers" in text
    assert "1,000 subscribers" not in text


def test_connects_use_the_cpu_that_clients_leave() -> None:
    """On the capacity page a failover takes at least 1.5 times as long as with idle brokers, because a broker's I/O
    processes are up to 60% busy before the clients of a failed broker connect."""
    partial = result()
    costs = structs.replace(TRUE, connect=2e-3)
    own = size_clusters(costs, 0.0, page.SCENARIOS[0], page.SERVER)
    busy = (own.cores - own.logic) / own.processes
    assert busy > 0.4
    text = page._failover(
        costs, {scenario_.name: own if scenario_ is page.SCENARIOS[0] else "" for scenario_ in page.SCENARIOS}
    )
    free = failover(
        clients=333_333, brokers=2, processes=own.processes, connect=2e-3, connects_per_second=20_000
    )  # fmt: skip
    last = float(text.splitlines()[-1].split(" | ")[5])
    assert last > 1.5 * free.largest
    assert "# Capacity" in page.render(partial)


@pytest.fixture
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    async def attempt(*_: Any) -> None:
        raise AssertionError("it was measured")

    monkeypatch.setattr(LongRun, "attempt", attempt)


@pytest.mark.usefixtures("nothing_is_measured")
@pytest.mark.parametrize("command", [main, evaluation.main])
def test_unwritable_folder_is_reported_before_the_run(command: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(command, ["--json", str(tmp_path / "file" / "r.json"), "--page", str(tmp_path / "p.md")])
    assert (done.exit_code, "r.json can't be written: " in done.output) == (2, True), done.output


@pytest.mark.usefixtures("nothing_is_measured")
@pytest.mark.parametrize("command", [main, evaluation.main])
def test_missing_parts_are_not_measured_on_another_machine(command: Any, tmp_path: Path) -> None:
    given = tmp_path / "r.json"
    given.write_text(json.dumps({"machine": {"cores": 999, "cpu": "another", "kernel": "6.1", "python": "3.11"}}))
    done = CliRunner().invoke(command, ["--from", str(given), "--page", str(tmp_path / "p.md")])
    assert done.exit_code == 2, done.output
    assert "the rest was measured on a machine with cpu 'another'" in done.output


async def test_rates_of_a_point_belong_to_the_median_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates and the CPU of a measured point are those of the median round."""
    lasted = iter([1.0, 2.0, 2.0, 4.0])

    class Counts:
        deliveries = size = 0

        async def report(self) -> Any:
            self.size += 1
            return SimpleNamespace(bytes=190 * self.size, deliveries=self.size)

    class Rigs:
        def __init__(self, *_: Any) -> None:
            self.system: Any = SimpleNamespace(pids=[], start_publisher=self.serve)
            self.receivers = Counts()

        async def serve(self, *_: Any) -> None:
            pass

        connect = stop = serve

        async def run_round(self, *_: Any) -> tuple[RoundResult, None]:
            seconds = next(lasted)
            return RoundResult(deliveries=800, publications=20, user=0.02, system=0.0, seconds=seconds), None

    async def settled_pss(_: Any) -> int:
        return 2**20

    monkeypatch.setattr(broker, "Rig", Rigs)
    monkeypatch.setattr(broker, "settled_pss", settled_pss)
    bench: Any = SimpleNamespace(sizes=SimpleNamespace(payload=140), say=lambda _: None)
    point = await broker.measure(bench, broker.Size(40, 10, 1.0), 2.0, 3)
    assert (point.cpu, point.publications, point.deliveries) == (0.01, 10.0, 40.0)


class Brokers:
    """A stand-in for a cluster, whose publishers get answers to half of their publications."""

    def __init__(self, **_: Any) -> None:
        self.pids: list[int] = []
        self.zookeeper_pids: list[int] = []

    async def start(self, *_: Any) -> None:
        pass

    start_publisher = start

    async def stop(self) -> None:
        pass

    async def publish_open_loop(self, *_: Any) -> ipc.PublishReport:
        return ipc.PublishReport(scheduled=10, sent=10, answered=5, seconds=1.0)


async def test_unanswered_publications_fail_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    async def received(_: Any) -> int:
        return 1

    monkeypatch.setattr(cluster, "Product", Brokers)
    monkeypatch.setattr(cluster, "_received", received)
    monkeypatch.setattr(cluster, "QUIET", 0.01)
    bench: Any = SimpleNamespace(sizes=SimpleNamespace(payload=140), say=lambda _: None)
    with pytest.raises(MeasurementFailed, match="5 of 10 publications were answered"):
        await cluster.measure(bench, 3, 1.0)


async def test_zookeeper_without_srvr_fails_the_measurement() -> None:
    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(b"srvr is not executed because it is not in the whitelist.\n")
        writer.close()

    listening = await asyncio.start_server(refuses, "127.0.0.1", 0)
    servers = f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    product: Any = SimpleNamespace(cluster=SimpleNamespace(ensemble=SimpleNamespace(servers=servers)))
    with pytest.raises(MeasurementFailed, match="does not report what it received: 'srvr is not executed"):
        await cluster._received(product)
    listening.close()
    await listening.wait_closed()
