"""Aggregation: whole series become totals by time interval, distributions, scrape coverage and incidents.

Begin with `increases.py` (how counters become increases). `series_catalog.py` groups series and finds evidence of
restarts, `totals.py` adds increases up by interval, `observations.py` answers queries on the totals, `distributions.py`
turns histogram buckets into quantiles. `exporter_timeline.py` finds the times at which each exporter was scraped,
`coverage.py` the gaps between them, `incidents.py` failures of brokers. `gauges.py` reads gauges, `time_grid.py`
cuts time into intervals, `breakdown.py` cuts totals by labels.
"""
