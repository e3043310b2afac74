"""Checks of what the images consist of, by their lock files in docker/locks: licences and known vulnerabilities.

`locks.py` reads the lock files, `checks.py` judges, `__main__.py` is the command line. docker/supply.toml has what is
allowed.
"""
