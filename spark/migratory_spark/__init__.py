"""From samples to an SLA verdict, on Spark.

Start at `report.py`. `samples.py` reads what was scraped, `increases.py` turns counters into what happened,
`distributions.py` turns histogram buckets into quantiles, `objectives.py` judges, `table.py` prints.
"""
