"""Comparison of several systems on the same work, in interleaved rounds: the base of every CPU figure per delivery.

In each round every system publishes once, and the order rotates, so that other load on the machine affects all alike.
A peer that fails is dropped and reported, and the others continue. Any other failure ends the measurement.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TypeVar

from benchmarks.benchmark import Benchmark
from benchmarks.processes import MeasurementFailed
from benchmarks.rig import Rig, RoundResult

Result = TypeVar("Result")


async def interleaved(
    rounds: int, parts: Mapping[str, Callable[[], Awaitable[Result]]],
    on_round: Callable[[int, dict[str, Result]], None],
    on_failure: Callable[[str, MeasurementFailed], Awaitable[None]] | None = None,
) -> dict[str, list[Result]]:  # fmt: skip
    """Call each of `parts` once in every round. Return their results by name, one for each round.

    `on_round` is called with the number of each round, from 1, and its results. A failed part ends the run. With
    `on_failure`, which may raise the error again, the system is left out of the rounds and of the results instead."""
    names = list(parts)
    results: dict[str, list[Result]] = {name: [] for name in names}
    for number in range(rounds):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            if name not in results:
                continue
            try:
                results[name].append(await parts[name]())
            except MeasurementFailed as error:
                if on_failure is None:
                    raise
                await on_failure(name, error)
                del results[name]
        on_round(number + 1, {name: values[-1] for name, values in results.items()})
    return results


class SystemComparison:
    """Several rigs whose rounds are compared, by the name that their figures have.

    Those of `peers` may fail, and are then removed from `rigs`. `seconds` is the length of a round; `unit` is the name
    of a delivery in progress lines. All rigs are stopped with the measurement.
    """

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
        """Start each system with its subscribers, and publish for `warmup` seconds that are not counted. Drop a peer
        that fails."""
        for name, rig in list(self.rigs.items()):
            self._bench.say(f"connecting {rig.work.subscribers:,} subscribers to: {name}")
            self._bench.stop_after(rig)
            try:
                await rig.start()
                await rig.run_round(rig.work.rate, warmup)
            except MeasurementFailed as error:
                await self._drop(name, error)

    async def rounds(self) -> dict[str, list[RoundResult]]:
        """Run all rounds. Return each system's results by name, one for each round, without the peers that failed."""
        number = self._bench.sizes.rounds
        return await interleaved(
            number, {name: self._part(rig) for name, rig in self.rigs.items()},
            lambda done, results: self._bench.say(
                f"round {done} of {number}, us per {self._unit}: "
                + ", ".join(f"{name} {result.micros:.2f}" for name, result in results.items() if result.deliveries)
            ),
            self._drop,
        )  # fmt: skip

    def _part(self, rig: Rig) -> Callable[[], Awaitable[RoundResult]]:
        async def part() -> RoundResult:
            return (await rig.run_round(rig.work.rate, self._seconds))[0]

        return part

    async def _drop(self, name: str, error: MeasurementFailed) -> None:
        if name not in self._optional:
            raise error
        self._bench.drop(name, error)
        await self.rigs.pop(name).stop()


def micros(results: Mapping[str, list[RoundResult]]) -> dict[str, list[float]]:
    """Return the CPU microseconds per delivery of each round, by name."""
    return {name: [result.micros for result in rows] for name, rows in results.items()}


def latencies(results: list[RoundResult]) -> tuple[list[float], list[float]]:
    """Return (medians, P99s) of the rounds in milliseconds. Raise MeasurementFailed for a round without deliveries."""
    pairs = [(result.median_ms, result.p99_ms) for result in results]
    complete = [(median, p99) for median, p99 in pairs if median is not None and p99 is not None]
    if len(complete) < len(pairs):
        raise MeasurementFailed("a round has no latencies")
    return [median for median, _ in complete], [p99 for _, p99 in complete]
