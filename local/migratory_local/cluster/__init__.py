"""Runs a whole cluster on this machine: a ZooKeeper ensemble, the brokers, and the state file by which other commands
find the cluster.

Begin with `local_cluster.py`.
"""
