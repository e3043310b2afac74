"""The access layer: requests to the Kubernetes API server and to a cluster's pods. Beside it only kopf sends
requests."""
