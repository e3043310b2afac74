"""Records metrics: `recorder.py` scrapes into Parquet files, `prometheus.py` runs a Prometheus server instead.

`exposition.py` parses the text format of `/metrics`, `scrape_file.py` reads additional targets from a file.
"""
