"""The access layer: requests to the Kubernetes API server and to a cluster's pods. Nothing else does I/O."""
