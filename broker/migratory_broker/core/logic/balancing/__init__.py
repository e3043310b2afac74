"""Balancing, for `Logic`: even numbers of coordinated topic groups and of clients on the brokers, and which brokers
each group's list has."""
