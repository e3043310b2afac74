"""`migratory demo`: start a cluster, put load on it, kill one process, and judge the outcome.

`run.py` is the sequence of steps, `result.py` decides about success, `display.py` shows it, and `report_job.py` makes
the SLA report in a process of its own.
"""
