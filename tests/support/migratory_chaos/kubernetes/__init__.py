"""Chaos tests on a Kubernetes, while a load pod accounts for every delivery.

Begin with `runner.py`. `environment.py` finds or makes namespace, operator and cluster; `target.py` reads their state;
`fault_kinds.py` lists the faults of the three `*_faults` modules; `report.py` gets the SLAReport, `result.py`
computes the result.

kubectl's calls block the event loop on purpose: a run does one thing at a time.
"""
