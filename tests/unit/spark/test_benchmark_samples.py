"""The benchmark of reports: smaller files have the samples from which the true figures were computed, and peers find
these figures."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks.sla import peers
from benchmarks.sla.backfill import parquet_files
from benchmarks.sla.samples import Fleet


def test_split_files_have_all_samples(tmp_path: Path) -> None:
    fleet = Fleet(1, 700)  # more than one block of 480
    parquet_files(fleet, tmp_path, rows=100 * len(fleet.series))
    assert len(list(tmp_path.iterdir())) == 8  # 5 and 3
    table = pq.read_table(tmp_path)
    assert table.num_rows == fleet.samples
    last = table.filter(pc.equal(table["timestamp"], fleet.end_ms))
    totals: dict[str, int] = {}
    for metric, value in zip(last["metric"].to_pylist(), last["value"].to_pylist(), strict=True):
        totals[metric] = totals.get(metric, 0) + int(value)
    assert totals == fleet.truth()


@pytest.mark.parametrize("peer", sorted(peers.SCRIPTS))
def test_scripts_of_peers_find_the_true_totals(tmp_path: Path, peer: str) -> None:
    fleet = Fleet(1, 20)
    parquet_files(fleet, tmp_path)
    assert peers.script(peer, fleet, tmp_path).samples == fleet.samples
    other = Fleet(1, 20, seed=8)
    with pytest.raises(RuntimeError, match="the truth is"):
        peers.script(peer, other, tmp_path)
