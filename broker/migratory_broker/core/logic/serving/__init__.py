"""Requests of this broker's clients: publications, subscriptions, and what a commit triggers for both.

A publication goes one way: `publishing.py` (client to coordinator), `replication/` (position, copies, commit),
`commits.py` (fan-out, acknowledgement, waiting resumes).
"""
