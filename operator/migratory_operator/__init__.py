"""The operator: reconciles MigratoryClusters and SLAReports with the objects that they need.

Level-based: every reconciliation reads the whole state and decides anew, so a missed event delays a change and loses
none.

| module | purpose |
| --- | --- |
| `main` | starts kopf, the resync loop and the HTTP server |
| `resync` | lists all clusters and reports regularly, watches their objects, and wakes the work queues |
| `leases` | the Leases by which one operator serves a namespace |
| `reports` | SLAReports: Spark jobs, schedules, the condition SLAMet |
| `reconcile` | MigratoryClusters: observe, decide (pure), apply; rollouts, scaling, conditions; the work queue |
| `telemetry` | metrics, health endpoints, Kubernetes Events |
| `api` | requests to the API server (the only user of the Kubernetes client) and to a cluster's pods |
| `objects` | builders of Kubernetes objects; pure |
| `status`, `settings`, `names` | conditions, configuration of the operator, names and labels |
| `apply_crds`, `wait_ready` | commands that the chart runs |
"""
