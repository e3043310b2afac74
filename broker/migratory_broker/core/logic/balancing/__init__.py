"""Balancing, for `Logic`: even numbers of coordinated topic groups and of clients on the brokers, changes of groups'
member lists, and the removal of idle topics."""
