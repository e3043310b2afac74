"""The broker: two cores without I/O (`core`), and what runs them on sockets, clocks and ZooKeeper (`runtime`).

Begin with docs/architecture.md, "Two cores"; a broker's life from start to end is `runtime/process.py`.
"""
