"""The logic: everything that brokers must agree upon, without a clock, a socket or ZooKeeper. Start at logic.py."""
