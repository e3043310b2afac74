"""When clients come back: `python -m benchmarks.reconnects [--clients 10000] [--plot FILE.png]`.

The product's own client cores, thousands of them, on a virtual clock: no socket, no waiting, the same figures on every
machine. Two things happen to their broker at second 0:

killed    the links break; the two other brokers take everybody who comes
away      every broker refuses for 20 s (a network that is gone), then all take everybody

A herd would be a peak far above the mean. What is shown is how many come in each slice of time, over all brokers.
"""

from __future__ import annotations

import heapq
from collections import Counter
from pathlib import Path
from random import Random
from typing import Literal

import click
from migratory_client.core import events as ev
from migratory_client.core.servers import parse_servers
from migratory_client.core.session import ClientCore
from migratory_client.core.settings import DEFAULTS
from migratory_protocol import messages as wire

URLS = ("ws://a/ws", "ws://b/ws", "ws://c/ws")
AWAY = 20.0
SLICE = 0.1
CapacityScenario = Literal["killed", "away"]


class Client:
    """A connected client, from the moment its link breaks. `home` is its broker."""

    def __init__(self, seed: int) -> None:
        usable, _ = parse_servers(URLS)
        self.core = ClientCore(usable, Random(seed).random, client="c", publisher="p", token=None, settings=DEFAULTS)
        dial = self._dial(self.core.step(ev.Open(), 0.0)) or self._dial(self.core.step(ev.Tick(), 0.0))
        assert dial is not None
        self.home, self.link = dial.url, dial.link
        self.connect(0.0)

    def connect(self, now: float) -> None:
        limits = wire.Limits(payload=1000, topic=255, subscriptions=1000, queue=1 << 20)
        servers = [wire.Server(url) for url in URLS]
        self.core.step(ev.Connected(self.link), now)
        self.core.step(ev.Received(self.link, [wire.Welcome(wire.VERSION, "q", "b", 1, servers, 15.0, limits)]), now)

    def lose(self, now: float) -> ev.Dial | None:
        return self._dial(self.core.step(ev.Disconnected(self.link, 1006, "gone"), now))

    def tick(self, now: float) -> ev.Dial | None:
        return self._dial(self.core.step(ev.Tick(), now))

    def _dial(self, effects: list[ev.Effect]) -> ev.Dial | None:
        found = [effect for effect in effects if isinstance(effect, ev.Dial)]
        if found:
            self.link = found[-1].link
        return found[-1] if found else None


def arrivals(scenario: CapacityScenario, clients: int) -> list[tuple[float, str]]:
    """(seconds since the break, broker) of each attempt to connect."""
    begin = 100.0
    found: list[tuple[float, str]] = []
    waiting: list[tuple[float, int]] = []
    everybody = [Client(seed) for seed in range(clients)]

    def attempt(number: int, dial: ev.Dial | None, now: float) -> None:
        client = everybody[number]
        while dial is not None:
            found.append((now - begin, dial.url))
            taken = dial.url != client.home if scenario == "killed" else now - begin >= AWAY
            if taken:
                client.connect(now)
                return
            dial = client.lose(now)
        heapq.heappush(waiting, (client.core.deadline, number))

    for number, client in enumerate(everybody):
        attempt(number, client.lose(begin), begin)
    while waiting:
        now, number = heapq.heappop(waiting)
        attempt(number, everybody[number].tick(now), now)
    return sorted(found)


def slices(found: list[tuple[float, str]], length: float = SLICE) -> list[int]:
    """Attempts in each slice, from the break to the last."""
    counts = Counter(int(at / length) for at, _ in found)
    return [counts[number] for number in range(max(counts) + 1)]


@click.command(context_settings={"show_default": True})
@click.option("--clients", default=10_000, help="Of the broker that goes.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="A PNG of both.")
def main(clients: int, plot: Path | None) -> None:
    """When the clients of a broker that goes come to the others."""
    shown: dict[CapacityScenario, list[int]] = {}
    lengths: dict[CapacityScenario, float] = {"killed": SLICE, "away": 1.0}
    for scenario, length in lengths.items():
        found = arrivals(scenario, clients)
        counts = shown[scenario] = slices(found, length)
        print(f"{scenario}: {len(found):,} attempts of {clients:,} clients, in slices of {length:g} s")
        most = max(counts)
        for number, count in enumerate(counts):
            print(f"  {number * length:5.1f} s {count:7,} {'#' * round(50 * count / most)}")
    if plot is not None:
        draw(shown, plot)


def draw(shown: dict[CapacityScenario, list[int]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    for axes, (scenario, counts) in zip(figure.subplots(2, 1), shown.items(), strict=True):
        length = SLICE if scenario == "killed" else 1.0
        axes.bar([(number + 0.5) * length for number in range(len(counts))], counts, width=0.9 * length)
        axes.set_ylabel(f"attempts in {length:g} s")
        axes.set_title(f"every client's broker is {scenario}")
    axes.set_xlabel("seconds")
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
