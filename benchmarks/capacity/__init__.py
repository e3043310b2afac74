"""What clusters larger than this machine need: measured at sizes that it carries, a model fitted to that and checked
against a size that the fit has not seen, and simulations with the model's costs.

model.py      costs per client, delivery, publication, topic: fit and prediction. Pure.
points.py     measures them at several sizes, on real brokers
cluster.py    what grows with the number of brokers: replication, ZooKeeper
needs.py      what so many clients need in brokers, cores, memory, bandwidth. Pure.
simulate.py   fan-out and failover at that size, as queues. Pure.
page.py       docs/capacity.md from a result
`python -m benchmarks.capacity` (`make capacity`) does all of it.
"""
