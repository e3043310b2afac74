"""The limits of an edge and what it says of itself. Seconds, bytes and counts; every default is justified beside it."""

from __future__ import annotations

from dataclasses import dataclass

from migratory_protocol import limits


@dataclass(slots=True, frozen=True)
class ConflationRule:
    """Topics (a pattern, see `TopicPattern`) of which live subscribers get the latest of each `interval` only."""

    topics: str
    interval: float

    def __post_init__(self) -> None:
        if not self.interval > 0:
            raise ValueError(f"conflation of {self.topics!r}: interval is {self.interval!r}, must be above 0 seconds")


@dataclass(slots=True, frozen=True)
class EdgeConfig:
    """One for all edges of a broker. Raises ValueError for a limit that can't work."""

    cluster: str = "cluster"
    broker: str = "broker"
    incarnation: int = 0

    handshake: float = limits.HANDSHAKE  # from TCP accept to `connect`: a silent peer holds no descriptor
    heartbeat: float = limits.HEARTBEAT  # silent for one: pinged; for two: dead. Proxies cut idle links at 60 s
    closing: float = 2.0  # for the peer's half of the closing handshake, and to take what is still in the transport
    max_clients: int = 100_000  # per edge; a process usually meets its descriptor limit first

    max_payload: int = limits.PAYLOAD
    envelope: int = limits.ENVELOPE  # a frame may be this much longer than the largest payload
    max_topic: int = limits.TOPIC  # bytes of UTF-8
    max_name: int = 255  # bytes of UTF-8 of a client id or a publisher id

    subscriptions_per_client: int = limits.SUBSCRIPTIONS
    publishes_per_client: int = 10_000  # QoS 1 publications without an answer yet; more are told to come again
    messages_per_turn: int = 1000  # of one client, then others have their turn: 40 ms, if all of them are wrong
    attaches_per_client: int = 256  # under way at the logic: some 20 ms of its time, which all other clients wait for
    backlog_per_client: int = 16_777_216  # bytes behind a request that waits: one turn reads 8 MB at most, then `Hold`
    incoming_total: int = 268_435_456  # over all clients: half received, behind requests; who holds most goes first
    repeats: int = 8  # requests that may wait for one topic's receipt: repeating a subscribe must not grow memory

    queue_per_client: int = limits.QUEUE  # what waits for a paused connection, besides the last write
    queue_total: int = 268_435_456  # over all clients of this edge: the longest queue goes first
    first_page: int = 8192  # bytes of payload that come with a receipt: what is asked for next waits for live ones
    page: int = 65_536  # bytes of payload in one page of a replay: a replay never fills a queue by itself
    conflation: tuple[ConflationRule, ...] = ()  # the first rule that fits a topic counts
    batch_delay: float = 0.0  # 0: every publication leaves at once, in a write of its own
    batch_bytes: int = 16_384  # a batch that holds so many leaves before its time: more would save little
    encodings: int = 4_194_304  # bytes of replayed publications kept encoded: many clients resume from one place

    @property
    def max_message(self) -> int:
        """Bytes of the longest message that a client may send, after defragmentation and inflation."""
        return self.max_payload + self.envelope

    def __post_init__(self) -> None:
        for name in ("handshake", "heartbeat", "closing"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}, must be more than 0 seconds")
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
            "attaches_per_client",
            "backlog_per_client",
            "incoming_total",
            "repeats",
            "queue_per_client",
            "queue_total",
            "first_page",
            "page",
            "batch_bytes",
            "encodings",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}, must be at least 1")
