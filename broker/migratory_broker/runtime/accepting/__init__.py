"""Accepting TCP connections of clients, peers and the administration: listeners, limits of rate and number, and
HTTP."""
