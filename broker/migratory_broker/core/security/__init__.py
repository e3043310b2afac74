"""Identities and permissions of clients: tokens and rules, as functions of the configuration, the present keys and the
time.

`authorizer.py` is the interface for the edge; `tokens.py` verifies tokens, `rules.py` decides by topic.
"""
