"""`migratory demo`: starts a cluster, puts load on it, kills one process, and judges the outcome.

`run.py` is the sequence of steps, `options.py` has the options, `result.py` decides about success, `display.py` shows
the progress and the result, and `report_job.py` makes the SLA report in a process of its own.
"""
