"""Links between broker processes, as the logic is promised them: in order and whole until `PeerDown`, nothing after.

A blocked direction holds what was sent (as TCP does) until it opens again; an end that hears nothing for `silence`
gives the link up, and the other end learns that when the way to it is open, or by its own silence, or when a new
link comes. What was under way is lost then, at each end from its own moment on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

from migratory_simulation.scheduler import Scheduler


class End(Protocol):
    """What a link needs of a broker process."""

    @property
    def number(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def running(self) -> bool: ...
    @property
    def frozen(self) -> bool: ...
    @property
    def incarnation(self) -> int: ...
    def peer_up(self, peer: str, incarnation: int) -> None: ...
    def peer_down(self, peer: str) -> None: ...
    def peer_received(self, peer: str, data: bytes) -> None: ...
    def wants(self, other: End) -> bool: ...


class Link:
    """One connection between two processes; end 0 is the one with the lower number."""

    __slots__ = ("ends", "heard", "queues", "up", "when")

    def __init__(self, low: End, high: End, now: float) -> None:
        self.ends = (low, high)
        self.up = [True, True]
        self.queues: tuple[deque[tuple[float, bytes]], deque[tuple[float, bytes]]] = (deque(), deque())  # to end i
        self.when = [now, now]  # arrival of the newest in each queue
        self.heard = [now, now]

    def side(self, end: End) -> int:
        return 0 if end is self.ends[0] else 1


class Network:
    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.scheduler = scheduler
        self.random = random
        self.delay = 0.002
        self.silence = 2.0
        self.links: dict[tuple[int, int], Link] = {}
        self.blocked: set[tuple[int, int]] = set()  # (from, to) process numbers
        self.clogged: dict[tuple[int, int], float] = {}  # extra seconds per message
        self.processes: dict[int, End] = {}
        self._routes: dict[tuple[int, str], Link | None] = {}  # what `link_of` found; cleared when a link changes
        self.breaks = 0
        self.messages = 0
        self.on_break: Callable[[str, str], None] | None = None
        scheduler.after(0.1, self._supervise)

    # ---- faults

    def block(self, source: int, target: int) -> None:
        self.blocked.add((source, target))

    def unblock(self, source: int, target: int) -> None:
        if (source, target) in self.blocked:
            self.blocked.discard((source, target))
            self._pump_later(source, target)

    def heal(self) -> None:
        self.clogged.clear()
        for source, target in sorted(self.blocked):
            self.unblock(source, target)

    def break_link(self, one: int, other: int) -> None:
        """A connection reset: both ends notice, soon, but not at the same moment."""
        link = self.links.get((min(one, other), max(one, other)))
        if link is not None:
            for side in (0, 1):
                self.scheduler.after(self.random.uniform(0.0, 0.05), self._give_up, link, side)

    # ---- processes

    def add(self, process: End) -> None:
        self.processes[process.number] = process

    def remove(self, process: End) -> None:
        """The process died: its end is gone, the other ends get a reset where the way is open."""
        self.processes.pop(process.number, None)
        for key, link in list(self.links.items()):
            if process.number in key:
                side = link.side(process)
                link.up[side] = False
                self._routes.clear()
                self._tell_other(link, side)

    def send(self, process: End, peer: str, data: bytes) -> None:
        link = self.link_of(process, peer)
        if link is None:
            return
        side = link.side(process)
        if not link.up[1 - side]:
            return  # the other end has given up already; this one will notice
        self.messages += 1
        source, target = process.number, link.ends[1 - side].number
        delay = (0.3 + 1.4 * self.random.random()) * self.delay
        if self.clogged:
            delay += self.clogged.get((source, target), 0.0)
        arrival = max(link.when[1 - side], self.scheduler.now + delay)
        link.when[1 - side] = arrival
        link.queues[1 - side].append((arrival, data))
        self.scheduler.at(arrival, self._pump, link, 1 - side)

    def link_of(self, process: End, peer: str) -> Link | None:
        """The link that `process` believes to have to the broker of this name."""
        route = (process.number, peer)
        if route not in self._routes:
            self._routes[route] = self._find(process, peer)
        return self._routes[route]

    def _find(self, process: End, peer: str) -> Link | None:
        for key, link in self.links.items():
            if process.number in key:
                side = link.side(process)
                if link.up[side] and link.ends[1 - side].name == peer:
                    return link
        return None

    def close_unwanted(self, process: End) -> None:
        """After a new list of wanted peers: links to others end."""
        for key, link in list(self.links.items()):
            if process.number in key:
                side = link.side(process)
                other = link.ends[1 - side]
                if link.up[side] and not process.wants(other) and not (other.running and other.wants(process)):
                    self._give_up(link, side)

    # ---- inside

    def _pump_later(self, source: int, target: int) -> None:
        link = self.links.get((min(source, target), max(source, target)))
        if link is not None:
            side = 0 if link.ends[0].number == target else 1
            self.scheduler.after(self.random.uniform(0.001, 0.3), self._pump, link, side)

    def _pump(self, link: Link, side: int) -> None:
        queue = link.queues[side]
        target, source = link.ends[side], link.ends[1 - side]
        if (source.number, target.number) in self.blocked:
            return
        now = self.scheduler.now
        while queue and queue[0][0] <= now:
            data = queue.popleft()[1]
            if link.up[side]:
                link.heard[side] = now
                target.peer_received(source.name, data)

    def _give_up(self, link: Link, side: int) -> None:
        """End `side` takes the link for broken."""
        if not link.up[side]:
            return
        link.up[side] = False
        self._routes.clear()
        link.queues[side].clear()
        self.breaks += 1
        end = link.ends[side]
        if end.running:
            end.peer_down(link.ends[1 - side].name)
        self._tell_other(link, side)

    def _tell_other(self, link: Link, side: int) -> None:
        if link.up[1 - side]:
            source, target = link.ends[side], link.ends[1 - side]
            if (source.number, target.number) not in self.blocked:
                # What was sent before the close may still arrive before it.
                last = link.when[1 - side] if self.random.random() < 0.5 else self.scheduler.now
                last = max(last, self.scheduler.now)
                self.scheduler.at(last + self.random.uniform(0.3, 3.0) * self.delay, self._give_up, link, 1 - side)

    @staticmethod
    def _keeps_alive(link: Link, side: int) -> bool:
        """The runtime at this end sends a sign of life."""
        return link.up[side] and link.ends[side].running and not link.ends[side].frozen

    def _supervise(self) -> None:
        now = self.scheduler.now
        blocked = self.blocked
        for key, link in list(self.links.items()):
            for side in (0, 1):
                if not link.up[side]:
                    continue
                end, other = link.ends[side], link.ends[1 - side]
                if end.frozen:
                    link.heard[side] = now  # it can't judge; what waits in its buffers counts when it thaws
                elif self._keeps_alive(link, 1 - side) and (other.number, end.number) not in blocked:
                    link.heard[side] = now
                elif now - link.heard[side] > self.silence:
                    self._give_up(link, side)
            if not link.up[0] and not link.up[1]:
                del self.links[key]
                self._routes.clear()
        processes = [process for process in self.processes.values() if process.running]
        for index, low in enumerate(processes):
            for high in processes[index + 1 :]:
                self._maybe_connect(low, high)
        self.scheduler.after(self.random.uniform(0.08, 0.2), self._supervise)

    def _maybe_connect(self, low: End, high: End) -> None:
        key = (low.number, high.number) if low.number < high.number else (high.number, low.number)
        if low.name == high.name or not (low.wants(high) or high.wants(low)):
            return
        if not (low.running and high.running):
            return  # an ambush has just ended it, at what it said on another link that came up
        if low.frozen or high.frozen or key in self.blocked or (key[1], key[0]) in self.blocked:
            return
        old = self.links.get(key)
        if old is not None:
            if old.up[0] and old.up[1]:
                return
            if self.random.random() < 0.5:
                return
            for side in (0, 1):
                self._give_up(old, side)
        if low.incarnation < 0 or high.incarnation < 0:
            return
        # A broker of this name has one link at a time: a link with an older life of the peer ends first.
        for one, other in ((low, high), (high, low)):
            stale = self.link_of(one, other.name)
            if stale is not None:
                if other.incarnation < stale.ends[1 - stale.side(one)].incarnation:
                    return
                self._give_up(stale, stale.side(one))
        link = self.links[key] = Link(self.processes[key[0]], self.processes[key[1]], self.scheduler.now)
        self._routes.clear()
        for one, other in ((low, high), (high, low)):
            if one.running and link.up[link.side(one)]:  # the other one's first word may have been its last
                one.peer_up(other.name, other.incarnation)
