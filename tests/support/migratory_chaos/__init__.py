"""Chaos tests: real faults on a real cluster under load, each proved, every delivery accounted for.

`engine.py` draws faults by a seed, injects one after the other, waits until the cluster is healthy and records the
result. Two targets use it:

    processes/    a cluster of local processes: crashes, network, resource and ZooKeeper faults, recording clients and a
                  checker of their histories (`make chaos`)
    kubernetes/   a cluster on a Kubernetes: faults of pods, nodes and the resource, a load pod and an SLA report
                  (`make chaos-k8s`)

`brokers.py` holds what both read from brokers' metrics. Begin with `engine.py`, then a run: `processes/runner.py` or
`kubernetes/runner.py`. docs/contributing/chaos.md describes the faults, their proofs and results.
"""
