"""Replication, for `Logic`: the logs of each topic group with positions, copies and commits, and the takeover of a
group by a new coordinator. Begin with `group.py` (one topic group at this broker) and `term.py` (an epoch that this
broker owns). docs/concepts/replication.md has the rules."""
