"""Membership, for `Logic`: the other brokers, which live or are suspected, and what they report; sessions with
ZooKeeper, its records and the identity of its data; and fencing when others are out of reach."""
