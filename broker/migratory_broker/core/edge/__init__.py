"""The edge core: connections, subscriptions, the splice of replay and live, delivery. Begin with edge.py."""

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.edge import Edge

__all__ = ["Edge", "EdgeConfig"]
