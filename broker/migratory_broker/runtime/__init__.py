"""The broker's runtime: sockets, ZooKeeper, clocks and logs around the two cores. It takes no decisions about
publications or membership.

Begin with `process.py` (one broker's life) and `pump.py` (how events reach the two cores and effects leave them). These
turn parts of the outside world into events:

- `accepting`: listeners, accept limits and HTTP, for clients, peers and the administration alike.
- `clients`: the WebSocket upgrade, connections and multicasts of one process.
- `io_processes`: processes beside the broker's own that hold clients' sockets.
- `peers`: links to the other brokers.
- `zookeeper.py`: the coordination service.
- `admin`: health, status and metrics.

The other modules serve all of them: configuration, logs, exit codes, framing, and the watchdog of the event loop.
"""

from migratory_compiled import activate

activate()
