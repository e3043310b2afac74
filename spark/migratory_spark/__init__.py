"""From samples to an SLA verdict, on Spark.

Begin with `report.py`. `samples.py` reads what was scraped, `packing.py`, `merging.py` and `kept.py` bring it together
once, `increases.py` turns counters into what happened, `adding.py` adds that up, `distributions.py` turns histogram
buckets into quantiles, `verdicts.py` judges, `sections.py` makes the parts of a report of it, `document.py` is its
form, `table.py` prints. `compare.py` sets two reports beside each other, `history.py` keeps many as rows.

Folders: `prometheus` (samples from Prometheus servers), `jobs` (what spark-submit and `migratory sla` run), `pod` (a
report in a Kubernetes pod), `html` (the report as a page), `alerting` (rules and a dashboard).
"""
