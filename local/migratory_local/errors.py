"""The one error that the local runner raises for what a person can put right."""

from __future__ import annotations


class LocalError(Exception):
    """Its text names what is wrong and what to do; the command line prints it and ends with 2."""
