"""The modelled links deliver everything in order until they are down, and nothing afterwards."""

from __future__ import annotations

from random import Random

from migratory_simulation.network import End, Network, ways
from migratory_simulation.scheduler import Scheduler


class Broker:
    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"b{number}"
        self.running = True
        self.frozen = False
        self.incarnation = number
        self.told: list[tuple[str, str, object]] = []
        self.wanted: set[str] = set()

    def peer_up(self, peer: str, incarnation: int) -> None:
        self.told.append(("up", peer, incarnation))

    def peer_down(self, peer: str) -> None:
        self.told.append(("down", peer, None))

    def peer_refused(self, peer: str, incarnation: int) -> None:
        self.told.append(("refused", peer, incarnation))

    def peer_received(self, peer: str, data: bytes) -> None:
        self.told.append(("got", peer, int(data)))

    def confirms(self, other: End) -> bool:
        return True

    def wants(self, other: End) -> bool:
        return other.name in self.wanted

    def since_up(self) -> list[int]:
        last = max(index for index, (what, _, _) in enumerate(self.told) if what == "up")
        return [number for what, _, number in self.told[last:] if what == "got" and isinstance(number, int)]


class Pair:
    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, Random(seed))
        self.low, self.high = Broker(0), Broker(1)
        for broker in (self.low, self.high):
            self.network.add(broker)
        self.low.wanted.add("b1")
        self.run(1.0)

    def run(self, seconds: float) -> None:
        self.scheduler.run_until(self.scheduler.now + seconds)

    def send(self, numbers: range, gap: float = 0.0) -> None:
        for number in numbers:
            self.network.send(self.low, "b1", str(number).encode())
            if gap:
                self.run(gap)


def test_link_opens_when_one_side_wants_it() -> None:
    pair = Pair()
    assert pair.low.told == [("up", "b1", 1)]
    assert pair.high.told == [("up", "b0", 0)]
    pair.send(range(100))
    pair.run(1.0)
    assert pair.high.since_up() == list(range(100))


def test_break_loses_a_suffix_and_notifies_both_ends() -> None:
    dropped = set()
    for seed in range(50):
        pair = Pair(seed)
        pair.network.delay = 0.05
        pair.send(range(10), 0.01)
        pair.network.break_link(0, 1)
        pair.run(5.0)
        before = [number for what, _, number in pair.high.told if what == "got"]
        assert before == list(range(len(before)))
        dropped.add(10 - len(before))
        assert [what for what, _, _ in pair.low.told] == ["up", "down", "up"]
        assert [what for what, _, _ in pair.high.told if what != "got"] == ["up", "down", "up"]
        pair.send(range(5))
        pair.run(1.0)
        assert pair.high.since_up() == list(range(5))
    assert len(dropped) > 3


def test_one_way_partition_holds_messages_and_is_detected_by_the_silent_side() -> None:
    pair = Pair()
    pair.network.block([(0, 1)])
    pair.send(range(3))
    pair.run(1.0)
    assert pair.high.since_up() == []
    pair.network.unblock([(0, 1)])
    pair.run(0.5)
    assert pair.high.since_up() == [0, 1, 2]
    pair.network.block([(0, 1)])
    pair.send(range(3, 6))
    pair.run(3.0)
    assert pair.high.told[-1][0] == "down"
    assert pair.low.told[-1][0] == "down"  # the way back is open: it hears of the end
    pair.network.unblock([(0, 1)])
    pair.run(3.0)
    assert pair.high.told[-1] == ("up", "b0", 0)
    assert ("got", "b0", 3) not in pair.high.told


def test_delayed_link_keeps_the_order() -> None:
    pair = Pair()
    pair.network.clog([(0, 1)], 0.5)
    pair.send(range(3))
    pair.network.clogged.clear()
    pair.send(range(3, 6))
    pair.run(0.4)
    assert pair.high.since_up() == []
    pair.run(0.6)
    assert pair.high.since_up() == list(range(6))


def test_dead_process_is_detected_at_once_and_a_frozen_one_after_silence() -> None:
    pair = Pair()
    pair.high.frozen = True
    pair.run(1.5)
    assert pair.low.told[-1][0] == "up"
    pair.run(2.0)
    assert pair.low.told[-1][0] == "down"
    pair.high.frozen = False
    pair.run(3.0)
    assert pair.low.told[-1][0] == "up"
    pair.high.running = False
    pair.network.remove(pair.high)
    pair.run(0.5)
    assert [what for what, _, _ in pair.low.told[-2:]] == ["down", "refused"]


def test_a_process_that_lives_may_refuse_connections() -> None:
    pair = Pair()
    both = ways([pair.low], [pair.high])
    pair.network.refuse(both)
    pair.run(2.0)
    for end in (pair.low, pair.high):
        assert [what for what, _, _ in end.told[-2:]] == ["down", "refused"]
    pair.network.accept(both)
    pair.run(2.0)
    assert pair.low.told[-1][0] == pair.high.told[-1][0] == "up"


def test_newer_incarnation_of_a_peer_replaces_the_link() -> None:
    pair = Pair()
    newer = Broker(2)
    newer.name = "b1"
    newer.incarnation = 9
    pair.network.add(newer)
    pair.run(2.0)
    assert pair.low.told == [("up", "b1", 1), ("down", "b1", None), ("up", "b1", 9)]
    assert pair.high.told[-1][0] == "down"
