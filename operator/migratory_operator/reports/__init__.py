"""SLAReports: each becomes a Spark job in pods, whose answer becomes its status; schedules make them.

`decide.py` is what is to be done about one report (pure, from `observe.py` and `asked.py`), `ends.py` how a run can end
without an answer, `answer.py` the answer. `job.py` puts together what a run is made of, with `access.py`, `request.py`
and `spark.py`. `schedule.py` says when a cluster is due for a report, `met.py` what its reports say of it. `care.py`
carries all of it out. Names, and labels that lead from a pod to its report, are in `run.py`; `fetch.py` is the command
line's.
"""
