"""Random runs of the client core with a small model of brokers that lose links, copies and answers.

The model's coordinator takes new ids by NEXT-OR-MARK (docs/concepts/replication.md, "Normal case"). Like an older
broker, it acknowledges an id that it no longer holds without a position. Copies of a publication may arrive long after
their link has ended. The test checks, after every step and at the end, once faults have stopped:

- invariants 2 and 6: positions that the application sees rise, and each hole was reported; a publisher's order holds
- invariants 1 and 4: each acknowledged publication is in the log, and none is there twice
- invariant 7: every publication is answered
"""

from __future__ import annotations

import random
from collections import deque
from itertools import pairwise
from typing import cast

import pytest
from migratory_client.core import events as ev
from migratory_client.core.session import ClientCore
from migratory_client.core.settings import Settings
from migratory_protocol import messages as wire
from migratory_protocol.messages import BrokerMessage, ClientMessage, Server
from migratory_protocol.positions import Position, parse_position
from migratory_testing.clientcore import CoreDriver, welcome
from migratory_testing.corejson import ForeignCore
from migratory_testing.javascript import CLIENT, node

TOPIC = "t"
SEEDS = range(30)


class Model:
    """A broker model with one history and any number of links."""

    def __init__(self, seed: int, core: ClientCore | None = None) -> None:
        self.chance = random.Random(seed)
        self.driver = CoreDriver(seed=seed, settings=Settings(publish_timeout=40.0), core=core)
        self.log: list[wire.Message] = []
        self.ids: list[int] = []  # of the log's entries, 0 for what others published
        self.epoch = 1
        self.last = 0  # the publisher table
        self.cached_from = 1
        self.up: dict[int, deque[ClientMessage]] = {}  # link -> on its way to the broker
        self.down: dict[int, deque[BrokerMessage]] = {}
        self.subscribed: set[int] = set()
        self.stray: list[wire.Publish] = []  # copies whose link is gone
        self.tickets = 0
        self.given_up: set[int] = set()
        self.answered: dict[int, Position | None] = {}
        self.failed: set[int] = set()
        self.stream: list[tuple[str, int, int]] = []  # what the application saw: kind, first, last
        self.faults = True

    # ---- the client's side -----------------------------------------------------------------------------------

    def step(self, event: ev.Event) -> None:
        self.take(self.driver.step(event))

    def take(self, effects: list[ev.Effect]) -> None:
        for effect in effects:
            match effect:
                case ev.Dial():
                    if self.faults and self.chance.random() < 0.3:
                        self.step(ev.Disconnected(effect.link, 1006))
                    else:
                        self.up[effect.link] = deque()
                        self.down[effect.link] = deque()
                        self.step(ev.Connected(effect.link))
                case ev.Send():
                    self.up[effect.link].extend(effect.messages)
                case ev.Disconnect():
                    self.cut(effect.link)
                case ev.Deliver():
                    sequence = effect.message.position.sequence
                    assert self.log[sequence - 1].position == effect.message.position
                    self.stream.append(("message", sequence, sequence))
                case ev.Receipt() if effect.kind == "truncated":
                    self.stream.append((effect.kind, effect.first, effect.last))
                case ev.Receipt():
                    assert effect.kind == "complete", "the model has one history and no holes"
                case ev.Acknowledged(ticket=int() as ticket):
                    assert ticket not in self.given_up
                    assert ticket not in self.answered
                    self.answered[ticket] = effect.position
                case ev.PublishFailed(ticket=int() as ticket):
                    assert effect.code == "timeout"
                    self.failed.add(ticket)
                case _:
                    pass

    def cut(self, link: int) -> None:
        """End the link. Drop the messages to the client; drop the client's publications on it, or deliver them much
        later."""
        self.down.pop(link, None)
        self.subscribed.discard(link)
        for message in self.up.pop(link, ()):
            if isinstance(message, wire.Publish) and self.chance.random() < 0.5:
                self.stray.append(message)

    # ---- the brokers' side -----------------------------------------------------------------------------------

    def append(self, payload: bytes, number: int) -> Position:
        if self.chance.random() < 0.1:
            self.epoch += 1  # a takeover: numbers go on
        position = Position(self.epoch, len(self.log) + 1)
        self.log.append(wire.Message(TOPIC, position, payload))
        self.ids.append(number)
        for link in self.subscribed:
            self.down[link].append(self.log[-1])
        return position

    def coordinate(self, message: wire.Publish) -> BrokerMessage:
        if self.faults and self.chance.random() < 0.1:
            return wire.Nack(TOPIC, "p", message.id, "retry", "", self.chance.random())
        if message.id <= self.last:
            where = self.ids.index(message.id) if message.id in self.ids else None
            return wire.Ack(TOPIC, "p", message.id, None if where is None else self.log[where].position)
        if (message.id == self.last + 1 and self.last) or message.id == message.mark:
            self.last = message.id
            return wire.Ack(TOPIC, "p", message.id, self.append(message.payload, message.id))
        return wire.Nack(TOPIC, "p", message.id, "gap")

    def broker(self, link: int) -> None:
        """Handle the next message that the client sent on the link, and queue the answer. While there are faults, lose
        some publications or their answers."""
        message = self.up[link].popleft()
        match message:
            case wire.Connect():
                self.down[link].append(welcome())
            case wire.Ping():
                self.down[link].append(wire.Pong())
            case wire.Publish():
                if self.faults and self.chance.random() < 0.05:
                    return  # lost between the brokers
                answer = self.coordinate(message)
                if not self.faults or self.chance.random() > 0.1:
                    self.down[link].append(answer)
            case wire.Unsubscribe():
                self.subscribed.discard(link)
                self.down[link].append(wire.Unsubscribed(message.request, message.topics))
            case wire.Subscribe():
                self.subscribe(link, message)
            case wire.Bye():
                self.subscribed.discard(link)

    def subscribe(self, link: int, message: wire.Subscribe) -> None:
        (request,) = message.topics
        newest = self.log[-1].position if self.log else Position(self.epoch, 0)
        receipt = wire.TopicReceipt(TOPIC, "complete", newest)
        start = newest.sequence
        if request.after is not None:
            start = parse_position(request.after).sequence
            if start + 1 < self.cached_from:
                receipt = wire.TopicReceipt(TOPIC, "truncated", newest, start + 1, self.cached_from - 1)
                start = self.cached_from - 1
        overlap = max(0, start - self.chance.randrange(3))  # a replay may begin a little early
        self.down[link].append(wire.Subscribed(message.request, [receipt]))
        self.down[link].extend(self.log[overlap:])
        self.subscribed.add(link)

    # ---- a run -----------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Make one random step: a message arrives, time passes, or the application or a fault acts. Without faults
        only messages and time move on."""
        links = sorted(self.up)
        choice = self.chance.random()
        if choice < 0.35 and (busy := [link for link in links if self.up[link]]):
            self.broker(self.chance.choice(busy))
        elif choice < 0.65 and (busy := [link for link in links if self.down[link]]):
            link = self.chance.choice(busy)
            self.step(ev.Received(link, [self.down[link].popleft()]))
        elif choice < 0.75:
            self.take(self.driver.wait(self.chance.random()))
        elif not self.faults:
            return
        elif choice < 0.85:
            self.tickets += 1
            self.step(ev.Submit(self.tickets, TOPIC, b"%d" % self.tickets))
        elif choice < 0.89:
            self.append(b"other", 0)
        elif choice < 0.91 and links:
            link = self.chance.choice(links)
            self.cut(link)
            self.step(ev.Disconnected(link, 1006))
        elif choice < 0.93 and links:
            self.down[self.chance.choice(links)].append(wire.Drain(1.0, [Server(f"ws://{name}/ws") for name in "abc"]))
        elif choice < 0.95 and self.stray:
            self.coordinate(self.stray.pop(self.chance.randrange(len(self.stray))))
        elif choice < 0.96:
            waiting = set(range(1, self.tickets + 1)) - set(self.answered) - self.failed - self.given_up
            if waiting:
                ticket = self.chance.choice(sorted(waiting))
                self.given_up.add(ticket)
                self.step(ev.GiveUp(ticket))
        elif choice < 0.97:
            self.cached_from = max(self.cached_from, len(self.log) - self.chance.randrange(10))
        elif choice < 0.985:
            self.step(ev.UnsubscribeTopic(TOPIC))
        else:
            self.step(ev.SubscribeTopic(TOPIC))

    def check(self) -> None:
        for (_, _, before), (kind, first, _) in pairwise(self.stream):
            assert first == before + 1, (kind, self.stream)
        own = [number for number in self.ids if number]
        assert own == sorted(set(own)), "doubled or out of order"

    def heal(self) -> None:
        self.faults = False
        self.step(ev.SubscribeTopic(TOPIC))
        for _ in range(20_000):
            self.turn()
            if self.quiet():
                break
        assert self.quiet(), "not every publication was answered, or the subscriber did not catch up"

    def quiet(self) -> bool:
        caught_up = not self.log or (bool(self.stream) and self.stream[-1][2] == len(self.log))
        return self.driver.core.publisher.waiting == 0 and (caught_up or not self.stream)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_run_loses_repeats_and_reorders_nothing(seed: int) -> None:
    check_run(Model(seed))


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_random_run_of_the_javascript_core_loses_repeats_and_reorders_nothing(seed: int) -> None:
    chance = random.Random(seed)
    numbers = [chance.random() for _ in range(1000)]
    command = [node(), str(CLIENT / "test" / "adapter.js")]
    settings = {"publishTimeout": 40.0}
    servers = [f"ws://{name}/ws" for name in "abc"]
    with ForeignCore(command, servers, numbers, client="c", publisher="p", settings=settings) as core:
        check_run(Model(seed, cast(ClientCore, core)))


def check_run(model: Model) -> None:
    model.step(ev.SubscribeTopic(TOPIC))
    model.step(ev.Open())
    for _ in range(1500):
        model.turn()
        model.check()
    model.heal()
    model.check()
    assert model.tickets == len(model.answered) + len(model.failed) + len(model.given_up)
    stored = {message.payload: message.position for message in model.log}
    for ticket, position in model.answered.items():
        assert stored[b"%d" % ticket] == (position or stored[b"%d" % ticket])


def test_random_runs_reach_all_intended_events() -> None:
    totals = {"truncated": 0, "given up": 0, "reconnects": 0, "resends": 0, "dropped": 0, "timeouts": 0, "messages": 0}
    for seed in range(8):
        model = Model(seed)
        model.step(ev.SubscribeTopic(TOPIC))
        model.step(ev.Open())
        for _ in range(1500):
            model.turn()
        totals["truncated"] += sum(kind == "truncated" for kind, _, _ in model.stream)
        totals["messages"] += sum(kind == "message" for kind, _, _ in model.stream)
        totals["given up"] += len(model.given_up)
        totals["timeouts"] += len(model.failed)
        totals["reconnects"] += model.driver.core.reconnects
        totals["resends"] += model.driver.core.publisher.resends
        totals["dropped"] += model.driver.core.subscriptions.dropped
    assert all(totals.values()), totals
