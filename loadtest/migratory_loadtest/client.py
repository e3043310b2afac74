"""A simulated client: the product's own client core (resume, backoff, blacklist, QoS 1) on a light link.

Subscribers and publishers are subclasses that say what becomes of deliveries, receipts and answers.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import ssl
import time
from collections.abc import Sequence
from math import inf
from urllib.parse import urlsplit

from migratory_client.core import events as ev
from migratory_client.core.session import ClientCore
from migratory_client.core.settings import Settings
from migratory_protocol.codec import Codec
from migratory_protocol.messages import BrokerMessage, Server

from migratory_loadtest.faults import Faults
from migratory_loadtest.link import LinkProtocol
from migratory_loadtest.meter import Meter


class World:
    """What all clients of a worker share. `sources`: addresses of this machine to connect from, in turn; none leaves
    the choice to the kernel."""

    def __init__(
        self,
        codec: Codec,
        servers: tuple[Server, ...],
        settings: Settings,
        meter: Meter,
        sources: Sequence[str] = (),
    ) -> None:
        self.codec = codec
        self.servers = servers
        self.settings = settings
        self.meter = meter
        self.loop = asyncio.get_running_loop()
        self.dialling: set[asyncio.Task[object]] = set()
        self._sources = itertools.cycle(sources) if sources else None
        self.faults = Faults()
        self.error = ""  # the last problem of any client
        self.errors: dict[str, None] = {}  # distinct ones, the first few

    def source(self) -> tuple[str, int] | None:
        """Where the next connection comes from; port 0: any."""
        return None if self._sources is None else (next(self._sources), 0)


class LoadClient:
    """`broker` is the contact broker, "" while there is none. `ready`: every subscription has its receipt. `changes`:
    how many links it has lost or left for another."""

    __slots__ = ("_links", "_timer", "_wake", "broker", "changes", "core", "name", "ready", "world")

    def __init__(self, world: World, name: str, chance: random.Random, token: str | None) -> None:
        self.world = world
        self.name = name
        self.core = ClientCore(
            world.servers,
            chance.random,
            client=name,
            publisher=name,
            token=token,
            settings=world.settings,
            codec=world.codec,
        )
        self.broker = ""
        self.ready = False
        self.changes = 0
        self._links: dict[int, LinkProtocol] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wake = inf

    def open(self) -> None:
        self.step(ev.Open())

    def step(self, event: ev.Event) -> None:
        """Every event goes through here, and its effects are carried out at once."""
        now = self.world.loop.time()
        for effect in self.core.step(event, now):
            if type(effect) is ev.Deliver:
                self.on_deliver(effect)
            else:
                self._do(effect)
        if self.core.deadline < self._wake:
            self._arm(self.core.deadline)

    # ---- what subclasses add -----------------------------------------------------------------------------------

    def on_deliver(self, effect: ev.Deliver) -> None:
        raise NotImplementedError

    def on_receipt(self, effect: ev.Receipt) -> None:
        raise NotImplementedError

    def on_answer(self, effect: ev.Acknowledged | ev.PublishFailed) -> None:
        raise NotImplementedError

    # ---- reports of links --------------------------------------------------------------------------------------

    def link_up(self, number: int) -> None:
        self.step(ev.Connected(number))

    def link_received(self, number: int, messages: list[BrokerMessage], size: int) -> None:
        self.world.meter.took_bytes(size, time.monotonic_ns())
        self.step(ev.Received(number, messages))

    def link_down(self, number: int, code: int, reason: str) -> None:
        self._links.pop(number, None)
        self.step(ev.Disconnected(number, code, reason))

    # ---- effects -----------------------------------------------------------------------------------------------

    def _do(self, effect: ev.Effect) -> None:
        match effect:
            case ev.Send():
                link = self._links.get(effect.link)
                if link is not None:
                    link.send(effect.messages)
            case ev.Receipt():
                self.on_receipt(effect)
            case ev.Acknowledged() | ev.PublishFailed():
                self.on_answer(effect)
            case ev.Dial():
                task = self.world.loop.create_task(self._dial(effect.link, effect.url))
                self.world.dialling.add(task)
                task.add_done_callback(self.world.dialling.discard)
            case ev.Disconnect():
                link = self._links.get(effect.link)
                if link is not None:
                    link.disconnect(effect.abort)
            case ev.LinkUp():
                self.broker = effect.broker
            case ev.LinkDown():
                self._lost(effect)
            case ev.Ready():
                self._ready(effect)
            case ev.Problem():
                self._trouble(f"{effect.code}: {effect.text}")
            case ev.SubscribeRefused():
                self._trouble(f"subscription of {effect.topic} refused: {effect.code}: {effect.text}")
            case ev.RequestToken() | ev.Deliver():
                raise AssertionError(f"{effect} can't come here")

    def _trouble(self, text: str) -> None:
        world = self.world
        world.error = text
        if len(world.errors) < 20:
            world.errors[text] = None

    def _lost(self, effect: ev.LinkDown) -> None:
        self.changes += 1
        self.world.meter.reconnects[(self.broker, effect.cause)] += 1
        self.world.faults.changed(self.name)
        if not effect.replaced:
            self.world.faults.lost(self.name)
            self.broker = ""
            self.ready = False

    def _ready(self, effect: ev.Ready) -> None:
        self.ready = True
        if effect.seconds is not None:
            self.world.meter.resumed(self.broker, effect.seconds)
            self.world.faults.resumed(self.name, effect.seconds)

    async def _dial(self, number: int, url: str) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "wss"
        port = parts.port or (443 if secure else 80)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        protocol = LinkProtocol(self, number, self.world.codec, parts.netloc, path)
        self._links[number] = protocol
        try:
            await self.world.loop.create_connection(
                lambda: protocol, parts.hostname or "", port, ssl=secure or None, local_addr=self.world.source()
            )
        except OSError as error:
            system = error.errno is not None and error.errno > 0 and not isinstance(error, ssl.SSLError)
            self.link_down(number, 1006, os.strerror(error.errno or 0).lower() if system else str(error))

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake = deadline
        if deadline < inf:
            self._timer = self.world.loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._wake = inf
        self.step(ev.Tick())
