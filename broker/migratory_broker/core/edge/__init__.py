"""The edge core: the client connections of a broker, with their identities, subscriptions, replays, publications,
delivery and limits. Begin with core.py."""

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.core import Edge

__all__ = ["Edge", "EdgeConfig"]
