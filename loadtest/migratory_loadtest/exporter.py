"""/metrics of one worker, under the names of docs/metrics.md. Served from the worker's own event loop, so that a scrape
sees one consistent moment.

Loss, duplicates and order are exported as the verifier found them at the end of the run, by one worker; the rest is
live.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from migratory_loadtest.histogram import Histogram
from migratory_loadtest.meter import Meter

SAME_CLOCK = "same"


class MeterCollector(Collector):
    """A Meter as Prometheus metric families. `began`: since when it counts, in seconds of wall-clock time."""

    def __init__(self, meter: Meter, cluster: str, began: float | None = None) -> None:
        self._meter = meter
        self._cluster = cluster
        self._began = time.time() if began is None else began

    def collect(self) -> Iterable[Metric]:
        # Who is scraped for the first time may have counted for long: this tells.
        yield GaugeMetricFamily("process_start_time_seconds", "When counting began.", value=self._began)
        yield from self._latency()
        yield from self._counts()
        meter = self._meter
        none = Histogram(meter.bounds)
        for name, text, by_broker in (
            # Of these two nothing is seen until a broker dies, and then much in one moment: without series that stood
            # at zero before, `rate` would see no rise.
            (
                "migratory_resume_seconds",
                "From link lost to the last receipt of a client.",
                dict.fromkeys(self._brokers(), none) | meter.resume,
            ),
            (
                "migratory_publish_gap_seconds",
                "Without acknowledgement, by publisher and group.",
                {"": none} | meter.publish_gap,
            ),
            ("migratory_publish_seconds", "From send to acknowledgement.", meter.publish),
        ):
            family = HistogramMetricFamily(name, text, labels=["cluster", "broker"])
            for broker, histogram in sorted(by_broker.items()):
                _add(family, [self._cluster, broker], histogram)
            yield family

    def _brokers(self) -> list[str]:
        return sorted(self._meter.received | self._meter.lost) or [""]

    def _latency(self) -> Iterator[Metric]:
        labels = ["cluster", "broker", "clock", "phase"]
        latency = HistogramMetricFamily(
            "migratory_delivery_latency_seconds", "From the scheduled send to the delivery.", labels=labels
        )
        squares = CounterMetricFamily(
            "migratory_delivery_latency_seconds_squared", "Sum of the squares of the latencies.", labels=labels
        )
        for (broker, phase), histogram in sorted(self._meter.by_broker().items()):
            values = [self._cluster, broker, SAME_CLOCK, phase]
            _add(latency, values, histogram)
            squares.add_metric(values, histogram.squares)
        yield latency
        yield squares

    def _counts(self) -> Iterator[Metric]:
        meter = self._meter
        brokers = self._brokers()
        for name, text, counts in (
            ("migratory_received", "Deliveries.", dict(meter.received)),
            ("migratory_lost", "Acknowledged publications that a subscriber never got, verified.", dict(meter.lost)),
            ("migratory_gaps", "Publications whose loss a receipt told of.", dict(meter.gaps)),
        ):
            family = CounterMetricFamily(name, text, labels=["cluster", "broker"])
            for broker in brokers:
                family.add_metric([self._cluster, broker], counts.get(broker, 0))
            yield family
        for name, text, value in (
            ("migratory_duplicates", "Deliveries that were repeated, verified.", meter.duplicates),
            ("migratory_reordered", "Deliveries behind a later one, verified.", meter.reordered),
        ):
            family = CounterMetricFamily(name, text, labels=["cluster", "broker"])
            family.add_metric([self._cluster, brokers[0]], value)
            yield family
        expected = CounterMetricFamily("migratory_expected", "Deliveries that are owed.", labels=["cluster"])
        expected.add_metric([self._cluster], meter.expected)
        yield expected
        reconnects = CounterMetricFamily(
            "migratory_reconnects", "Links lost by clients.", labels=["cluster", "broker", "reason"]
        )
        # A series that stays at zero: it shows that there was nothing to count, which a missing one does not.
        reconnects.add_metric([self._cluster, brokers[0], ""], 0)
        for (broker, reason), value in sorted(meter.reconnects.items()):
            reconnects.add_metric([self._cluster, broker, reason], value)
        yield reconnects
        errors = CounterMetricFamily(
            "migratory_publish_errors",
            "Publications that were not acknowledged.",
            labels=["cluster", "broker", "reason"],
        )
        errors.add_metric([self._cluster, brokers[0], ""], 0)
        for (broker, reason), value in sorted(meter.errors.items()):
            errors.add_metric([self._cluster, broker, reason], value)
        yield errors


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    below = 0
    found: list[tuple[str, float]] = []
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        below += count
        found.append((str(bound), below))
    found.append(("+Inf", below + histogram.counts[-1]))
    family.add_metric(labels, found, histogram.total)


class Exporter:
    """Serves `GET /metrics`; on a free port of 127.0.0.1 where no address is given. A port of 0 is a free one."""

    def __init__(self, meter: Meter, cluster: str, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(MeterCollector(meter, cluster))
        self._listen = listen
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Returns host:port. Raises OSError when no port can be had."""
        self._server = await asyncio.start_server(self._answer, *self._listen)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1] if head.startswith(b"GET ") else b""
                if path.split(b"?")[0] == b"/metrics":
                    status, kind, body = "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._registry)
                else:
                    status, kind, body = "404 Not Found", "text/plain", b"only GET /metrics\n"
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # A scraper that went away or sent no request: the next scrape tells the same.
            writer.transport.abort()
        finally:
            writer.close()
