"""Tokens and rules in the runtime: their configuration, and the keys from files and URLs."""
