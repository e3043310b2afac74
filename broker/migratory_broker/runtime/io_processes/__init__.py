"""I/O processes, which hold clients' sockets beside the broker's process. Start at `pool.py`, then `process.py`."""
