"""The choice of the broker that coordinates a topic group next, for `Logic`: candidates, ZooKeeper records, ephemerals,
and the beginning of a history."""
