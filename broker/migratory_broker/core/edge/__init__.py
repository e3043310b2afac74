"""The edge core: the client connections of a broker, their subscriptions and replays, and delivery. Begin with
core.py."""

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.core import Edge

__all__ = ["Edge", "EdgeConfig"]
