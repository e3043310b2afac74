"""Serving, for `Logic`: the requests of this broker's clients, that is publications and subscriptions, and what a
commit triggers for both.

A publication goes one way: `publishing.py` (client to coordinator), `replication/` (position, copies, commit),
`commits.py` (fan-out, acknowledgement, waiting resumes).
"""
