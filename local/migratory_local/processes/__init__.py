"""Single processes on this machine: starts, supervises and ends them, and provides the ports, the Java runtime and the
limits that they need.

`process.py` starts one process, `supervisor.py` restarts processes that end, `preflight.py` checks the machine first.
"""
