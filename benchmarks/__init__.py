"""What deliveries, publications and clients cost, beside peers and the limit of the machine. `make bench` runs it.

measurements/   one module for each thing that is measured; start here
systems/     what is measured: the product, its peers, the raw loops; one interface
dialects/       how clients of each talk
rig.py        a system with its subscribers and publisher: turns of publishing, and what they cost
receivers.py     all subscribers of a system, over several receivers (receiver.py, opening.py)
publisher.py    the one publisher for all; helper.py and orders.py: how these processes are spoken to
peers.py        where the peers come from (`make bench-peers`)
figures.py, rounds.py, goals.py, compare.py, report.py, plots.py   medians and spread, turns, verdicts, output
sla/            the SLA pipeline's own benchmarks (`make bench-sla`)
evaluation/     the published evaluation's tables (`make evaluation`)
large/          what clusters larger than this machine need (`make capacity`)
docs/how-to/loadtest.md, "Benchmarks", explains the method.
"""
