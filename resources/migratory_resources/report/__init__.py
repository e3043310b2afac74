"""The SLAReport: the models of its spec and its status."""
