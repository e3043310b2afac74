"""Membership, for `Logic`: which other brokers live and what they report, ZooKeeper's records, and fencing when others
are out of reach."""
