"""The same totals without the product: a query in PromQL, and careful scripts with pandas and Polars.

All add up how much every counter of a fleet rose, by metric, broker and bucket. That is the larger part of a report's
work; coverage, incidents, rows of time and verdicts are not in it.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.machine import cpu
from benchmarks.sla.samples import Fleet

_LIMIT = 3600.0
_TOLERANCE = 0.02
"""Difference from the truth that PromQL is allowed: `increase` extrapolates, and loses what a counter had at its
first sample."""

# Labels become one text per row, which is encoded as a dictionary: no Python object is made for a sample.
_PANDAS = """
import json, sys, time
import pandas as pd, pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq
table = pq.read_table(sys.argv[1], read_dictionary=["metric"])
labels = table["labels"].combine_chunks()
pairs = pc.binary_join_element_wise(labels.keys, labels.items, "=")
texts = pc.binary_join(pa.ListArray.from_arrays(labels.offsets, pairs), ",").dictionary_encode()
frame = pd.DataFrame({
    "metric": table["metric"].combine_chunks().to_pandas(), "labels": texts.to_pandas(),
    "timestamp": table["timestamp"].to_numpy(), "value": table["value"].to_numpy(),
})
del table, labels, pairs, texts
frame = frame.sort_values(["metric", "labels", "timestamp"], kind="stable", ignore_index=True)
same = (frame["metric"].cat.codes.diff() == 0) & (frame["labels"].cat.codes.diff() == 0)
rise = frame["value"].diff().where(same, frame["value"])
rise = rise.where(rise >= 0, frame["value"])  # a restart
by_series = rise.groupby([frame["metric"], frame["labels"]], observed=True).sum().reset_index(name="rise")
for label in ("broker", "le"):
    by_series[label] = by_series["labels"].astype(str).str.extract(rf"(?:^|,){label}=([^,]*)")[0].fillna("")
totals = by_series.groupby(["metric", "broker", "le"], observed=True)["rise"].sum()
print(json.dumps({"totals": totals.groupby("metric", observed=True).sum().to_dict(), "cpu": time.process_time()}))
"""

# Lazy and streamed: what is held is a series' values, and its labels once.
_POLARS = """
import json, sys, time
import polars as pl
value = pl.col("value").sort_by("timestamp")
rise = value.diff()
rise = pl.when(rise.is_null() | (rise < 0)).then(value).otherwise(rise).sum()  # a restart, or the first
by_series = (
    pl.scan_parquet(sys.argv[1] + "/*.parquet")
    .group_by("metric", pl.col("labels").hash().alias("series"))
    .agg(pl.col("labels").first(), rise.alias("rise"))
)
labels = [pl.col("labels").map.get(label).fill_null("").alias(label) for label in ("broker", "le")]
totals = by_series.with_columns(labels).group_by("metric", "broker", "le").agg(pl.col("rise").sum())
found = totals.group_by("metric").agg(pl.col("rise").sum()).collect(engine="streaming")
print(json.dumps({"totals": dict(found.iter_rows()), "cpu": time.process_time()}))
"""

SCRIPTS = {"pandas": (_PANDAS, 20_000_000), "polars": (_POLARS, 200_000_000)}
"""Scripts, by name, and the most samples with which they are run. The script with pandas holds all samples at once,
with a text of labels for each, so it is left out before it fills the machine's memory."""


@dataclass(slots=True)
class PeerCosts:
    """The time of a peer: wall-clock seconds, and CPU seconds of all its processes."""

    peer: str
    samples: int
    seconds: float
    cpu: float


class _ScriptResult(msgspec.Struct):
    totals: dict[str, float]
    cpu: float


class _Vector(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct):
    result: list[_Vector]


class _Response(msgspec.Struct):
    data: _Data


def promql(fleet: Fleet, url: str, server: int) -> PeerCosts:
    """Compute the totals with one query per metric at a server (URL, process id). Raise RuntimeError when a total
    differs from the truth by more than PromQL's extrapolation."""
    truth = fleet.truth()
    span = (fleet.scrapes + 1) * 15
    before, began = cpu([server]), time.monotonic()
    totals = {}
    for metric in truth:
        query = f"sum by (broker, le) (increase({metric}[{span}s]))"
        form = urllib.parse.urlencode({"query": query, "time": fleet.end_ms / 1000, "timeout": "1h"}).encode()
        with urllib.request.urlopen(f"{url}/api/v1/query", form, timeout=_LIMIT) as response:
            answer = msgspec.json.decode(response.read(), type=_Response)
        totals[metric] = sum(float(vector.value[1]) for vector in answer.data.result)
    costs = PeerCosts("promql", fleet.samples, time.monotonic() - began, (cpu([server]) - before).total)
    for metric, true in truth.items():
        if abs(totals[metric] - true) > _TOLERANCE * true:
            raise RuntimeError(f"{metric}: PromQL says {totals[metric]}, the truth is {true}")
    return costs


def script(name: str, fleet: Fleet, folder: Path) -> PeerCosts:
    """Compute the totals from Parquet files with a script of SCRIPTS, in a process of its own. Raise RuntimeError when
    it fails, or a total differs from the truth."""
    began = time.monotonic()
    completed = subprocess.run(
        [sys.executable, "-c", SCRIPTS[name][0], str(folder)],
        capture_output=True, text=True, check=False, timeout=_LIMIT,
    )  # fmt: skip
    seconds = time.monotonic() - began
    if completed.returncode:
        raise RuntimeError(f"{name} failed ({completed.returncode}): {completed.stderr[-2000:]}")
    result = msgspec.json.decode(completed.stdout, type=_ScriptResult)
    if result.totals != {metric: float(true) for metric, true in fleet.truth().items()}:
        raise RuntimeError(f"{name}: the totals are {result.totals}, the truth is {fleet.truth()}")
    return PeerCosts(name, fleet.samples, seconds, result.cpu)
