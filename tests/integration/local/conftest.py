"""The fixture of a real ZooKeeper ensemble."""

from migratory_testing.zookeeper import zookeeper_ensemble

__all__ = ["zookeeper_ensemble"]
