"""A simulated client: runs the Python client's core (resume, backoff, blacklist, QoS 1) on a lightweight client link.

The subclasses `LoadPublisher` and `LoadSubscriber` handle deliveries, receipts and answers.
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
from urllib.parse import SplitResult, urlsplit

from migratory_client.core import events as ev
from migratory_client.core.session import ClientCore
from migratory_client.core.settings import Settings
from migratory_protocol.codec import Codec
from migratory_protocol.messages import BrokerMessage, Server

from migratory_loadtest.faults import FaultTracker
from migratory_loadtest.link import LinkProtocol
from migratory_loadtest.meter import Meter

MAX_ERRORS = 20
"""Distinct error texts that a worker keeps. More would say nothing new about a failing cluster."""


class WorkerContext:
    """The state that all clients of a worker have in common.

    :param servers: the brokers' URLs with weights.
    :param settings: the settings of the client core.
    :param meter: counts what the clients measure.
    :param sources: addresses of this machine to connect from, in turn. With none the kernel chooses.
    """

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
        self.dialling: dict[LinkProtocol, asyncio.Task[None]] = {}
        """The tasks that connect links, each until its link is connected or has failed."""
        self._sources = itertools.cycle(sources) if sources else None
        self.faults = FaultTracker()
        self.error = ""
        """The last error of any client."""
        self.errors: dict[str, None] = {}
        """The first distinct errors, in order."""

    def next_source(self) -> tuple[str, int] | None:
        """Return the local address of the next connection, with port 0 for any port; None when the kernel chooses."""
        return None if self._sources is None else (next(self._sources), 0)


class LoadClient:
    """A simulated client, which steps a client core and executes its effects.

    `broker` is its contact broker, "" while it has none. `ready` is True while it has one and every subscription was
    answered. `changes` counts the links that the client lost or replaced.
    """

    __slots__ = ("_links", "_timer", "_wake_at", "broker", "changes", "context", "core", "name", "ready")

    def __init__(self, context: WorkerContext, name: str, rng: random.Random, token: str | None) -> None:
        self.context = context
        self.name = name
        self.core = ClientCore(
            context.servers,
            rng.random,
            client=name,
            publisher=name,
            token=token,
            settings=context.settings,
            codec=context.codec,
        )
        self.broker = ""
        self.ready = False
        self.changes = 0
        self._links: dict[int, LinkProtocol] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = inf

    def open(self) -> None:
        self.step(ev.Open())

    def step(self, event: ev.Event) -> None:
        """Pass an event to the client core, execute its effects at once, and set the timer for the core's next
        deadline."""
        now = self.context.loop.time()
        for effect in self.core.step(event, now):
            if type(effect) is ev.Deliver:
                self.on_deliver(effect)
            else:
                self._execute(effect)
        if self.core.deadline < self._wake_at:
            self._arm(self.core.deadline)

    # ---- for subclasses ----------------------------------------------------------------------------------------

    def on_deliver(self, effect: ev.Deliver) -> None:
        raise NotImplementedError

    def on_receipt(self, effect: ev.Receipt) -> None:
        raise NotImplementedError

    def on_answer(self, effect: ev.Acknowledged | ev.PublishFailed) -> None:
        raise NotImplementedError

    # ---- callbacks of links ------------------------------------------------------------------------------------

    def link_up(self, number: int) -> None:
        self.step(ev.Connected(number))

    def link_received(self, number: int, messages: list[BrokerMessage], size: int) -> None:
        """Count the bytes of received data, `size`, and pass its messages, which may be none, to the core."""
        self.context.meter.received_bytes(size, time.monotonic_ns())
        self.step(ev.Received(number, messages))

    def link_down(self, number: int, code: int, reason: str) -> None:
        self._links.pop(number, None)
        self.step(ev.Disconnected(number, code, reason))

    # ---- effects -----------------------------------------------------------------------------------------------

    def _execute(self, effect: ev.Effect) -> None:
        """Execute an effect other than `Deliver`: send, dial or disconnect, record the state of the links, report a
        problem, or call the subclass for a receipt or an answer. Raise AssertionError for a request for a token, which
        a scenario's fixed token excludes."""
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
                self._dial(effect.link, effect.url)
            case ev.Disconnect():
                link = self._links.pop(effect.link, None)
                if link is not None:
                    link.disconnect(effect.abort)
                    dial = self.context.dialling.get(link)
                    if dial is not None:  # else the connection would be made later, for nobody
                        dial.cancel()
            case ev.LinkUp():
                self.broker = effect.broker
            case ev.LinkDown():
                self._on_link_down(effect)
            case ev.Ready():
                self._on_ready(effect)
            case ev.Problem():
                self._report_error(f"{effect.code}: {effect.text}")
            case ev.SubscribeRefused():
                self._report_error(f"subscription of {effect.topic} refused: {effect.code}: {effect.text}")
            case ev.RequestToken() | ev.Deliver():
                raise AssertionError(f"{effect} is not possible here")

    def _report_error(self, text: str) -> None:
        """Record an error as the worker's last one, and among its first `MAX_ERRORS` distinct ones."""
        context = self.context
        context.error = text
        if len(context.errors) < MAX_ERRORS:
            context.errors[text] = None

    def _on_link_down(self, effect: ev.LinkDown) -> None:
        """Count the change of broker, by broker and cause. If no other link has replaced this one, the client has no
        broker now."""
        self.changes += 1
        self.context.meter.reconnects[(self.broker, effect.cause)] += 1
        self.context.faults.link_changed(self.name)
        if not effect.replaced:
            self.context.faults.disconnected(self.name)
            self.broker = ""
            self.ready = False

    def _on_ready(self, effect: ev.Ready) -> None:
        """Note that the client is ready. Record the resume time, 0 after a move, unless this was its first link."""
        self.ready = True
        if effect.seconds is not None:
            self.context.meter.resumed(self.broker, effect.seconds)
            self.context.faults.resumed(self.name, effect.seconds)

    def _dial(self, number: int, url: str) -> None:
        """Begin to connect to `url` as the link `number`, from the next source address. Report a failure to the core as
        the end of the link, with code 1006."""
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        link = self._links[number] = LinkProtocol(self, number, self.context.codec, parts.netloc, path)
        dialling = self.context.dialling
        dialling[link] = self.context.loop.create_task(self._connect(number, link, parts))
        dialling[link].add_done_callback(lambda _: dialling.pop(link))

    async def _connect(self, number: int, link: LinkProtocol, parts: SplitResult) -> None:
        secure = parts.scheme == "wss"
        port = parts.port or (443 if secure else 80)
        try:
            await self.context.loop.create_connection(
                lambda: link, parts.hostname or "", port, ssl=secure or None, local_addr=self.context.next_source()
            )
        except OSError as error:
            from_system = error.errno is not None and error.errno > 0 and not isinstance(error, ssl.SSLError)
            self.link_down(number, 1006, os.strerror(error.errno or 0).lower() if from_system else str(error))

    def _arm(self, deadline: float) -> None:
        """Let the core tick at `deadline`, in place of the time that was set before; never if it is infinite."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._wake_at = deadline
        if deadline < inf:
            self._timer = self.context.loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._wake_at = inf
        self.step(ev.Tick())
