"""Service level objectives, as OpenSLO thinks of them: a target over occurrences or over slices of time, in a window.

Shared by the cluster resource and the SLA pipeline. Decimals stay exact (`Decimal`, text in files), times are seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, model_validator

from migratory_resources.fields import Duration, Model, Name, Percentage, Text, Words, not_allowed

Kind = Literal["latency", "delivery", "resume", "publish", "availability"]
KINDS: tuple[Kind, ...] = ("latency", "delivery", "resume", "publish", "availability")
Clock = Literal["same", "estimated", "any"]
Period = Literal["day", "week", "month", "quarter", "year"]
ZONE = r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*"
ZONE_FORM = 'a time zone of the tz database, such as "UTC" or "Europe/Bucharest"'
PERIODS: tuple[Period, ...] = ("day", "week", "month", "quarter", "year")

Threshold = Annotated[float, Duration("1ms", "1h")]


class Slices(Model):
    """Counts slices of time instead of events. A slice is good when its `percentile` is at or below `threshold` (type
    latency), or when `share` percent of its events are good (type availability)."""

    length: Annotated[float, Duration("1s", "1d")] = Field(description="Of one slice; the window or less")
    percentile: Annotated[Decimal, Percentage(open_end=True)] | None = Field(
        default=None, description="Of a slice's deliveries, for type latency"
    )
    threshold: Threshold | None = Field(
        default=None, description="The longest latency of a good slice at that percentile, for type latency"
    )
    share: Annotated[Decimal, Percentage()] | None = Field(
        default=None, description="Percent of a slice's publications that must be good, for type availability"
    )


class Window(Model):
    """What an objective is judged over, up to the end of the report: the last `rolling` stretch, or the day, week (from
    Monday), month, quarter or year of `zone` so far. Without one it is the report's own window."""

    rolling: Annotated[float, Duration("1m", "366d")] | None = Field(
        default=None, description="The stretch of time up to the end of the report"
    )
    calendar: Annotated[Period, Words(PERIODS)] | None = Field(
        default=None, description="The day, week, month, quarter or year in which the report ends, so far"
    )
    zone: Annotated[str, Text(ZONE, 64, ZONE_FORM)] | None = Field(
        default=None, description="Whose days and hours count in a calendar window; UTC unless named"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.rolling is None) == (self.calendar is None):
            raise not_allowed("either rolling or calendar")
        if self.zone is not None and self.calendar is None:
            raise not_allowed("a zone only with calendar: a rolling window has the same length everywhere")
        try:
            ZoneInfo(self.zone or "UTC")
        except (ValueError, OSError, ZoneInfoNotFoundError) as error:
            raise not_allowed(f"{ZONE_FORM}; there is none that is called {self.zone!r}") from error
        return self


class Objective(Model):
    """One promise and its target, in percent of what its type counts.

    | type | counts | good when |
    | --- | --- | --- |
    | latency | deliveries (or slices) | within `threshold` (or `slices`) |
    | delivery | expected deliveries | delivered, once and in order |
    | resume | reconnects of clients | resumed within `threshold` |
    | publish | gaps in a publisher's acknowledgements | shorter than `threshold` |
    | availability | publications (or slices) | acknowledged |
    """

    name: Annotated[str, Name(63)] = Field(description="Unlike that of any other objective")
    type: Annotated[Kind, Words(KINDS)] = Field(description="What is counted")
    target: Annotated[Decimal, Percentage()] = Field(description="Percent of what is counted that must be good")
    threshold: Threshold | None = Field(default=None, description="The longest time that is good")
    slices: Slices | None = Field(
        default=None, description="Counts slices of time instead of deliveries or publications"
    )
    window: Window | None = Field(default=None, description="What it is judged over, unless it is the report's window")
    clock: Annotated[Clock, Words(("same", "estimated", "any"))] | None = Field(
        default=None,
        description="Which deliveries a latency objective counts: those whose sender and receiver share a clock (same, "
        "the default), those across clocks by an estimate, or any",
    )

    @model_validator(mode="after")
    def _fits_its_type(self) -> Self:
        if wrong := [*self._misfits()]:
            raise not_allowed("; ".join(wrong))
        return self

    def _misfits(self) -> Iterator[str]:
        if self.type == "latency":
            if (self.threshold is None) == (self.slices is None):
                yield "either threshold or slices, for an objective of type latency"
        elif self.slices is not None and self.type != "availability":
            yield f"slices only for types latency and availability, not for {self.type}"
        elif (self.threshold is None) == (self.type in ("resume", "publish")):
            needs = "a threshold" if self.threshold is None else "no threshold"
            yield f"{needs} for an objective of type {self.type}"
        if self.clock is not None and self.type != "latency":
            yield f"a clock only for type latency, not for {self.type}"
        if (slices := self.slices) is None:
            return
        if self.type == "latency":
            if slices.percentile is None or slices.threshold is None or slices.share is not None:
                yield "slices with a percentile and a threshold and no share, for type latency"
        elif self.type == "availability" and (
            slices.share is None or slices.percentile is not None or slices.threshold is not None
        ):
            yield "slices with a share, and neither percentile nor threshold, for type availability"
        if self.window is not None and self.window.rolling is not None and slices.length > self.window.rolling:
            yield "slices no longer than the window"

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The durations that histograms must have as exact bounds for this objective, in seconds."""
        return tuple(bound for bound in (self.threshold, self.slices and self.slices.threshold) if bound)

    @property
    def clocks(self) -> tuple[str, ...]:
        """Values of the label `clock` that count for it."""
        return ("same", "estimated") if self.clock == "any" else (self.clock or "same",)


def contradictions(objectives: Sequence[Objective]) -> Iterator[tuple[int, str, object, str]]:
    """Objectives that can't stand together: index, field, its value, and what is allowed there."""
    names: set[str] = set()
    promised: dict[tuple[object, ...], Objective] = {}
    for index, objective in enumerate(objectives):
        if objective.name in names:
            yield index, "name", objective.name, "a name that no other objective has"
        names.add(objective.name)
        # All but name and target: of the same events the same can't be promised twice with different shares.
        what = (objective.type, objective.threshold, objective.slices, objective.window, objective.clocks)
        other = promised.setdefault(what, objective)
        if other.target != objective.target:
            yield (
                index,
                "target",
                str(objective.target),
                f'"{other.target}" as objective {other.name!r} says of the same events, or other events',
            )


class ContradictoryObjectives(ValueError):
    """The text names objectives and fields, one line each."""


def check(objectives: Sequence[Objective]) -> None:
    """Raises ContradictoryObjectives."""
    found = [
        f"objective {objectives[index].name!r}: {field} {value!r} is not allowed; allowed: {allowed}"
        for index, field, value, allowed in contradictions(objectives)
    ]
    if found:
        raise ContradictoryObjectives("\n".join(found))


DEFAULT_OBJECTIVES: tuple[Objective, ...] = (
    Objective(name="fast", type="latency", threshold="250ms", target="99.9"),  # type: ignore[arg-type]
    Objective(name="complete", type="delivery", target="100"),  # type: ignore[arg-type]
    Objective(name="back", type="resume", threshold="5s", target="99"),  # type: ignore[arg-type]
)
"""What a cluster without objectives of its own is judged by."""
