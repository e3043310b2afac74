"""A one-node Kubernetes for the tests, from Go modules and Debian's containerd: `make cluster`, `make cluster-down`.

Begin with `cluster.py`, which starts the node. `binaries.py` builds its programs from tests/cluster/node, `network.py`
sets up the pods' network, `components.py` has the command line of each component, `processes.py` starts and stops them,
`volumes.py` provisions volumes, `docker_engine.py` runs a Docker engine for image builds; `monitoring.py` and
`prometheus.py` run a Prometheus, `chart.py` renders the Helm chart. Tests use `kubectl.py`, `pods.py` and `load.py`.
See docs/start/kubernetes.md.
"""
