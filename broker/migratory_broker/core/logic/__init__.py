"""The logic: what brokers must agree upon. Start reading at core.py; docs/concepts/replication.md has the rules."""
