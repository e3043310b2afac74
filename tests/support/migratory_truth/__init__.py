"""Data sets for SLA reports whose right counts are known, because samples are made of events, and a command that makes
reports of many of them."""
