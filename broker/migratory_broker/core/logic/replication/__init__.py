"""The replicated log of each topic group: positions, copies, commits, and the takeover of a group by a new leader.

Start at `group.py` (one topic group at this broker) and `term.py` (an epoch that this broker leads).
docs/concepts/replication.md has the rules.
"""
