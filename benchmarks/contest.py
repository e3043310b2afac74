"""Several stands on the same work, in rounds that take turns: what every comparison of CPU per delivery is made of.

A peer that fails drops out, is named, and the others go on; anything else that fails ends the measurement.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

from benchmarks.bench import Bench
from benchmarks.processes import Broken
from benchmarks.rounds import interleaved
from benchmarks.stand import Stand, Turn


class Contest:
    """`stands` by the name that figures have; those of `peers` may drop out, and are then no longer among them. `per`
    says what a turn's deliveries are called. Everything is stopped with the measurement."""

    def __init__(
        self, bench: Bench, stands: Mapping[str, Stand], peers: Collection[str] = (), *, seconds: float | None = None,
        per: str = "delivery",
    ) -> None:  # fmt: skip
        self._bench = bench
        self._optional = frozenset(peers)
        self._seconds = seconds or bench.sizes.seconds
        self._per = per
        self.stands = dict(stands)

    @property
    def peers(self) -> list[str]:
        """Those that are still there."""
        return [name for name in self.stands if name in self._optional]

    async def start(self, warm: float) -> None:
        """Each gets its subscribers, and publishes for `warm` seconds that are not counted."""
        for name, stand in list(self.stands.items()):
            self._bench.say(f"connecting {stand.work.subscribers:,} subscribers to: {name}")
            self._bench.kept(stand)
            try:
                await stand.start()
                await stand.turn(stand.work.rate, warm)
            except Broken as reason:
                await self._dropped(name, reason)

    async def rounds(self) -> dict[str, list[Turn]]:
        """By name, one turn for each round."""
        number = self._bench.sizes.rounds
        return await interleaved(
            number, {name: self._turn(stand) for name, stand in self.stands.items()},
            lambda done, turns: self._bench.say(
                f"round {done} of {number}, us per {self._per}: "
                + ", ".join(f"{name} {turn.micros:.2f}" for name, turn in turns.items() if turn.deliveries)
            ),
            self._dropped,
        )  # fmt: skip

    def _turn(self, stand: Stand) -> Callable[[], Awaitable[Turn]]:
        async def turn() -> Turn:
            return (await stand.turn(stand.work.rate, self._seconds))[0]

        return turn

    async def _dropped(self, name: str, reason: Broken) -> None:
        if name not in self._optional:
            raise reason
        self._bench.drop(name, reason)
        await self.stands.pop(name).stop()


def micros(turns: Mapping[str, list[Turn]]) -> dict[str, list[float]]:
    """CPU per delivery of each round, by name."""
    return {name: [turn.micros for turn in rows] for name, rows in turns.items()}


def latencies(turns: list[Turn]) -> tuple[list[float], list[float]]:
    """(medians, P99s) of each round in milliseconds. Raises Broken for a round in which nobody heard anything."""
    found = [(turn.median_ms, turn.p99_ms) for turn in turns]
    whole = [(median, p99) for median, p99 in found if median is not None and p99 is not None]
    if len(whole) < len(found):
        raise Broken("a round has no latencies")
    return [median for median, _ in whole], [p99 for _, p99 in whole]
