"""The MigratoryCluster: its spec, the fields that only Kubernetes uses, its status, and the configuration files made
from it."""
