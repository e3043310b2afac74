"""The measurements of one worker, for the run's result and for /metrics: latencies, resume times, publish gaps and
counts. Durations are in seconds. No I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from migratory_loadtest.histogram import Histogram
from migratory_loadtest.worker_messages import HistogramData

WARMUP, BEFORE, DURING, AFTER = "warmup", "before", "during", "after"
"""The measurement windows of a run: outside the measured time; before the mark, which a test sets at a fault; the
`settle` seconds from the mark on; and the rest."""
LIVE, REPLAYED = "live", "replayed"
"""The phases of a delivery: as it was published, or from the broker's cache after a resume."""


class Meter:
    """Counters and histograms of one worker.

    `received`, `gaps`, `lost`, `resume` and `publish` are by broker, `reconnects` and `errors` by (broker, reason).
    `expected` is the number of deliveries that must be made. `bytes` counts all received bytes, and `measured_bytes`
    those of the measured time.

    :param bounds: the bucket bounds of all histograms, in seconds.
    :param settle: seconds after the mark that belong to the window "during".
    """

    def __init__(self, bounds: tuple[float, ...], settle: float) -> None:
        self.bounds = bounds
        self._settle_ns = round(settle * 1e9)
        self._measured: tuple[int, int] | None = None
        self._mark: int | None = None
        self.latency: dict[tuple[str, str, str], Histogram] = {}  # by window, broker, phase
        self.recent: Counter[int] = Counter()  # deliveries by bucket, since the previous progress message
        self.received: Counter[str] = Counter()
        self.gaps: Counter[str] = Counter()
        self.reconnects: Counter[tuple[str, str]] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()  # by broker, reason
        self.resume: dict[str, Histogram] = {}
        self.resumes: list[float] = []
        self.publish: dict[str, Histogram] = {}
        self.publish_gap: dict[str, Histogram] = {}
        self.expected = 0
        self.lost: Counter[str] = Counter()  # this and the next two: as the verifier found them at the end
        self.duplicates = 0
        self.reordered = 0
        self.bytes = 0
        self.measured_bytes = 0

    def measure(self, start: int, end: int) -> None:
        """Set the measured time: publications that are due within [start, end), in nanoseconds of the monotonic
        clock."""
        self._measured = (start, end)

    def stop(self, at: int) -> None:
        """End the measured time at `at`, nanoseconds of the monotonic clock, if that is earlier than planned. Do
        nothing before `measure`."""
        if self._measured is not None:
            start, end = self._measured
            self._measured = (start, max(start, min(end, at)))

    def mark(self, at: int) -> None:
        """Begin the window "during" at `at`, nanoseconds of the monotonic clock. Only the first call has an effect."""
        if self._mark is None:
            self._mark = at

    def window(self, due: int) -> str:
        """Return the measurement window of a publication: warmup, before, during or after. `due` is its due time in
        nanoseconds of the monotonic clock. Outside the measured time, and before `measure`, it is warmup."""
        if self._measured is None or not self._measured[0] <= due < self._measured[1]:
            return WARMUP
        if self._mark is None or due < self._mark:
            return BEFORE
        return DURING if due < self._mark + self._settle_ns else AFTER

    def delivered(self, window: str, broker: str, replayed: bool, latency: float) -> None:
        """Record a delivery by `broker` with its latency in seconds. `window` is the measurement window of the
        publication; `replayed` is True for one from the cache."""
        key = (window, broker, REPLAYED if replayed else LIVE)
        histogram = self.latency.get(key)
        if histogram is None:
            histogram = self.latency[key] = Histogram(self.bounds)
        self.recent[histogram.observe(latency)] += 1
        self.received[broker] += 1

    def received_bytes(self, count: int, now: int) -> None:
        """Count bytes that a client received at `now`, nanoseconds of the monotonic clock."""
        self.bytes += count
        if self._measured is not None and self._measured[0] <= now < self._measured[1]:
            self.measured_bytes += count

    def acknowledged(self, broker: str, seconds: float, subscribers: int) -> None:
        """Record an acknowledgement after `seconds`, and expect a delivery to each of the topic's `subscribers`."""
        self._histogram(self.publish, broker).observe(seconds)
        self.expected += subscribers

    def resumed(self, broker: str, seconds: float) -> None:
        """Record a client's resume time in seconds. `broker` is the one that serves it now."""
        self._histogram(self.resume, broker).observe(seconds)
        self.resumes.append(seconds)

    def publish_gaps(self, seconds: Iterable[float]) -> None:
        """Record publish gaps in seconds, for no particular broker."""
        for value in seconds:
            self._histogram(self.publish_gap, "").observe(value)

    def take_recent(self) -> dict[int, int]:
        """Return and reset the numbers of deliveries since the last call, by index of the latency bucket."""
        recent, self.recent = dict(self.recent), Counter()
        return recent

    def by_window(self) -> dict[str, HistogramData]:
        """Return the latencies of deliveries by measurement window, over all brokers and phases. Windows without a
        delivery are missing."""
        sums: dict[str, Histogram] = {}
        for (window, _, _), histogram in self.latency.items():
            sums.setdefault(window, Histogram(self.bounds)).add(histogram)
        return {window: to_histogram_data(histogram) for window, histogram in sums.items()}

    def by_broker(self) -> dict[tuple[str, str], Histogram]:
        """Return the latencies of deliveries by broker and phase (live or replayed), over the whole run."""
        sums: dict[tuple[str, str], Histogram] = {}
        for (_, broker, phase), histogram in self.latency.items():
            sums.setdefault((broker, phase), Histogram(self.bounds)).add(histogram)
        return sums

    def _histogram(self, by_broker: dict[str, Histogram], broker: str) -> Histogram:
        """Return the broker's histogram in `by_broker`. Add an empty one if there is none."""
        histogram = by_broker.get(broker)
        if histogram is None:
            histogram = by_broker[broker] = Histogram(self.bounds)
        return histogram


def to_histogram_data(histogram: Histogram) -> HistogramData:
    """Return the content of a histogram for a message to the parent. It shares the list of counts with the
    histogram."""
    return HistogramData(histogram.counts, histogram.total, histogram.squares, histogram.largest)


def from_histogram_data(bounds: tuple[float, ...], data: HistogramData) -> Histogram:
    """Return the histogram with these bounds and this content.

    :raises ValueError: the content is that of a histogram with another number of bounds.
    """
    histogram = Histogram(bounds)
    if len(data.counts) != len(histogram.counts):
        raise ValueError(f"the worker's histogram has {len(data.counts)} buckets; {len(histogram.counts)} are expected")
    histogram.counts = list(data.counts)
    histogram.total, histogram.squares, histogram.largest = data.total, data.squares, data.largest
    return histogram


def merge_histograms(bounds: tuple[float, ...], parts: Iterable[HistogramData]) -> Histogram:
    """Return the sum of histograms with these bounds. Raise ValueError if one of them has another number of bounds."""
    total = Histogram(bounds)
    for part in parts:
        total.add(from_histogram_data(bounds, part))
    return total
