"""The pool of I/O processes: routing of effects and messages from start to shutdown."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from migratory_broker.core.edge.events import Detach
from migratory_broker.core.logic.events import (
    Admission,
    Attach,
    Attached,
    Fanout,
    Flush,
    NextPage,
    Note,
    Observe,
    ServerList,
)
from migratory_broker.runtime.config import LimitsSection, RatesSection, parse
from migratory_broker.runtime.io_processes import pool as manyprocesses
from migratory_broker.runtime.io_processes.messages import (
    Begin,
    ConsoleStatus,
    ConsoleStatusNeeded,
    IoHello,
    LimitsChanged,
)
from migratory_protocol.messages import Server
from migratory_protocol.positions import Position
from migratory_testing.ioprocesses import fanout
from migratory_testing.waiting import until


async def test_a_process_gets_the_present_state_first(site: Any) -> None:
    here = site()
    servers = (Server("ws://a/ws", 100),)
    await here.started[0].connect()
    here.started[0].say(IoHello(1000))
    here.open()
    here.effect(Admission(True), ServerList(servers))
    await until(lambda: here.started[0].got)
    first = here.started[0].got[0]
    assert isinstance(first, Begin)
    assert (first.edge, first.process, first.incarnation, first.broker, first.fencing) == (1, 0, 3, "b", 4.0)
    assert parse(first.config).io_processes == 2
    late = await here.up(here.started[1])
    assert late.got[1:] == [Admission(True), ServerList(servers)]
    assert here.log.events().count("io_process_up") == 2


async def test_only_the_process_that_asks_gets_what_the_console_shows(site: Any) -> None:
    here = site()
    here.open()
    asking, other = [await here.up(io) for io in here.started]
    asking.say(ConsoleStatusNeeded())
    await until(lambda: asking.of(ConsoleStatus))
    assert asking.of(ConsoleStatus) == [ConsoleStatus(b"shown")]
    assert other.of(ConsoleStatus) == []


async def test_changed_limits_reach_running_and_later_processes(site: Any) -> None:
    here = site()
    here.open()
    first = await here.up(here.started[0])
    config = msgspec.structs.replace(
        here.clients._config, limits=LimitsSection(clients=RatesSection(publications_per_second=7))
    )
    here.clients.set_limits(config)
    late = await here.up(here.started[1])
    await until(lambda: first.of(LimitsChanged))
    for encoded in (first.of(LimitsChanged)[0].config, late.of(Begin)[0].config):
        assert parse(encoded).limits.clients.publications_per_second == 7


async def test_clients_wait_for_the_last_process_up_to_a_limit(site: Any) -> None:
    here = site()
    assert here.clients.not_ready_reason == "starting"
    here.open()
    await here.up(here.started[0])
    assert here.clients.not_ready_reason == "starting"
    here.now += manyprocesses.ALL_UP_TIMEOUT
    assert here.clients.not_ready_reason == ""
    await here.up(here.started[1])
    here.now -= manyprocesses.ALL_UP_TIMEOUT
    assert here.clients.not_ready_reason == ""
    here.started[1].die(1)
    await until(lambda: here.deaths == 1)
    assert here.clients.not_ready_reason == ""


async def test_a_publication_is_sent_to_processes_interested_in_its_topic(site: Any) -> None:
    here = site(3)
    here.open()
    ios = [await here.up(io) for io in here.started]
    ios[0].say(Attach(1, 1, "t", None))
    ios[2].say(Attach(3, 1, "t", None), Attach(3, 2, "u", None), Detach(3, "u"))
    await until(lambda: len(here.logic.of(Attach)) == 3)
    here.effect(fanout("t"), fanout("u"), fanout("v"), Attached(3, 1, "t", "complete", Position(1, 1)), Admission(True))
    await until(lambda: all(len(io.of(Admission)) == 2 for io in ios))
    assert [io.of(Fanout, Attached) for io in ios] == [
        [fanout("t")], [], [fanout("t"), Attached(3, 1, "t", "complete", Position(1, 1))],
    ]  # fmt: skip


async def test_a_turn_of_the_logic_is_one_batch_for_each_process(site: Any) -> None:
    here = site()
    here.open()
    ios = [await here.up(io) for io in here.started]
    for number, io in enumerate(ios, 1):
        io.say(Attach(number, 1, "t", None))
    await until(lambda: len(here.logic.of(Attach)) == 2)
    before = [process.channel.batches for process in here.clients._processes.values()]
    here.effect(*(fanout("t", number) for number in range(1, 11)))
    await until(lambda: all(len(io.of(Fanout)) == 10 for io in ios))
    assert [process.channel.batches for process in here.clients._processes.values()] == [count + 1 for count in before]


async def test_messages_of_processes_reach_logic_metrics_and_log(site: Any) -> None:
    here = site()
    here.open()
    io = await here.up(here.started[1])
    io.say(Observe("migratory_closed_total", 2.0, "bye"), Note("warning", "slow_consumer", {"client": "c"}))
    io.say(NextPage(2, 5, "t", Position(1, 1)))
    await until(lambda: here.logic.of(NextPage) and here.logic.of(Flush))
    assert here.observed == [Observe("migratory_closed_total", 2.0, "bye")]
    assert here.log.lines[-1] == {"level": "warning", "event": "slow_consumer", "io_process": 1, "client": "c"}


@pytest.mark.parametrize("clients", [2, 0])
async def test_shutdown_waits_until_each_process_reports_no_clients(site: Any, clients: int) -> None:
    """A shutdown waits until each I/O process has reported no clients after the shutdown began: also if none had any
    before, because a client may have connected since, and must get a close frame."""
    here = site()
    here.open()
    ios = [await here.up(io) for io in here.started]
    for io in ios:
        io.say(io.report(1, clients))
    await until(lambda: all(process.report is not None for process in here.clients._processes.values()))
    assert len(here.clients) == 2 * clients
    here.clients.stop_listening()
    here.effect(Admission(False, "stopping"))
    waiting = asyncio.create_task(here.clients.wait_until_empty())
    await until(lambda: all(Admission(False, "stopping") in io.got for io in ios))
    assert not waiting.done()
    for io in ios:
        io.say(io.report(2, 0))
    await asyncio.wait_for(waiting, 1.5)
    await here.clients.close()
    assert [io.code for io in ios] == [0, 0]
    assert here.deaths == 0


async def test_effects_for_a_dead_process_are_dropped(site: Any) -> None:
    here = site()
    here.open()
    dies, other = [await here.up(io) for io in here.started]
    for number, io in ((1, dies), (2, other)):
        io.say(Attach(number, 1, "t", None))
    await until(lambda: len(here.logic.of(Attach)) == 2)
    dies.say(NextPage(1, 2, "t", Position(1, 1)))
    dies.die(1)
    await until(lambda: here.deaths == 1)
    here.effect(fanout("t"), Attached(1, 1, "t", "complete", Position(1, 1)))
    await until(lambda: other.of(Fanout))
    assert here.errors == []
