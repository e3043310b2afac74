"""The local runner: the same cluster resource that the operator reads, as processes on this machine.

Begin with `cluster.py` (what `migratory up` starts), then `zookeeper.py`, `brokers.py` and `recorder.py` (what
it is made of), `process.py` and `supervisor.py` (how a process is started, watched and ended) and `demo.py`
(`migratory demo`).
"""
