"""Breakdown of a report by labels: the parts are equal to reports over the parts' samples alone, and add up to the
whole."""

from __future__ import annotations

import csv
import io
import random

import pytest
from migratory_resources.objectives import DEFAULT_OBJECTIVES
from migratory_spark.aggregate import breakdown
from migratory_spark.report.csv_tables import csv_files
from migratory_testing.recordings import SECONDS, START, recording
from migratory_testing.reports import COMPLETE, FAST, Sample, batches, objective, of_batches, plain_report

END = START + SECONDS
REGIONS = (("north", "gold", 0), ("south", "gold", 3), ("south", "basic", 0))
STEADY = objective(
    name="steady", type="latency", target="99", slices={"length": "10s", "percentile": "99", "threshold": "250ms"}
)
LONG = objective(name="long", type="delivery", target="99", window={"rolling": "1h"})


def part(region: str, topic_class: str, lost: int) -> list[Sample]:
    more = {"region": region, "topic_class": topic_class}
    return [
        (metric, {**labels, **more, "instance": f"{region}-{topic_class}"}, at, value)
        for metric, labels, at, value in recording(lost=lost)
    ]


PARTS = {(region, topic_class): part(region, topic_class, lost) for region, topic_class, lost in REGIONS}
EVERY = [sample for samples in PARTS.values() for sample in samples]


def test_a_part_has_the_figures_of_a_report_over_its_samples_alone() -> None:
    rows = random.Random(7).sample(EVERY, len(EVERY))
    objectives = [FAST, COMPLETE, LONG, STEADY]
    whole = plain_report(rows, START, END, objectives, by=["region", "topic_class"])
    assert whole["breakdown"]["by"] == ["region", "topic_class"]
    found = {tuple(row["labels"]): row for row in whole["breakdown"]["rows"]}
    assert found.keys() == PARTS.keys()
    for combination, samples in PARTS.items():
        row, alone = found[combination], plain_report(samples, START, END, objectives)
        for name in ("expected", "received", "lost", "duplicates", "reordered", "reconnects"):
            assert row.get(name, alone["delivery"][name]) == alone["delivery"][name], name
        assert row["latency_ms"] == alone["latency_ms"]["all"]
        assert (row["attempts"], row["failures"]) == tuple(alone["availability"][x] for x in ("attempts", "failures"))
        results = {result["name"]: result for result in alone["objectives"]}
        # Slices are not broken down.
        assert [each["name"] for each in row["objectives"]] == ["o", "complete", "long"]
        for each in row["objectives"]:
            assert each == {key: results[each["name"]][key] for key in each}
    assert sum(row["lost"] for row in found.values()) == whole["delivery"]["lost"] == 3
    assert [row["labels"] for row in whole["breakdown"]["rows"]] == sorted(map(list, PARTS))


def test_a_report_without_labels_has_no_breakdown() -> None:
    assert plain_report(EVERY, START, END, [COMPLETE])["breakdown"] is None


def test_labels_that_cannot_be_broken_down_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"label .regoin.; there are .*region, topic_class"):
        plain_report(EVERY, START, END, [COMPLETE], by=["regoin"])
    assert plain_report([], START, END, [COMPLETE], by=["region"])["breakdown"]["rows"] == []
    monkeypatch.setattr(breakdown, "MAX_COMBINATIONS", 2)
    with pytest.raises(ValueError, match="have 3 combinations of values, more than 2: name fewer labels"):
        plain_report(EVERY, START, END, [COMPLETE], by=["region", "topic_class"])


def test_tables_are_csv() -> None:
    report = of_batches(lambda: batches(EVERY), START, END, DEFAULT_OBJECTIVES, by=["region"])
    files = {name: list(csv.DictReader(io.StringIO(text))) for name, text in csv_files(report).items()}
    assert files.keys() == {f"{name}.csv" for name in ("objectives", "windows", "latency", "incidents", "breakdown")}
    assert [row["name"] for row in files["objectives.csv"]] == [each.name for each in DEFAULT_OBJECTIVES]
    assert sum(int(row["lost"]) for row in files["windows.csv"]) == 3
    north, south = files["breakdown.csv"]
    assert (north["label_region"], north["lost"], north["complete_verdict"]) == ("north", "0", "met")
    assert (south["label_region"], south["lost"], south["complete_verdict"]) == ("south", "3", "missed")
    assert float(south["latency_ms_p99"]) > 0
