"""What every part of the logic shares: the time, the effects of this step, randomness, links, and the assertions."""

from __future__ import annotations

from migratory_protocol.peer import BrokerId, PeerMessage

from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.core.logic.events import Effect, Note, Observe, SendPeer

_MASK = 2**64 - 1


class InvariantError(AssertionError):
    """Something that the rules of docs/concepts/replication.md exclude has happened: the process must not go on with
    it."""


def must(condition: bool, rule: str) -> None:
    """Assertions stay in production: a broker that stops is repaired by a takeover, wrong data by nobody."""
    if not condition:
        raise InvariantError(rule)


class Random:
    """splitmix64: the same numbers in every process and version for the same seed."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def integer(self) -> int:
        """A whole number of 64 bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * (self.integer() / 2**64)


class Context:
    """State that belongs to the broker as a whole. `effects` is what the running step answers."""

    def __init__(self, config: LogicConfig) -> None:
        self.config = config
        self.now = 0.0
        self.effects: list[Effect] = []
        self.random = Random(0)
        self.incarnation = 0  # 0: not registered yet
        self.fenced = False
        self.draining = False
        self.links: dict[str, int] = {}  # peers whose link stands, with the incarnation at the other end
        self.dirty: dict[int, None] = {}  # groups that have something to send at the end of the turn
        self.published = 0  # numbered by this broker
        self.committed = 0  # publications committed here
        self.histories = 0  # how often a group here began another history, its topics forgotten
        self._wall_offset = 0.0  # wall clock minus monotonic clock, seconds

    def start(self, wall_ms: int, seed: int) -> None:
        self._wall_offset = wall_ms / 1000 - self.now
        self.random = Random(seed)

    @property
    def me(self) -> BrokerId:
        return (self.config.name, self.incarnation)

    @property
    def wall(self) -> float:
        """Seconds of the wall clock as it was at the start, driven on by the monotonic one: it never jumps."""
        return self._wall_offset + self.now

    def linked(self, broker: BrokerId) -> bool:
        """Whether a link to this very incarnation stands (a broker always reaches itself)."""
        return broker == self.me or self.links.get(broker[0]) == broker[1]

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def send(self, peer: str, message: PeerMessage) -> None:
        """Over the link to `peer`; without one the message is as lost as on a link that breaks."""
        if peer in self.links:
            self.effects.append(SendPeer(peer, message))

    def note(self, level: str, event: str, **fields: object) -> None:
        self.effects.append(Note(level, event, fields))  # type: ignore[arg-type]

    def observe(self, metric: str, value: float = 1.0, label: str = "") -> None:
        self.effects.append(Observe(metric, value, label))
