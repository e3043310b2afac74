"""Replays for I/O processes: requests are answered while the channel has room, and after live traffic."""

from __future__ import annotations

from typing import Any

import pytest
from migratory_broker.core.edge.events import Detach
from migratory_broker.core.logic.events import (
    Attach,
    Fanout,
    Flush,
    NextPage,
    Page,
    PublishRequest,
)
from migratory_broker.runtime.io_processes import channel as channels
from migratory_broker.runtime.io_processes.channel import FULL_BYTES
from migratory_protocol.peer import Publication
from migratory_protocol.positions import Position
from migratory_testing.ioprocesses import fanout
from migratory_testing.waiting import until


async def test_replays_wait_for_a_process_that_does_not_read_and_publications_do_not(site: Any) -> None:
    """A process that does not read is sent no more pages than fit into its channel, while another process gets
    publications; when it reads again, its requests are answered in order."""

    def page(event: NextPage) -> list[Any]:
        return [Page(event.edge, event.reference, event.topic, (Publication(1, 2, b"x" * 500_000),), False)]

    here = site(2, {NextPage: page})
    here.open()
    slow, other = [await here.up(io) for io in here.started]
    slow.reading = False
    for number in range(1, 101):
        slow.say(NextPage(1, number, "t", Position(1, 1)))
    process = here.clients._processes[1]
    looks: list[int] = []

    def stands() -> bool:
        """Return whether the channel is full and no turn makes progress any more, so that the kernel's buffers are
        full as well."""
        here.pump.call(lambda _: None, None)
        looks.append(process.channel.waiting)
        return process.channel.full and process.deferred > 0 and len(looks) > 10 and len(set(looks[-10:])) == 1

    await until(stands)
    assert len(here.logic.of(NextPage)) + process.deferred == 100
    slow.say(Attach(1, 200, "t", None), Detach(1, "t"))
    await until(lambda: len(here.logic.of(NextPage)) + process.deferred == 102)
    assert process.channel.waiting < FULL_BYTES + 2_000_000
    answered = len(here.logic.of(NextPage))
    assert answered < 60
    other.say(Attach(2, 1, "t", None))
    await until(lambda: here.logic.of(Attach))
    here.effect(fanout("t"))
    await until(lambda: other.of(Fanout))
    assert here.clients.status()["io_processes"][0]["requests_deferred"] == process.deferred > 0
    slow.reading = True
    slow.channel.acknowledge(10**9)
    await until(lambda: len(slow.of(Page)) == 100)
    assert [page.reference for page in slow.of(Page)] == list(range(1, 101))
    await until(lambda: len(here.logic.of(Attach)) == 2 and not process.deferred)
    here.effect(fanout("t", 2))
    await until(lambda: len(other.of(Fanout)) == 2)
    assert slow.of(Fanout) == []


async def test_replay_pages_for_processes_take_little_of_a_turn(site: Any) -> None:
    """Pages for two processes that request hundreds take at most two per turn, both get as many, and a publication
    that arrives meanwhile is handled before the rest."""

    def page(event: NextPage) -> list[Any]:
        here.now += 0.0015  # two of them are over the 2.5 ms of a turn
        if (event.edge, event.reference) == (1, 10):
            ios[1].say(PublishRequest(2, 1, []))
        return [Page(event.edge, event.reference, event.topic, (), True)]

    here = site(2, {NextPage: page})
    here.open()
    ios = [await here.up(io) for io in here.started]
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
        assert [page.reference for page in io.of(Page)] == list(range(1, 201))


async def test_deferred_requests_continue_in_the_next_turn(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deferred requests are answered in a later turn although the channel became empty in the turn that filled it."""

    def page(event: NextPage) -> list[Any]:
        return [Page(event.edge, event.reference, event.topic, (Publication(1, 2, b"x" * 30_000),), False)]

    monkeypatch.setattr(channels, "FULL_BYTES", 50_000)
    here = site(1, {NextPage: page})
    here.open()
    io = await here.up(here.started[0])
    io.say(*(NextPage(1, number, "t", Position(1, 1)) for number in range(1, 8)))
    await until(lambda: len(io.of(Page)) == 7)
    assert [page.reference for page in io.of(Page)] == list(range(1, 8))
