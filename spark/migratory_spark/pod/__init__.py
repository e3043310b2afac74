"""A report made in a Kubernetes pod: the question comes as a file, the answer goes into a ConfigMap.

`request.py` is what is asked, `result.py` what is answered and how it is kept within its bounds, `access.py` how a
Prometheus wants to be asked, `server.py` the one call to the API server. The job is `jobs/sla_in_pod.py`; who asks is
the operator, with which nothing is shared but the form of the two (docs/reports.md).
"""
