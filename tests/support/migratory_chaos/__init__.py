"""Histories from real processes under real faults: `make chaos`, docs/chaos.md.

Begin with `runner.py` (a run from start to verdict). What it is made of: `cluster.py` and `network.py` (processes, each
in a network of its own where root allows it), `load.py` and `history.py` (clients that write down what they saw),
`faults.py` and the four modules of faults (`crashes`, `links`, `keepers`, `shortages`), `mixes.py` (what a seed draws),
`checker.py` (what the histories show).
"""
