"""The command line. Begin with `main.py`, which knows the commands and loads the module of the one that is run.

A module is a command or a family of them: `local.py` (up, demo), `broker.py`, `drain.py`, `status.py`, `pub.py`,
`sub.py`, `bench.py`, `sla.py`, `sla_fetch.py`. What they share: `options.py` (servers, tokens), `running.py` (the
clusters of this machine), `output.py`, `notices.py` and `tables.py` (what is shown), `failures.py` and `results.py`
(errors, files), `interrupts.py` and `descriptors.py` (before anything else is loaded).
"""
