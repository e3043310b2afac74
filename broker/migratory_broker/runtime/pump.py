"""The pump: steps the two cores with events and carries out their effects, in order, one turn of the loop at a time.

Events from sockets, ZooKeeper and timers are collected while the loop reads, and processed once a turn. Timers, peers
and ZooKeeper come first: a heartbeat that waits for clients' events makes a healthy broker look dead. Then a logic that
got events gets its `Flush`, so that what it sends to a peer leaves as one message. Effects are carried out before the
next event, each in the order it was given:

- The logic's effects for the edge are stepped into the edge at once, so that `Attached` is before the `Fanout` that
  follows it.
- The edge's requests to the logic go to the end of the clients' queue. The rest of what a client sent (`More`) waits
  behind that queue, so that a flood delays its senders and not a client that sends little. Requests for the next page
  of a replay go to the deferred queue, of which little is processed a turn, together with what new connections send.

With I/O processes, each side has a pump in which a substitute for the other core sends its events over the channel
(io_processes/pool.py, io_processes/process.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol, get_args

from migratory_broker.core.edge import events as edge_events
from migratory_broker.core.logic import events as logic_events

TURN_EVENTS = 2000
TURN_SECONDS = 0.02
"""The largest number of events that one turn takes from the queue of timers, peers and ZooKeeper, and again from the
clients' queue, and the seconds that it spends on both together. The rest waits for the next turn, after the sockets.
An event that was begun is finished."""

CLIENT_SECONDS = 0.01
"""Seconds of a turn for clients' events even if all other events needed the whole turn, so that both advance."""

REST_SECONDS = 0.005
"""Seconds of a turn for the rests of long input, as long as the clients' queue is empty: a rest may make as much work
for the logic as for the edge. One runs in any case. So other clients wait for one turn at most, however many
connections flood the broker."""

DEFERRED_SECONDS = 0.0025
"""Seconds of a turn for the deferred queue: first messages of new connections and pages of replays. At least one entry
runs. However many clients return at once and however much they missed, they delay a publication by no more than
this. With 0.001 a storm of connects costs a fifth more CPU (docs/reference/performance.md)."""


class Core(Protocol):
    """The interface of a sans-I/O core, or its substitute: `step` handles an event and returns the effects."""

    def step(self, event: Any, now: float, /) -> Iterable[Any]: ...


_FLUSH = logic_events.Flush()

Handler = Callable[[Any], object]
Entry = tuple[Callable[[Any], None], Any]


class Pump:
    """The queues of events for the two cores, and the calls that step the cores and carry out their effects. Setting
    `stopped` to True ends this: all queued events are dropped, and none is handled any more.

    :param call_soon: schedules a call for as soon as the loop can (`loop.call_soon`).
    :param clock: returns the time in seconds, monotonic.
    :param on_failure: called with the exception that a core, or an action of a turn, raised. The pump is stopped then.
    """

    def __init__(
        self,
        logic: Core,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._on_failure = on_failure
        self._turn_end_actions: list[Callable[[], None]] = []
        self._logic = logic
        self._edge: Core | None = None
        self._waiting: list[Any] = []
        self._call_soon = call_soon
        self._clock = clock
        self._queue: deque[Entry] = deque()
        self._client_queue: deque[Entry] = deque()
        self._rests: deque[edge_events.More] = deque()
        self._deferred: deque[tuple[Callable[[Any], None], Any, float]] = deque()
        self._scheduled = False
        self._flushed = True
        self.stopped = False
        self._logic_handlers: dict[type, Handler] = {}
        self._edge_handlers: dict[type, Handler] = {}

    def set_handlers(self, handlers: dict[type, Handler]) -> None:
        """Set the functions that carry out the effects that leave both cores, by class.

        They are needed for all of `logic_events.Effect` but those for the edge, and for the edge's `Multicast`, `Send`,
        `Close`, `Hold` and `Later`, with tokens also for `KeysNeeded`. An effect without a handler raises KeyError in
        its turn. A handler for an effect that is also for the edge must pass the effect to `step_edge`.
        """
        self._logic_handlers.update(dict.fromkeys(get_args(logic_events.EdgeEffect), self.step_edge))
        self._logic_handlers.update(handlers)
        self._edge_handlers.update(dict.fromkeys(get_args(edge_events.LogicRequest), self.request))
        self._edge_handlers[edge_events.Detach] = _ignore
        self._edge_handlers.update(handlers)
        self._edge_handlers[edge_events.More] = self._continue

    def attach(self, edge: Core, on_turn_end: Callable[[], None] | None = None) -> None:
        """Set the edge, once the incarnation of the broker is known, and queue the events that waited for it.
        `on_turn_end` is called at the end of every turn from now on, as with `at_turn_end`."""
        self._edge = edge
        if on_turn_end is not None:
            self.at_turn_end(on_turn_end)
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self.to_edge(event)

    def at_turn_end(self, action: Callable[[], None]) -> None:
        """Call `action` at the end of every turn from now on, to send what the turn collected, until the pump is
        stopped. The logic has got its `Flush` before."""
        self._turn_end_actions.append(action)

    def to_logic(self, event: logic_events.Event) -> None:
        """Queue an event for the logic, before all events of clients."""
        self.call(self._step_logic, event)

    def to_edge(self, event: edge_events.Event) -> None:
        """Queue an event for the edge, before all events of clients."""
        self.call(self.step_edge, event)

    def call(self, action: Callable[[Any], None], argument: Any) -> None:
        """Queue `action(argument)` among the events that do not come from clients, in the order of these calls. In each
        turn they are handled before the events of clients."""
        self._queue.append((action, argument))
        self._schedule()

    def request(self, event: logic_events.Event) -> None:
        """Queue an edge's request for the logic among the events of clients, after the edge's earlier requests. A
        `NextPage` goes to the deferred queue instead."""
        if type(event) is logic_events.NextPage:
            self.defer(self._step_logic, event)
        else:
            self.call_for_client(self._step_logic, event)

    def call_for_client(self, action: Callable[[Any], None], argument: Any) -> None:
        """Queue `action(argument)` among the events of clients, in the order of these calls."""
        self._client_queue.append((action, argument))
        self._schedule()

    def defer(self, action: Callable[[Any], None], argument: Any, later: float = 0.0) -> None:
        """Queue `action(argument)` in the deferred queue, in the order of these calls. A turn runs one entry or more,
        until `DEFERRED_SECONDS` are used. `later` is the seconds of CPU that a task uses in the same turn of the loop
        after the action has returned; they count for these as well."""
        self._deferred.append((action, argument, later))
        self._schedule()

    def step_logic(self, event: logic_events.Event) -> None:
        """Step the logic with an event now, and carry out its effects. Call this only from within an action that the
        pump runs."""
        self._step_logic(event)

    def _continue(self, more: edge_events.More) -> None:
        """Queue the rest of a connection's input, which is handled when the clients' queue is empty."""
        self._rests.append(more)
        self._schedule()

    def _schedule(self) -> None:
        """Schedule the next turn, unless one is scheduled."""
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        """Run one turn, and schedule the next one if events are left. After an exception stop the pump and report the
        exception."""
        try:
            self._run_events()
        except Exception as error:  # noqa: BLE001
            # a core that broke an invariant must not continue: acknowledgements rest on its state
            self.stopped = True
            self._clear()
            self._on_failure(error)
        self._scheduled = bool(self._queue or self._client_queue or self._rests or self._deferred)
        if self._scheduled:
            self._call_soon(self._turn)

    def _run_events(self) -> None:
        """Run the queues in the order of their importance, each within its limits of time and number. Then give the
        logic its `Flush` if it got events, and call the actions for the end of the turn. Once the pump is stopped, drop
        everything."""
        clock = self._clock
        end = clock() + TURN_SECONDS
        self._run(self._queue, end)
        if self._client_queue:
            self._run(self._client_queue, max(end, clock() + CLIENT_SECONDS))
        if self._rests:
            self._run_rests(clock() + REST_SECONDS)
        if self._deferred:
            self._run_deferred(clock() + DEFERRED_SECONDS)
        if self.stopped:
            self._clear()
            return
        if not self._flushed:
            self._step_logic(_FLUSH)
            self._flushed = True
        for action in self._turn_end_actions:
            action()

    def _run(self, entries: deque[Entry], end: float) -> None:
        """Run entries of a queue until it is empty, the time `end` has come, or `TURN_EVENTS` have run."""
        clock = self._clock
        for _ in range(TURN_EVENTS):
            if not entries or self.stopped or clock() > end:
                return
            step, event = entries.popleft()
            step(event)

    def _clear(self) -> None:
        self._queue.clear()
        self._client_queue.clear()
        self._rests.clear()
        self._deferred.clear()

    def _run_rests(self, end: float) -> None:
        """Run rests of input until none is left, the time `end` has come, or the clients' queue has entries; at least
        one rest."""
        while self._rests and not self.stopped:
            self.step_edge(self._rests.popleft())
            if self._client_queue or self._clock() > end:
                return

    def _run_deferred(self, end: float) -> None:
        """Run entries of the deferred queue, at least one, until none is left or the time `end` has come. The `later`
        of each entry that has run counts as time that has passed."""
        while self._deferred and not self.stopped:
            action, argument, later = self._deferred.popleft()
            action(argument)
            end -= later
            if self._clock() > end:
                return

    def _step_logic(self, event: Any) -> None:
        """Step the logic with an event, and carry out its effects. The logic gets a `Flush` at the end of the turn."""
        self._flushed = False
        handlers = self._logic_handlers
        for effect in self._logic.step(event, self._clock()):
            handlers[type(effect)](effect)

    def step_edge(self, event: Any) -> None:
        """Step the edge with an event now, and carry out its effects. Call this only from within an action that the
        pump runs. Before `attach` the event is stored, and queued by it."""
        edge = self._edge
        if edge is None:
            self._waiting.append(event)
            return
        handlers = self._edge_handlers
        for effect in edge.step(event, self._clock()):
            handlers[type(effect)](effect)


def _ignore(effect: edge_events.Detach) -> None:
    """Do nothing with a `Detach`: where edge and logic are in one process, the edge gets the publications of every
    topic."""
