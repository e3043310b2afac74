"""Tokens and rules in the runtime: their configuration (`config.py`), and keys and revocations from files and URLs
(`credentials.py`)."""
