"""The broker: two cores without I/O (`core`), and the `runtime` that connects them to sockets, clocks and ZooKeeper.
Begin with docs/architecture.md, "Two cores"; a broker's life from start to end is `runtime/process.py`."""
