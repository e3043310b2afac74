"""The two cores of a broker, without I/O: `logic` holds what brokers must agree on, `edge` what client connections
need. Both change only by `step(event, now)`. Their events and effects are in `logic/events.py` and `edge/events.py`.
`security` tells the edge who a client is and what it may do. The broker's `runtime` and the simulation
(docs/contributing/simulation.md) run the same code. The import of this package first selects the compiled or the
interpreted form of all of it."""

from migratory_compiled import activate

activate()
