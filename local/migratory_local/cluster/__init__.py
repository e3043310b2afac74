"""A whole cluster on this machine: a ZooKeeper ensemble, the brokers, and the file that makes it known to other
commands.

Begin with `local_cluster.py`.
"""
