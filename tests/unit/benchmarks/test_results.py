"""Targets, comparisons, tables, plots and the parts of a benchmark's result; readings of CPU time and system calls."""

from __future__ import annotations

import io
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from migratory_loadtest.histogram import Histogram, bucket_bounds
from migratory_loadtest.result import DurationSummary, FaultRecovery, LoadResult
from msgspec import to_builtins
from rich.console import Console

from benchmarks import benchmark, ipc, readme, report
from benchmarks.__main__ import with_changes
from benchmarks.benchmark import TINY, Sizes
from benchmarks.compare import Number, comparable, compare, main, numbers, verdict
from benchmarks.machine import cpu, parse_strace
from benchmarks.measurements import ALL, failover, fanout, latency, memory, publish, storm, takeover
from benchmarks.measurements.latency import LatencyResult
from benchmarks.measurements.publish import PublishResult
from benchmarks.plots import write
from benchmarks.processes import MeasurementFailed
from benchmarks.receivers import MAX_PER_SOURCE, ReceiverTotals, sources
from benchmarks.rig import RoundResult
from benchmarks.stats import round_stats, with_medians
from benchmarks.systems import Product, Workload
from benchmarks.systems.product import merged
from benchmarks.targets import TARGETS, check_targets, look_up


def spread(median: float, low: float, high: float) -> dict[str, Any]:
    return {"median": median, "low": low, "high": high, "values": [low, median, high]}


@pytest.mark.parametrize(
    ("key", "old", "new", "right"),
    [
        ("fanout.us_per_delivery", (10, 9, 11), (13, 12, 14), "worse"),
        ("fanout.us_per_delivery", (10, 9, 11), (7, 6, 8), "better"),
        ("fanout.us_per_delivery", (10, 9, 13), (13, 12, 14), "same"),  # the spreads overlap
        ("fanout.us_per_delivery", (10, 9.9, 10.1), (10.3, 10.2, 10.4), "same"),  # within what is allowed
        ("publish.pipelined_per_s", (100, 90, 110), (70, 60, 80), "worse"),  # more is better here
        ("publish.single_ratio_jetstream", (1, 0.9, 1.1), (2, 1.9, 2.1), "worse"),  # and here it is not
        ("failover.lost", (0, 0, 0), (1, 1, 1), "worse"),  # a single number has no spread to hide in
        ("failover.lost", (0, 0, 0), (0, 0, 0), "same"),
    ],
)
def test_verdict_is_worse_only_without_overlapping_spreads(key: str, old: Any, new: Any, right: str) -> None:
    assert verdict(key, Number(*old), Number(*new), 0.05) == right


def result(us: float, **more: Any) -> dict[str, Any]:
    return {
        "machine": {"cores": 2, "cpu": "x", "load_average": us}, "sizes": {"rounds": 5},
        "fanout": {"us_per_delivery": spread(us, us - 0.1, us + 0.1), "peers": {"nats": 99.0}, "limit": "C", **more},
    }  # fmt: skip


def test_only_the_products_own_figures_are_compared() -> None:
    assert dict(numbers(result(7.0))) == {"fanout.us_per_delivery": Number(7.0, 6.9, 7.1)}
    changes, alone = compare(result(7.0), result(9.0, syscalls_per_delivery=1.0), 0.05)
    assert [(change.key, change.verdict) for change in changes] == [("fanout.us_per_delivery", "worse")]
    assert changes[0].percent == pytest.approx(28.57, abs=0.01)
    assert alone == ["fanout.syscalls_per_delivery"]


def test_a_median_has_its_spread_under_rounds() -> None:
    measured = to_builtins(with_medians(us_per_delivery=round_stats([7.0, 8.0, 6.0]), ratio_raw=None))
    assert (measured["us_per_delivery"], measured["ratio_raw"]) == (7.0, None)
    assert dict(numbers({"fanout": measured})) == {"fanout.us_per_delivery": Number(7.0, 6.0, 8.0)}
    assert look_up({"fanout": measured}, "fanout.us_per_delivery") == 7.0


def test_compare_command_reports_by_its_exit_code(tmp_path: Path) -> None:
    for name, value in {
        "a": result(7.0),
        "b": result(9.0),
        "c": {**result(7.0), "sizes": {"rounds": 2}},
        "d": {**result(7.0), "peers": {"nats": "2.15.2"}},
        "e": {**result(7.0), "failed": {"failover": "4 of 9 deliveries came"}},
        "f": {**result(9.0), "failed": {"failover": "4 of 9 deliveries came"}},
    }.items():
        (tmp_path / name).write_text(json.dumps(value))

    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(
            main, [str(tmp_path / argument) if len(argument) == 1 else argument for argument in arguments]
        )
        return done.exit_code, done.output

    assert run("a", "a")[0] == 0
    code, output = run("a", "b")
    assert (code, "1 of 1 figures became worse" in output) == (1, True)
    assert run("b", "a")[0] == 0
    assert run("a", "b", "--allowed", "50")[0] == 0
    code, output = run("a", "c")
    assert (code, "sizes.rounds: 5 and 2" in output) == (2, True)
    assert run("a", "c", "--anyway")[0] == 0
    code, output = run("a", "d")  # the best peer of one may not be in the other
    assert (code, "peers.nats: None and '2.15.2'" in output) == (2, True)
    code, output = run("a", "e")
    assert (code, "failed to measure failover: 4 of 9 deliveries came" in output) == (2, True)
    assert run("e", "a")[0] == 0
    assert run("a", "f")[0] == 1


def test_sizes_count_only_for_measurements_in_both_results() -> None:
    sizes = to_builtins(TINY)
    older = {name: value for name, value in sizes.items() if not name.startswith("attack_")}
    old, new = {**result(7.0), "sizes": older}, {**result(7.0), "sizes": {**sizes, "peer_clients": 1}}
    assert comparable(old, new) == []
    assert comparable({**old, "attack": {}}, new) == []
    problems = comparable({**old, "attack": {}, "tls": {}}, {**new, "attack": {}, "tls": {}})
    assert "sizes.attack_clients: None and 20" in problems
    assert "sizes.peer_clients: 40 and 1" in problems  # the memory of an idle client with TLS
    assert len(problems) == 8
    assert comparable(old, {**new, "sizes": {**sizes, "topics": 9}}) == ["sizes.topics: 10 and 9"]  # of every one


def test_sizes_of_a_measurement_are_read_in_its_module_alone() -> None:
    folder = Path(benchmark.__file__).parent
    sources = {path.relative_to(folder.parent): path.read_text() for path in folder.rglob("*.py")}
    owned = {
        size: {m.measure.__module__ for m in ALL.values() if size in m.sizes} for m in ALL.values() for size in m.sizes
    }
    assert owned.keys() < set(TINY.__struct_fields__)
    for size, modules in owned.items():
        readers = {
            ".".join(path.with_suffix("").parts)
            for path, text in sources.items()
            if re.search(rf"sizes\.{size}\b", text)
        }
        assert readers == modules, size


def test_slope_around_zero_is_not_compared() -> None:
    """The comparison leaves the growth per cycle out and compares its ratio: around zero growth, a difference of a
    KiB would be a large relative change."""
    assert dict(numbers({"cycles": {"kib_per_cycle": 0.4, "growth_ratio": 1.0}})) == {
        "cycles.growth_ratio": Number(1.0, 1.0, 1.0)
    }


def test_target_without_a_number_is_not_met() -> None:
    figures = {"fanout": {"ratio_raw": spread(1.05, 1.0, 1.2), "syscalls_per_delivery": None, "ratio_best_peer": None}}
    judged = {outcome.target.key: outcome for outcome in check_targets(figures, ["fanout"])}
    assert judged["fanout.ratio_raw"].met
    assert (judged["fanout.ratio_best_peer"].value, judged["fanout.ratio_best_peer"].met) == (None, False)
    assert not judged["fanout.syscalls_per_delivery"].met
    assert all(key.startswith("fanout.") for key in judged)
    assert {goal.key.split(".")[0] for goal in TARGETS} <= ALL.keys()


def test_narrowly_missed_target_is_shown_with_all_digits() -> None:
    figures = {"fanout": {"ratio_raw": 1.1004, "syscalls_per_delivery": 12345.0, "ratio_best_peer": 0.65}}
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(report._targets(check_targets(figures, ["fanout"])))
    rows = [re.findall(r"[^│\s][^│]*[^│\s]", line) for line in console.export_text().splitlines() if "fanout." in line]
    assert [row[1:] for row in rows] == [
        ["1.1004", "at most 1.1", "MISSED"], ["0.65", "at most 0.65", "yes"],
        ["not measured", "at most 1", "MISSED"], ["12,345", "at most 1.05", "MISSED"],
    ]  # fmt: skip


def test_targets_are_upper_or_lower_bounds() -> None:
    figures = {"publish": {"ratio_jetstream": spread(0.4, 0.3, 0.5), "single_ratio_jetstream": spread(1.4, 1, 2)}}
    assert [outcome.met for outcome in check_targets(figures, ["publish"])] == [False, True]
    assert look_up(figures, "publish.ratio_jetstream") == 0.4
    assert look_up(figures, "publish.ratio_jetstream.high") == 0.5
    assert look_up(figures, "publish.nothing.at.all") is None


def round_result(deliveries: int, user: float, system: float) -> RoundResult:
    return RoundResult(deliveries=deliveries, publications=10, user=user, system=system, seconds=1.0, receiver=0.001)


def test_fanout_ratios_are_taken_within_each_round() -> None:
    results = {
        "C": [round_result(1000, 0.0, 0.005), round_result(1000, 0.0, 0.010)],
        "product": [round_result(1000, 0.001, 0.005), round_result(1000, 0.002, 0.010)],
        "slow": [round_result(1000, 0.02, 0.02)] * 2,
        "quick": [round_result(1000, 0.005, 0.005), round_result(1000, 0.010, 0.010)],
        fanout.ALONE: [round_result(0, 0.001, 0.0), round_result(0, 0.002, 0.0)],
    }
    summary = fanout.summary(results, {"product": 1.02}, "C", ["slow", "quick"], ["centrifugo"])
    assert summary["us_per_delivery"] == 9.0
    assert summary["rounds"]["us_per_delivery"].values == [6.0, 12.0]
    assert summary["rounds"]["user_us"].values == [1.0, 2.0]
    assert summary["rounds"]["ratio_raw"].values == [1.2, 1.2]
    assert (summary["best_peer"], summary["rounds"]["ratio_best_peer"].values) == ("quick", [0.6, 0.6])
    assert summary["rounds"]["us_without_publication"].values == [5.0, 10.0]
    assert summary["syscalls_per_delivery"] == 1.02
    assert summary["missing_peers"] == ["centrifugo"]
    alone = fanout.summary({k: v for k, v in results.items() if k not in ("slow", "quick")}, {}, "C", [], [])
    assert (alone["best_peer"], alone["ratio_best_peer"]) == (None, None)
    without = fanout.summary({k: v for k, v in results.items() if k != "C"}, {}, None, ["quick"], [])
    assert (without["limit"], without["ratio_raw"], without["ratio_raw_without_publication"]) == (None, None, None)
    assert (without["contenders"]["quick"]["ratio_raw"], without["us_per_delivery"]) == (None, 9.0)


def test_latency_is_compared_with_the_best_peer_that_did_not_fail() -> None:
    rows = {
        "product": [LatencyResult(1.0, 4.0), LatencyResult(1.0, 6.0)],
        "steady": [LatencyResult(2.0, 8.0), LatencyResult(2.0, 8.0)],
        "broken": [LatencyResult(0.1, 0.1), LatencyResult(problem="lost 5")],
    }
    summary = latency.summary(rows)
    assert summary["best_peer"] == "steady"
    assert summary["p99_ratio_best_peer"].values == [0.5, 0.75]
    assert latency.worst({"25": summary, "50": latency.summary({**rows, "steady": rows["product"]})}) == 1.0
    assert summary["contenders"]["broken"]["problems"] == ["lost 5"]
    rows["product"][1] = LatencyResult(problem="closed")
    failed = latency.summary(rows)
    assert failed["p99_ratio_best_peer"] is None
    assert latency.worst({"25": summary, "50": failed}) is None  # where the product failed no goal is met


def test_publishing_is_compared_by_rate_and_single_times() -> None:
    fast, slow = PublishResult(200.0, 5.0, [0.001] * 99 + [0.005], 1.0), PublishResult(100.0, 10.0, [0.002] * 100, 1.0)
    summary = publish.summary({"product": [slow], "jetstream": [fast]}, {"product": [slow], "jetstream": [fast]}, [])
    assert summary["ratio_jetstream"] == 0.5
    assert summary["single_ratio_jetstream"] == 2.0
    assert summary["contenders"]["jetstream"]["single_p99_ms"].median == 5.0
    alone = publish.summary({"product": [slow]}, {"product": [slow]}, ["jetstream"])
    assert (alone["ratio_jetstream"], alone["missing_peers"]) == (None, ["jetstream"])


def report_of(latencies: list[float], **more: Any) -> ipc.ReceiverReport:
    histogram = Histogram(bucket_bounds())
    for value in latencies:
        histogram.observe(value)
    own = {"counts": histogram.counts, "total": histogram.total, "squares": histogram.squares,
           "largest": histogram.largest, "subscribed": [10, 11, 12]}  # fmt: skip
    return ipc.ReceiverReport(**{**own, **more})


def test_failover_counts_disconnects_of_other_brokers_clients() -> None:
    before, during = (
        ReceiverTotals([report_of([0.01] * 100)]),
        ReceiverTotals([report_of([0.01], resumes=[0.5, 0.7, 2.0])]),
    )
    after = ReceiverTotals([report_of([0.02] * 100, disconnected=13, subscribed=[16, 0, 17], resumes=[1.5])])
    summary = failover.summary(before, during, after)
    assert (summary["killed_clients"], summary["others_disconnected"]) == (11, 2)
    assert summary["resumed"] == 4
    assert summary["resume_seconds"] == {"median": 0.7, "p99": 2.0, "max": 2.0}
    assert summary["p99_ratio"] == pytest.approx(2.0, rel=0.1)
    assert (summary["connections_before"], summary["connections_after"]) == ([10, 11, 12], [16, 0, 17])


def fault_recovery(gap: float | None, slowest: float) -> FaultRecovery:
    return FaultRecovery(
        name="kill", broker="b", clients=10, disconnected=10, resumed=10, within_limit=10, slowest=slowest,
        others_disconnected=1, publish_gap_seconds=DurationSummary(count=3, p50=gap, p99=gap, max=gap),
    )  # fmt: skip


def test_takeover_has_medians_over_the_faults_and_the_worst() -> None:
    recoveries = [fault_recovery(gap, slowest) for gap, slowest in ((0.5, 1.0), (0.9, 0.7), (0.6, 0.8))]
    fed = LoadResult(marks=recoveries, acknowledged=5)
    fed.latency_ms.during.max, fed.latency_ms.after.max = 700.0, 950.0
    summary = takeover.summary(fed, LoadResult(marks=recoveries, acknowledged=7, unanswered=2))
    assert (summary["publish_gap_p99"], summary["publish_gap_worst"], summary["resume_slowest"]) == (0.6, 0.9, 0.8)
    assert (summary["latest_delivery"], summary["others_disconnected"], summary["faults"]) == (0.95, 3, 3)
    assert (summary["acknowledged"], summary["unanswered"]) == (12, 2)


@pytest.mark.parametrize(
    ("fed", "marks", "text"),
    [
        (LoadResult(lost=1), [fault_recovery(0.5, 1.0)], "1 deliveries were lost"),
        (LoadResult(), [fault_recovery(None, 1.0)], "no publish gaps"),
        (LoadResult(), [], "no publish gaps"),
    ],
)
def test_takeover_fails_without_gaps_or_with_a_violation(
    fed: LoadResult, marks: list[FaultRecovery], text: str
) -> None:
    with pytest.raises(MeasurementFailed, match=text):
        takeover.summary(fed, LoadResult(marks=marks))


def test_storm_reports_the_latency_of_live_clients() -> None:
    quiet, live = ReceiverTotals([report_of([0.01] * 50)]), ReceiverTotals([report_of([0.03] * 50)])
    summary = storm.summary(quiet, live, ReceiverTotals([report_of([], resumes=[1.0, 2.0], refused=3)]), 2.5)
    assert summary["live_ratio"] == pytest.approx(3.0, rel=0.1)
    assert (summary["returned"], summary["refused_attempts"], summary["seconds"]) == (2, 3, 2.5)


def test_cycle_growth_ignores_the_first_cycle() -> None:
    flat = memory.cycle_summary([50.0] * 4, [20.0, 30.0, 30.0, 30.0])
    assert (flat["growth_ratio"], flat["kib_per_cycle"]) == (1.0, 0.0)
    grown = memory.cycle_summary([50.0] * 7, [20.0, 30.0, 31.0, 32.0, 33.0, 34.0, 35.0])
    assert grown["growth_ratio"] == pytest.approx(34.5 / 30.5, abs=1e-4)
    assert grown["kib_per_cycle"] == pytest.approx(1024.0)


def test_receiver_totals_add_up_all_reports() -> None:
    parts = [
        report_of([0.01], deliveries=5, connected=3, user=1.0),
        report_of([0.02], deliveries=7, connected=4, system=0.5),
    ]
    totals = ReceiverTotals(parts)
    assert (totals.deliveries, totals.connected, totals.cpu, totals.subscribed) == (12, 7, 1.5, [20, 22, 24])
    assert totals.latency.count == 2
    assert totals.latency.max == pytest.approx(20.0)


def test_source_addresses_are_enough_loopback_addresses() -> None:
    assert sources(MAX_PER_SOURCE) == []
    assert sources(50_000) == ["127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6"]
    many = sources(10_000_000)
    assert len(set(many)) == 1000
    assert all(address.startswith("127.0.") and max(map(int, address.split("."))) < 255 for address in many)


def test_syscalls_are_parsed_from_the_strace_summary() -> None:
    text = (
        "strace: Process 1 attached\n"
        "% time     seconds  usecs/call     calls    errors syscall\n"
        "------ ----------- ----------- --------- --------- ----------------\n"
        " 98.76    0.123456           1     10042           sendto\n"
        "  1.24    0.001000           1       100         3 recvfrom\n"
        "------ ----------- ----------- --------- --------- ----------------\n"
        "100.00    0.124456           1     10142         3 total\n"
    )
    assert parse_strace(text) == {"sendto": 10042, "recvfrom": 100}
    assert parse_strace("strace: attach: ptrace(PTRACE_SEIZE, 1): Operation not permitted\n") is None


def test_sizes_are_named_and_checked() -> None:
    assert with_changes(TINY, {"rounds": 3}, ("memory_clients=10,20", "cycles=2")) == Sizes(
        **{**{name: getattr(TINY, name) for name in TINY.__struct_fields__},
           "rounds": 3, "memory_clients": (10, 20), "cycles": 2}
    )  # fmt: skip
    with pytest.raises(ValueError, match="no size 'rouns'; there are rounds"):
        with_changes(TINY, {}, ("rouns=3",))
    with pytest.raises(ValueError, match="could not convert"):
        with_changes(TINY, {}, ("rounds=many",))


def test_subscribers_must_spread_evenly_over_topics() -> None:
    assert Workload(subscribers=100, topics=20, payload=140, rate=1.0).subscribers_per_topic == 5
    with pytest.raises(ValueError, match="can't be spread evenly"):
        _ = Workload(subscribers=101, topics=20, payload=140, rate=1.0).subscribers_per_topic


def test_spec_changes_override_the_defaults() -> None:
    base = {"a": {"x": 1, "y": 2}, "b": 3}
    assert merged(base, {"a": {"y": 5}, "c": {"z": 1}}) == {"a": {"x": 1, "y": 5}, "b": 3, "c": {"z": 1}}
    assert base["a"] == {"x": 1, "y": 2}
    assert Product(brokers=3)._spec["delivery"] == {"minCopies": 2}


def test_plots_are_drawn_for_measured_parts(tmp_path: Path) -> None:
    document = {
        "fanout": {"contenders": {"product": {"us": spread(7, 6, 8), "ratio_raw": spread(1, 1, 1)}}},
        "latency": {"loads": {"25": {"deliveries_per_s": 5, "contenders": {
            "product": {"p99_ms": spread(3, 2, 5)}, "nats": {"p99_ms": None}}}}},
        "cycles": {"with_mib": [3.0, 3.1], "without_mib": [1.0, 1.1]},
        "publish": {},
    }  # fmt: skip
    names = sorted(path.name for path in write(document, tmp_path))
    assert names == ["cycles.png", "fanout.png", "latency.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_cpu_time_includes_all_threads() -> None:
    def work() -> None:
        until = time.thread_time() + 0.15
        while time.thread_time() < until:
            pass

    before, own = cpu([os.getpid()]), time.process_time()
    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()  # its time must not be gone with it
    spent, real = (cpu([os.getpid()]) - before).total, time.process_time() - own
    assert spent == pytest.approx(real, abs=0.05)
    assert cpu([os.getpid(), 2**22]).total > 0  # a process that is gone has none


def test_readme_table_is_inserted_and_replaced() -> None:
    document = {
        "machine": {"cores": 2}, "sizes": {"subscribers": 5000, "topics": 100, "payload": 140, "rounds": 5},
        "peers": {"nats": "2.15.2"}, "missing_peers": ["mosquitto"],
        "fanout": {"us_per_delivery": spread(7.5, 7, 8), "ratio_best_peer": spread(0.64, 0.6, 0.7),
                   "best_peer": "nats"},
        "publish": {"pipelined_per_s": spread(41234.5, 1, 2), "ratio_jetstream": None},
    }  # fmt: skip
    text = readme.table(document)
    assert "| CPU of a delivery | 7.50 us | **0.64** of nats |" in text
    assert "| acknowledged publications, two copies of three | 41,234 /s |  |" in text
    assert "memory of an idle" not in text
    assert "beside nats 2.15.2; missing: mosquitto" in text
    once = readme.insert_table("# M\n\n## Try it\n", text)
    assert once.count(readme.BEGIN) == 1
    assert once.index("7.50 us") < once.index("## Try it")
    assert readme.insert_table(once, text) == once
    assert "9.90 us" in readme.insert_table(once, text.replace("7.50 us", "9.90 us"))
    with pytest.raises(ValueError, match="no '## Try it'"):
        readme.insert_table("# M\n", text)
