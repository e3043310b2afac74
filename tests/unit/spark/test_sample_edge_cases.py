"""Reports over misleading samples: exact figures stay exact, and unknown ones are reported as unknown.

The tests run without Spark, on which these results do not depend. Every report is validated by the published schema.
"""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from migratory_resources.objectives import Objective
from migratory_spark.prometheus.blocks import STALE
from migratory_spark.read.series_pack import SampleQuery, pack_batches
from migratory_testing.prometheus_wire import of_bits
from migratory_testing.reports import COMPLETE, FAST, MAP, Sample, objective, plain_report

LATENCY = "migratory_delivery_latency_seconds"
LABELS = {"cluster": "c", "job": "load", "instance": "w"}
STEADY = Objective.model_validate(
    {"name": "steady", "type": "latency", "target": "90",
     "slices": {"length": "10s", "percentile": "99", "threshold": "250ms"}}
)  # fmt: skip


def received(second: float, value: float, **labels: str) -> Sample:
    return "migratory_received_total", {**LABELS, "broker": "b0", **labels}, round(second * 1000), float(value)


def latencies(second: int, buckets: dict[str, float], count: float | None = None, **labels: str) -> list[Sample]:
    """Return the samples of one scrape of one exporter's histogram, with cumulative counts by `le`. Without `count`
    the sample of `_count` is missing."""
    every = {**LABELS, "broker": "b0", "clock": "same", "phase": "live", **labels}
    rows = [(f"{LATENCY}_bucket", {**every, "le": le}, second * 1000, float(value)) for le, value in buckets.items()]
    return rows if count is None else [*rows, (f"{LATENCY}_count", every, second * 1000, float(count))]


def steadily(seconds: range, share: dict[str, float], counted: bool = True, **labels: str) -> list[Sample]:
    """Return samples of ten deliveries a second, with this cumulative share of them in each bucket. Without
    `counted` the samples of `_count` are missing."""
    return [
        sample
        for second in seconds
        for sample in latencies(
            second, {le: 10 * second * part for le, part in share.items()}, 10 * second if counted else None, **labels
        )
    ]


def judged(samples: list[Sample], *objectives: Objective, end: float = 100.0) -> list[tuple[str, int, int]]:
    results = plain_report(samples, 0, end, objectives)["objectives"]
    return [(result["verdict"], result["good"], result["total"]) for result in results]


# What nobody saw


def test_a_single_scrape_covers_only_its_moment() -> None:
    """A report over a single scrape is insufficient and covers no time, because one scrape does not show the scrape
    interval; a note says so."""
    samples = latencies(10, {"0.25": 5000, "+Inf": 5000}, 5000)
    report = plain_report(samples, 0, 3600, [FAST])
    assert report["verdict"] == "insufficient"
    assert report["coverage"]["share"] == 0.0
    (target,) = report["coverage"]["targets"]
    assert (target["scrapes"], target["ended_early"], target["uncertain_seconds"]) == (1, True, 3590.0)
    assert any("load/w was scraped once" in note for note in report["notes"])


@pytest.mark.parametrize("inside", [1, 2])
def test_exporter_that_ends_as_the_window_begins_is_insufficient(inside: int) -> None:
    """An exporter with one or two scrapes at the beginning of the window covers less than 1% of it, and the report
    is insufficient, although samples from before the window show the scrape interval."""
    every = steadily(range(3600), {"0.25": 1.0, "+Inf": 1.0})
    report = plain_report([sample for sample in every if sample[2] < (3000 + inside) * 1000], 3000, 3600, [FAST])
    assert report["verdict"] == "insufficient"
    assert report["coverage"]["share"] < 0.01


def test_a_broker_that_dies_as_the_window_begins_is_an_incident() -> None:
    samples = [
        ("migratory_clients", {"cluster": "c", "job": "b", "instance": broker, "broker": broker}, 1000 * second, 5.0)
        for broker, last in (("b0", 200), ("b1", 100))
        for second in range(50, last + 1)
    ]  # fmt: skip
    (incident,) = plain_report(samples, 100, 200)["incidents"]
    assert (incident["kind"], incident["broker"]) == ("broker died", "b1")


def test_zero_means_none_only_while_the_counter_is_scraped() -> None:
    """Without a reconnect, the resume objective is met only if the counter of reconnects was scraped in the window: if
    it was scraped last a week ago, the objective is insufficient and the number of reconnects unknown."""
    back = objective(name="back", type="resume", threshold="5s", target="99")
    far = objective(name="far", type="latency", threshold="1s", target="99", window={"rolling": "7d"})
    week = 7 * 86_400
    links = "migratory_reconnects_total", {**LABELS, "broker": "b0", "instance": "old"}
    samples: list[Sample] = [(*links, second * 1000, 0.0) for second in range(86_400, 86_500)]
    samples += [received(week + second, second) for second in range(101)]
    report = plain_report(samples, week, week + 100, [back, far])
    assert report["objectives"][0]["verdict"] == "insufficient"
    assert report["delivery"]["reconnects"] is None
    now: list[Sample] = [(*links, (week + second) * 1000, 0.0) for second in range(101)]
    assert plain_report([*samples, *now], week, week + 100, [back, far])["objectives"][0]["verdict"] == "met"


@pytest.mark.parametrize("gone", ["expected", "lost", "duplicates", "reordered"])
@pytest.mark.parametrize("lost_count", [0, 3])
def test_an_exporter_that_ends_early_makes_deliveries_doubtful(gone: str, lost_count: int) -> None:
    """When the exporter of one counter ends early, delivery objectives are insufficient and name the counter; a loss
    that was seen still makes the objective of no losses missed."""

    def told(second: int) -> dict[str, int]:
        return {"expected": 10 * second, "lost": lost_count if second > 5 else 0, "duplicates": 0, "reordered": 0}

    samples = [received(second, 10 * second - told(second)["lost"]) for second in range(101)]
    samples += [
        (f"migratory_{name}_total", {**LABELS, "instance": name}, second * 1000, float(value))
        for second in range(101)
        for name, value in told(second).items()
        if name != gone or second < 60
    ]
    nearly = objective(name="nearly", type="delivery", target="99.6", window={"rolling": "100s"})
    results = plain_report(samples, 0, 100, [COMPLETE, nearly])["objectives"]
    assert [result["verdict"] for result in results] == ["missed" if lost_count else "insufficient", "insufficient"]
    assert all(gone in result["reason"] for result in results)
    if lost_count:
        assert (results[0]["good"], results[0]["total"]) == (997, 1000)


# Buckets


def test_a_threshold_without_a_bound_is_insufficient_and_not_missed() -> None:
    """An objective whose threshold is no bound of a bucket is insufficient and not missed, because it is unknown on
    which side of the threshold the deliveries of its bucket are."""
    only = {"+Inf": 1.0}
    assert judged(steadily(range(101), only), FAST, STEADY) == [("insufficient", 0, 1000), ("insufficient", 0, 10)]
    # Nor where there is no error budget.
    whole = FAST.model_copy(update={"target": 100})
    assert judged(steadily(range(101), {"0.2": 0.9, "0.5": 1.0, "+Inf": 1.0}), whole) == [("insufficient", 900, 1000)]


@pytest.mark.parametrize(
    ("share", "verdicts"),
    [
        ({"0.2": 0.995, "0.5": 1.0, "+Inf": 1.0}, ["met", "met"]),
        ({"0.2": 0.9, "0.5": 0.995, "+Inf": 1.0}, ["insufficient", "insufficient"]),
        ({"0.2": 0.9, "0.5": 0.98, "+Inf": 1.0}, ["missed", "missed"]),
    ],
)
def test_a_verdict_that_interpolation_cannot_change_is_given(share: dict[str, float], verdicts: list[str]) -> None:
    assert [verdict[0] for verdict in judged(steadily(range(101), share), FAST, STEADY)] == verdicts


def test_deliveries_outside_all_buckets_count_in_the_total() -> None:
    """Deliveries that are in no bucket, because the infinite one was dropped, count in an objective's total, which
    is insufficient, and a note names their number; percentiles are unknown."""
    samples = steadily(range(101), {"0.1": 0.8, "0.25": 0.8})
    report = plain_report(samples, 0, 100, [FAST])
    (fast,) = report["objectives"]
    assert (fast["verdict"], fast["total"]) == ("insufficient", 1000)
    assert "1000 of them are in no bucket" in fast["reason"]
    assert any("1000 values" in note for note in report["notes"])
    assert report["latency_ms"]["all"]["p99"] is None
    # Beside an exporter that has it.
    both = [*samples, *steadily(range(101), {"0.25": 1.0, "+Inf": 1.0}, instance="w2")]
    assert judged(both, FAST) == [("insufficient", 1000, 2000)]


@pytest.mark.parametrize("share", [{}, {"0.1": 0.8, "0.25": 0.8}])
def test_slices_have_deliveries_outside_all_buckets(share: dict[str, float]) -> None:
    """A slice with deliveries in no bucket is not met without them: of an exporter whose infinite bucket, or whose
    buckets all, were dropped."""
    complete = steadily(range(101), {"0.25": 1.0, "+Inf": 1.0})
    outside = steadily(range(101), share, instance="w2")
    assert judged(complete, STEADY) == [("met", 10, 10)]
    (steady,) = plain_report([*complete, *outside], 0, 100, [STEADY])["objectives"]
    assert (steady["verdict"], steady["good"], steady["total"], steady["possibly_good"]) == ("insufficient", 0, 10, 10)
    assert "some deliveries are in no bucket and count as above" in steady["reason"]
    # A hundredth of the deliveries is outside: the others decide.
    few = [(metric, labels, at, value / 200) for metric, labels, at, value in outside]
    assert judged([*complete, *few], STEADY) == [("met", 10, 10)]
    # Deliveries that the objective does not judge change nothing.
    replayed = steadily(range(101), share, instance="w2", phase="replayed")
    estimated = steadily(range(101), share, instance="w2", clock="estimated")
    assert judged([*complete, *replayed, *estimated], STEADY) == [("met", 10, 10)]


def test_threshold_that_loses_its_bound_in_the_window_is_insufficient() -> None:
    """An objective whose threshold is a bucket's bound only in the first half of the window is insufficient: later
    deliveries may be good or bad."""
    samples = [
        *steadily(range(51), {"0.1": 0.5, "0.25": 1.0, "+Inf": 1.0}),
        *steadily(range(51, 101), {"0.1": 0.5, "0.5": 1.0, "+Inf": 1.0}),
    ]
    assert judged(samples, FAST) == [("insufficient", 500, 1000)]


# Publications


SERVED = objective(type="availability", target="99.9")
SERVING = objective(name="serving", type="availability", target="90", slices={"length": "10s", "share": "99"})


def publications(acknowledged: int | None, failed: int | None, **labels: str) -> list[Sample]:
    """Return samples of an exporter of this many acknowledged and failed publications a second, for 100 s. With None
    the exporter does not count them."""
    every = {**LABELS, **labels}
    counts = {"migratory_publish_seconds_count": acknowledged, "migratory_publish_errors_total": failed}
    return [
        (metric, every, second * 1000, float(second * count))
        for second in range(101)
        for metric, count in counts.items()
        if count is not None
    ]


def test_exporters_that_do_not_count_failures_do_not_show_availability() -> None:
    both = publications(90, 0)
    assert judged(both, SERVED, SERVING) == [("met", 9000, 9000), ("met", 10, 10)]
    alone = publications(10, None, instance="w2")
    assert judged(alone, SERVED, SERVING) == [("insufficient", 1000, 1000), ("insufficient", 0, 10)]
    served, serving = plain_report([*both, *alone], 0, 100, [SERVED, SERVING])["objectives"]
    assert (served["verdict"], served["good"], served["total"]) == ("insufficient", 10_000, 10_000)
    assert "1000 of them are of exporters that count no failed publications" in served["reason"]
    assert (serving["verdict"], serving["possibly_good"]) == ("insufficient", 10)
    # Not where the others decide.
    assert judged([*publications(100_000, 0), *alone], SERVED)[0][0] == "met"
    assert judged([*publications(90, 10), *alone], SERVED)[0][0] == "missed"


def test_exporters_that_count_failures_alone_do_not_make_a_miss() -> None:
    both, alone = publications(99, 0), publications(None, 1, instance="w2")
    served, serving = plain_report([*both, *alone], 0, 100, [SERVED, SERVING])["objectives"]
    assert (served["verdict"], served["good"], served["total"]) == ("insufficient", None, None)
    assert "100 failed publications are of exporters that count no acknowledged ones" in served["reason"]
    assert serving["verdict"] == "met"  # exactly 99% of each slice
    two = publications(None, 2, instance="w2")
    assert judged([*both, *two], SERVING) == [("insufficient", 0, 10)]
    # A failure is one, however many publications there were.
    assert judged([*both, *alone], SERVED.model_copy(update={"target": 100}))[0][0] == "missed"
    # A target that is met with the failures is met in any case.
    assert judged([*publications(100_000, 0), *alone], SERVED)[0][0] == "met"


def test_exporters_at_one_address_are_told_apart_by_their_process() -> None:
    """Two clusters have exporters at equal addresses, of which one counts both and the other acknowledged publications
    only."""
    samples = []
    for region, counts in (("eu", (90, 0)), ("us", (90, None))):
        samples += publications(*counts, region=region)
        start = {"job": LABELS["job"], "instance": LABELS["instance"], "region": region}
        samples += [("process_start_time_seconds", start, second * 1000, -5.0) for second in range(101)]
    assert judged(samples, SERVED) == [("insufficient", 18_000, 18_000)]


# Counters


def test_a_counter_is_never_negative() -> None:
    samples = [received(second, -5 if second == 50 else 10 * second) for second in range(101)]
    report = plain_report(samples, 0, 100)
    assert report["delivery"]["received"] == 1000
    assert (report["samples"]["nan"], report["samples"]["restarts"]) == (1, 0)


@pytest.mark.parametrize("at", [99, 100, 101])
def test_restart_at_the_edge_of_the_window_is_counted_exactly(at: int) -> None:
    """The increase in the window (100, 200] is exact when the exporter restarts just before, at, or after its
    beginning: counts from before the window do not belong to it."""
    truth = [10 * (second if second < at else second - at) for second in range(201)]
    samples = [received(second, value) for second, value in enumerate(truth)]
    inside = sum(
        value if value < before else value - before
        for second, (before, value) in enumerate(pairwise(truth), 1)
        if second > 100
    )
    assert plain_report(samples, 100, 200)["delivery"]["received"] == inside


@pytest.mark.parametrize("back", [50, 55, 70])
@pytest.mark.parametrize("again", [10, 1000])
def test_series_that_returns_later_than_its_process_counts_from_zero(back: int, again: int) -> None:
    """A counter that appears again some time after its process restarted counts from zero, whether its new value is
    lower or higher; that is one restart."""
    started = "process_start_time_seconds", {"job": "load", "instance": "w"}
    samples: list[Sample] = [(*started, second * 1000, -100.0 if second < 50 else 49.0) for second in range(101)]
    samples += [received(second, 10 * second) for second in range(50)]
    samples += [received(second, again + second - back) for second in range(back, 101)]
    report = plain_report(samples, 0, 100)
    assert report["delivery"]["received"] == 490 + again + 100 - back
    assert [target["restarts"] for target in report["coverage"]["targets"]] == [1]


def test_restart_while_the_scraping_server_changes_is_counted() -> None:
    """A restart is counted, with the right increase, when one server stops scraping before it and another one
    continues after it, also if that one had scraped once long before."""
    for first in (None, 2.0):
        samples = [received(second, second) for second in range(0, 110, 5)]
        later = [received(second, second - 120) for second in range(140, 300, 5)]
        before = [] if first is None else [received(first, first)]
        all_samples = [*samples, *before, *later]
        sources = [*("a" for _ in samples), *("b" for _ in before), *("b" for _ in later)]
        report = plain_report(all_samples, 0, 300, sources=sources)
        assert report["delivery"]["received"] == 105 + 175
        assert report["samples"]["restarts"] == 1


def test_replicas_behind_one_address_count_once() -> None:
    """Samples of two replicas behind one address, which only a label distinguishes, count once although their clocks
    differ by four seconds."""
    samples = [
        received(second + late - behind, second + late, replica=replica)
        for second in range(0, 301, 5)
        for replica, late, behind in (("r1", 0, 0), ("r2", 2, 4))
    ]
    sources = ["http://a"] * len(samples)
    report = plain_report(samples, 0, 300, sources=sources, replica_labels=["replica"])
    assert 290 <= report["delivery"]["received"] <= 300
    assert report["samples"]["restarts"] == 0


def test_exporters_that_are_scraped_twice_are_noted() -> None:
    """Exporters whose samples from two servers differ by one label are counted twice, and a note recommends
    `--replica-label`; with that option they count once. Pods that replace each other cause no note."""
    twice = [received(second, second, prometheus=server) for second in range(101) for server in ("a", "b")]
    report = plain_report(twice, 0, 100)
    assert any("differ by prometheus alone" in note and "--replica-label" in note for note in report["notes"])
    # One after the other it is a pod that was replaced.
    pods = [received(second, second, pod="a" if second < 50 else "b") for second in range(101)]
    assert not any("differ by" in note for note in plain_report(pods, 0, 100)["notes"])
    named = plain_report(twice, 0, 100, replica_labels=["prometheus"])
    assert named["delivery"]["received"] == 100
    assert not any("differ by" in note for note in named["notes"])


@pytest.mark.parametrize("starts", [True, False])
def test_labels_of_the_exporter_itself_are_not_those_of_servers(starts: bool) -> None:
    """An exporter that counts by a label of its own (`region`) is counted once, and no note says otherwise. If two
    servers scrape it, the note names the servers' label alone."""

    def scraped(**server: str) -> list[Sample]:
        own = {"job": "load", "instance": "w", **server}
        samples: list[Sample] = []
        for second in range(101):
            samples += [received(second, second, region=region, **server) for region in ("east", "west")]
            samples.append(("migratory_gaps_total", {"cluster": "c", **own}, second * 1000, 0.0))
            if starts:
                samples.append(("process_start_time_seconds", own, second * 1000, -9.0))
        return samples

    once = plain_report(scraped(), 0, 100)
    assert once["delivery"]["received"] == 200
    assert not any("differ by" in note for note in once["notes"])
    twice = plain_report([*scraped(prometheus="a"), *scraped(prometheus="b")], 0, 100)
    assert [note for note in twice["notes"] if "differ by prometheus alone" in note]
    unnamed = plain_report([*scraped(prometheus="a"), *scraped()], 0, 100)
    assert [note for note in unnamed["notes"] if "differ by prometheus alone" in note]


@pytest.mark.parametrize("began", [None, 10.0, 149.0])
def test_first_value_is_left_out_only_if_the_process_started_before_the_window(began: float | None) -> None:
    """Without older samples, a counter's first value is left out only if its process is known to have started before
    the window. It is included if the exporter has no start time, which a note then says. With a sample from before the
    window, or a first value of zero, there is no such note."""
    samples = [received(second, 10 * (second - 10)) for second in range(150, 201)]
    if began is not None:
        started = "process_start_time_seconds", {"job": "load", "instance": "w"}
        samples += [(*started, second * 1000, began) for second in range(150, 201)]
    report = plain_report(samples, 100, 200)
    assert report["delivery"]["received"] == (500 if began == 10.0 else 1900)
    undated = [note for note in report["notes"] if "exports no start time" in note]
    assert len(undated) == (began is None)
    # Who was there before, or had counted nothing yet, needs no such sentence.
    for shift in (60, -1400):
        earlier = [(metric, labels, at, max(0.0, value + shift - 60)) for metric, labels, at, value in samples]
        if shift == 60:
            earlier += [received(99, 890)]
        assert not any("no start time" in note for note in plain_report(earlier, 100, 200)["notes"])


def test_stale_markers_at_unusual_times_change_no_total() -> None:
    """Stale markers before the first sample, twice in a row, at the time of a sample, or after the last one change
    no total."""
    truth = [received(second, second) for second in range(0, 101, 2)]
    for moments in ([-1], [40.5, 40.6], [40], [101]):
        marked = [*truth, *(received(moment, of_bits(STALE)) for moment in moments)]
        assert plain_report(marked, 0, 100)["delivery"]["received"] == 100


@pytest.mark.parametrize("asked", [None, "c"])
@pytest.mark.parametrize("extra", [{}, {"pod": "p"}])
def test_start_times_of_another_cluster_at_the_same_address_are_no_evidence(
    asked: str | None, extra: dict[str, str]
) -> None:
    """Two clusters whose clients have equal addresses, which only the label `region` distinguishes, have restarts of
    their own: a restart in one of them changes no count of the other. Labels that only the counters have (`pod`) do
    not matter."""
    samples: list[Sample] = []
    for cluster, region, restart in (("c", "east", 40), ("d", "west", 70)):
        target = {"job": "load", "instance": "w", "region": region}
        for second in range(101):
            samples += [
                ("process_start_time_seconds", target, second * 1000, -9.0 if second < restart else restart - 0.5),
                received(second, 10 * (second if second < restart else second - restart + 100),
                         cluster=cluster, region=region, **extra),
            ]  # fmt: skip
    report = plain_report(samples, 0, 100, cluster=asked)
    of_c, of_d = 390 + 1000 + 600, 690 + 1000 + 300
    assert report["delivery"]["received"] == (of_c if asked else of_c + of_d)
    assert report["samples"]["restarts"] == (1 if asked else 2)
    assert not any("differ by" in note for note in report["notes"])


def test_the_start_time_with_the_most_labels_in_common_is_the_evidence() -> None:
    """Of two start times at one address, one with a label that the counter lacks is that of another process."""
    target = {"job": "load", "instance": "w"}
    samples = [received(second, 10 * second) for second in range(101)]
    for second in range(101):
        samples += [
            ("process_start_time_seconds", target, second * 1000, -9.0),
            ("process_start_time_seconds", {**target, "region": "west"}, second * 1000, float(second // 30)),
        ]
    report = plain_report(samples, 0, 100)
    assert (report["delivery"]["received"], report["samples"]["restarts"]) == (1000, 0)
    here = [(metric, labels | {"region": "west"} if metric != "process_start_time_seconds" else labels, at, value)
            for metric, labels, at, value in samples]  # fmt: skip
    assert plain_report(here, 0, 100)["samples"]["restarts"] == 3


# Names


def test_a_label_with_an_empty_value_is_no_label() -> None:
    """Samples with an empty label belong to the same series as those without it, which is Prometheus's rule; an
    earlier version of the recorder wrote such labels."""
    samples = [received(second, second, **extra) for second in range(101) for extra in ({}, {"reason": ""})]
    report = plain_report(samples, 0, 100)
    assert report["samples"]["series"] == 1
    assert report["delivery"]["received"] == 100


def test_names_may_contain_any_character() -> None:
    names = ["", " ", "Ω\N{RIGHT-TO-LEFT OVERRIDE}", "a\0b", "\x1b[31m", "</svg><script>", "[/x]", '"', "x" * 2000]
    samples = [received(second, second, broker=name) for second in range(101) for name in names]
    report = plain_report(samples, 0, 100)
    assert report["delivery"]["received"] == 100 * len(names)
    assert {name: each["received"] for name, each in report["delivery"]["by_broker"].items()} == {
        name: 100 for name in names if name
    }


def test_several_clusters_are_noted_and_an_unknown_one_is_empty() -> None:
    samples = [received(second, second, cluster=cluster) for second in range(101) for cluster in ("c", "d")]
    both, first, none = (plain_report(samples, 0, 100, [COMPLETE], cluster=cluster) for cluster in (None, "c", "e"))
    assert (both["cluster"], first["cluster"], none["cluster"]) == ("c,d", "c", "e")
    assert [report["delivery"]["received"] for report in (both, first, none)] == [200, 100, None]
    assert ["2 clusters" in " ".join(report["notes"]) for report in (both, first, none)] == [True, False, False]
    assert none["verdict"] == "insufficient"


def test_nulls_in_rows_are_no_samples() -> None:
    batch = pa.record_batch(
        [
            pa.array(["c_total", None, "c_total", "c_total"]),
            pa.array([[("a", "b")], None, None, [("a", None)]], MAP),
            pa.array([1, 2, None, 4], pa.int64()),
            pa.array([None, 1.0, 1.0, 1.0]),
        ],
        names=["metric", "labels", "timestamp", "value"],
    )
    (pack,) = pack_batches([batch], SampleQuery(frozenset({"c_total"}), 0, 10))
    assert sorted(name.labels for name in pack.keys) == [(), (("a", "b"),)]


# Incidents


def test_errors_outside_of_incidents_have_a_rate_of_their_own() -> None:
    """A refused publication every 12 s counts outside of the incident in which a broker dies, and has a rate by the
    minute; the errors of the incident do not belong to it."""
    samples: list[Sample] = []
    errors = 0
    for second in range(601):
        errors += second % 12 == 0
        errors += 10 * (300 < second <= 305)
        at = second * 1000
        samples.append(("migratory_publish_errors_total", {**LABELS, "broker": "", "reason": "x"}, at, float(errors)))
        samples += [
            ("migratory_clients", {"cluster": "c", "job": "b", "instance": broker, "broker": broker}, at, 50.0)
            for broker in ("b0", "b1")
            if broker == "b0" or second <= 300
        ]
    report = plain_report(samples, 0, 600)
    (incident,) = report["incidents"]
    assert (incident["kind"], incident["broker"]) == ("broker died", "b1")
    inside = incident["affected"]["publish_errors"]
    assert 50 <= inside <= 54
    availability = report["availability"]
    assert availability["background_failures"] == errors - 1 - inside
    assert availability["background_failures_per_minute"] == pytest.approx(5, abs=0.2)


def test_links_lost_long_before_the_first_scrape_are_no_wave() -> None:
    """An exporter that is first scraped minutes after its start has lost links all that time, which is no wave. Links
    lost in its first scrape interval are one."""
    for began, waves in ((60, 0), (395, 1)):
        samples = [received(second, second) for second in range(0, 601, 10)]
        for second in range(400, 601, 10):
            target = {"job": "load", "instance": "late"}
            labels = {"cluster": "c", **target, "broker": "b0", "reason": "broken"}
            samples += [
                ("process_start_time_seconds", target, second * 1000, float(began)),
                ("migratory_reconnects_total", labels, second * 1000, 8.0),
            ]
        report = plain_report(samples, 0, 600)
        assert report["delivery"]["reconnects"] == 8
        assert [incident["kind"] for incident in report["incidents"]] == ["reconnect wave"] * waves


def with_sums(
    second: int, bound: dict[str, float], seconds_each: float, squares: bool = True, **labels: str
) -> list[Sample]:
    """Return the samples of one scrape of an exporter with ten deliveries a second, of `seconds_each` seconds each."""
    count = 10.0 * second
    rows = latencies(second, {le: count * share for le, share in bound.items()}, count, **labels)
    every = {**LABELS, "broker": "b0", "clock": "same", "phase": "live", **labels}
    rows.append((f"{LATENCY}_sum", every, second * 1000, count * seconds_each))
    if squares:
        rows.append((f"{LATENCY}_squared_total", every, second * 1000, count * seconds_each**2))
    return rows


WHOLE = {"1": 1.0, "+Inf": 1.0}


def test_an_exporter_without_an_infinite_bucket_is_left_out_of_mean_and_deviation_as_well() -> None:
    samples = [row for second in range(101) for row in (
        *with_sums(second, WHOLE, 1.0), *with_sums(second, {"1": 1.0}, 0.5, instance="w2"))]  # fmt: skip
    report = plain_report(samples, 0, 100, [FAST])
    latency = report["latency_ms"]["all"]
    assert (latency["count"], latency["mean"], latency["stdev"]) == (1000, 1000.0, 0.0)
    assert any(
        "1000 values" in note and "in no bucket: quantiles, mean and deviation leave them out" in note
        for note in report["notes"]
    )


def test_mean_and_deviation_are_unknown_if_an_exporter_lacks_their_sums() -> None:
    """Another exporter of the same broker that has the sums does not hide that one has none, and equal buckets are not
    reported as different ones."""
    samples = [row for second in range(101) for row in (
        *with_sums(second, WHOLE, 1.0), *with_sums(second, WHOLE, 1.0, squares=False, instance="w2"))]  # fmt: skip
    report = plain_report(samples, 0, 100, [FAST])
    latency = report["latency_ms"]["all"]
    assert (latency["count"], latency["mean"], latency["stdev"]) == (2000, 1000.0, None)
    assert not any("different buckets" in note for note in report["notes"])
    samples = [row for row in samples if row[1]["instance"] == "w" or not row[0].endswith("_sum")]
    latency = plain_report(samples, 0, 100, [FAST])["latency_ms"]["all"]
    assert (latency["count"], latency["mean"], latency["stdev"]) == (2000, None, None)


def test_an_exporter_without_a_count_does_not_hide_deliveries_in_no_bucket() -> None:
    samples = [
        *steadily(range(101), {"0.25": 1.0, "+Inf": 1.0}, counted=False),
        *steadily(range(101), {"0.25": 1.0}, instance="w2"),
    ]
    report = plain_report(samples, 0, 100, [FAST])
    assert report["objectives"][0]["total"] == 2000
    assert any("1000 values" in note for note in report["notes"])
