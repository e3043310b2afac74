"""The state that all parts of one broker's logic share: configuration, time, the effects of the running step,
randomness, open links. `must` asserts the rules, and `expect` checks what peers send."""

from __future__ import annotations

from migratory_protocol.peer import BrokerId, PeerMessage

from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.core.logic.events import Effect, Note, Observe, SendPeer

_MASK = 2**64 - 1


class InvariantError(Exception):
    """The error for a state that the rules of docs/concepts/replication.md exclude. The process must end."""


def must(condition: bool, rule: str) -> None:
    """Raise InvariantError with the text `rule` if the condition is false.

    Assertions stay in production: a takeover repairs a broker that stops, and nothing repairs wrong data.
    """
    if not condition:
        raise InvariantError(rule)


class PeerError(Exception):
    """The error for a peer's message that breaks the rules, so that no correct broker sends it. Raised before the
    message has changed a promise, a log or a vote. `Logic` then ends the link that the message came over.

    `reason` is a short label for metrics, `text` names the rule.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


def expect(condition: bool, reason: str, text: str) -> None:
    """Raise PeerError with `reason` (a label for metrics) and `text` (the rule) if the condition, which a peer's
    message must fulfil, is false."""
    if not condition:
        raise PeerError(reason, text)


class Random:
    """A splitmix64 generator of random numbers. The same seed gives the same numbers in every process and version."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def integer(self) -> int:
        """Return the next random integer, from 0 to 2**64 - 1."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * (self.integer() / 2**64)


class Context:
    """The state of one broker that all parts of its logic read and change. `effects` is the list that the running step
    will return; `emit`, `send`, `note` and `observe` append to it."""

    def __init__(self, config: LogicConfig) -> None:
        self.config = config
        self.now = 0.0
        self.effects: list[Effect] = []
        self.random = Random(0)
        self.incarnation = 0  # 0: not registered yet
        self.fenced = False
        self.draining = False
        self.calm = False  # nothing disturbs the cluster now (CALM-FIRST), as `ClientBalancer` found at the last tick
        self.links: dict[str, int] = {}  # peer -> incarnation at the other end of a link that stands
        self.dirty: dict[int, None] = {}  # groups with something to send at the end of the turn
        self.published = 0  # numbered by this broker
        self.committed = 0  # publications committed here
        self.histories = 0  # times that a group here began a history, the first one included, and dropped its topics
        self._wall_offset = 0.0  # wall clock minus monotonic clock, seconds

    def start(self, wall_ms: int, seed: int) -> None:
        """Set the wall clock to `wall_ms` milliseconds since 1970 at the present `now`, and the seed of all random
        numbers."""
        self._wall_offset = wall_ms / 1000 - self.now
        self.random = Random(seed)

    @property
    def me(self) -> BrokerId:
        return (self.config.name, self.incarnation)

    @property
    def wall(self) -> float:
        """The wall clock, in seconds since 1970: its value at the start, advanced by the monotonic clock, so that it
        never jumps."""
        return self._wall_offset + self.now

    def linked(self, broker: BrokerId) -> bool:
        """Return whether `broker` is this incarnation of this broker, or the incarnation at the other end of an open
        link."""
        return broker == self.me or self.links.get(broker[0]) == broker[1]

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def send(self, peer: str, message: PeerMessage) -> None:
        """Emit the effect that sends a message over the link to `peer`. Without an open link nothing is emitted: the
        message is lost, as it would be on a link that breaks."""
        if peer in self.links:
            self.effects.append(SendPeer(peer, message))

    def note(self, level: str, event: str, **fields: object) -> None:
        self.effects.append(Note(level, event, fields))  # type: ignore[arg-type]

    def observe(self, metric: str, value: float = 1.0, label: str = "") -> None:
        self.effects.append(Observe(metric, value, label))
