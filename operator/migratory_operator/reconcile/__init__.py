"""Reconciliation of a MigratoryCluster: observe, decide, apply.

`cluster` observes and applies; `decide` is the pure decision between, from an `observed` state. `rollout` decides which
pod is replaced next, `scaling` how many brokers there may be, both by the rules of `health`. `conditions` describes the
result. `differences` compares objects, `pods` reads the state of a pod, `zookeeper_path` chooses the node in an
external ensemble. `queue` runs and repeats the reconciliations of clusters and of reports.
"""
