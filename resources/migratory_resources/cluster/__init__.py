"""The MigratoryCluster: its spec, what Kubernetes adds to it, its status, and the configuration files made from it."""
