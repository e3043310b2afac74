"""Makes a report in a Kubernetes pod: the request is a JSON file, the result goes into a ConfigMap.

Begin with `driver.py`, which Spark runs in the pod. `request.py` reads the request and the Secret with credentials for
Prometheus, `result.py` builds the ConfigMap's content within its size limit. The operator writes the request and reads
the result. Both formats are in docs/how-to/reports.md; operator and pod have no code in common.
"""
