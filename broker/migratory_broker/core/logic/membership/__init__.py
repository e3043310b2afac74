"""The other brokers: which of them live, what they say, what ZooKeeper holds, and fencing when they are out of
reach."""
