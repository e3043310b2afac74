"""SLA reports on Spark: reads scraped samples, and gives verdicts on service level objectives.

Begin with `report/build.py`, which runs the pipeline. Its packages import in one direction only (a layers contract in
`pyproject.toml`):

    read        samples to whole series: files, tables, merging of servers
    aggregate   series to increases, totals by time interval, distributions, scrape coverage, incidents
    judge       totals to good and bad events of each objective, and to verdicts
    report      everything to one document; comparison of two documents, history of many
    render      documents to tables for terminals and to HTML pages

Beside them: `prometheus` (a Spark data source that reads Prometheus servers), `alerting` (Prometheus rules and a
Grafana dashboard), `jobs` (command lines for spark-submit and `migratory sla`), `pod` (a report in a Kubernetes pod).
Used by all: `metrics.py`, `times.py`, `document.py` (the report's types), `errors.py`, `session.py`.
"""
