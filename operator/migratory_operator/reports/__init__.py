"""SLAReports: each one is a Spark job in pods, whose result becomes its status. Schedules create them.

`controller` observes and applies; `decide` is the pure decision about one report between. `resolve` combines a report's
spec with its cluster's, `job` and `spark` build the objects of its `run`, `outcome` tells how a run ended. `schedule`
decides when a cluster is due for a report, `sla_condition` what its reports say about it. `fetch` is for the command
line.
"""
