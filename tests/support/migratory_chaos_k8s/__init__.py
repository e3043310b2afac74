"""Faults on a Kubernetes while the load generator counts every delivery: `make chaos-k8s`, docs/chaos-kubernetes.md.

Begin with `runner.py` (a run from start to verdict). What it is made of: `place.py` (namespace, operator and cluster,
found or made), `target.py` and `api.py` (what is struck and looked at), `inside.py` (runs in the load pod) and
`load.py` (the same as seen from here), `faults.py` and the three modules of faults (`pods`, `machine`, `changes`),
`schedule.py` (what a seed draws), `report.py` (the SLAReport), `timeline.py` and `result.py` (what is written down, and
the verdict).

The tests' one machine has faults of its own, with a checker of histories: `migratory_chaos`.
"""
