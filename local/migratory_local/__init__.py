"""The local runner: runs the MigratoryCluster of a file as processes on this machine, for `migratory up` and `migratory
demo`.

Where to begin: `cluster/local_cluster.py` starts and stops a whole cluster; `cluster/up.py` is `migratory up` and
`demo/run.py` is `migratory demo`. `processes/` starts, supervises and ends single processes. `metrics/` records the
metrics that brokers and load workers export.

Layers, top to bottom: `demo`, `cluster`, `metrics`, `processes`. A layer imports only from the layers below it.
"""


class LocalError(Exception):
    """Raised for a failure that the user can fix. The message says what is wrong and what to do; the command line
    prints it."""
