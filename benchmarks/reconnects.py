"""The times at which clients reconnect: `python -m benchmarks.reconnects [--clients 10000] [--plot FILE.png]`.

Thousands of client cores run on a virtual clock, without sockets or waiting, so the figures are the same on every
machine. One of two things happens to their broker at second 0:

killed    the links break, and the two other brokers accept all clients
away      every broker refuses for 20 s, as in a network outage, and then all accept

A thundering herd would be a peak far above the mean. The output is the number of attempts in each slice of time, over
all brokers.
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
"""Seconds for which all brokers refuse in the scenario `away`."""

SLICE = 0.1
"""Seconds of a slice of the output."""

CapacityScenario = Literal["killed", "away"]


class ReconnectingClient:
    """A client core that is connected to the broker `broker_url`, and then loses its link."""

    def __init__(self, seed: int) -> None:
        usable, _ = parse_servers(URLS)
        self.core = ClientCore(usable, Random(seed).random, client="c", publisher="p", token=None, settings=DEFAULTS)
        dial = self._dial(self.core.step(ev.Open(), 0.0)) or self._dial(self.core.step(ev.Tick(), 0.0))
        assert dial is not None
        self.broker_url, self.link = dial.url, dial.link
        self.connect(0.0)

    def connect(self, now: float) -> None:
        """Let the client's attempt succeed: step the core with its connection and a welcome."""
        limits = wire.Limits(payload=1000, topic=255, subscriptions=1000, queue=1 << 20)
        servers = [wire.Server(url) for url in URLS]
        self.core.step(ev.Connected(self.link), now)
        self.core.step(ev.Received(self.link, [wire.Welcome(wire.VERSION, "q", "b", 1, servers, 15.0, limits)]), now)

    def disconnect(self, now: float) -> ev.Dial | None:
        """End the link or the attempt. Return the next attempt if it starts at once, otherwise None."""
        return self._dial(self.core.step(ev.Disconnected(self.link, 1006, "gone"), now))

    def tick(self, now: float) -> ev.Dial | None:
        """Step the core with a `Tick` at `now`. Return the attempt that the core starts, or None."""
        return self._dial(self.core.step(ev.Tick(), now))

    def _dial(self, effects: list[ev.Effect]) -> ev.Dial | None:
        dials = [effect for effect in effects if isinstance(effect, ev.Dial)]
        if dials:
            self.link = dials[-1].link
        return dials[-1] if dials else None


def attempts(scenario: CapacityScenario, clients: int) -> list[tuple[float, str]]:
    """Return (seconds since the loss, URL) of each attempt to connect."""
    begin = 100.0
    attempted: list[tuple[float, str]] = []
    waiting: list[tuple[float, int]] = []
    all_clients = [ReconnectingClient(seed) for seed in range(clients)]

    def attempt(number: int, dial: ev.Dial | None, now: float) -> None:
        client = all_clients[number]
        while dial is not None:
            attempted.append((now - begin, dial.url))
            accepted = dial.url != client.broker_url if scenario == "killed" else now - begin >= AWAY
            if accepted:
                client.connect(now)
                return
            dial = client.disconnect(now)
        heapq.heappush(waiting, (client.core.deadline, number))

    for number, client in enumerate(all_clients):
        attempt(number, client.disconnect(begin), begin)
    while waiting:
        now, number = heapq.heappop(waiting)
        attempt(number, all_clients[number].tick(now), now)
    return sorted(attempted)


def slices(attempted: list[tuple[float, str]], length: float = SLICE) -> list[int]:
    """Return the number of attempts in each slice of `length` seconds, from the loss to the last attempt."""
    counts = Counter(int(at / length) for at, _ in attempted)
    return [counts[number] for number in range(max(counts) + 1)]


@click.command(context_settings={"show_default": True})
@click.option("--clients", default=10_000, help="Clients of the lost broker.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Draw both scenarios as a PNG."
)
def main(clients: int, plot: Path | None) -> None:
    """Show when the clients of a lost broker reconnect, computed on a virtual clock."""
    shown: dict[CapacityScenario, list[int]] = {}
    lengths: dict[CapacityScenario, float] = {"killed": SLICE, "away": 1.0}
    for scenario, length in lengths.items():
        attempted = attempts(scenario, clients)
        counts = shown[scenario] = slices(attempted, length)
        print(f"{scenario}: {len(attempted):,} attempts of {clients:,} clients, in slices of {length:g} s")
        peak = max(counts)
        for number, count in enumerate(counts):
            print(f"  {number * length:5.1f} s {count:7,} {'#' * round(50 * count / peak)}")
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
