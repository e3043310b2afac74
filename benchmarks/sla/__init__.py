"""How fast samples are read and reports made, and in how much memory: `python -m benchmarks.sla` (`make bench-sla`).

samples.py    samples as load workers export them, with their truth
backfill.py   these in a real Prometheus, and as the recorder's Parquet files
reading.py    the reader alone: samples per second of one process, by each interface
jobs.py       a whole report in a process of its own, its time and the memory of driver, executors and Python workers
"""
