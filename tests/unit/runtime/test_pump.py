"""The pump: order of events and effects, one Flush per turn, limits of a turn for each kind of work, and failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migratory_broker.core.edge import events as edge_events
from migratory_broker.core.logic import events
from migratory_broker.runtime.pump import (
    CLIENT_SECONDS,
    DEFERRED_SECONDS,
    REST_SECONDS,
    TURN_EVENTS,
    TURN_SECONDS,
    Pump,
)
from migratory_protocol.positions import Position
from migratory_testing.loops import ManualLoop


def attach(reference: int) -> events.Attach:
    return events.Attach(0, reference, "t", None)


def attached(reference: int) -> events.Attached:
    return events.Attached(0, reference, "t", "complete", Position(1, 0))


def build(
    core: Any,
    logic: dict[type, Any] | None = None,
    edge: dict[type, Any] | None = None,
    clock: Callable[[], float] = lambda: 1.0,
) -> Any:
    loop = ManualLoop()
    errors: list[Exception] = []
    pump = Pump(core(logic), loop.soon, clock, errors.append)
    return pump, core(edge), loop, errors


def test_events_of_one_turn_run_together_and_flush_once(core: Any) -> None:
    pump, edge, loop, _ = build(core)
    pump.set_handlers({})
    pump.attach(edge)
    pump.to_logic(events.ZkChanged("/a"))
    pump.to_logic(events.ZkChanged("/b"))
    pump.to_edge(edge_events.Lost(3))
    assert len(loop.calls) == 1
    loop.turn()
    assert [type(event).__name__ for event in pump._logic.events] == ["ZkChanged", "ZkChanged", "Flush"]
    assert edge.events == [edge_events.Lost(3)]
    assert not loop.turn()


def test_a_turn_without_events_for_the_logic_does_not_flush(core: Any) -> None:
    pump, edge, loop, _ = build(core)
    pump.set_handlers({})
    pump.attach(edge)
    pump.to_edge(edge_events.Lost(3))
    loop.turn()
    assert edge.events == [edge_events.Lost(3)]
    assert pump._logic.events == []


def test_a_request_of_the_edge_runs_in_the_same_turn(core: Any) -> None:
    pump, edge, loop, _ = build(core, edge={edge_events.Received: lambda event: [attach(event.connection)]})
    pump.set_handlers({})
    pump.attach(edge)
    pump.to_edge(edge_events.Received(1, b""))
    loop.turn()
    assert pump._logic.events == [attach(1), events.Flush()]
    assert loop.calls == []


def test_effects_for_the_edge_keep_their_order_and_requests_follow(core: Any) -> None:
    fanout = events.Fanout("t", ())
    pump, edge, loop, _ = build(
        core,
        {events.Attach: lambda event: [attached(event.reference), fanout]},
        {edge_events.Received: lambda event: [attach(event.connection)]},
    )
    pump.set_handlers({})
    pump.attach(edge)
    pump.to_edge(edge_events.Received(1, b""))
    pump.to_edge(edge_events.Received(2, b""))
    loop.turn()
    assert edge.events == [
        edge_events.Received(1, b""),
        edge_events.Received(2, b""),
        attached(1),
        fanout,
        attached(2),
        fanout,
    ]


def test_effects_go_to_their_handlers_in_order(core: Any) -> None:
    stepped: list[Any] = []
    note = events.Note("info", "a")
    close = edge_events.Close(1)
    send = edge_events.Send(1, b"x")
    pump, edge, loop, _ = build(
        core, {events.Tick: lambda _: [note]}, {edge_events.Lost: lambda _: [send, close, note]}
    )
    pump.set_handlers(
        {events.Note: stepped.append, edge_events.Send: stepped.append, edge_events.Close: stepped.append}
    )
    pump.attach(edge)
    pump.to_logic(events.Tick())
    pump.to_edge(edge_events.Lost(1))
    loop.turn()
    assert stepped == [note, send, close, note]


def test_a_handler_may_inspect_an_effect_for_the_edge(core: Any) -> None:
    admission = events.Admission(True)
    pump, edge, loop, _ = build(core, {events.Tick: lambda _: [admission]})
    stepped: list[Any] = []

    def look(effect: events.Admission) -> None:
        stepped.append(effect)
        pump.step_edge(effect)

    pump.set_handlers({events.Admission: look})
    pump.attach(edge)
    pump.to_logic(events.Tick())
    loop.turn()
    assert stepped == edge.events == [admission]


def test_an_edge_attached_later_gets_the_waiting_events(core: Any) -> None:
    admission = events.Admission(False, "learning")
    pump, edge, loop, _ = build(core, {events.Tick: lambda _: [admission]})
    pump.set_handlers({})
    pump.to_logic(events.Tick())
    loop.turn()
    assert edge.events == []
    pump.attach(edge)
    loop.turn()
    assert edge.events == [admission]


def test_a_call_runs_in_its_place_among_the_events(core: Any) -> None:
    pump, edge, loop, _ = build(core)
    pump.set_handlers({})
    pump.attach(edge)
    pump.to_logic(events.ZkChanged("/a"))
    pump.call(lambda argument: pump.step_logic(events.PeerDown(argument)), "p")
    pump.to_logic(events.ZkChanged("/b"))
    loop.turn()
    assert pump._logic.events == [
        events.ZkChanged("/a"),
        events.PeerDown("p"),
        events.ZkChanged("/b"),
        events.Flush(),
    ]


def test_a_turn_is_bounded_in_events(core: Any) -> None:
    # an edge and a logic that answer each other for ever
    pump, edge, loop, _ = build(
        core, {events.Attach: lambda event: [attached(event.reference)]}, {events.Attached: lambda _: [attach(1)]}
    )
    pump.set_handlers({})
    pump.attach(edge)
    pump.request(attach(1))
    for turn in (1, 2):
        loop.turn()
        assert len(pump._logic.of(events.Attach)) == turn * TURN_EVENTS
        assert len(pump._logic.of(events.Flush)) == turn
    assert loop.calls


def test_a_turn_is_bounded_in_time_as_well(core: Any) -> None:
    # every event takes 40% of what a turn has
    spent = [0.0]

    def work(event: events.ZkChanged) -> list[Any]:
        spent[0] += 0.4 * TURN_SECONDS
        return []

    pump, edge, loop, _ = build(core, {events.ZkChanged: work}, clock=lambda: spent[0])
    pump.set_handlers({})
    pump.attach(edge)
    for number in range(7):
        pump.to_logic(events.ZkChanged(f"/{number}"))
    done = []
    while loop.turn():
        done.append(len(pump._logic.of(events.ZkChanged)))
    assert done == [3, 6, 7]


def test_more_events_of_the_edge_return_behind_waiting_ones(core: Any) -> None:
    more = edge_events.More(1)
    pump, edge, loop, _ = build(core, edge={edge_events.Received: lambda event: [more] * (event.connection == 1)})
    pump.set_handlers({})
    pump.attach(edge)
    pump.to_edge(edge_events.Received(1, b""))
    pump.to_edge(edge_events.Received(2, b""))
    loop.turn()
    assert edge.events == [edge_events.Received(1, b""), edge_events.Received(2, b""), more]


def test_a_core_that_raises_is_not_stepped_again(core: Any) -> None:
    def broken(_: Any) -> list[Any]:
        raise ArithmeticError("rule 3")

    pump, edge, loop, errors = build(core, {events.Tick: broken})
    pump.set_handlers({})
    pump.attach(edge)
    pump.to_logic(events.Tick())
    pump.to_logic(events.ZkChanged("/a"))
    loop.turn()
    assert [str(error) for error in errors] == ["rule 3"]
    pump.to_logic(events.ZkChanged("/b"))
    loop.turn()
    assert pump._logic.events == [events.Tick()]
    assert len(errors) == 1


def test_replay_pages_wait_for_live_traffic_and_take_little_of_a_turn(core: Any) -> None:
    """A turn answers as many of a thousand requests for pages as fit into its time for them. A publication that arrives
    meanwhile is handled before the rest. All are answered in order in the end."""
    times = iter(range(10_000))

    def page(event: events.NextPage) -> list[Any]:
        return [events.Page(0, event.reference, "t", (), True)]

    pump, edge, loop, _ = build(core, {events.NextPage: page}, clock=lambda: next(times) * 0.001)
    pump.set_handlers({})
    pump.attach(edge)
    for reference in range(1000):
        pump.request(events.NextPage(0, reference, "t", Position(1, 0)))
    loop.turn()
    first = len(edge.events)
    assert 1 <= first <= 6  # of a clock that goes on by a millisecond with each look at it
    pump.request(events.PublishRequest(0, 1, []))
    loop.turn()
    handled = [type(event).__name__ for event in pump._logic.events]
    assert handled.index("PublishRequest") == first + 1  # behind a flush, before all other pages
    while loop.turn():
        pass
    assert [event.reference for event in edge.events] == list(range(1000))


def test_work_that_a_deferred_action_leaves_to_a_task_counts_for_its_turn(core: Any) -> None:
    """The seconds that a deferred action causes later, in a task, count for its turn: with a bit less than a tenth of
    the limit each, a turn runs eleven. Regression: a turn began five times as many handshakes as its share of time
    allows."""
    pump, edge, loop, _ = build(core)
    pump.set_handlers({})
    pump.attach(edge)
    done: list[int] = []
    for number in range(100):
        pump.defer(done.append, number, DEFERRED_SECONDS / 10.5)
    turns = []
    while loop.turn():
        turns.append(len(done))
    assert turns[:3] == [11, 22, 33]
    assert done == list(range(100))


def test_a_turn_runs_at_least_one_page_and_none_after_a_failure(core: Any) -> None:
    pump, edge, loop, errors = build(core, {events.NextPage: lambda event: [1 / 0]}, clock=lambda: 1.0)
    pump.set_handlers({})
    pump.attach(edge)
    for reference in range(3):
        pump.request(events.NextPage(0, reference, "t", Position(1, 0)))
    loop.turn()
    assert len(errors) == 1
    assert pump.stopped
    assert not loop.turn()
    pump, edge, loop, _ = build(core)
    pump.set_handlers({})
    pump.attach(edge)
    pump.request(events.NextPage(0, 1, "t", Position(1, 0)))
    pump.stopped = True
    loop.turn()
    assert pump._logic.events == []
    assert not loop.turn()


def test_ticks_and_peers_come_before_what_clients_sent(core: Any) -> None:
    """In a turn, ticks and messages of peers are handled before what clients sent. Regression: three connections
    delayed a tick by five seconds, and a broker whose heartbeats are late is fenced."""
    pump, edge, loop, _ = build(core, edge={edge_events.Received: lambda event: [attach(event.connection)]})
    pump.set_handlers({})
    pump.attach(edge)
    for number in range(3):
        pump.call_for_client(pump.step_edge, edge_events.Received(number, b""))
    pump.to_edge(events.Tick())
    pump.call(pump.step_logic, events.PeerReceived("p", ()))
    pump.to_logic(events.Tick())
    loop.turn()
    assert [type(event).__name__ for event in edge.events] == ["Tick", "Received", "Received", "Received"]
    assert [type(event).__name__ for event in pump._logic.events] == ["PeerReceived", "Tick", *["Attach"] * 3, "Flush"]


def test_a_tick_waits_for_one_turn_of_clients_at_most(core: Any) -> None:
    spent = [0.0]

    def work(event: edge_events.Received) -> list[Any]:
        spent[0] += 0.4 * TURN_SECONDS
        return [edge_events.More(1)]

    pump, edge, loop, _ = build(core, edge={edge_events.Received: work, edge_events.More: work}, clock=lambda: spent[0])
    pump.set_handlers({})
    pump.attach(edge)
    for number in range(1000):
        pump.call_for_client(pump.step_edge, edge_events.Received(number, b""))
    loop.turn()
    asked = spent[0]
    pump.to_logic(events.Tick())
    loop.turn()
    assert pump._logic.of(events.Tick)
    assert edge.events[-1].connection < 10
    assert asked < 2 * TURN_SECONDS


def test_clients_advance_however_much_peers_send(core: Any) -> None:
    spent = [0.0]

    def work(event: events.PeerReceived) -> list[Any]:
        spent[0] += 0.4 * TURN_SECONDS
        return []

    def answer(event: edge_events.Received) -> list[Any]:
        spent[0] += 0.4 * CLIENT_SECONDS
        return []

    pump, edge, loop, _ = build(
        core, {events.PeerReceived: work}, {edge_events.Received: answer}, clock=lambda: spent[0]
    )
    pump.set_handlers({})
    pump.attach(edge)
    for number in range(9):
        pump.to_logic(events.PeerReceived("p", ()))
        pump.call_for_client(pump.step_edge, edge_events.Received(number, b""))
    done = []
    while loop.turn():
        done.append((len(pump._logic.of(events.PeerReceived)), len(edge.events)))
    assert done == [(3, 3), (6, 6), (9, 9)]


def flooded(core: Any, fresh: int) -> tuple[Any, Any, Any, list[float]]:
    """Return pump, edge, loop and time spent, after a turn with events of `fresh` connections. Each has a rest for
    ever. Every event takes 40% of what a turn has for rests."""
    spent = [0.0]

    def work(event: Any) -> list[Any]:
        spent[0] += 0.4 * REST_SECONDS
        return [edge_events.More(event.connection)]

    pump, edge, loop, _ = build(core, edge={edge_events.Received: work, edge_events.More: work}, clock=lambda: spent[0])
    pump.set_handlers({})
    pump.attach(edge)
    for number in range(fresh):
        pump.call_for_client(pump.step_edge, edge_events.Received(number, b""))
    loop.turn()
    return pump, edge, loop, spent


def test_client_that_sends_little_waits_for_one_turn_of_a_flood(core: Any) -> None:
    """The rests of what 100 connections sent delay the message of another one by one turn at most. Regression: it
    waited for a piece of each of them, a second with 20 that publish as fast as they can."""
    pump, edge, loop, spent = flooded(core, 100)
    while len([event for event in edge.events if type(event) is edge_events.Received]) < 100:
        loop.turn()
    begin = spent[0]
    loop.turn()
    assert spent[0] - begin < 2 * REST_SECONDS
    pump.call_for_client(pump.step_edge, edge_events.Received(200, b""))
    loop.turn()
    assert edge.events[-4] == edge_events.Received(200, b"")
    assert [type(event) for event in edge.events[-3:]] == [edge_events.More] * 3


def test_rests_advance_however_much_is_new_and_in_turn(core: Any) -> None:
    pump, edge, loop, _ = flooded(core, 3)
    for number in range(100, 2000):
        pump.call_for_client(pump.step_edge, edge_events.Received(number, b""))
    rests = [event.connection for event in edge.events if type(event) is edge_events.More]
    assert len(rests) == 3
    for _ in range(3):
        loop.turn()
        done = [event.connection for event in edge.events if type(event) is edge_events.More]
        assert len(done) == len(rests) + 1
        rests = done
    assert rests == [0, 1, 2, 0, 1, 2]


def test_rest_with_requests_is_the_last_of_its_turn(core: Any) -> None:
    """Regression: the rests of a turn made more work for the logic than a turn does, which then waited in front of
    other clients."""
    pump, edge, loop, _ = build(core, edge={edge_events.More: lambda event: [attach(1), edge_events.More(1)]})
    pump.set_handlers({})
    pump.attach(edge)
    pump._continue(edge_events.More(1))
    for turn in range(1, 4):
        loop.turn()
        assert len(edge.events) == turn
        assert len(pump._logic.of(events.Attach)) == turn - 1
