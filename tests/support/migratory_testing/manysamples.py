"""Nine series of a minute as a server has them, and the options that ask for it: for tests of the Prometheus source."""

from __future__ import annotations

from collections.abc import Callable

from migratory_spark.prometheus.options import SourceOptions, parse_options

from migratory_testing import prometheus_wire as made
from migratory_testing.fakeprometheus import FakePrometheus, Reply, Request

Samples = list[tuple[int, float]]
Serve = Callable[[Callable[[Request], Reply]], FakePrometheus]
START, END = 1_700_000_000_000, 1_700_000_060_000
MANY = [({"__name__": "c_total", "i": str(i)}, [(START + 1000 * k, float(i * k)) for k in range(60)]) for i in range(9)]


def options(*servers: FakePrometheus | str, **given: str) -> SourceOptions:
    url = ",".join(one if isinstance(one, str) else one.url for one in servers)
    base = {"url": url, "matchers": "c_total", "start": str(START // 1000), "end": str(END // 1000)}
    return parse_options(base | {"retries": "1", "timeout": "5s"} | given)


def good(request: Request) -> Reply:
    """Return the reply of a real server: the samples of the requested window."""
    first, last = made.window_of(request.body)
    inside = [(labels, [one for one in samples if first <= one[0] <= last]) for labels, samples in MANY]
    return Reply(made.streamed([(labels, samples) for labels, samples in inside if samples]))
