"""Which broker leads a topic group next: candidates, records, ephemerals, and the beginning of a history."""
