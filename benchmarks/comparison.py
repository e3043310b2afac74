"""Comparison of several systems on the same work, in interleaved rounds: the base of every CPU figure per delivery.

In each round every system takes one turn, and the order rotates, so that other load on the machine affects all alike.
A peer that fails is dropped and reported, and the others continue. Any other failure ends the measurement.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from benchmarks.benchmark import Benchmark
from benchmarks.processes import MeasurementFailed
from benchmarks.rig import Rig, Turn

Result = TypeVar("Result")


async def interleaved(
    rounds: int, turns: Mapping[str, Callable[[], Awaitable[Result]]],
    on_round: Callable[[int, dict[str, Result]], None],
    on_failure: Callable[[str, MeasurementFailed], Awaitable[None]] | None = None,
) -> dict[str, list[Result]]:  # fmt: skip
    """Run the turns in rounds. Return one result a round by name.

    `on_round` is called with the number of each round, from 1, and its results. A failed turn ends the run. With
    `on_failure`, which may raise the error again, the system is left out of the rounds and of the results instead."""
    names = list(turns)
    results: dict[str, list[Result]] = {name: [] for name in names}
    for number in range(rounds):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            if name not in results:
                continue
            try:
                results[name].append(await turns[name]())
            except MeasurementFailed as error:
                if on_failure is None:
                    raise
                await on_failure(name, error)
                del results[name]
        on_round(number + 1, {name: values[-1] for name, values in results.items()})
    return results


class SystemComparison:
    """Several rigs by the name that their figures have. Those of `peers` may fail, and are then removed from `rigs`.
    `unit` says what a turn's deliveries are called. All rigs are stopped with the measurement."""

    def __init__(
        self, bench: Benchmark, rigs: Mapping[str, Rig], peers: Collection[str] = (), *, seconds: float | None = None,
        unit: str = "delivery",
    ) -> None:  # fmt: skip
        self._bench = bench
        self._optional = frozenset(peers)
        self._seconds = seconds or bench.sizes.seconds
        self._unit = unit
        self.rigs = dict(rigs)

    @property
    def peers(self) -> list[str]:
        """The peers that have not failed."""
        return [name for name in self.rigs if name in self._optional]

    async def start(self, warmup: float) -> None:
        """Start each system with its subscribers, and publish for `warmup` seconds that are not counted."""
        for name, rig in list(self.rigs.items()):
            self._bench.say(f"connecting {rig.work.subscribers:,} subscribers to: {name}")
            self._bench.stop_after(rig)
            try:
                await rig.start()
                await rig.turn(rig.work.rate, warmup)
            except MeasurementFailed as error:
                await self._drop(name, error)

    async def rounds(self) -> dict[str, list[Turn]]:
        """Run all rounds. Return one turn a round by name."""
        number = self._bench.sizes.rounds
        return await interleaved(
            number, {name: self._turn(rig) for name, rig in self.rigs.items()},
            lambda done, turns: self._bench.say(
                f"round {done} of {number}, us per {self._unit}: "
                + ", ".join(f"{name} {turn.micros:.2f}" for name, turn in turns.items() if turn.deliveries)
            ),
            self._drop,
        )  # fmt: skip

    def _turn(self, rig: Rig) -> Callable[[], Awaitable[Turn]]:
        async def turn() -> Turn:
            return (await rig.turn(rig.work.rate, self._seconds))[0]

        return turn

    async def _drop(self, name: str, error: MeasurementFailed) -> None:
        if name not in self._optional:
            raise error
        self._bench.drop(name, error)
        await self.rigs.pop(name).stop()


def micros(turns: Mapping[str, list[Turn]]) -> dict[str, list[float]]:
    """Return the CPU microseconds per delivery of each round, by name."""
    return {name: [turn.micros for turn in rows] for name, rows in turns.items()}


def latencies(turns: list[Turn]) -> tuple[list[float], list[float]]:
    """Return (medians, P99s) of the rounds in milliseconds. Raise MeasurementFailed for a round without deliveries."""
    pairs = [(turn.median_ms, turn.p99_ms) for turn in turns]
    complete = [(median, p99) for median, p99 in pairs if median is not None and p99 is not None]
    if len(complete) < len(pairs):
        raise MeasurementFailed("a round has no latencies")
    return [median for median, _ in complete], [p99 for _, p99 in complete]
