"""Benchmarks: what deliveries, publications and clients cost, compared with peers and the machine's limit (`make
bench`).

measurements/   one function for each measurement; start here
systems/        the systems under test behind one interface: the product, its peers, the raw loops
protocols/      how clients of each system talk to it
rig.py          a system with its subscribers and publisher: rounds of publishing, and their cost
receivers.py    the subscribers of a system, in several processes (receiver.py, connecting.py)
publisher.py    the publisher of every system
attacker.py     the attackers of the measurement `attack` (`make attack`); ipc.py has the commands of these processes
comparison.py   several rigs in interleaved rounds
stats.py, targets.py, compare.py, report.py, plots.py   statistics, performance targets, comparing results, output
peers.py        installing the peers (`make bench-peers`)
capacity/       what clusters larger than this machine need (`make capacity`)
evaluation/     the published evaluation's tables (`make evaluation`)
reconnects.py   when clients reconnect, on a virtual clock
sla/            benchmarks of the SLA pipeline (`make bench-sla`)
docs/how-to/loadtest.md, "Benchmarks", explains the method.
"""
