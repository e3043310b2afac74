"""Single processes on this machine: start, supervise and end them; the ports, the Java runtime and the limits they
need.

`process.py` starts one process, `supervisor.py` restarts processes that end, `preflight.py` checks the machine first.
"""
