"""Which broker coordinates which group, as far as this one was told: a hint for the contact, never an authority.

Coordinators say so themselves, at activation and with every heartbeat; the higher epoch wins.
"""

from __future__ import annotations

from collections import Counter


class Gossip:
    def __init__(self, groups: int) -> None:
        self._hints: list[tuple[int, str]] = [(0, "")] * groups  # (epoch, broker)
        self._told = [float("-inf")] * groups  # when that was last said
        self._counts: dict[str, int] | None = {}  # None when it is to be made anew

    def learn(self, group: int, epoch: int, broker: str, now: float) -> None:
        if 0 <= group < len(self._hints) and epoch >= self._hints[group][0]:
            if self._hints[group][1] != broker:
                self._counts = None
            self._hints[group] = (epoch, broker)
            self._told[group] = now

    def coordinator(self, group: int) -> str:
        """The last coordinator known, "" if none was ever named."""
        return self._hints[group][1]

    def epoch(self, group: int) -> int:
        return self._hints[group][0]

    def told(self, group: int) -> float:
        """When its coordinator last said that it is that."""
        return self._told[group]

    def counts(self) -> dict[str, int]:
        """Groups per coordinator, as far as known."""
        if self._counts is None:
            self._counts = dict(Counter(name for _, name in self._hints if name))
        return dict(self._counts)
