"""The local runner: runs the cluster resource that the operator reads as processes on this machine.

Where to begin: `cluster/local_cluster.py` starts and stops a whole cluster; `cluster/up.py` is `migratory up` and
`demo/run.py` is `migratory demo`. `processes/` starts, supervises and ends single processes. `metrics/` records what
brokers and load workers export.

Layers, top to bottom: `demo`, `cluster`, `metrics`, `processes`. A layer imports only from the layers below it.
"""


class LocalError(Exception):
    """A failure that the user can fix. The text says what is wrong and what to do; the command line prints it."""
