"""The edge core: client connections, subscriptions, the splice of replay and live, delivery. Begin with core.py."""

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.core import Edge

__all__ = ["Edge", "EdgeConfig"]
