"""Accepting TCP connections of clients, peers and the administration: listening sockets, TLS, limits of rate, number
and client address, and HTTP."""
