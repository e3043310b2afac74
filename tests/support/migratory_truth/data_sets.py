"""Random data sets: clusters that one server federates, whose exporters count events at known times.

Clusters have equal addresses. A label of the scraper, `region`, distinguishes them. Exporters restart, start late, end
early and miss scrapes. Brokers die or restart while publications are refused all the time.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from migratory_resources.objectives import Objective
from migratory_testing.reports import Sample

NOW = 1_700_000_000_000
"""The end of each report, in ms since 1970."""
LATENCY = "migratory_delivery_latency_seconds"
RESUME = "migratory_resume_seconds"
GAP = "migratory_publish_gap_seconds"
BOUNDS = {LATENCY: (0.01, 0.1, 0.5), RESUME: (0.5, 2.0), GAP: (1.0, 5.0)}
"""By histogram, the upper bounds of its buckets in seconds, without the infinite one."""
WAVE_MS = 3000
"""Time from an incident on, in ms, in which links are lost."""
OUTCOMES = ("received", "lost", "duplicates", "reordered")

SeriesName = tuple[str, tuple[tuple[str, str], ...]]
"""Metric and sorted labels."""


@dataclass(slots=True, frozen=True)
class Scrape:
    """A scrape of an exporter; `at` is its time, `began` the time at which the process started (ms since 1970)."""

    at: int
    began: int


@dataclass(slots=True)
class Exporter:
    """A scraped target. `events` are the sorted times (ms) at which each of its counters rose by one.

    `evidence` says how its starts are known: by the start time of its process, by `_created`, or not at all. Then it
    never restarts. `lives` are the times at which its process started, `first` is the time of its first scrape.
    Counters in `lazy` are exported from their first event of a life on.
    """

    cluster: str
    target: dict[str, str]
    evidence: str
    lives: list[int]
    first: int
    scrapes: list[Scrape] = field(default_factory=list)
    events: dict[SeriesName, list[int]] = field(default_factory=lambda: defaultdict(list))
    lazy: set[SeriesName] = field(default_factory=set)
    gauges: dict[SeriesName, float] = field(default_factory=dict)

    def name_of(self, metric: str, **labels: str) -> SeriesName:
        return metric, tuple(sorted({**self.target, "cluster": self.cluster, **labels}.items()))

    def declare(self, metric: str, **labels: str) -> None:
        """Export a counter, before its first event as well."""
        self.events[self.name_of(metric, **labels)] = []

    def declare_lazily(self, metric: str, **labels: str) -> None:
        """Export a counter from its first event of a life on."""
        self.declare(metric, **labels)
        self.lazy.add(self.name_of(metric, **labels))

    def declare_histogram(self, histogram: str, **labels: str) -> None:
        self.declare(f"{histogram}_count", **labels)
        for bound in (*map(str, BOUNDS[histogram]), "+Inf"):
            self.declare(f"{histogram}_bucket", le=bound, **labels)

    def count(self, at: int, metric: str, **labels: str) -> None:
        self.events[self.name_of(metric, **labels)].append(at)

    def observe(self, at: int, histogram: str, value: float, **labels: str) -> None:
        self.count(at, f"{histogram}_count", **labels)
        for bound in BOUNDS[histogram]:
            if value <= bound:
                self.count(at, f"{histogram}_bucket", le=str(bound), **labels)
        self.count(at, f"{histogram}_bucket", le="+Inf", **labels)

    def life_at(self, moment: int) -> int:
        """Return the start of the life in which a moment lies."""
        return self.lives[max(0, bisect_right(self.lives, moment) - 1)]

    def exported(self, name: SeriesName, scrape: Scrape) -> int | None:
        """Return the value of a counter in a scrape, None if it is not exported."""
        times = self.events[name]
        value = bisect_right(times, scrape.at) - bisect_left(times, scrape.began)
        return None if name in self.lazy and not value else value

    def created(self, name: SeriesName, scrape: Scrape) -> int:
        """Return the time (ms) of `_created` of a counter that is exported in a scrape."""
        times = self.events[name]
        return times[bisect_left(times, scrape.began)] if name in self.lazy else scrape.began

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of all scrapes."""
        for scrape in self.scrapes:
            if self.evidence == "process":
                yield "process_start_time_seconds", self.target, scrape.at, scrape.began / 1000
            for gauge, value in self.gauges.items():
                yield gauge[0], dict(gauge[1]), scrape.at, value
            for name in self.events:
                exported = self.exported(name, scrape)
                if exported is None:
                    continue
                metric, labels = name[0], dict(name[1])
                yield metric, labels, scrape.at, float(exported)
                if self.evidence == "created" and not metric.endswith("_bucket"):
                    family = metric.removesuffix("_total").removesuffix("_count")
                    yield f"{family}_created", labels, scrape.at, self.created(name, scrape) / 1000


@dataclass(slots=True, frozen=True)
class TrueIncident:
    """An incident of a cluster, which began at `at` (ms). `is_return` is True if a dead broker came back then: the
    report dates that by the broker's first scrape."""

    cluster: str
    kind: str
    broker: str
    at: int
    is_return: bool = False


@dataclass(slots=True, frozen=True)
class DataSet:
    """Exporters and incidents, and the report to make: over [start, NOW] (ms), of `cluster` (None for all), broken down
    by the labels `by`."""

    number: int
    interval: int
    start: int
    cluster: str | None
    by: tuple[str, ...]
    exporters: tuple[Exporter, ...]
    incidents: tuple[TrueIncident, ...]
    objectives: tuple[Objective, ...]

    @property
    def clusters(self) -> set[str]:
        return {exporter.cluster for exporter in self.exporters}

    def samples(self) -> list[Sample]:
        return [sample for exporter in self.exporters for sample in exporter.samples()]


def make_data_set(number: int) -> DataSet:
    """Return the data set with this number, always the same."""
    source = random.Random(f"known truth {number}")
    interval = source.choice([5, 10, 15, 60]) * 1000
    start = NOW - source.randint(60, 140) * interval - source.randrange(interval)
    longest = source.randint(150, 220) * interval
    begin = NOW - longest - source.randint(5, 60) * interval
    exporters: list[Exporter] = []
    incidents: list[TrueIncident] = []
    names = ("a", "b", "c")[: source.choice([1, 2, 2, 3])]
    for cluster in names:
        maker = _ClusterMaker(source, cluster, interval, begin)
        maker.make(start)
        exporters += maker.exporters
        incidents += maker.incidents
    return DataSet(
        number, interval, start, source.choice([None, *names]), source.choice([(), ("region",)]), tuple(exporters),
        tuple(sorted(incidents, key=lambda incident: incident.at)),
        tuple(_objectives(source, interval, longest // interval)),
    )  # fmt: skip


def _objectives(source: random.Random, interval: int, longest: int) -> Iterator[Objective]:
    kinds: list[Mapping[str, object]] = [
        {"type": "availability"},
        {"type": "latency", "threshold": "100ms"},
        {"type": "delivery"},
        {"type": "resume", "threshold": "2s"},
        {"type": "publish", "threshold": "5s"},
        {"type": "availability", "slices": {"length": f"{5 * interval // 1000}s", "share": "80"}},
        {"type": "latency", "slices": {"length": f"{8 * interval // 1000}s", "percentile": "75", "threshold": "100ms"}},
    ]
    lengths = [None, source.randint(12, 60), source.randint(61, longest)]
    for number, kind in enumerate(kinds):
        for length in source.sample(lengths, source.randint(1, 3)):
            window = {} if length is None else {"window": {"rolling": f"{length * interval // 1000}s"}}
            yield Objective.model_validate({"name": f"o{number}-{length or 0}", "target": "90", **kind, **window})


class _ClusterMaker:
    """The exporters of one cluster, to which events are added."""

    def __init__(self, source: random.Random, cluster: str, interval: int, begin: int) -> None:
        self.source, self.cluster, self.interval, self.begin = source, cluster, interval, begin
        self.brokers = {f"b{number}": self._broker(f"b{number}") for number in range(source.randint(2, 3))}
        # The first client is scraped all the time, so that nothing is insufficient.
        self.steady = self._client("w0", begin)
        others = [self._client(f"w{number}", None) for number in range(1, source.randint(1, 3))]
        self.clients = [self.steady, *others]
        self.down: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.incidents: list[TrueIncident] = []

    @property
    def exporters(self) -> list[Exporter]:
        return [*self.clients, *self.brokers.values()]

    def make(self, start: int) -> None:
        """Add events and incidents, and then scrapes."""
        for client in self.clients:
            self._background(client)
        at = start + 6 * self.interval + 60_000
        while at < NOW - 20 * self.interval - 180_000 and self.source.random() < 0.8:
            at += self.source.randrange(10 * self.interval)
            at = self._incident(at) + 14 * self.interval + 90_000
        for client in self.clients:
            stop = NOW + 2 * self.interval
            if client is not self.steady and self.source.random() < 0.4:
                stop = NOW - self.source.randrange(60 * self.interval)
            self._scrape(client, stop, [])
        for name, broker in self.brokers.items():
            self._scrape(broker, NOW + 2 * self.interval, self.down[name])
        for exporter in self.exporters:
            for times in exporter.events.values():
                times.sort()

    def _target(self, job: str, instance: str) -> dict[str, str]:
        return {"job": job, "instance": instance, "region": f"of-{self.cluster}"}

    def _broker(self, name: str) -> Exporter:
        lives = [self.begin - self.source.choice([2_000, 9_000_000])]
        first = self.begin + self.source.randrange(self.interval)
        broker = Exporter(self.cluster, self._target("brokers", f"10.0.0.{name[1:]}:9"), "process", lives, first)
        broker.declare("migratory_takeovers_total", broker=name)
        broker.declare("migratory_published_total", broker=name)
        broker.gauges[broker.name_of("migratory_clients", broker=name)] = float(self.source.randint(20, 90))
        return broker

    def _client(self, name: str, begin: int | None) -> Exporter:
        first = self.source.randrange(self.begin, NOW - 20 * self.interval) if begin is None else begin
        evidence = self.source.choice(["process", "process", "created", "none"])
        # Without evidence, links that were lost long before the first scrape would be a wave.
        ages = [900, 3_000] if evidence == "none" else [900, 3_000, 40 * self.interval, 7_200_000]
        lives = [first - self.source.choice(ages)]
        client = Exporter(self.cluster, self._target("load", name), evidence, lives, first)
        if evidence != "none":
            restarts = self.source.choice([0, 0, 1, 3])
            lives += sorted(self.source.randrange(first, NOW) for _ in range(restarts))
        client.declare("migratory_expected_total")
        for outcome in OUTCOMES:
            client.declare(f"migratory_{outcome}_total", broker="b0")
        for broker in self.brokers:
            client.declare("migratory_reconnects_total", broker=broker, reason="broken")
            client.declare_lazily("migratory_reconnects_total", broker=broker, reason="moved")
        client.declare("migratory_publish_seconds_count")
        client.declare("migratory_publish_errors_total", reason="timeout")
        client.declare_lazily("migratory_publish_errors_total", reason="refused")
        client.declare_histogram(LATENCY, broker="b0", clock="same", phase="live")
        client.declare_histogram(RESUME)
        client.declare_histogram(GAP)
        return client

    def _background(self, client: Exporter) -> None:
        source = self.source
        for _ in range(source.randint(50, 400)):
            at = source.randrange(client.lives[0], NOW)
            client.count(at, "migratory_expected_total")
            outcome = source.choices(OUTCOMES, (94, 2, 2, 2))[0]
            client.count(at, f"migratory_{outcome}_total", broker="b0")
            if outcome == "received":
                value = source.choice([0.002, 0.05, 0.05, 0.1, 0.3, 2.0])
                client.observe(at, LATENCY, value, broker="b0", clock="same", phase="live")
        for _ in range(source.randint(20, 300)):
            client.count(source.randrange(client.lives[0], NOW), "migratory_publish_seconds_count")
        if source.random() < 0.7:
            for at in range(max(client.lives[0], self.begin), NOW, 12_000):
                client.count(at, "migratory_publish_errors_total", reason="refused")
        for _ in range(source.randrange(3)):
            at, broker = source.randrange(client.lives[0], NOW), source.choice(sorted(self.brokers))
            self._lose_link(client, at, broker, "moved")

    def _lose_link(self, client: Exporter, at: int, broker: str, reason: str) -> None:
        client.count(at, "migratory_reconnects_total", broker=broker, reason=reason)
        if self.source.random() < 0.9:
            value = self.source.choice([0.2, 1.0, 2.0, 4.0])
            client.observe(at + round(value * 1000), RESUME, value)

    def _incident(self, at: int) -> int:
        """Add an incident at a moment, and return the moment at which all of it is over."""
        source = self.source
        broker = source.choice(sorted(self.brokers))
        up = [name for name in self.brokers if not any(begin <= at < end for begin, end in self.down[name])]
        alive = [other for other in up if other != broker]
        kinds = ["broker died", "broker restarted", "takeover"]
        if self.steady.life_at(at) == self.steady.life_at(at + 3 * self.interval):
            kinds.append("reconnect wave")  # a restart would take most of it along
        kind = source.choice(kinds)
        if broker not in up or not alive:
            return at
        over, clients = at, [client for client in self.clients if client.lives[0] <= at]
        begins = [at] if kind in ("broker died", "broker restarted") else []
        if kind == "broker died":
            back = at + 10 * self.interval + 60_000 + source.randrange(5 * self.interval)
            if back > NOW - 8 * self.interval - 60_000 or source.random() < 0.3:
                back = NOW + 100 * self.interval  # it stays away
            else:
                self.brokers[broker].lives.append(back)
                self.incidents.append(TrueIncident(self.cluster, "broker restarted", broker, back, is_return=True))
            self.down[broker].append((at, back))
            over = back if back < NOW else at
        elif kind == "broker restarted":
            self.brokers[broker].lives.append(at)
        if kind in ("broker died", "broker restarted"):
            for _ in range(source.randint(1, 5)):
                other, later = source.choice(alive), source.randrange(2000, 12_000)
                self.brokers[other].count(at + later, "migratory_takeovers_total", broker=other)
            for _ in range(source.randint(0, 6)):
                client = source.choice(clients)
                client.count(at + source.randrange(8000), "migratory_publish_errors_total", reason="timeout")
                client.observe(at + source.randrange(9000), GAP, source.choice([0.5, 3.0, 5.0, 8.0]))
        if kind == "takeover":
            for _ in range(source.randint(1, 5)):
                begins.append(at + source.randrange(1000))
                self.brokers[broker].count(begins[-1], "migratory_takeovers_total", broker=broker)
        else:
            # One exporter has a wave; the links that a broker loses are those of all.
            losing = [self.steady] if kind == "reconnect wave" else clients
            for _ in range(source.randint(12, 20)):
                client, moment = source.choice(losing), at + source.randrange(200, WAVE_MS)
                begins.append(moment)
                self._lose_link(client, moment, broker, "broken")
        self.incidents.append(TrueIncident(self.cluster, kind, broker, min(begins)))
        return over

    def _scrape(self, exporter: Exporter, stop: int, down: list[tuple[int, int]]) -> None:
        """Scrape an exporter until a moment. A single scrape may be missed, and those while it is down are."""
        source = self.source
        at, missed = exporter.first, False
        while at < stop:
            moment = at + source.randrange(-40, 40)
            missed = not missed and bool(exporter.scrapes) and source.random() < 0.06
            if not missed and not any(begin <= moment < end for begin, end in down):
                exporter.scrapes.append(Scrape(moment, exporter.life_at(moment)))
            at += self.interval
