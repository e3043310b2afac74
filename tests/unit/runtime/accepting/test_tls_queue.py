"""The queue of TLS handshakes: steps a turn, what runs between them, turns of addresses, and limits."""

from __future__ import annotations

from typing import Any

from migratory_broker.runtime.accepting.tls_queue import TlsHandshakeQueue
from migratory_broker.runtime.pump import DEFERRED_SECONDS, Pump
from migratory_testing.loops import ManualLoop


class Handshake:
    """A handshake whose step takes `seconds` of the loop's clock."""

    def __init__(self, loop: ManualLoop, log: list[Any], name: Any, seconds: float = 0.0) -> None:
        self.loop, self.log, self.name, self.seconds = loop, log, name, seconds
        self.evicted = ""

    def advance(self) -> None:
        self.loop.now += self.seconds
        self.log.append(self.name)

    def evict(self, reason: str) -> None:
        self.evicted = reason


def build(core: Any, max_held: int = 2**62) -> tuple[ManualLoop, Pump, TlsHandshakeQueue, list[Any]]:
    loop = ManualLoop()
    pump = Pump(core(), loop.soon, lambda: loop.now, lambda error: None)
    pump.set_handlers({})
    pump.attach(core())
    return loop, pump, TlsHandshakeQueue(pump.defer, max_held), []


def test_a_turn_makes_a_few_steps_and_others_are_served_in_between(core: Any) -> None:
    """Of 500 hellos of one turn, a turn continues as many as fit into its share of time, and one if none fits. What
    clients and peers send in between is handled in the same turn, before."""
    for seconds, steps in ((DEFERRED_SECONDS / 4.5, 5), (0.0057, 1)):
        loop, pump, queue, log = build(core)
        for number in range(500):
            queue.add(Handshake(loop, log, number, seconds), "10.0.0.1", 500)
        turns = []
        while len(queue):
            pump.call(log.append, "peer")
            pump.call_for_client(log.append, "client")
            before = len(log)
            assert loop.turn()
            turns.append(log[before:])
        assert turns[0] == ["peer", "client", *range(steps)]
        assert {len(turn) for turn in turns} == {2 + steps}
        assert [entry for turn in turns for entry in turn[2:]] == list(range(500))
        loop.turn()
        assert not loop.calls


def test_other_deferred_work_is_not_behind_all_handshakes(core: Any) -> None:
    loop, pump, queue, log = build(core)
    for number in range(100):
        queue.add(Handshake(loop, log, number, DEFERRED_SECONDS), "10.0.0.1", 500)
    pump.defer(log.append, "page")
    loop.turn()
    loop.turn()
    assert log.index("page") <= 2


def test_addresses_take_turns(core: Any) -> None:
    """A client of another address is continued behind one handshake of an address that has hundreds."""
    loop, _, queue, log = build(core)
    for number in range(300):
        queue.add(Handshake(loop, log, ("many", number)), "10.0.0.1", 500)
    for number in range(2):
        queue.add(Handshake(loop, log, ("few", number)), "10.0.0.2", 500)
    while loop.turn():
        pass
    assert log[:5] == [("many", 0), ("few", 0), ("many", 1), ("few", 1), ("many", 2)]
    assert [number for name, number in log if name == "many"] == list(range(300))


def test_handshakes_that_had_a_turn_alternate_with_new_ones(core: Any) -> None:
    """Of 300 addresses, each handshake ends soon after it began, however many new ones wait. One that never ends keeps
    no new one from its turn."""
    loop, _, queue, log = build(core)

    class Begun(Handshake):
        """A handshake that has more to process right after its first step, and one of `endless` after each step."""

        endless = False

        def advance(self) -> None:
            super().advance()
            if log.count(self.name) == 1 or self.endless:
                queue.add(self, str(self.name), 50, continued=True)

    for number in range(300):
        queue.add(Begun(loop, log, number), str(number), 500)
    while loop.turn():
        pass
    assert log == [number for number in range(300) for _ in range(2)]
    log.clear()
    endless = Begun(loop, log, "endless", 2 * DEFERRED_SECONDS)
    endless.endless = True
    queue.add(endless, "endless", 500)
    for number in range(10):
        queue.add(Handshake(loop, log, number), str(number), 500)
    while len(log) < 22:
        loop.turn()
    assert log == ["endless", *(entry for number in range(10) for entry in ("endless", number)), "endless"]
    queue.discard(endless, "endless")
    assert (len(queue), queue.held) == (0, 0)


def test_what_has_ended_has_no_turn_and_is_not_counted(core: Any) -> None:
    loop, _, queue, log = build(core)
    handshakes = [Handshake(loop, log, number) for number in range(4)]
    for handshake in handshakes:
        queue.add(handshake, "10.0.0.1", 10)
        queue.add(handshake, "10.0.0.1", 1)
    assert (len(queue), queue.held) == (4, 44)
    for handshake in (handshakes[0], handshakes[2], handshakes[2]):
        queue.discard(handshake, "10.0.0.1")
    assert (len(queue), queue.held) == (2, 22)
    while loop.turn():
        pass
    assert log == [1, 3]
    queue.add(handshakes[0], "10.0.0.1", 10)
    queue.discard(handshakes[0], "10.0.0.1")
    queue.discard(handshakes[0], "10.0.0.1")
    while loop.turn():
        pass
    assert log == [1, 3]
    queue.add(handshakes[0], "10.0.0.1", 10)
    while loop.turn():
        pass
    assert log == [1, 3, 0]
    assert (len(queue), queue.held) == (0, 0)


def test_at_the_limit_of_bytes_the_one_with_most_is_evicted(core: Any) -> None:
    loop, _, queue, log = build(core, max_held=1000)
    honest = [Handshake(loop, log, ("honest", number)) for number in range(5)]
    large = Handshake(loop, log, "large")
    queue.add(large, "10.0.0.1", 600)
    for handshake in honest:
        queue.add(handshake, "10.0.0.2", 100)
    assert large.evicted == "more than 1000 bytes wait for TLS handshakes, and most of them for this one"
    assert (queue.evicted, len(queue), queue.held) == (1, 5, 500)
    while loop.turn():
        pass
    assert log == [("honest", number) for number in range(5)]
