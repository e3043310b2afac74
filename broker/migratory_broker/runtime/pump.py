"""The pump: how events reach the two cores and effects leave them, in order, one loop turn at a time.

What sockets, ZooKeeper and timers report is collected while the loop reads and is worked off once per turn; then a
logic that was told anything gets its `Flush`, so that what it sends to a peer leaves as one message. Effects are
carried out before the next event is looked at, each in the order it was given:

- the logic's effects for the edge are stepped into the edge at once, so that `Attached` is before the `Fanout` that
  follows it;
- the edge's requests to the logic go to the end of the queue, behind what is there already; those for the next page of
  a replay into one of their own, of which little is worked off in a turn. What connections say that have just come
  stands there as well.

Where edges are in processes of their own, each side has a pump whose other core is a stand-in: it sends what it is told
(`manyprocesses.py`, `ioprocess.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol, get_args

from migratory_broker.core.edge import events as edge_events
from migratory_broker.core.logic import events as logic_events

BATCH = 2000
SLICE = 0.02
"""Events, and seconds, that one turn works off at most; the rest waits for the next, after the sockets had their
turn. An event that was begun is ended."""

LATE = 0.005
"""Seconds of a turn for what may come late: the first words of those who have just come, and pages of replays; one of
these at least. However many clients come back at once, and however much they have missed, what is published now waits
for no more of that."""


class Core(Protocol):
    """What both cores are to the pump."""

    def step(self, event: Any, now: float, /) -> Iterable[Any]: ...


_FLUSH = logic_events.Flush()

Handler = Callable[[Any], object]
Entry = tuple[Callable[[Any], None], Any]


class Pump:
    """`soon` schedules a call in this loop turn (`loop.call_soon`), `clock` is monotonic, in seconds.

    `failed` is told what a core raised; nothing is stepped after that.
    """

    def __init__(
        self,
        logic: Core,
        soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
        failed: Callable[[Exception], None],
    ) -> None:
        self._failed = failed
        self._over: list[Callable[[], None]] = []
        self._logic = logic
        self._edge: Core | None = None
        self._waiting: list[Any] = []
        self._soon = soon
        self._clock = clock
        self._queue: deque[Entry] = deque()
        self._late: deque[Entry] = deque()
        self._scheduled = False
        self._flushed = True
        self.stopped = False
        self._logic_handlers: dict[type, Handler] = {}
        self._edge_handlers: dict[type, Handler] = {}

    def carry_out(self, handlers: dict[type, Handler]) -> None:
        """What takes the effects that leave both cores, by class: all of `logic_events.Effect` but those for the edge,
        and the edge's `Multicast`, `Send`, `Close` and `Hold`. One for an effect meant for the edge must `step_edge`
        it itself.
        """
        self._logic_handlers.update(dict.fromkeys(get_args(logic_events.EdgeEffect), self.step_edge))
        self._logic_handlers.update(handlers)
        self._edge_handlers.update(dict.fromkeys(get_args(edge_events.LogicRequest), self.to_logic))
        self._edge_handlers[edge_events.Detach] = _nobody
        self._edge_handlers.update(handlers)
        self._edge_handlers[edge_events.More] = self.to_edge

    def attach(self, edge: Core, over: Callable[[], None] | None = None) -> None:
        """Give the pump its edge, once it is known which life of the broker this is; the edge gets what waited. `over`
        is called at the end of every turn."""
        self._edge = edge
        if over is not None:
            self.at_end(over)
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self.to_edge(event)

    def at_end(self, action: Callable[[], None]) -> None:
        """Call it at the end of every turn: what the turn has collected leaves."""
        self._over.append(action)

    def to_logic(self, event: logic_events.Event) -> None:
        if type(event) is logic_events.NextPage:
            self.call_late(self._step_logic, event)
        else:
            self._post((self._step_logic, event))

    def to_edge(self, event: edge_events.Event) -> None:
        self._post((self.step_edge, event))

    def call(self, action: Callable[[Any], None], argument: Any) -> None:
        """Run `action(argument)` in its place among the events."""
        self._post((action, argument))

    def call_late(self, action: Callable[[Any], None], argument: Any) -> None:
        """Run `action(argument)` in what a turn has for what may come late, in the order of these calls."""
        self._late.append((action, argument))
        self._schedule()

    def step_logic(self, event: logic_events.Event) -> None:
        """Only from within such a call: the logic takes the event now."""
        self._step_logic(event)

    def _post(self, entry: Entry) -> None:
        self._queue.append(entry)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._soon(self._turn)

    def _turn(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001
            # a core that broke its own rules must not go on: the state it holds is what acknowledgements rest on
            self.stopped = True
            self._queue.clear()
            self._late.clear()
            self._failed(error)
        self._scheduled = bool(self._queue or self._late)
        if self._scheduled:
            self._soon(self._turn)

    def _work(self) -> None:
        entries = self._queue
        clock = self._clock
        end = clock() + SLICE
        for _ in range(BATCH):
            if not entries or self.stopped or clock() > end:
                break
            step, event = entries.popleft()
            step(event)
        if self._late:
            self._work_late(clock() + LATE)
        if self.stopped:
            entries.clear()
            self._late.clear()
            return
        if not self._flushed:
            self._step_logic(_FLUSH)
            self._flushed = True
        for action in self._over:
            action()

    def _work_late(self, end: float) -> None:
        """One at least, and more until then."""
        while self._late and not self.stopped:
            action, argument = self._late.popleft()
            action(argument)
            if self._clock() > end:
                return

    def _step_logic(self, event: Any) -> None:
        self._flushed = False
        handlers = self._logic_handlers
        for effect in self._logic.step(event, self._clock()):
            handlers[type(effect)](effect)

    def step_edge(self, event: Any) -> None:
        """Only from within an effect or `call`: the edge takes the event now."""
        edge = self._edge
        if edge is None:
            self._waiting.append(event)
            return
        handlers = self._edge_handlers
        for effect in edge.step(event, self._clock()):
            handlers[type(effect)](effect)


def _nobody(effect: edge_events.Detach) -> None:
    """In one process the edge hears of every topic anyway."""
