"""A real ZooKeeper ensemble for the tests here."""

from migratory_testing.zookeeper import zookeeper_ensemble

__all__ = ["zookeeper_ensemble"]
