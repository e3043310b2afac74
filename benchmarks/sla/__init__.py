"""The benchmark of SLA reports: how fast samples are read, how fast reports are made, and with how much memory.

`python -m benchmarks.sla` (`make bench-sla`) runs it.

samples.py    samples as load workers export them, and the sums that a report of them must find
backfill.py   the same samples in a real Prometheus, and in Parquet files as the recorder writes them
peers.py      the same totals by PromQL, pandas and Polars
reading.py    the reader alone: samples per second of one process, by each interface
jobs.py       a whole report in a process of its own: its time, and the memory of driver, executors and Python workers
"""
