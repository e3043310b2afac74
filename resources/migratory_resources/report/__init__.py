"""The SLAReport: its spec and its status."""
