"""The configuration of the logic, made by the runtime and checked when it is created. Durations are seconds, sizes
bytes; docs/concepts/replication.md gives the reasons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_PENDING_BYTES = 268_435_456
"""Bytes of memory of the QoS 1 publications that this broker accepted as contact and has not answered, by default. At
this limit further ones are refused with `retry`; the last one accepted may go beyond it. Room for four payloads of the
largest size that may be configured."""


@dataclass(slots=True, frozen=True)
class LogicConfig:
    """The configuration of one broker's logic. `brokers` are the configured names of the whole cluster, this broker's
    included. Raises ValueError, naming the field, for a name that is missing or repeated in `brokers`, too few brokers
    for `min_copies`, a value out of its range, or two values that contradict each other."""

    cluster: str
    name: str
    brokers: tuple[str, ...]
    url: str = ""  # that clients connect to; part of the server list
    peer: str = ""  # "host:port" that other brokers connect to
    weight: int = 100  # of this broker in the server list
    revision: str = ""  # of this broker's program and configuration; an update changes it

    groups: int = 100  # topic groups of the cluster, for good
    max_topics: int = 100_000  # of the cluster: every broker holds them all
    topics_per_client: int = 10_000  # that one connection may create: a tenth of max_topics, so that others can, too
    topic_idle_timeout: float = 86_400.0  # without a publication: the topic is removed; 0: never
    max_publishers: int = 1_000_000  # rows of all publisher tables, about 0.5 KB each
    messages_per_topic: int = 300  # cached; more of them while they are younger than min_age
    min_age: float = 60.0  # younger entries are evicted only because of max_bytes
    max_age: float = 600.0  # older entries are evicted
    max_bytes: int = 268_435_456  # of the entries of all topics

    min_copies: int = 2  # members that hold a publication before it is committed
    duplicate_window: float = 120.0  # for which a publisher is remembered after its last publication
    on_history_loss: Literal["reset", "halt"] = "reset"  # begin a new history, or wait for an operator

    session_timeout: float = 4.0  # of sessions with ZooKeeper
    fencing: float = 4.0  # without a message of min_copies - 1 members, or of a coordinator that others hear: fence
    silence: float = 2.0  # without a message of a broker: if most brokers say so, it is suspected (SUSPECT)
    progress_timeout: float = 2.0  # after which a takeover or a commit counts as stuck
    bootstrap_wait: float = 5.0  # for all configured brokers, before the first record
    resume_wait: float = 2.0  # of a position ahead, while a coordinator tells what is committed
    resume_limit: float = 30.0  # of a position ahead, in all
    heartbeat: float = 0.5  # between heartbeats to peers, and between small reads of the own ZooKeeper node
    history_wait_sessions: float = 3.0  # session timeouts before a new history after a loss
    isolation_sessions: float = 2.0  # session timeouts without ZooKeeper and without all members, under `reset`: fence

    publish_wait: float = 5.0  # after which a contact broker answers a publication with `retry`
    publish_retry_after: float = 0.2  # that a `retry` tells the client to wait
    max_pending: int = 100_000  # publications that this broker accepted as contact and has not answered
    max_pending_bytes: int = MAX_PENDING_BYTES
    relist_delay: float = 1.0  # in which changes of a member list are collected
    relist_at_once: int = 8  # groups whose list this broker changes at the same time
    hand_over_at_once: int = 8  # groups that a draining broker hands over at the same time
    balance_every: float = 2.0  # between two groups that are handed over for balance
    calm: float = 10.0  # for which the cluster is calm before clients move for balance: a restart takes less
    move_period: float = 5.0  # of one round of such moves; each client moves at a random moment of it
    refresh_interval: float = 5.0  # between reads of ZooKeeper's listings, in case a watch was lost
    part_bytes: int = 1_048_576  # of one part of a snapshot, about

    def __post_init__(self) -> None:
        if self.name not in self.brokers:
            raise ValueError(f"brokers: {self.name!r} is not among the configured brokers {list(self.brokers)}")
        if len(set(self.brokers)) != len(self.brokers):
            raise ValueError(f"brokers: a name occurs twice in {list(self.brokers)}; names must be unique")
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
            "max_pending_bytes",
            "relist_at_once",
            "hand_over_at_once",
            "part_bytes",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not at least 1")
        for name in (
            "topic_idle_timeout",
            "min_age",
            "max_age",
            "bootstrap_wait",
            "resume_wait",
            "resume_limit",
            "relist_delay",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not at least 0")
        for name in (
            "duplicate_window",
            "session_timeout",
            "fencing",
            "silence",
            "progress_timeout",
            "heartbeat",
            "history_wait_sessions",
            "isolation_sessions",
            "publish_wait",
            "publish_retry_after",
            "balance_every",
            "calm",
            "move_period",
            "refresh_interval",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        if self.min_age > self.max_age:
            raise ValueError(f"min_age: {self.min_age} is above max_age, {self.max_age}")
        if self.history_wait_sessions <= self.isolation_sessions:
            raise ValueError(
                f"history_wait_sessions: {self.history_wait_sessions} is not above isolation_sessions, "
                f"{self.isolation_sessions}; replaced brokers might still serve clients"
            )
        if self.on_history_loss not in ("reset", "halt"):
            raise ValueError(f"on_history_loss: {self.on_history_loss!r} is neither 'reset' nor 'halt'")
