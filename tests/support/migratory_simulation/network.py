"""Peer links between processes, as the logic relies on them: in order and complete until `PeerDown`, then nothing.

A blocked direction holds its messages (as TCP does) until it opens again. An end that hears nothing for `silence`
seconds closes the link. The other end learns that when the way to it is open, by its own silence, or when a new link
comes. Messages in flight are then lost, at each end from its own moment on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import product
from random import Random
from typing import Protocol

from migratory_simulation.scheduler import Scheduler

PROBES = 5
"""Times that a process dials the other end of a broken link again, to learn whether that refuses."""


class End(Protocol):
    """A broker process as its links see it."""

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
    def peer_refused(self, peer: str, incarnation: int) -> None: ...
    def peer_received(self, peer: str, data: bytes) -> None: ...
    def wants(self, other: End) -> bool: ...
    def confirms(self, other: End) -> bool: ...


Ways = Sequence[tuple[int, int]]
"""Directions between processes: (from, to), by their numbers."""


def ways(ones: Iterable[End], others: Iterable[End], *, back: bool = True) -> Ways:
    """Return the ways from each of `ones` to each of the others and, unless `back` is false, those back."""
    there = [(one.number, other.number) for one, other in product(ones, others) if one is not other]
    return there + [(other, one) for one, other in there if back]


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
    """All links between broker processes, and the faults on them. `delay` is the mean time of a message in seconds, and
    `silence` the seconds without a message after which an end closes its link."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.scheduler = scheduler
        self.random = random
        self.delay = 0.002
        self.silence = 2.0
        self.links: dict[tuple[int, int], Link] = {}
        self.blocked: set[tuple[int, int]] = set()  # (from, to) process numbers
        self.refusing: set[tuple[int, int]] = set()  # (from, to): new connections are refused, though both run
        self.clogged: dict[tuple[int, int], float] = {}  # extra seconds per message
        self.processes: dict[int, End] = {}
        self._routes: dict[tuple[int, str], Link | None] = {}  # cache of `link_of`, cleared when a link changes
        scheduler.after(0.1, self._supervise)

    # ---- faults

    def block(self, ways: Ways) -> None:
        """Hold messages in these directions until `unblock`."""
        self.blocked.update(ways)

    def unblock(self, ways: Ways) -> None:
        """Deliver in these directions again, held messages first."""
        for way in ways:
            if way in self.blocked:
                self.blocked.discard(way)
                self._pump_later(*way)

    def refuse(self, ways: Ways) -> None:
        """Reset the links in these directions, and refuse new connections until `accept`."""
        self.refusing.update(ways)
        for one, other in ways:
            self.break_link(one, other)

    def accept(self, ways: Ways) -> None:
        """Accept connections in these directions again."""
        self.refusing.difference_update(ways)

    def clog(self, ways: Ways, delay: float, lasts: float | None = None) -> None:
        """Delay each message in these directions by `delay` seconds more, for `lasts` seconds or until `heal`."""
        for way in ways:
            self.clogged[way] = delay
            if lasts is not None:
                self.scheduler.after(lasts, self.clogged.pop, way, None)

    def heal(self) -> None:
        """Remove all delays, refusals and blocks. Held messages are delivered."""
        self.clogged.clear()
        self.refusing.clear()
        self.unblock(sorted(self.blocked))

    def break_link(self, one: int, other: int) -> None:
        """Reset a connection: both ends notice soon, but not at the same moment. No effect if there is none."""
        link = self.links.get((min(one, other), max(one, other)))
        if link is not None:
            for side in (0, 1):
                self.scheduler.after(self.random.uniform(0.0, 0.05), self._close, link, side)

    # ---- processes

    def add(self, process: End) -> None:
        self.processes[process.number] = process

    def remove(self, process: End) -> None:
        """Close the links of a dead process. The other ends notice soon, where the direction to them is not blocked."""
        self.processes.pop(process.number, None)
        for key, link in list(self.links.items()):
            if process.number in key:
                side = link.side(process)
                link.up[side] = False
                self._routes.clear()
                self._notify_other(link, side)

    def send(self, process: End, peer: str, data: bytes) -> None:
        """Send a message to a peer over the current link. It is dropped if there is no link, or the other end has
        closed it."""
        link = self.link_of(process, peer)
        if link is None:
            return
        side = link.side(process)
        if not link.up[1 - side]:
            return  # the other end has given up already; this one will notice
        source, target = process.number, link.ends[1 - side].number
        delay = (0.3 + 1.4 * self.random.random()) * self.delay
        if self.clogged:
            delay += self.clogged.get((source, target), 0.0)
        arrival = max(link.when[1 - side], self.scheduler.now + delay)
        link.when[1 - side] = arrival
        link.queues[1 - side].append((arrival, data))
        self.scheduler.at(arrival, self._pump, link, 1 - side)

    def link_of(self, process: End, peer: str) -> Link | None:
        """Return the link that `process` believes to have to the broker of this name, or None."""
        route = (process.number, peer)
        if route not in self._routes:
            self._routes[route] = self._find(process, peer)
        return self._routes[route]

    def _find(self, process: End, peer: str) -> Link | None:
        """Return the link of `process` to the broker named `peer` that is up at this end, or None."""
        for key, link in self.links.items():
            if process.number in key:
                side = link.side(process)
                if link.up[side] and link.ends[1 - side].name == peer:
                    return link
        return None

    def close_unwanted(self, process: End) -> None:
        """Close links to peers that neither end wants any more."""
        for key, link in list(self.links.items()):
            if process.number in key:
                side = link.side(process)
                other = link.ends[1 - side]
                if link.up[side] and not process.wants(other) and not (other.running and other.wants(process)):
                    self._close(link, side)

    # ---- inside

    def _pump_later(self, source: int, target: int) -> None:
        """Deliver what the link between two processes holds in this direction, a little later."""
        link = self.links.get((min(source, target), max(source, target)))
        if link is not None:
            side = 0 if link.ends[0].number == target else 1
            self.scheduler.after(self.random.uniform(0.001, 0.3), self._pump, link, side)

    def _pump(self, link: Link, side: int) -> None:
        """Deliver the messages that have arrived at the end `side` of a link, in order, unless the direction is
        blocked."""
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

    def _close(self, link: Link, side: int) -> None:
        """Close the link at the end `side`, notify its process, and let the other end notice."""
        if not link.up[side]:
            return
        link.up[side] = False
        self._routes.clear()
        link.queues[side].clear()
        end = link.ends[side]
        if end.running:
            other = link.ends[1 - side]
            end.peer_down(other.name)
            self._probe_later(end, other, 0)
        self._notify_other(link, side)

    def _probe_later(self, end: End, other: End, tries: int) -> None:
        pause = self.delay if tries == 0 else 0.05 * 2 ** (tries - 1)
        self.scheduler.after(self.random.uniform(0.5, 1.5) * pause, self._probe, end, other, tries)

    def _probe(self, end: End, other: End, tries: int) -> None:
        """Let a process dial the other end of its broken link, and tell it when that is refused: no process of that
        name runs, or a fault refuses. Otherwise try again, as the runtime does."""
        if not end.running or self.link_of(end, other.name) is not None:
            return
        runs = any(process.name == other.name and process.running for process in self.processes.values())
        reached = not {(end.number, other.number), (other.number, end.number)} & self.blocked
        if reached and (not runs or (end.number, other.number) in self.refusing):
            end.peer_refused(other.name, other.incarnation)
        elif tries < PROBES:
            self._probe_later(end, other, tries + 1)

    def _notify_other(self, link: Link, side: int) -> None:
        """Let the other end learn of the close, unless the direction is blocked."""
        if link.up[1 - side]:
            source, target = link.ends[side], link.ends[1 - side]
            if (source.number, target.number) not in self.blocked:
                # Messages sent before the close may still arrive before it.
                last = link.when[1 - side] if self.random.random() < 0.5 else self.scheduler.now
                last = max(last, self.scheduler.now)
                self.scheduler.at(last + self.random.uniform(0.3, 3.0) * self.delay, self._close, link, 1 - side)

    def _supervise(self) -> None:
        """Close links whose end heard nothing for `silence` seconds, open wanted ones, and schedule the next call, as
        the brokers' runtimes do."""
        now = self.scheduler.now
        for key, link in list(self.links.items()):
            for side in (0, 1):
                if not link.up[side]:
                    continue
                end, other = link.ends[side], link.ends[1 - side]
                if end.frozen:
                    link.heard[side] = now  # it cannot judge; its buffered messages count when it thaws
                elif (
                    (link.up[1 - side] and other.running and not other.frozen)  # then its runtime sends heartbeats
                    and (other.number, end.number) not in self.blocked
                ):
                    link.heard[side] = now
                elif now - link.heard[side] > self.silence:
                    self._close(link, side)
            if not link.up[0] and not link.up[1]:
                del self.links[key]
                self._routes.clear()
        processes = [process for process in self.processes.values() if process.running]
        for index, low in enumerate(processes):
            for high in processes[index + 1 :]:
                self._maybe_connect(low, high)
        self.scheduler.after(self.random.uniform(0.08, 0.2), self._supervise)

    def _maybe_connect(self, low: End, high: End) -> None:
        """Open the link between two processes if one of them wants it and both run, are reachable and have an
        incarnation; first end what is left of an old link. Otherwise, or by chance if an old link is half open, do
        nothing."""
        key = (low.number, high.number) if low.number < high.number else (high.number, low.number)
        if low.name == high.name or not (low.wants(high) or high.wants(low)):
            return
        if not (low.running and high.running):
            return  # an ambush ended it when it sent its first message on another link
        if low.frozen or high.frozen or key in self.blocked or (key[1], key[0]) in self.blocked:
            return
        if key in self.refusing or (key[1], key[0]) in self.refusing:
            return
        old = self.links.get(key)
        if old is not None:
            if old.up[0] and old.up[1]:
                return
            if self.random.random() < 0.5:
                return
            for side in (0, 1):
                self._close(old, side)
        if low.incarnation < 0 or high.incarnation < 0 or not (low.confirms(high) and high.confirms(low)):
            return
        # A broker has one link to each name: a link to an older incarnation of the peer ends first.
        for one, other in ((low, high), (high, low)):
            stale = self.link_of(one, other.name)
            if stale is not None:
                if other.incarnation < stale.ends[1 - stale.side(one)].incarnation:
                    return
                self._close(stale, stale.side(one))
        link = self.links[key] = Link(self.processes[key[0]], self.processes[key[1]], self.scheduler.now)
        self._routes.clear()
        for one, other in ((low, high), (high, low)):
            if one.running and link.up[link.side(one)]:  # the other end may have ended with its first message
                one.peer_up(other.name, other.incarnation)
