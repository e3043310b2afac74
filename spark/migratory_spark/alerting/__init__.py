"""Alerting: Prometheus recording rules and alerts from objectives, and a Grafana dashboard.

Begin with `rules.py`, which makes the rule file of objectives. `indicators.py` expresses good and bad events in PromQL,
`health.py` has the alerts that need no objective, `dashboard.py` makes the dashboard of the panels in `panels.py`. All
results are text; nothing needs Spark or a server. `python -m migratory_spark.alerting FOLDER` writes
manifests/monitoring.
"""
