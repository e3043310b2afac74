"""The logic core: everything that brokers must agree upon, without a clock, a socket or ZooKeeper. Begin with
logic.py."""
