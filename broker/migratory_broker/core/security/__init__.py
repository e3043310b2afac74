"""Identities and permissions of clients: tokens and rules, as pure functions of the configuration and the time.

`authorizer.py` is the interface for the edge; `tokens.py` verifies tokens, `rules.py` decides by topic.
"""
