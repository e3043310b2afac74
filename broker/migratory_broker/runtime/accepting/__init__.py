"""Accepting TCP connections, for clients, peers and the administration alike: listeners, limits, HTTP."""
