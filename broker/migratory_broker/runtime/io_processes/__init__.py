"""I/O processes: they hold the clients' sockets, each with an edge, so that a broker uses more than one core of the
machine.

In the broker's process: `pool.py` starts, feeds and watches them, `handle.py` represents one of them, `dispatcher.py`
gives them accepted sockets, `counters.py` adds up their counters. `process.py` is the I/O process itself. `channel.py`
and `messages.py` are what both ends share.
"""
