"""Accepting TCP connections of clients, peers and the administration: listeners, limits of rate, number and client
address, and HTTP."""
