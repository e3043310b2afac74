"""The subcommands of `migratory`: `local.py` has `up` and `demo`, every other command has a module of its name.

`bench_view.py` and `status_view.py` format the output of `bench` and `status`.
"""
