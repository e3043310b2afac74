"""The broker's runtime: sockets, ZooKeeper, clocks and logs. It takes no decisions.

Start at `process.py` (one broker's life) and `pump.py` (how events reach the two cores and effects leave them).
Each of the others turns one part of the outside world into events: `listener.py` and `server.py` the clients'
handshakes, `connection.py` their bytes, `peers.py` the other brokers, `zookeeper.py` the coordination service.

Clients are served by `serving.py`: in the broker's own process, or in I/O processes (`ioprocess.py`), which
`manyprocesses.py` starts, feeds and watches, and `dealer.py` gives new connections.
"""
