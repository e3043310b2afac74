"""The command line `migratory`. Begin with `main.py`, which lists the commands and imports the module of the one that
is run.

`commands/` has a module for each command or family of commands. Parts for all commands: `options.py` (options,
parameter types, discovery of brokers), `runtime.py` (running a command until it ends or a signal comes), `output.py`
(standard output, tables, result files), `notices.py` (the messages of `pub` and `sub` on standard error) and
`startup.py` (steps before libraries are imported).
"""
