"""Errors of reading samples from files and tables. Those of Prometheus servers are in `prometheus/errors.py`. A message
says what was wrong and, where it is known, what to do."""

from __future__ import annotations


class NoSamples(Exception):
    """Raised when there are no samples to read: a folder has no files of samples. The message says so."""


class BadSamples(ValueError):
    """Raised when a table or file does not have the columns of samples, or a file cannot be read. The message names the
    file or the column, and what is expected."""
