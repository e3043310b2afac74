"""What one worker measures, for the result and for /metrics alike. Values are seconds; nothing here does I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from migratory_loadtest.control import Buckets
from migratory_loadtest.histogram import Histogram

WARMUP, BEFORE, DURING, AFTER = "warmup", "before", "during", "after"
LIVE, REPLAYED = "live", "replayed"


class Meter:
    """`received`, `resume` and `publish` are by broker, `reconnects` by (broker, reason)."""

    def __init__(self, bounds: tuple[float, ...], settle: float) -> None:
        self.bounds = bounds
        self._settle = round(settle * 1e9)
        self._measured: tuple[int, int] | None = None
        self._mark: int | None = None
        self.latency: dict[tuple[str, str, str], Histogram] = {}  # by window, broker, phase
        self.recent: Counter[int] = Counter()  # bucket -> deliveries since the progress before
        self.received: Counter[str] = Counter()
        self.gaps: Counter[str] = Counter()
        self.reconnects: Counter[tuple[str, str]] = Counter()
        self.errors: Counter[tuple[str, str]] = Counter()  # by broker, reason
        self.resume: dict[str, Histogram] = {}
        self.resumes: list[float] = []
        self.publish: dict[str, Histogram] = {}
        self.publish_gap: dict[str, Histogram] = {}
        self.expected = 0
        self.lost: Counter[str] = Counter()  # these three: as verified at the end
        self.duplicates = 0
        self.reordered = 0
        self.bytes = 0
        self.measured_bytes = 0

    def measure(self, start: int, end: int) -> None:
        """Latency counts for publications due within [start, end), in nanoseconds of the monotonic clock."""
        self._measured = (start, end)

    def cease(self, at: int) -> None:
        """The measured time ends earlier than was meant."""
        if self._measured is not None:
            start, end = self._measured
            self._measured = (start, max(start, min(end, at)))

    def mark(self, at: int) -> None:
        """The first one splits the run."""
        if self._mark is None:
            self._mark = at

    def window(self, due: int) -> str:
        """Where a publication that was due then belongs."""
        if self._measured is None or not self._measured[0] <= due < self._measured[1]:
            return WARMUP
        if self._mark is None or due < self._mark:
            return BEFORE
        return DURING if due < self._mark + self._settle else AFTER

    def delivered(self, window: str, broker: str, replayed: bool, latency: float) -> None:
        key = (window, broker, REPLAYED if replayed else LIVE)
        histogram = self.latency.get(key)
        if histogram is None:
            histogram = self.latency[key] = Histogram(self.bounds)
        self.recent[histogram.observe(latency)] += 1
        self.received[broker] += 1

    def took_bytes(self, count: int, now: int) -> None:
        self.bytes += count
        if self._measured is not None and self._measured[0] <= now < self._measured[1]:
            self.measured_bytes += count

    def acknowledged(self, broker: str, seconds: float, subscribers: int) -> None:
        self._histogram(self.publish, broker).observe(seconds)
        self.expected += subscribers

    def resumed(self, broker: str, seconds: float) -> None:
        self._histogram(self.resume, broker).observe(seconds)
        self.resumes.append(seconds)

    def publish_gaps(self, seconds: Iterable[float]) -> None:
        for value in seconds:
            self._histogram(self.publish_gap, "").observe(value)

    def take_recent(self) -> dict[int, int]:
        recent, self.recent = dict(self.recent), Counter()
        return recent

    def by_window(self) -> dict[str, Buckets]:
        sums: dict[str, Histogram] = {}
        for (window, _, _), histogram in self.latency.items():
            sums.setdefault(window, Histogram(self.bounds)).add(histogram)
        return {window: buckets(histogram) for window, histogram in sums.items()}

    def by_broker(self) -> dict[tuple[str, str], Histogram]:
        """By broker and phase, over the whole run."""
        sums: dict[tuple[str, str], Histogram] = {}
        for (_, broker, phase), histogram in self.latency.items():
            sums.setdefault((broker, phase), Histogram(self.bounds)).add(histogram)
        return sums

    def _histogram(self, where: dict[str, Histogram], broker: str) -> Histogram:
        found = where.get(broker)
        if found is None:
            found = where[broker] = Histogram(self.bounds)
        return found


def buckets(histogram: Histogram) -> Buckets:
    return Buckets(histogram.counts, histogram.total, histogram.squares, histogram.largest)


def from_buckets(bounds: tuple[float, ...], sent: Buckets) -> Histogram:
    """Raises ValueError when the other side had other bounds."""
    histogram = Histogram(bounds)
    if len(sent.counts) != len(histogram.counts):
        raise ValueError("the worker's histogram has other bounds")
    histogram.counts = list(sent.counts)
    histogram.total, histogram.squares, histogram.largest = sent.total, sent.squares, sent.largest
    return histogram


def merged(bounds: tuple[float, ...], parts: Iterable[Buckets]) -> Histogram:
    total = Histogram(bounds)
    for part in parts:
        total.add(from_buckets(bounds, part))
    return total
