"""The broker's runtime: sockets, ZooKeeper, clocks and logs around the two cores. It takes no decisions about
publications or membership.

Begin with `process.py` (one broker's life) and `pump.py` (how events reach the two cores and effects leave them). These
turn parts of the outside world into events:

- `accepting`: listeners, TLS of accepted connections, accept limits and HTTP, for clients, peers and the administration
  alike.
- `clients`: handshakes, HTTP requests, connections and multicasts of one process.
- `io_processes`: processes beside the broker's own that hold clients' sockets.
- `peers`: links to the other brokers.
- `security`: configuration and sources of tokens, keys and rules.
- `zookeeper.py`: the connection to ZooKeeper.
- `admin`: health, status and metrics.

The other modules serve all of them: configuration, certificates, logs, exit codes, framing, and the watchdog of the
event loop. Importing the package makes later imports load compiled modules where they are installed
(`migratory_compiled.activate`).
"""

from migratory_compiled import activate

activate()
