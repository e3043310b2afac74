"""The needs of clusters that are larger than this machine.

Brokers are measured at sizes that this machine carries. A cost model is fitted to them and checked against a size that
the fit does not use. Sizing and simulations apply the model to larger clusters.

broker.py       the measurement of one broker at several sizes
cluster.py      the measurement of costs that grow with the number of brokers: replication, ZooKeeper
model.py        the cost model: costs per client, delivery, publication and topic. Pure.
sizing.py       brokers, cores, memory and bandwidth for a number of clients. Pure.
simulation.py   fan-out and failover at that size, as queues. Pure.
page.py         docs/reference/capacity.md from a result
`python -m benchmarks.capacity` (`make capacity`) runs all of it.
"""
