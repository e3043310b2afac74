"""A driver of the client core for unit tests: a virtual clock, and a network that the test plays."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from math import inf
from typing import TypeVar

from migratory_client.core import events as ev
from migratory_client.core.servers import parse_servers
from migratory_client.core.session import ClientCore
from migratory_client.core.settings import DEFAULTS, Settings
from migratory_protocol import messages as wire
from migratory_protocol.codec import MSGPACK, Codec
from migratory_protocol.messages import BrokerMessage, ClientMessage, Message, Server
from migratory_protocol.positions import Position

T = TypeVar("T")

LIMITS = wire.Limits(payload=1000, topic=255, subscriptions=1000, queue=1 << 20)


def welcome(
    *servers: Server, broker: str = "broker-0", heartbeat: float = 15.0, limits: wire.Limits = LIMITS
) -> wire.Welcome:
    return wire.Welcome(wire.VERSION, "quotes", broker, 1, list(servers), heartbeat, limits)


def complete(topic: str, epoch: int, sequence: int) -> wire.TopicReceipt:
    return wire.TopicReceipt(topic, "complete", Position(epoch, sequence))


def message(topic: str, epoch: int, sequence: int) -> Message:
    return Message(topic, Position(epoch, sequence), f"{epoch}:{sequence}".encode())


class CoreDriver:
    """A client core whose clock and network the test plays. `effects` are those of the last event (`step`, `receive`)
    or wait (`until`, `wait`), `history` all so far, and `dials` (time, URL) of each attempt to connect."""

    def __init__(
        self,
        servers: Iterable[str | Server] = ("ws://a/ws", "ws://b/ws", "ws://c/ws"),
        *,
        seed: int = 1,
        chance: Callable[[], float] | None = None,
        settings: Settings = DEFAULTS,
        token: str | None = None,
        codec: Codec = MSGPACK,
        core: ClientCore | None = None,
    ) -> None:
        """Create a driver of `core`, or of a new core with these arguments. Its random numbers come from `chance`, or
        from `seed`."""
        usable, self.malformed = parse_servers(servers)
        self.core = core or ClientCore(
            usable,
            chance or random.Random(seed).random,
            client="c",
            publisher="p",
            token=token,
            settings=settings,
            codec=codec,
        )
        self.now = 1000.0
        self.effects: list[ev.Effect] = []
        self.history: list[ev.Effect] = []
        self.dials: list[tuple[float, str]] = []

    def step(self, event: ev.Event) -> list[ev.Effect]:
        return self._record(self.core.step(event, self.now))

    def receive(self, link: int, *messages: BrokerMessage) -> list[ev.Effect]:
        return self.step(ev.Received(link, list(messages)))

    def until(self, moment: float) -> list[ev.Effect]:
        """Advance the clock to `moment`, with a tick at each deadline, but stop at the first tick that emits `Dial`.
        Return the effects of all ticks."""
        effects: list[ev.Effect] = []
        while self.core.deadline <= moment:
            assert self.core.deadline < inf
            self.now = max(self.now, self.core.deadline)
            before = self.core.deadline
            effects += self.core.step(ev.Tick(), self.now)
            assert self.core.deadline > before or effects, "a deadline that stays would spin"
            if any(isinstance(effect, ev.Dial) for effect in effects):
                break
        else:
            self.now = max(self.now, moment)
        return self._record(effects)

    def wait(self, seconds: float) -> list[ev.Effect]:
        return self.until(self.now + seconds)

    def next_dial(self, within: float = 60.0) -> ev.Dial:
        """Return the last `Dial` among the latest effects, or wait for one. Raise AssertionError if there is none
        within `within` seconds."""
        dials = self.of(ev.Dial) or [effect for effect in self.wait(within) if isinstance(effect, ev.Dial)]
        assert dials, f"no attempt within {within} s"
        return dials[-1]

    def accept(self, dial: ev.Dial, reply: wire.Welcome | None = None) -> int:
        """Let the connection attempt `dial` succeed, with `reply` or the default welcome. Return the number of its
        link."""
        self.step(ev.Connected(dial.link))
        self.receive(dial.link, reply or welcome())
        return dial.link

    def open(self, reply: wire.Welcome | None = None) -> int:
        """Open the client, and let its first connection attempt succeed. Return the number of the link."""
        self.step(ev.Open())
        return self.accept(self.next_dial(), reply)

    def answer(self, link: int, *receipts: wire.TopicReceipt) -> list[ev.Effect]:
        """Answer the last subscribe request that the client sent on `link` with these receipts. Return the effects."""
        return self.receive(link, wire.Subscribed(self.request(link).request, list(receipts)))

    def request(self, link: int) -> wire.Subscribe:
        """Return the last subscribe request that the client sent on `link`. Raise IndexError without one."""
        return [item for item in self.sent(link) if isinstance(item, wire.Subscribe)][-1]

    def sent(self, link: int) -> list[ClientMessage]:
        """Return all messages that the client has sent on `link` so far."""
        return [
            item
            for effect in self.history
            if isinstance(effect, ev.Send) and effect.link == link
            for item in effect.messages
        ]

    def published(self) -> list[wire.Publish]:
        """Return the publications in `effects`: those that the client sent at the last event or during the last
        wait."""
        return [
            item
            for effect in self.effects
            if isinstance(effect, ev.Send)
            for item in effect.messages
            if isinstance(item, wire.Publish)
        ]

    def of(self, kind: type[T]) -> list[T]:
        """Return the latest effects of a kind."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def delivered(self, topic: str | None = None) -> list[tuple[int, int]]:
        """Return (epoch, sequence number) of all deliveries so far, or of those of one topic, in order."""
        return [
            (effect.message.position.epoch, effect.message.position.sequence)
            for effect in self.history
            if isinstance(effect, ev.Deliver) and topic in (None, effect.message.topic)
        ]

    def receipts(self) -> list[tuple[str, int, int]]:
        """Return (kind, first, last) of all receipts that the application got so far."""
        return [(item.kind, item.first, item.last) for item in self.history if isinstance(item, ev.Receipt)]

    def _record(self, effects: list[ev.Effect]) -> list[ev.Effect]:
        self.effects = effects
        self.history += effects
        self.dials += [(self.now, effect.url) for effect in effects if isinstance(effect, ev.Dial)]
        return effects
