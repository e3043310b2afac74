"""What Prometheus and Grafana watch between two reports: recording rules and alerts from objectives, and a dashboard.

`indicators.py` says what counts as good, in PromQL; `rules.py` makes the rule file of objectives, `health.py` the
alerts that need no objective, `dashboard.py` the Grafana dashboard. Text only: nothing here needs Spark or a server.
"""
