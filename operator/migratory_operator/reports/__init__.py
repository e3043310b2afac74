"""SLAReports: the operator runs each as a Spark job in pods, and copies the result to the report's status. Schedules
create reports.

`controller` observes and applies; `decide` is the pure decision about one report between. `resolve` combines a report's
spec with its cluster's, `job` and `spark` build the objects of a run, which `run` names, and `outcome` says how a run
ended. `policy` has the rules of what a report may use. `schedule` decides when a cluster is due for a report,
`sla_condition` derives the condition SLAMet from its reports. `fetch` is for the command line.
"""
