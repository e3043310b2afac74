"""Reports of random data sets whose counts are known because samples are made of events: federated clusters with equal
addresses, objectives with windows of their own, incidents amid background errors. Parquet files and a real Prometheus
are read. `python -m migratory_truth` makes reports of many more."""

from __future__ import annotations

from pathlib import Path

import pytest
from migratory_testing.realprometheus import missing
from migratory_truth.data_sets import make_data_set
from migratory_truth.readings import check
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


@pytest.mark.skipif(missing() is not None, reason=f"{missing()} is not installed: make debian")
@pytest.mark.parametrize("number", [20, 26])
def test_all_counts_are_right_by_both_ways_of_reading(session: SparkSession, tmp_path: Path, number: int) -> None:
    assert check(session, make_data_set(number), tmp_path) == []
