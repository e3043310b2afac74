"""The configuration of an edge, made by the runtime and checked when it is created: identity, limits, conflation and
batching. Times are seconds, sizes bytes; comments justify the defaults."""

from __future__ import annotations

from dataclasses import dataclass

from migratory_protocol import limits

from migratory_broker.core.edge.events import NO_RATES, RateLimits


@dataclass(slots=True, frozen=True)
class ConflationRule:
    """A rule of conflation for topics that match the pattern `topics` (see `TopicPattern`): of their QoS 0
    publications, live subscribers receive only the latest of each `interval`, in seconds. Raises ValueError for an
    interval that is not above 0."""

    topics: str
    interval: float

    def __post_init__(self) -> None:
        if not self.interval > 0:
            raise ValueError(f"conflation of {self.topics!r}: interval is {self.interval!r}, must be above 0 seconds")


@dataclass(slots=True, frozen=True)
class EdgeConfig:
    """The identity, limits, conflation rules and batching that all edges of a broker share. Raises ValueError, naming
    the field, for a value below its minimum."""

    cluster: str = "cluster"
    broker: str = "broker"
    incarnation: int = 0

    handshake: float = limits.HANDSHAKE  # from `Opened.opened` to `connect`: a silent peer must not hold a descriptor
    duplicate_window: float = 120.0  # for `welcome`: how long the logic recognises a repeated message id
    heartbeat: float = (
        limits.HEARTBEAT
    )  # pinged after one silent interval, dead after two; proxies cut idle links at 60 s
    expiry_notice: float = 60.0  # from the notice to a token's expiry; a quarter of the token's time where that is less
    closing: float = 2.0  # for the peer's half of the closing handshake, and for the transport to drain
    max_clients: int = 100_000  # per edge; a process usually reaches its descriptor limit first

    max_payload: int = limits.PAYLOAD
    envelope: int = limits.ENVELOPE  # a frame may be longer than the largest payload by this
    max_topic: int = limits.TOPIC  # bytes of UTF-8
    max_name: int = 255  # bytes of UTF-8 of a client id or a publisher id

    subscriptions_per_client: int = limits.SUBSCRIPTIONS
    publishes_per_client: int = 10_000  # unanswered QoS 1 publications; further ones are refused with `retry`
    messages_per_turn: int = 250  # and topics, of one client before others go on: 10 ms if all are invalid
    messages_per_read: int = 100  # and topics, at once: the rest of a read waits for the reads of others
    attaches_per_client: int = 256  # pending at the logic: some 20 ms of the logic, which delays all other clients
    backlog_per_client: int = 16_777_216  # bytes sent after a pending request: a turn reads 8 MB at most before `Hold`
    input_total: int = 268_435_456  # unprocessed bytes of all clients; the largest holders are closed first
    subscriptions_total: int = 536_870_912  # bytes of all subscriptions (budget.py): half a million of made-up names
    requests_per_topic: int = 8  # pending requests for one subscription: repeating a subscribe must not grow memory

    queue_per_client: int = limits.QUEUE  # bytes queued for a paused connection, besides the last write
    queue_total: int = 268_435_456  # bytes queued for all clients of the edge; the longest queue is closed first
    first_page: int = 8192  # bytes of payload that come with a receipt: small, because live publications wait for it
    page: int = 65_536  # bytes of payload in one page of a replay: a replay alone must never fill a queue
    conflation: tuple[ConflationRule, ...] = ()  # the first rule that matches a topic applies
    batch_delay: float = 0.0  # 0: every publication is written at once, on its own
    batch_bytes: int = 16_384  # a batch of this size is written early: a larger one would save little more
    rates: RateLimits = NO_RATES  # none: only an operator knows what is normal
    replay_cache: int = 4_194_304  # bytes of encoded replay messages: many clients resume from the same position

    @property
    def max_message(self) -> int:
        """The largest number of bytes of a message from a client, after its fragments are joined and inflated."""
        return self.max_payload + self.envelope

    def __post_init__(self) -> None:
        for name in ("handshake", "heartbeat", "expiry_notice", "closing", "duplicate_window"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}, must be above 0 seconds")
        if not self.batch_delay >= 0:
            raise ValueError(f"batch_delay is {self.batch_delay!r}, must be at least 0 seconds")
        if self.max_payload < 0:
            raise ValueError(f"max_payload is {self.max_payload!r}, must be at least 0")
        for name in (
            "max_clients",
            "envelope",
            "max_topic",
            "max_name",
            "subscriptions_per_client",
            "publishes_per_client",
            "messages_per_turn",
            "messages_per_read",
            "attaches_per_client",
            "backlog_per_client",
            "input_total",
            "subscriptions_total",
            "requests_per_topic",
            "queue_per_client",
            "queue_total",
            "first_page",
            "page",
            "batch_bytes",
            "replay_cache",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}, must be at least 1")
