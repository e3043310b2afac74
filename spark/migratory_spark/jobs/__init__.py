"""The jobs `sla_report`, `sla_compare`, `sla_budget` and `recorder_compact`, for `spark-submit` and `migratory sla`.

Each is a file for `spark-submit` (`local:///…/migratory_spark/jobs/sla_report.py`) and a command of `migratory sla`
with the same options. `command_line.py` has the options and exit codes, `inputs.py` the sources of samples,
`outputs.py` the result files, `progress.py` the line of a terminal while tasks run, `spark_errors.py` the sentences for
errors of Spark.
docs/how-to/reports.md describes all of them.
"""
