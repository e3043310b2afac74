"""What a measurement makes of a server that stalls, dies or forgets: nothing that it did is left out of its figures."""

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

from benchmarks import machine
from benchmarks import orders as o
from benchmarks.audience import Totals
from benchmarks.bench import TINY, Bench
from benchmarks.contenders import Contender, Work, nats
from benchmarks.measurements import failover, fanout, latency, memory, storm
from benchmarks.processes import Broken
from benchmarks.stand import Stand


def heard(latencies: list[float], **more: Any) -> Totals:
    histogram = Histogram(bucket_bounds())
    for value in latencies:
        histogram.observe(value)
    own: dict[str, Any] = {"counts": histogram.counts, "total": histogram.total, "squares": histogram.squares,
                           "largest": histogram.largest, "subscribed": [20, 20, 20]}  # fmt: skip
    return Totals([o.Heard(**{**own, **more})])


def bench(tmp_path: Path, **sizes: Any) -> Bench:
    return Bench(structs.replace(TINY, **sizes), tmp_path, lambda _: None)


class Cluster:
    """A product without processes."""

    dialect = "product"
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
    """An audience that hears one after another what it is given."""

    def __init__(self, *given: Totals) -> None:
        self.given = list(given)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def heard(self, anew: bool = False) -> Totals:
        return self.given.pop(0)

    async def expect(self, deliveries: int, limit: float = 30.0) -> Totals:
        return self.given.pop(0) if limit == failover.CATCH_UP else heard([])


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


async def test_what_a_killed_broker_keeps_back_until_the_end_is_late_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of the topics have no coordinator until publishing is over, then all of it comes at once."""
    quick, late = [0.01] * 200, [25.0] * 100
    given = Windows(
        heard([]), heard(quick * 2), heard(quick, disconnected=20, resumes=[0.5] * 20),
        heard(quick + late, disconnected=20, subscribed=[30, 0, 30]),
    )  # fmt: skip
    monkeypatch.setattr(failover, "Product", Cluster)
    monkeypatch.setattr(failover, "Audience", lambda *_: given)
    monkeypatch.setattr(failover, "Publishing", Publishing)
    monkeypatch.setattr(failover, "SETTLE", 0.0)
    found = await failover.kill_one(bench(tmp_path), Work(subscribers=60, topics=6, payload=140, rate=1.0), 0.0)
    assert found["p99_ratio"] > 100
    assert found["after_ms"]["count"] == 300
    assert (found["resumed"], found["others_disconnected"]) == (20, 0)


async def test_publishing_lasts_as_long_as_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
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
        await failover.Publishing([], Work(subscribers=60, topics=6, payload=140, rate=rate)).run(seconds)
    assert counts == [4, 3, 1]


async def test_what_the_live_clients_still_wait_for_when_all_are_back_is_counted() -> None:
    steps = [heard([0.01], deliveries=5), heard([0.01], deliveries=5), heard([0.01, 3.0], deliveries=10)]
    found = await storm.heard_all(Windows(*steps), 10)  # type: ignore[arg-type]
    assert found.latency.max == pytest.approx(3000.0)
    with pytest.raises(Broken, match="5 of 10 deliveries came within 0 s"):
        await storm.heard_all(Windows(*steps), 10, 0.0)  # type: ignore[arg-type]


class Returning:
    """An audience of a storm whose first deliveries come late, as those of a process that gives way do."""

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

    async def open(self, at_once: int) -> Totals:
        return heard([], resumes=[0.5] * self.connections)

    def total(self) -> Totals:
        return heard([0.01], deliveries=sum(self.published) * 2 - self.behind)

    async def heard(self, anew: bool = False) -> Totals:
        return self.total()

    async def expect(self, deliveries: int, limit: float = 30.0) -> Totals:
        self.behind = 0
        self.expected.append(deliveries)
        assert self.total().deliveries == deliveries
        return self.total()


async def test_a_storm_counts_from_when_everything_before_it_was_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[int] = []
    audiences: list[Returning] = []

    class Publishes(Cluster):
        async def publishes(self, *_: Any) -> None:
            pass

        async def schedule(self, rate: float, seconds: float) -> o.Published:
            count = 10 * max(1, round(rate * seconds))
            published.append(count)
            return o.Published(scheduled=count, sent=count, answered=count)

    def audience(*_: Any, **__: Any) -> Returning:
        audiences.append(Returning(published))
        return audiences[-1]

    monkeypatch.setattr(storm, "Product", Publishes)
    monkeypatch.setattr(storm, "Audience", audience)
    monkeypatch.setattr(storm, "LEAST", 0.0)
    found = await storm.measure(bench(tmp_path, storm_live=20, storm_clients=20, storm_seconds=0.1))
    assert (found["returned"], found["live_disconnected"]) == (20, 0)
    assert all(one.expected == [20, sum(published) * 2] for one in audiences)


class Dies:
    """A stand whose server or clients do not last."""

    def __init__(self, contender: Contender, work: Work, **_: Any) -> None:
        self.name = "product"
        self.work = work
        self.contender = SimpleNamespace(pids=[1], name="product", last_words=" (killed)")
        self.audience = SimpleNamespace(pids=[], heard=self.heard)
        self.connected = work.subscribers

    async def heard(self) -> Totals:
        return heard([], connected=self.connected)

    async def serve(self) -> None:
        pass

    async def connect(self) -> None:
        pass

    async def stop(self) -> None:
        pass


async def test_a_server_that_died_is_not_one_that_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Dies(Contender("product"), Work(subscribers=40, topics=10, payload=140, rate=0.0))

    def pss(pids: list[int]) -> int:
        there = 30 * 2**20 if stand.contender.pids else 0
        stand.contender.pids = []  # it dies behind the first look
        return there

    monkeypatch.setattr(machine, "pss", pss)
    monkeypatch.setattr(memory, "SETTLE", 0.0)
    with pytest.raises(Broken, match=r"product: a server ended .* \(killed\)"):
        await memory.settled(stand)  # type: ignore[arg-type]


async def test_memory_of_clients_that_are_gone_is_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An I/O process that dies takes its clients' memory with it."""

    class Loses(Dies):
        async def connect(self) -> None:
            self.connected -= 3

    monkeypatch.setattr(machine, "pss", lambda _: 2**20)
    monkeypatch.setattr(memory, "SETTLE", 0.0)
    monkeypatch.setattr(memory, "Stand", Loses)
    with pytest.raises(Broken, match="product: 37 of 40 clients are connected"):
        await memory._of(bench(tmp_path), Contender("product"), 40)


async def test_what_is_carried_is_the_rate_and_not_how_often_a_topic_spoke(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 0.375 a second for 4 s a topic speaks twice, the second time after 2.7 s: no 25,000 deliveries a second."""
    rates: list[float] = []

    class Carries(Dies):
        async def publishes(self) -> None:
            pass

        async def turn(self, rate: float, seconds: float, limit: float) -> tuple[Any, Totals]:
            rates.append(rate)
            if len(rates) == 3:
                return SimpleNamespace(deliveries=0), heard([2.0])
            count = max(1, round(rate * seconds)) * self.work.subscribers
            return SimpleNamespace(deliveries=count), heard([0.01])

    stand = Carries(Contender("product"), Work(subscribers=50_000, topics=100, payload=140, rate=0.0))
    found = await memory._carried(bench(tmp_path, seconds=4.0), stand)  # type: ignore[arg-type]
    assert rates == [0.25, 0.375, 0.5625]
    assert found["deliveries_per_s"] == 18_750.0
    assert found["not_carried"].startswith("28,125 deliveries/s: P99 2")


def test_without_a_compiler_no_other_loop_stands_in_for_the_one_in_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop in Python takes more: a ratio to it meets a goal that is for the one in C."""
    monkeypatch.setenv("PATH", str(tmp_path))
    here = bench(tmp_path)
    assert [one.name for one in here.limits()] == ["raw loop in Python"]
    assert here.dropped == {"raw loop in C": "no C compiler is here"}


class Capacity:
    """Keeps up with so many deliveries a second."""

    def __init__(self, most: float) -> None:
        self.most = most
        self.asked: list[float] = []

    async def turn(self, deliveries: float, _seconds: float) -> latency.Seen:
        self.asked.append(deliveries)
        return latency.Seen(1.0, 5.0) if deliveries <= self.most else latency.Seen(problem="99 of 100 deliveries came")


@pytest.mark.parametrize(
    ("most", "asked", "found", "more"),
    [
        (250.0, [200.0, 270.0], 200.0, False),
        (300.0, [200.0, 270.0, 364.5], 270.0, False),
        (1000.0, [200.0, 270.0, 364.5], 364.5, True),  # the search ended, the peer did not
        (60.0, [200.0, 100.0, 50.0], 50.0, False),
        (10.0, [200.0, 100.0, 50.0, 25.0], 0.0, False),
    ],
)
async def test_a_slow_peers_saturation_is_found_below_the_first_rate(
    tmp_path: Path, most: float, asked: list[float], found: float, more: bool
) -> None:
    peer = Capacity(most)
    one = bench(tmp_path, highest=400.0)
    kept = await latency._saturation(one, "nats", peer)  # type: ignore[arg-type]
    assert kept == pytest.approx(found)
    assert latency.unsaturated({"nats": kept}, 400.0) == (["nats"] if more else [])
    assert peer.asked == pytest.approx(asked)


async def test_where_no_peer_keeps_up_latency_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> float:
        return 0.0

    monkeypatch.setattr(latency, "_saturation", nothing)
    monkeypatch.setattr(latency, "PEERS", {"nats": Contender})
    one = bench(tmp_path)
    one.missing = []
    async with one.stack:
        with pytest.raises(Broken, match="no peer keeps up"):
            await latency.measure(one)


async def test_a_jetstream_server_that_is_gone_is_one_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the peer's end would be that of the whole measurement."""

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
    """A counter of system calls that takes a while to attach."""

    def __init__(self, attaches_after: float) -> None:
        self.since = 0.0
        self.after = attaches_after

    def start(self) -> None:
        self.since = time.monotonic()

    @property
    def attached(self) -> bool:
        return time.monotonic() > self.since + self.after

    def stop(self) -> dict[str, int]:
        return {"sendto": 40}


@pytest.mark.parametrize(("after", "found"), [(0.7, 1.0), (99.0, None)])
async def test_no_system_call_is_missed_while_strace_attaches(
    monkeypatch: pytest.MonkeyPatch, after: float, found: float | None
) -> None:
    counter = Slow(after)

    async def turn(*_: Any, **__: Any) -> tuple[Any, None]:
        assert counter.attached
        return SimpleNamespace(deliveries=40), None

    made: Any = lambda _: counter  # noqa: E731
    made.available = lambda: True
    monkeypatch.setattr(machine, "CallCounter", made)
    monkeypatch.setattr(fanout, "ATTACH", 1.0)
    stand: Any = SimpleNamespace(contender=SimpleNamespace(pids=[1]), work=SimpleNamespace(rate=1.0), turn=turn)
    assert await fanout._calls(stand) == found


def test_who_is_not_traced_is_not_attached_to() -> None:
    assert not machine.CallCounter([os.getpid()]).attached


async def test_a_turn_lasts_until_its_last_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU is counted up to there: a share of a shorter time could be more than all."""

    class Server(Contender):
        async def schedule(self, *_: Any) -> o.Published:
            return o.Published(scheduled=10, sent=10, answered=10, seconds=0.001)

    class Late(Windows):
        async def expect(self, deliveries: int, limit: float = 30.0) -> Totals:
            await asyncio.sleep(0.2)
            return heard([0.2], deliveries=deliveries)

    stand = Stand(Server("product"), Work(subscribers=20, topics=10, payload=140, rate=1.0), pinned=False)
    stand._audience = Late(heard([]))  # type: ignore[assignment]
    turn, _ = await stand.turn(1.0, 1.0)
    assert 0.2 <= turn.seconds < 10.0
    assert turn.deliveries == 20
