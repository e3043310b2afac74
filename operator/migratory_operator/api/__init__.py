"""The access layer: requests to the Kubernetes API server and to a cluster's pods, for the whole operator. Except for
kopf, nothing else sends such requests."""
