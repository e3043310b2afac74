"""What runs by itself: `sla_report`, `sla_compare`, `recorder_compact`.

Each is a file for `spark-submit` (`local:///…/migratory_spark/jobs/sla_report.py`) and a command of `migratory sla`
with the same options. `options.py` has those, `inputs.py` where samples come from, `outputs.py` where results go,
`run.py` what happens between, `exits.py` how it ends. docs/reports.md describes all of it.
"""
