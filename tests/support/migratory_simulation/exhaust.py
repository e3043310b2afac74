"""Explore every run of a small cluster within bounds: `python -m migratory_simulation exhaust`.

The search begins when all brokers are ready and the publications are sent, or at the very start. At each step it
tries every fault and every other order of the messages in flight, up to a number of faults and of deviations from
the order of sending. A state that was reached before with at least as many faults and deviations left is not
followed again. States are compared by everything that the cores, the queues, ZooKeeper and the checkers hold, so
this leaves nothing out.
"""

from __future__ import annotations

import gc
import hashlib
import io
import pickle
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from migratory_simulation.external_checker import Violation
from migratory_simulation.plans import STRIKES
from migratory_simulation.untimed import DOWN, Choice, UntimedCluster

TAIL = 80
"""Lines of a trace that are shown with a violation."""
LIMIT = 4000
"""The most steps of one run; a longer one counts as endless."""


# ---- one state -----------------------------------------------------------------------------------------------------


def _function(name: str, cells: tuple[object, ...]) -> None:
    """Stand for a closure in a pickle that is only ever compared."""


class _Pickler(pickle.Pickler):
    """A pickler of everything that a core holds. Closures are pickled by their name and the values they close over."""

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, FunctionType) and (thing.__closure__ or "<" in thing.__qualname__):
            return _function, (thing.__qualname__, tuple(_content(cell) for cell in thing.__closure__ or ()))
        return NotImplemented


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def _bytes(*things: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, 5).dump(things)
    return buffer.getvalue()


class Fingerprints:
    """A cache for the fingerprints of one run's states: a broker that has not stepped is not pickled again."""

    def __init__(self) -> None:
        self._nodes: dict[int, tuple[int, bytes]] = {}

    def of(self, small: UntimedCluster) -> bytes:
        """Return the fingerprint of the cluster's state."""
        digest = hashlib.blake2b(digest_size=16)
        for node in small.processes:
            known = self._nodes.get(node.number)
            if known is None or known[0] != node.steps:
                node.logic.ctx.effects = []  # of its last step: already executed
                known = self._nodes[node.number] = (node.steps, _bytes(node.logic.__dict__))
            digest.update(known[1] if node.running else b"-")
        digest.update(_bytes(*around(small)))
        return digest.digest()


def around(small: UntimedCluster) -> tuple[object, ...]:
    """Return all state outside the cores. Of the order of sending, only the relative one counts."""
    orders = [order for queue in small.links.values() for order, _ in queue]
    orders += [order for node in small.processes for queue in (node.asks, node.answers) for order, _ in queue]
    rank = {order: index for index, order in enumerate(sorted(orders + [order for order, _ in small.outbox]))}
    nodes = [
        (
            node.running,
            node.suspended,
            node.session.number,
            sorted(node.watches),
            [(rank[order], ask) for order, ask in node.asks],
            [(rank[order], answer) for order, answer in node.answers],
        )
        for node in small.processes
    ]
    links = [(ends, [(rank[order], data) for order, data in queue]) for ends, queue in sorted(small.links.items())]
    outbox = [(rank[order], number) for order, number in small.outbox]
    ensemble, internal, external = small.ensemble, small.internal, small.external
    return (
        small.now,
        nodes,
        links,
        outbox,
        small.publisher(),
        sorted((path, stored.data, stored.version, stored.owner) for path, stored in ensemble.nodes.items()),
        sorted(ensemble.sessions),
        internal.epochs,
        internal.lives,
        internal.latest,
        internal.since_activated,
        internal.committed,
        external.topics,
        external.acknowledged,
    )


# ---- one run -------------------------------------------------------------------------------------------------------

Decision = Choice
"""An event to execute out of order, or a fault: its kind and target."""


@dataclass(frozen=True)
class Bounds:
    """The size of the cluster and the limits of the search."""

    brokers: int = 3
    copies: int = 2
    publications: int = 2
    faults: int = 1
    deviations: int = 0
    kinds: tuple[str, ...] = ("crash", "crash lost")
    restart: bool = True
    from_start: bool = False

    def small(self) -> UntimedCluster:
        crashes = self.faults if any(kind.startswith("crash") for kind in self.kinds) else 0
        return UntimedCluster(self.brokers, self.copies, self.publications, self.restart, crashes <= self.copies - 1)


@dataclass
class Search:
    """The progress of a search. `visited` maps a state's fingerprint to the (faults, deviations) that were left when
    it was reached."""

    bounds: Bounds
    visited: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    todo: list[dict[int, Decision]] = field(default_factory=lambda: [{}])
    runs: int = 0
    steps: int = 0
    met: int = 0  # runs that reached a known state
    did: Counter[str] = field(default_factory=Counter)

    def follow(self, decisions: dict[int, Decision], sink: Callable[[str], None] | None = None) -> None:
        """Run once as decided, then in the order of sending. Raise Violation."""
        bounds = self.bounds
        small = bounds.small()
        if sink is not None:
            small.tell(sink)
        self.runs += 1
        begun = False
        if not bounds.from_start:
            while not (small.ready and not small.choices()):
                _turn(small)
            small.begin()
            begun = True
        fingerprints = Fingerprints()
        new = max(decisions, default=-1)
        step = 0
        struck = sum(decision[0] in STRIKES for decision in decisions.values())
        faults, deviations = bounds.faults - struck, bounds.deviations - (len(decisions) - struck)
        while True:
            choices = small.choices()
            if choices and small.idle(choices[0]):
                small.take(choices[0])
                continue
            if not choices and not begun and small.ready:
                small.begin()
                begun = True
                continue
            if not choices and begun and small.done:
                break
            fresh = step > new and sink is None
            if fresh and not self._branch(small, fingerprints, decisions, step, choices, faults, deviations):
                self.met += 1
                break
            decision = decisions.get(step)
            step += 1
            if step > LIMIT:
                raise Violation(7, f"no end after {LIMIT} steps")
            if decision is not None and decision[0] in STRIKES:
                _strike(small, decision)
                self.did[decision[0]] += 1
            elif choices:
                small.take(decision or choices[0])
            else:
                small.advance()
                small.check_time()
        self.steps += small.steps

    def _branch(
        self,
        small: UntimedCluster,
        fingerprints: Fingerprints,
        decisions: dict[int, Decision],
        step: int,
        choices: list[Choice],
        faults: int,
        deviations: int,
    ) -> bool:
        """Record the state and what else can happen here. Return false when everything that follows was tried
        already."""
        known = self.visited.setdefault(fingerprints.of(small), [])
        if any(faults <= left[0] and deviations <= left[1] for left in known):
            return False
        known.append((faults, deviations))
        if faults:
            self.todo += [{**decisions, step: fault} for fault in strikes(small, self.bounds.kinds)]
        if deviations:
            self.todo += [{**decisions, step: choice} for choice in choices[1:] if not small.idle(choice)]
        return True


def strikes(small: UntimedCluster, kinds: tuple[str, ...]) -> list[Decision]:
    """Return the faults that can be injected now."""
    found: list[Decision] = []
    for node in small.running():
        mine = [kind for kind in kinds if kind.startswith("crash")]
        if not node.suspended:
            mine += [kind for kind in kinds if kind == "expire"]
            # Only a transaction's outcome matters.
            if any(hasattr(ask, "operations") for _, ask in node.asks) or any(
                getattr(answer, "versions", ()) for _, answer in node.answers
            ):
                mine += [kind for kind in kinds if kind.startswith("lose")]
        found += [(kind, node.name) for kind in mine]
    if "break" in kinds:
        for (one, other), queue in small.links.items():
            if one < other and not any(data == DOWN for _, data in (*queue, *small.links[other, one])):
                found.append(("break", one, other))
    return found


def _strike(small: UntimedCluster, fault: Decision) -> None:
    kind, name = fault[0], fault[1]
    if kind.startswith("crash"):
        small.crash(name, kind == "crash lost")
    elif kind == "break":
        small.break_link(name, fault[2])
    elif kind == "expire":
        small.expire(name)
    else:
        small.lose_replies(name, kind == "lose done")


def _turn(small: UntimedCluster) -> None:
    choices = small.choices()
    if choices:
        small.take(choices[0])
    else:
        small.advance()
        small.check_time()


# ---- the search ----------------------------------------------------------------------------------------------------


def search(bounds: Bounds, budget: float | None = None) -> tuple[Search, dict[int, Decision] | None, str]:
    """Explore everything within the bounds, or for `budget` seconds; then `todo` is not empty. Return the search
    and, with a violation, the decisions that led to it and its text."""
    began = time.monotonic()
    found = Search(bounds)
    while found.todo:
        if budget is not None and time.monotonic() - began > budget:
            break
        decisions = found.todo.pop()
        try:
            found.follow(decisions)
        except Violation as violation:
            return found, decisions, str(violation)
        except Exception as failure:  # noqa: BLE001 - whatever a core raises is what the search is there to find
            return found, decisions, f"a core failed: {type(failure).__name__}: {failure}"
    return found, None, ""


def show(bounds: Bounds, budget: float | None) -> int:
    """Search and print the outcome. Return 0 when complete without violation, 1 for a violation, 4 when the time ran
    out."""
    began = time.monotonic()
    bounds.small()  # raises ValueError if that can't be
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)
    found, decisions, violation = search(bounds, budget)
    if decisions is not None:
        print(f"VIOLATION {violation}\n\ndecisions: {decisions}\n")
        lines: list[str] = []
        try:
            Search(bounds).follow(decisions, lines.append)
        except Exception as failure:  # noqa: BLE001 - the same again, with its trace
            lines.append(f"{type(failure).__name__}: {failure}")
        early = [line for line in lines[:-TAIL] if " ** " in line]
        print("\n".join((*early, "...", *lines[-TAIL:])))
    struck = ", ".join(f"{count} {kind}" for kind, count in sorted(found.did.items())) or "none"
    print(
        f"{bounds.brokers} brokers, minCopies {bounds.copies}, {bounds.publications} publications, at most "
        f"{bounds.faults} fault and {bounds.deviations} deviations in order, "
        f"{'from the start' if bounds.from_start else 'from when all are ready'}, "
        f"{'with' if bounds.restart else 'without'} restarts; faults struck in runs: {struck}"
    )
    complete = not found.todo and decisions is None
    left = "complete" if complete else f"{len(found.todo)} runs not tried"
    print(
        f"{len(found.visited)} states, {found.runs} runs ({found.met} came into known states), {found.steps} steps of "
        f"brokers in {time.monotonic() - began:.1f} s; {left}; violations: {int(decisions is not None)}",
        flush=True,
    )
    return 1 if decisions is not None else 0 if complete else 4
