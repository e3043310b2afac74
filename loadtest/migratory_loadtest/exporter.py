"""Serves the /metrics of one worker, under the names of docs/reference/metrics.md.

The worker's own event loop serves the page, so that a scrape sees a consistent state. Two parts change only at the end
of a run: the publish gaps, and lost, duplicate and reordered deliveries, which one worker exports as the verifier
counted them. All other metrics are live.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from migratory_loadtest.histogram import Histogram
from migratory_loadtest.meter import Meter

SAME_CLOCK = "same"
"""The value of the label `clock`: publisher and subscriber read the same clock, so latencies are exact."""

REQUEST_TIMEOUT = 10.0
"""Seconds for a scraper to send its request and read the answer."""


class MeterCollector(Collector):
    """A collector that exports a `Meter` as Prometheus metric families.

    :param cluster: the value of the label `cluster`.
    :param started_at: the time at which counting began, in seconds since 1970; now by default.
    """

    def __init__(self, meter: Meter, cluster: str, started_at: float | None = None) -> None:
        self._meter = meter
        self._cluster = cluster
        self._started_at = time.time() if started_at is None else started_at

    def collect(self) -> Iterable[Metric]:
        """Yield all metric families with the current values. Counters of events that have not happened are exported as
        0."""
        # At the first scrape the counters may already be high. With this metric a scraper can tell since when they
        # count.
        yield GaugeMetricFamily("process_start_time_seconds", "When counting began.", value=self._started_at)
        yield from self._latency()
        yield from self._counts()
        meter = self._meter
        empty = Histogram(meter.bounds)
        for name, text, by_broker in (
            # These two stay empty until a broker dies, and then change at once. `rate` needs series that were at zero
            # before.
            (
                "migratory_resume_seconds",
                "Time from the lost link to the last receipt of a client.",
                dict.fromkeys(self._brokers(), empty) | meter.resume,
            ),
            (
                "migratory_publish_gap_seconds",
                "Time without acknowledgement, by publisher and group.",
                {"": empty} | meter.publish_gap,
            ),
            ("migratory_publish_seconds", "Time from send to acknowledgement.", meter.publish),
        ):
            family = HistogramMetricFamily(name, text, labels=["cluster", "broker"])
            for broker, histogram in sorted(by_broker.items()):
                _add(family, [self._cluster, broker], histogram)
            yield family

    def _brokers(self) -> list[str]:
        """Return the brokers that delivered something, or for which deliveries were lost. Return one empty name if
        there are none."""
        return sorted(self._meter.received | self._meter.lost) or [""]

    def _latency(self) -> Iterator[Metric]:
        """Yield the delivery latencies by broker and phase, and the sums of their squares."""
        labels = ["cluster", "broker", "clock", "phase"]
        latency = HistogramMetricFamily(
            "migratory_delivery_latency_seconds", "Time from the scheduled send to the delivery.", labels=labels
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
        """Yield the counters of deliveries, reconnects and failed publications. Counts without a broker have the name
        of the first one."""
        meter = self._meter
        brokers = self._brokers()
        for name, text, counts in (
            ("migratory_received", "Deliveries.", dict(meter.received)),
            (
                "migratory_lost",
                "Acknowledged publications that were not delivered to a subscriber, as verified.",
                dict(meter.lost),
            ),
            ("migratory_gaps", "Publications whose loss a receipt reported.", dict(meter.gaps)),
        ):
            family = CounterMetricFamily(name, text, labels=["cluster", "broker"])
            for broker in brokers:
                family.add_metric([self._cluster, broker], counts.get(broker, 0))
            yield family
        for name, text, value in (
            ("migratory_duplicates", "Repeated deliveries, as verified.", meter.duplicates),
            ("migratory_reordered", "Deliveries after one of a higher position, as verified.", meter.reordered),
        ):
            family = CounterMetricFamily(name, text, labels=["cluster", "broker"])
            family.add_metric([self._cluster, brokers[0]], value)
            yield family
        expected = CounterMetricFamily("migratory_expected", "Deliveries that must be made.", labels=["cluster"])
        expected.add_metric([self._cluster], meter.expected)
        yield expected
        reconnects = CounterMetricFamily(
            "migratory_reconnects", "Links that clients lost.", labels=["cluster", "broker", "reason"]
        )
        # A series at zero shows that nothing happened. A missing series does not.
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
    """Add a histogram to a family as Prometheus has it, with cumulative buckets. `labels` are the values of its
    labels."""
    cumulative = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        cumulative += count
        buckets.append((str(bound), cumulative))
    buckets.append(("+Inf", cumulative + histogram.counts[-1]))
    family.add_metric(labels, buckets, histogram.total)


class LoadExporter:
    """An HTTP server with the one page `GET /metrics`.

    :param cluster: the value of the label `cluster`.
    :param listen: host and port; port 0 is a free one.
    """

    def __init__(self, meter: Meter, cluster: str, listen: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(MeterCollector(meter, cluster))
        self._listen = listen
        self._server: asyncio.Server | None = None
        self._is_scraped = False
        self._on_scrape: Callable[[], None] | None = None

    async def start(self) -> str:
        """Start to listen, and return the host:port of the listener, with the port that was chosen for port 0.

        :raises OSError: the address cannot be used.
        """
        self._server = await asyncio.start_server(self._answer, *self._listen)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def notify_of_scrape(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, after the next complete scrape that begins after this call. If there was no scrape so
        far, call it at once, because nobody scrapes. Another call before that scrape replaces `callback`."""
        if self._is_scraped:
            self._on_scrape = callback
        else:
            callback()

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection: with the metrics, or 404 for anything but `GET /metrics`. A
        request that takes longer than `REQUEST_TIMEOUT` is dropped. Call the waiting callback after a scrape was sent
        as a whole."""
        on_scrape = None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
                path = head.split(b" ", 2)[1] if head.startswith(b"GET ") else b""
                if path.split(b"?")[0] == b"/metrics":
                    status, kind, body = "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._registry)
                    on_scrape, self._is_scraped = self._on_scrape, True
                else:
                    status, kind, body = "404 Not Found", "text/plain", b"only GET /metrics\n"
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n".encode()
                    + body
                )
                writer.close()
                await writer.wait_closed()
                if on_scrape is not None and on_scrape is self._on_scrape:
                    self._on_scrape = None
                    on_scrape()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            # The scraper went away or sent no request. Its next scrape gets the same counters.
            writer.transport.abort()
        finally:
            writer.close()
