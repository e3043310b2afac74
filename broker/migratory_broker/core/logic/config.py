"""What the logic may be told from outside. Durations are seconds, sizes bytes; docs/concepts/replication.md names the
reasons.

Checked on creation: a value that cannot work raises ValueError and names the field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(slots=True, frozen=True)
class LogicConfig:
    """One broker's configuration. `brokers` are the configured names of the whole cluster, this one's included."""

    cluster: str
    name: str
    brokers: tuple[str, ...]
    url: str = ""  # what clients dial; goes into the server list
    peer: str = ""  # "host:port" that other brokers dial
    weight: int = 100
    revision: str = ""  # of this broker's program and configuration: those of one are updated alike

    groups: int = 100
    max_topics: int = 100_000
    topics_per_client: int = 10_000  # that one connection may make: a tenth, so that others can make some as well
    max_publishers: int = 1_000_000  # rows of all publisher tables: about 0.5 KB each, for the duplicate window
    messages_per_topic: int = 300
    min_age: float = 60.0
    max_age: float = 600.0
    max_bytes: int = 268_435_456

    min_copies: int = 2
    duplicate_window: float = 120.0
    on_history_loss: Literal["reset", "halt"] = "reset"

    session_timeout: float = 4.0
    fencing: float = 4.0  # no heartbeat from min_copies - 1 members for so long: fence
    progress_timeout: float = 2.0
    bootstrap_wait: float = 5.0  # for all configured brokers, before the first record
    resume_wait: float = 2.0  # of a position ahead, while a coordinator tells what is committed
    resume_limit: float = 30.0  # of one, in all
    heartbeat: float = 0.5  # between peers; also the period of the broker's own small ZooKeeper read
    history_wait_sessions: float = 3.0  # before a new history after a loss
    isolation_sessions: float = 2.0  # without ZooKeeper and not all members heard, under `reset`: fence

    publish_wait: float = 5.0  # a contact answers `retry` when nothing came for so long
    publish_retry_after: float = 0.2  # what a `retry` tells the client
    max_pending: int = 100_000  # publications that this broker has taken as contact and not answered
    relist_delay: float = 1.0  # changes of the member list are collected for so long
    relist_at_once: int = 8  # groups whose list this broker changes at the same time
    hand_over_at_once: int = 8  # groups that a draining broker hands over at the same time
    balance_every: float = 2.0  # one group moves back per period at most
    calm: float = 10.0  # clients move for balance when nothing has happened for so long: the killed's are back by then
    move_period: float = 5.0  # one round of such moves: each client at a random moment of it
    relook: float = 5.0  # ZooKeeper's listings are read again, should a watch have been lost
    part_bytes: int = 1_048_576  # a snapshot travels in parts of about this size

    def __post_init__(self) -> None:
        if self.name not in self.brokers:
            raise ValueError(f"brokers: {self.name!r} is not among the configured brokers {list(self.brokers)}")
        if len(set(self.brokers)) != len(self.brokers):
            raise ValueError("brokers: a name occurs twice")
        if self.min_copies < 1:
            raise ValueError(f"min_copies: {self.min_copies} is not at least 1")
        if len(self.brokers) < 2 * self.min_copies - 1:
            raise ValueError(
                f"min_copies: {self.min_copies} copies need {2 * self.min_copies - 1} brokers or more, "
                f"there are {len(self.brokers)}"
            )
        for name in (
            "groups",
            "max_topics",
            "topics_per_client",
            "max_publishers",
            "messages_per_topic",
            "max_bytes",
            "max_pending",
            "relist_at_once",
            "hand_over_at_once",
            "part_bytes",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not at least 1")
        for name in ("min_age", "max_age", "bootstrap_wait", "resume_wait", "resume_limit", "relist_delay"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is negative")
        for name in (
            "duplicate_window",
            "session_timeout",
            "fencing",
            "progress_timeout",
            "heartbeat",
            "history_wait_sessions",
            "isolation_sessions",
            "publish_wait",
            "publish_retry_after",
            "balance_every",
            "calm",
            "move_period",
            "relook",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        if self.min_age > self.max_age:
            raise ValueError(f"min_age: {self.min_age} is above max_age, {self.max_age}")
        if self.history_wait_sessions <= self.isolation_sessions:
            raise ValueError("history_wait_sessions: not above isolation_sessions: replaced brokers might still serve")
        if self.on_history_loss not in ("reset", "halt"):
            raise ValueError(f"on_history_loss: {self.on_history_loss!r} is neither 'reset' nor 'halt'")
