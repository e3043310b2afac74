"""The I/O processes as their broker sees them. In place of each process stands the other end of its channel."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.core import Edge
from migratory_broker.core.edge.events import Detach
from migratory_broker.core.logic.events import (
    Admission,
    Attach,
    Attached,
    Clients,
    Fanout,
    Flush,
    NextPage,
    Note,
    Observe,
    Page,
    PublishRequest,
    ServerList,
)
from migratory_broker.runtime import channel as channels
from migratory_broker.runtime import descriptors, iolife
from migratory_broker.runtime import edges as edges_module
from migratory_broker.runtime.channel import FULL, Channel
from migratory_broker.runtime.config import parse
from migratory_broker.runtime.crossing import Begin, Held, Hello, Report, ToIo, decoder, encode
from migratory_broker.runtime.edges import Edges
from migratory_broker.runtime.listener import bind, listen
from migratory_broker.runtime.pump import Pump
from migratory_protocol.messages import Server
from migratory_protocol.peer import Publication
from migratory_protocol.positions import Position

STATUS = Edge(EdgeConfig(), 0).status()
SERVER = {"handshakes_waiting": 0, "handshakes_too_slow": 0, "requests_malformed": 0}


class Io:
    """The other end, and the process (`popen`) that is not there."""

    def __init__(self, ends: tuple[int, int]) -> None:
        self.sock, self.way = (socket.socket(fileno=os.dup(end)) for end in ends)
        self.pid = 4_000_000 + ends[0]
        self.got: list[Any] = []
        self.signals: list[int] = []
        self.code: int | None = None
        self.given = 0
        self.sockets: list[socket.socket] = []
        self.reading = True
        self.connected = False
        self.channel = Channel(decoder(ToIo), self._take, lambda: None)

    def _take(self, messages: list[Any], size: int) -> None:
        self.got += messages
        if self.reading:
            self.channel.done(size)

    async def connect(self) -> None:
        self.connected = True
        self.sock.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self.channel, sock=self.sock)

    def say(self, *messages: Any) -> None:
        for message in messages:
            self.channel.put(encode(message))
        self.channel.flush()

    def take_sockets(self, connections: int | None = None) -> int:
        given, taken = descriptors.take(self.way)
        self.given += given
        self.sockets += taken
        load = len(self.sockets) if connections is None else connections
        self.say(Held(self.given, load, load))
        return given

    def report(self, batches: int, connections: int = 0, **status: Any) -> Report:
        held = Held(self.given, connections, connections)
        return Report(batches, held, {**STATUS, "connections": connections, "clients": connections, **status}, SERVER)

    def of(self, *kinds: type) -> list[Any]:
        return [message for message in self.got if isinstance(message, kinds)]

    # as `subprocess.Popen`

    def send_signal(self, number: int) -> None:
        self.signals.append(number)
        if number == signal.SIGKILL:
            self.die(-9)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def die(self, code: int) -> None:
        self.code = code
        self.channel.close()
        self.way.close()
        if not self.connected:
            self.sock.close()

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout: float | None = None) -> int | None:
        if self.code is None:
            self.die(0)
        return self.code


class Site:
    def __init__(self, logic: Any, log: Any, processes: int) -> None:
        self.now = 100.0
        self.errors: list[Exception] = []
        self.observed: list[Observe] = []
        self.started: list[Io] = []
        self.logic = logic
        self.log = log
        config = {"cluster": "c", "brokers": ["b"], "zookeeper": {"servers": "z:1"}, "delivery": {"minCopies": 1},
                  "ioProcesses": processes}  # fmt: skip
        loop = asyncio.get_running_loop()
        self.pump = Pump(logic, loop.call_soon, lambda: self.now, self.errors.append)
        self.pump.carry_out({})
        self.edges = Edges(
            parse(json.dumps(config).encode()), "b", self.pump, lambda: self.now, log, "info", 4.0,
            self.observed.append, self._start,
        )  # fmt: skip

    def _start(self, ends: tuple[int, int]) -> Any:
        self.started.append(Io(ends))
        return self.started[-1]

    def open(self) -> tuple[str, int]:
        listening = listen(bind("127.0.0.1", 0, "clients"), "clients")
        self.edges.open(3, listening)
        host, port = listening.getsockname()[:2]
        return host, port

    async def up(self, io: Io, until: Any) -> Io:
        await io.connect()
        io.say(Hello(1000))
        await until(lambda: io.of(ServerList))
        return io

    def effect(self, *effects: Any) -> None:
        for effect in effects:
            self.pump.to_edge(effect)

    def later(self, seconds: float) -> None:
        """Time passes, in steps that are no standstill."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.1)
            self.edges.tick(self.now)


@pytest.fixture
async def site(core: Any, log: Any) -> AsyncIterator[Any]:
    made: list[Site] = []

    def make(processes: int = 2, answers: Any = None) -> Site:
        made.append(Site(core(answers), log, processes))
        return made[-1]

    yield make
    for one in made:
        assert one.errors == []
        one.edges.stop_listening()
        await one.edges.close()
        for io in one.started:
            for sock in (io.sock, io.way, *io.sockets):
                with suppress(OSError):
                    sock.close()


def fanout(topic: str, number: int = 1, size: int = 1) -> Fanout:
    return Fanout(topic, (Publication(1, number, b"x" * size),))


async def test_a_process_is_told_how_things_stand_before_anything_else(site: Any, until: Any) -> None:
    here = site()
    servers = (Server("ws://a/ws", 100),)
    await here.started[0].connect()
    here.started[0].say(Hello(1000))
    here.open()
    here.effect(Admission(True), ServerList(servers))
    await until(lambda: here.started[0].got)
    first = here.started[0].got[0]
    assert isinstance(first, Begin)
    assert (first.edge, first.process, first.incarnation, first.broker, first.fencing) == (1, 0, 3, "b", 4.0)
    assert parse(first.config).io_processes == 2
    late = await here.up(here.started[1], until)
    assert late.got[1:] == [Admission(True), ServerList(servers)]
    assert here.log.events().count("io_process_up") == 2


async def test_clients_wait_for_the_last_process_but_not_for_ever(site: Any, until: Any) -> None:
    here = site()
    assert here.edges.why_not == "starting"
    here.open()
    await here.up(here.started[0], until)
    assert here.edges.why_not == "starting"
    here.now += edges_module.ALL_UP
    assert here.edges.why_not == ""
    await here.up(here.started[1], until)
    here.now -= edges_module.ALL_UP
    assert here.edges.why_not == ""
    here.started[1].die(1)
    await until(lambda: here.edges.deaths == 1)
    assert here.edges.why_not == ""


async def test_a_publication_crosses_to_those_that_want_its_topic(site: Any, until: Any) -> None:
    here = site(3)
    here.open()
    ios = [await here.up(io, until) for io in here.started]
    ios[0].say(Attach(1, 1, "t", None))
    ios[2].say(Attach(3, 1, "t", None), Attach(3, 2, "u", None), Detach(3, "u"))
    await until(lambda: len(here.logic.of(Attach)) == 3)
    here.effect(fanout("t"), fanout("u"), fanout("v"), Attached(3, 1, "t", "complete", Position(1, 1)), Admission(True))
    await until(lambda: all(len(io.of(Admission)) == 2 for io in ios))
    assert [io.of(Fanout, Attached) for io in ios] == [
        [fanout("t")], [], [fanout("t"), Attached(3, 1, "t", "complete", Position(1, 1))],
    ]  # fmt: skip


async def test_a_turn_of_the_logic_is_one_batch_for_each_process(site: Any, until: Any) -> None:
    here = site()
    here.open()
    ios = [await here.up(io, until) for io in here.started]
    for number, io in enumerate(ios, 1):
        io.say(Attach(number, 1, "t", None))
    await until(lambda: len(here.logic.of(Attach)) == 2)
    before = [life.channel.batches for life in here.edges._lives.values()]
    here.effect(*(fanout("t", number) for number in range(1, 11)))
    await until(lambda: all(len(io.of(Fanout)) == 10 for io in ios))
    assert [life.channel.batches for life in here.edges._lives.values()] == [one + 1 for one in before]


async def test_what_they_say_reaches_logic_metrics_and_log(site: Any, until: Any) -> None:
    here = site()
    here.open()
    io = await here.up(here.started[1], until)
    io.say(Observe("migratory_closed_total", 2.0, "bye"), Note("warning", "slow_consumer", {"client": "c"}))
    io.say(NextPage(2, 5, "t", Position(1, 1)))
    await until(lambda: here.logic.of(NextPage) and here.logic.of(Flush))
    assert here.observed == [Observe("migratory_closed_total", 2.0, "bye")]
    assert here.log.lines[-1] == {"level": "warning", "event": "slow_consumer", "io_process": 1, "client": "c"}


async def test_replays_wait_for_a_process_that_does_not_read_and_publications_do_not(site: Any, until: Any) -> None:
    """It is sent no more than fits; what it asked for is answered when it reads on, in the order in which it asked."""

    def page(event: NextPage) -> list[Any]:
        return [Page(event.edge, event.reference, event.topic, (Publication(1, 2, b"x" * 500_000),), False)]

    here = site(2, {NextPage: page})
    here.open()
    slow, other = [await here.up(io, until) for io in here.started]
    slow.reading = False
    for number in range(1, 101):
        slow.say(NextPage(1, number, "t", Position(1, 1)))
    life = here.edges._lives[1]
    looks: list[int] = []

    def stands() -> bool:
        """Nothing goes on any more, whatever turn comes: the kernel's buffers are full as well."""
        here.pump.call(lambda _: None, None)
        looks.append(life.channel.waiting)
        return life.channel.full and life.held_back > 0 and len(looks) > 10 and len(set(looks[-10:])) == 1

    await until(stands)
    assert len(here.logic.of(NextPage)) + life.held_back == 100
    slow.say(Attach(1, 200, "t", None), Detach(1, "t"))
    await until(lambda: len(here.logic.of(NextPage)) + life.held_back == 102)
    assert life.channel.waiting < FULL + 2_000_000
    answered = len(here.logic.of(NextPage))
    assert answered < 60
    other.say(Attach(2, 1, "t", None))
    await until(lambda: here.logic.of(Attach))
    here.effect(fanout("t"))
    await until(lambda: other.of(Fanout))
    assert here.edges.status()["io_processes"][0]["requests_held_back"] == life.held_back > 0
    slow.reading = True
    slow.channel.done(10**9)
    await until(lambda: len(slow.of(Page)) == 100)
    assert [one.reference for one in slow.of(Page)] == list(range(1, 101))
    await until(lambda: len(here.logic.of(Attach)) == 2 and not life.held_back)
    here.effect(fanout("t", 2))
    await until(lambda: len(other.of(Fanout)) == 2)
    assert slow.of(Fanout) == []


async def test_pages_of_replays_take_little_of_a_turn_whichever_process_asks(site: Any, until: Any) -> None:
    """A storm: hundreds of clients of both processes want their next pages, and a publication comes."""

    def page(event: NextPage) -> list[Any]:
        here.now += 0.003  # two of them are over the 5 ms of a turn
        if (event.edge, event.reference) == (1, 10):
            ios[1].say(PublishRequest(2, 1, []))
        return [Page(event.edge, event.reference, event.topic, (), True)]

    here = site(2, {NextPage: page})
    here.open()
    ios = [await here.up(io, until) for io in here.started]
    for edge, io in enumerate(ios, 1):
        io.say(*(NextPage(edge, number, "t", Position(1, 1)) for number in range(1, 201)))
    await until(lambda: all(len(io.of(Page)) == 200 for io in ios))
    before = here.logic.events[: here.logic.events.index(PublishRequest(2, 1, []))]
    assert sum(isinstance(event, NextPage) for event in before) < 100, "it waits for no more than came before it"
    turns: list[list[Any]] = [[]]
    for event in here.logic.events:
        turns[-1].append(event)
        if isinstance(event, Flush):
            turns.append([])
    pages = [[event.edge for event in turn if isinstance(event, NextPage)] for turn in turns]
    assert max(map(len, pages)) == 2
    assert pages.count([1, 2]) + pages.count([2, 1]) > 100, "both get as much"
    for io in ios:
        assert [one.reference for one in io.of(Page)] == list(range(1, 201))


async def test_a_process_that_takes_nothing_is_killed_before_it_fills_the_memory(
    site: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edges_module, "MOST", 10_000_000)
    here = site()
    here.open()
    slow, _ = [await here.up(io, until) for io in here.started]
    slow.reading = False
    slow.say(Attach(1, 1, "t", None))
    await until(lambda: here.logic.of(Attach))
    for number in range(1, 80):
        here.effect(fanout("t", number, 500_000))
        await asyncio.sleep(0)
    await until(lambda: here.edges._lives[1].channel.waiting > 20_000_000)
    here.edges.tick(here.now)
    await until(lambda: here.edges.deaths == 1)
    died = next(line for line in here.log.lines if line["event"] == "io_process_died")
    assert "bytes wait for it" in died["reason"]


async def test_a_process_that_hangs_gets_no_clients_and_is_killed(site: Any, until: Any) -> None:
    here = site()
    here.open()
    hangs, other = [await here.up(io, until) for io in here.started]
    here.later(iolife.LATE)
    other.say(other.report(1))
    await until(lambda: here.edges._lives[2].report)
    assert here.edges._fewest() is here.edges._lives[2]
    for _ in range(5):
        here.later(1.0)
        count = here.edges._lives[2].report
        other.say(other.report(2))
        await until(lambda count=count: here.edges._lives[2].report is not count)
    await until(lambda: here.edges.deaths == 1)
    assert (hangs.signals, other.signals) == ([signal.SIGKILL], [])
    assert "silent" in next(line["reason"] for line in here.log.lines if line["event"] == "io_process_died")


async def test_nobody_is_killed_because_the_broker_stood_still(site: Any, until: Any) -> None:
    here = site()
    here.open()
    ios = [await here.up(io, until) for io in here.started]
    here.edges.tick(here.now)
    here.now += 60.0
    here.edges.tick(here.now)
    here.later(1.0)
    assert [io.signals for io in ios] == [[], []]


async def test_clients_are_gone_in_time_when_the_broker_is_cut_off_though_a_process_hangs(
    site: Any, until: Any
) -> None:
    here = site()
    here.open()
    good, hangs = [await here.up(io, until) for io in here.started]
    here.effect(Admission(True), Admission(False, "fenced"))
    await until(lambda: Admission(False, "fenced") in good.got and Admission(False, "fenced") in hangs.got)
    good.say(good.report(here.edges._lives[1].channel.batches))
    hangs.say(hangs.report(here.edges._lives[2].channel.batches - 1))  # it is not through with that batch
    await until(lambda: here.edges._lives[1].report and here.edges._lives[2].report)
    here.later(iolife.CLOSING - 0.2)
    assert here.edges.deaths == 0
    here.later(0.5)
    await until(lambda: here.edges.deaths == 1)
    assert (good.signals, hangs.signals) == ([], [signal.SIGKILL])
    here.later(2.0)
    assert good.signals == []


async def test_what_the_dead_had_counted_stays_counted(site: Any, until: Any) -> None:
    here = site()
    here.open()
    one, other = [await here.up(io, until) for io in here.started]
    one.say(one.report(1, 3, published=5, delivered=70, sent_bytes=900, queue_bytes=11, closed={"bye": 2}))
    other.say(other.report(1, 4, published=1, delivered=30, sent_bytes=100, closed={"bye": 1}))
    await until(lambda: all(life.report for life in here.edges._lives.values()))
    before = here.edges.readings()
    assert (before["clients"], before["published"], before["delivered"], before["queue_bytes"]) == (7, 6, 100, 11)
    assert before["by_process"] == {"0": 3, "1": 4}
    one.die(-9)
    await until(lambda: here.edges.deaths == 1)
    after = here.edges.readings()
    assert (after["published"], after["delivered"], after["sent_bytes"]) == (6, 100, 1000)
    assert (after["clients"], after["queue_bytes"], after["connections"]) == (4, 0, 4)
    assert after["closed"] == {"bye": 3, "io_process": 3}
    assert Observe("migratory_closed_total", 3, "io_process") in here.observed
    assert Observe("migratory_io_process_deaths_total") in here.observed
    assert len(here.edges) == 4
    await until(lambda: here.logic.of(Clients) == [Clients(1, ())])  # none of them are to be moved, or counted for it
    # its successor is another edge, and counts from nothing
    here.later(1.0)
    fresh = await here.up(here.started[2], until)
    assert (fresh.got[0].edge, fresh.got[0].process) == (3, 0)
    fresh.say(fresh.report(1, 1, published=2))
    await until(lambda: here.edges.readings()["published"] == 8)


async def test_who_keeps_dying_is_started_ever_later(site: Any, until: Any) -> None:
    here = site(1)
    here.open()
    waits = []
    for life in range(6):
        here.started[life].die(1)
        await until(lambda life=life: here.edges.deaths == life + 1)
        died = here.now
        while len(here.started) == life + 1:
            here.later(0.1)
        waits.append(here.now - died)
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(0.1, abs=0.11)
    assert waits[-1] == pytest.approx(3.2, abs=0.11)


async def test_a_process_that_can_not_be_started_is_tried_again(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = site(1)
    assert len(here.started) == 1
    here.edges._due[0] = here.now

    def fail(ends: tuple[int, int]) -> Any:
        raise OSError(11, "Resource temporarily unavailable")

    good, here.edges._start = here.edges._start, fail
    here.edges.tick(here.now)
    assert here.log.lines[-1]["event"] == "io_process_not_started"
    here.edges._start = good
    here.later(edges_module.LAST_DELAY + 0.2)
    assert len(here.started) == 2


async def test_connections_go_to_whoever_has_fewest(site: Any, until: Any, idle: Any) -> None:
    here = site(3)
    address = here.open()
    ios = [await here.up(io, until) for io in here.started]
    await idle(address, 31)
    await until(lambda: sum(io.take_sockets() * 0 + len(io.sockets) for io in ios) == 31)
    assert sorted(len(io.sockets) for io in ios) == [10, 10, 11]
    # one is new: it gets all that come until it has as many
    for sock in ios[1].sockets:
        sock.close()
    ios[1].sockets.clear()
    ios[1].take_sockets()
    await until(lambda: here.edges._lives[2].load == 0)
    await idle(address, 8)
    await until(lambda: ios[1].take_sockets() * 0 + len(ios[1].sockets) == 8)


async def test_connections_wait_while_no_process_takes_any(site: Any, until: Any, idle: Any) -> None:
    here = site(1)
    address = here.open()
    (reader,) = await idle(address, 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.3)
    io = await here.up(here.started[0], until)
    await until(io.take_sockets)
    io.sockets[0].send(b"x")
    assert await asyncio.wait_for(reader.read(1), 5) == b"x"


async def test_no_more_are_under_way_than_a_process_soon_takes(
    site: Any, until: Any, idle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iolife, "UNDER_WAY", 5)
    here = site(1)
    address = here.open()
    io = await here.up(here.started[0], until)
    await idle(address, 9)
    await until(lambda: here.edges._lives[1].given == 5)
    assert here.edges._fewest() is None
    await until(lambda: io.take_sockets() * 0 + len(io.sockets) == 9)


async def test_a_full_broker_says_so(site: Any, until: Any, idle: Any) -> None:
    here = site(1)
    address = here.open()
    io = here.started[0]
    await io.connect()
    io.say(Hello(2))
    await until(lambda: io.got)
    readers = await idle(address, 3)
    await until(lambda: here.edges._acceptor.refused)
    assert here.edges.status()["connections_refused"] == 1
    answers = await asyncio.wait_for(asyncio.gather(*(reader.read() for reader in readers[2:])), 5)
    assert answers[0].startswith(b"HTTP/1.1 503 ")


async def test_the_end_waits_for_clients_to_go(site: Any, until: Any) -> None:
    here = site()
    here.open()
    ios = [await here.up(io, until) for io in here.started]
    for io in ios:
        io.say(io.report(1, 2))
    await until(lambda: len(here.edges) == 4)
    here.edges.stop_listening()
    here.effect(Admission(False, "stopping"))
    waiting = asyncio.create_task(here.edges.emptied())
    await until(lambda: all(Admission(False, "stopping") in io.got for io in ios))
    assert not waiting.done()
    for io in ios:
        io.say(io.report(2, 0))
    await asyncio.wait_for(waiting, 1.5)
    await here.edges.close()
    assert [io.code for io in ios] == [0, 0]
    assert here.edges.deaths == 0


async def test_what_waited_within_a_turn_goes_on_with_the_next(
    site: Any, until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel was full with what the turn itself had said, and the kernel took all of it."""

    def page(event: NextPage) -> list[Any]:
        return [Page(event.edge, event.reference, event.topic, (Publication(1, 2, b"x" * 30_000),), False)]

    monkeypatch.setattr(channels, "FULL", 50_000)
    here = site(1, {NextPage: page})
    here.open()
    io = await here.up(here.started[0], until)
    io.say(*(NextPage(1, number, "t", Position(1, 1)) for number in range(1, 8)))
    await until(lambda: len(io.of(Page)) == 7)
    assert [one.reference for one in io.of(Page)] == list(range(1, 8))


async def test_nothing_is_meant_for_the_dead(site: Any, until: Any) -> None:
    here = site()
    here.open()
    dies, other = [await here.up(io, until) for io in here.started]
    for number, io in ((1, dies), (2, other)):
        io.say(Attach(number, 1, "t", None))
    await until(lambda: len(here.logic.of(Attach)) == 2)
    dies.say(NextPage(1, 2, "t", Position(1, 1)))
    dies.die(1)
    await until(lambda: here.edges.deaths == 1)
    here.effect(fanout("t"), Attached(1, 1, "t", "complete", Position(1, 1)))
    await until(lambda: other.of(Fanout))
    assert here.errors == []
