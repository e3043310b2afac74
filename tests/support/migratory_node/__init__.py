"""A one-node Kubernetes for the tests, from Go modules and Debian's containerd: `make cluster`, `make cluster-down`.

Begin with `cluster.py`, the order in which it comes up. `binaries.py` builds what tests/cluster/node holds,
`network.py` makes the pods' network, `components.py` says how each part is started, `processes.py` starts and ends
them, `volumes.py` gives pods their volumes, `engine.py` builds images where no engine runs; `monitoring.py` and
`prometheus.py` bring a Prometheus. docs/kubernetes.md tells how to use it.
"""
