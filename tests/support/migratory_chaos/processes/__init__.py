"""Chaos tests on local processes: ZooKeeper, brokers and recording clients, each in a network namespace where root
allows it.

Begin with `runner.py`. `cluster.py` and `network.py` start the processes, `fault_mixes.py` lists the faults of the four
`*_faults` modules, `recording_clients.py` writes `history.py` files, and `checker.py` judges them.
"""
